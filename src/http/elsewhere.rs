//! Downloads that a client fetches from the store of the blobs itself (`data.presign`).

use super::error::Problem;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;

/// With the value `never`: the client wants the bytes from here.
const WISH: &str = "sparsetune-redirect";

/// Whether the client may be sent elsewhere.
pub fn is_welcome(headers: &HeaderMap) -> bool {
    headers.get(WISH).is_none_or(|wish| wish != "never")
}

/// Sends it there. The address is a permission of some minutes, so nobody keeps it.
pub fn redirect(link: &str) -> Result<Response, Problem> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::try_from(link).map_err(Problem::internal)?);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
