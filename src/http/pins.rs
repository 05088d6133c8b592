//! Pins: what retention leaves alone.

use super::audit::Unchanged;
use super::behalf::{OnBehalf, Served};
use super::error::Problem;
use super::extract::Path;
use crate::domain::{Digest, PlanId};
use crate::service::Pin;
use crate::wire::Pins;
use axum::Json;
use axum::http::StatusCode;
use axum::response::Response;

pub async fn list(OnBehalf(app): OnBehalf) -> Result<Json<Pins>, Problem> {
    let pins = app.service.pins().await?;
    Ok(Json(Pins { matrices: pins.matrices, plans: pins.plans }))
}

pub async fn pin_matrix(
    OnBehalf(app): OnBehalf,
    Path(digest): Path<Digest>,
) -> Result<Response, Problem> {
    set(&app, Pin::Matrix(digest), true).await
}

pub async fn unpin_matrix(
    OnBehalf(app): OnBehalf,
    Path(digest): Path<Digest>,
) -> Result<Response, Problem> {
    set(&app, Pin::Matrix(digest), false).await
}

pub async fn pin_plan(
    OnBehalf(app): OnBehalf,
    Path(id): Path<PlanId>,
) -> Result<Response, Problem> {
    set(&app, Pin::Plan(id), true).await
}

pub async fn unpin_plan(
    OnBehalf(app): OnBehalf,
    Path(id): Path<PlanId>,
) -> Result<Response, Problem> {
    set(&app, Pin::Plan(id), false).await
}

async fn set(app: &Served, what: Pin, pinned: bool) -> Result<Response, Problem> {
    let changed = app.service.pin(&what, pinned).await?;
    Ok(Unchanged::unless(changed, StatusCode::NO_CONTENT))
}
