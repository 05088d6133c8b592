//! What operators and newcomers ask for: health, readiness, metrics, the API's description, an index.

use super::App;
use super::error::Problem;
use super::{etag, routes};
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// The contract, as it stands at the top of the repository.
pub const OPENAPI: &str = include_str!("../../openapi.yaml");

#[derive(Debug, Serialize)]
pub struct StatusOut {
    status: &'static str,
}

/// Alive: the process answers. Says nothing of the store.
pub async fn healthz() -> Json<StatusOut> {
    Json(StatusOut { status: "ok" })
}

/// Ready: the store answers, blobs can be written, and every configured device has opened or failed, one of them well.
pub async fn readyz(State(app): State<App>) -> Result<Json<StatusOut>, Problem> {
    app.service.ready().await?;
    Ok(Json(StatusOut { status: "ready" }))
}

pub async fn metrics(State(app): State<App>) -> Result<Response, Problem> {
    app.metrics.set_jobs(&app.service.job_counts().await?);
    let form = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    Ok((form, app.metrics.render()).into_response())
}

pub async fn openapi(headers: HeaderMap) -> Response {
    let body = Bytes::from_static(OPENAPI.as_bytes());
    etag::weak(&headers, "application/yaml", "private, no-cache", body)
}

#[derive(Debug, Serialize)]
pub struct IndexOut {
    name: &'static str,
    version: &'static str,
    description: &'static str,
    openapi: &'static str,
    paths: Vec<&'static str>,
}

pub async fn index() -> Json<IndexOut> {
    Json(IndexOut {
        name: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        description: env!("CARGO_PKG_DESCRIPTION"),
        openapi: "/openapi.yaml",
        paths: routes::PATHS.to_vec(),
    })
}
