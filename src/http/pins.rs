//! Pins: what retention leaves alone.

use super::App;
use super::error::Problem;
use super::extract::Path;
use crate::domain::{Digest, PlanId};
use crate::service::Pin;
use crate::wire::Pins;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

pub async fn list(State(app): State<App>) -> Result<Json<Pins>, Problem> {
    let pins = app.service.pins().await?;
    Ok(Json(Pins { matrices: pins.matrices, plans: pins.plans }))
}

pub async fn pin_matrix(
    app: State<App>,
    Path(digest): Path<Digest>,
) -> Result<StatusCode, Problem> {
    set(&app, Pin::Matrix(digest), true).await
}

pub async fn unpin_matrix(
    app: State<App>,
    Path(digest): Path<Digest>,
) -> Result<StatusCode, Problem> {
    set(&app, Pin::Matrix(digest), false).await
}

pub async fn pin_plan(app: State<App>, Path(id): Path<PlanId>) -> Result<StatusCode, Problem> {
    set(&app, Pin::Plan(id), true).await
}

pub async fn unpin_plan(app: State<App>, Path(id): Path<PlanId>) -> Result<StatusCode, Problem> {
    set(&app, Pin::Plan(id), false).await
}

async fn set(app: &App, what: Pin, pinned: bool) -> Result<StatusCode, Problem> {
    app.service.pin(&what, pinned).await?;
    Ok(StatusCode::NO_CONTENT)
}
