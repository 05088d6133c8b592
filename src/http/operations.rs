//! Endpoints for operators and new users: health, readiness, metrics, the API's description, an index.

use super::App;
use super::error::Problem;
use super::extract::Query;
use super::{etag, routes};
use crate::wire::{Health, Index, Status};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

/// The OpenAPI document at the top of the repository.
pub const OPENAPI: &str = include_str!("../../openapi.yaml");

/// Alive: the process answers. Does not check the store.
pub async fn healthz() -> Json<Status> {
    Json(Status { status: Health::Ok })
}

/// What is to be ready.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ready {
    /// The service as a whole, which needs a device.
    #[default]
    All,
    /// This server, for requests: lookups are answered although no worker is there, and jobs wait for one.
    Requests,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadyQuery {
    #[serde(default, rename = "for")]
    what: Ready,
}

/// Ready: the disks have room, database and blobs can be written, and every configured device has opened or failed, with at least
/// one open, if devices are asked for.
pub async fn readyz(
    State(app): State<App>,
    Query(query): Query<ReadyQuery>,
) -> Result<Json<Status>, Problem> {
    app.whole.ready(query.what).await?;
    Ok(Json(Status { status: Health::Ready }))
}

/// [`readyz`] of a process that only works: one of its own devices is open.
pub async fn readyz_of_worker(State(app): State<App>) -> Result<Json<Status>, Problem> {
    app.whole.ready_to_work().await?;
    Ok(Json(Status { status: Health::Ready }))
}

pub async fn metrics(State(app): State<App>) -> Result<Response, Problem> {
    let ready = app.whole.ready(Ready::All).await.is_ok();
    told(&app, ready).await
}

pub async fn metrics_of_worker(State(app): State<App>) -> Result<Response, Problem> {
    let ready = app.whole.ready_to_work().await.is_ok();
    told(&app, ready).await
}

async fn told(app: &App, ready: bool) -> Result<Response, Problem> {
    app.metrics.set_jobs(&app.whole.job_counts().await?);
    app.metrics.set_ready(ready);
    let (free, least) = app.whole.disk_free().await?;
    app.metrics.set_disk(&free, least);
    let form = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((form, app.metrics.render()).into_response())
}

pub async fn openapi(headers: HeaderMap) -> Response {
    let body = Bytes::from_static(OPENAPI.as_bytes());
    etag::weak(&headers, "application/yaml", "private, no-cache", body)
}

pub async fn index() -> Json<Index> {
    Json(Index {
        name: env!("CARGO_PKG_NAME").to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        description: env!("CARGO_PKG_DESCRIPTION").to_owned(),
        openapi: "/openapi.yaml".to_owned(),
        paths: routes::PATHS.iter().map(|&path| path.to_owned()).collect(),
    })
}
