//! The catalogue: the operations with their fields, as clients need them to build a request or a form, the kernels, and the
//! pruning rules.

use super::error::Problem;
use super::etag;
use crate::service::catalog;
use crate::wire::{Operations, Rules};
use axum::http::HeaderMap;
use axum::response::Response;

/// `GET /v1/operations`.
pub async fn list(headers: HeaderMap) -> Result<Response, Problem> {
    let body = serde_json::to_vec(&Operations::of(catalog())).map_err(Problem::internal)?;
    Ok(etag::tagged(&headers, "application/json", "private, no-cache", body.into()))
}

/// `GET /v1/rules`.
pub async fn rules(headers: HeaderMap) -> Result<Response, Problem> {
    let body = serde_json::to_vec(&Rules::all()).map_err(Problem::internal)?;
    Ok(etag::tagged(&headers, "application/json", "private, no-cache", body.into()))
}
