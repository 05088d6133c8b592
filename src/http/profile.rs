//! The distributions behind a matrix's features: rows by length, levels by width.

use super::behalf::OnBehalf;
use super::error::Problem;
use super::etag;
use super::extract::Path;
use crate::domain::Digest;
use crate::wire::Profile;
use axum::http::HeaderMap;
use axum::response::Response;

/// The digest identifies the content, so the answer changes only with the code that computes it.
pub async fn show(
    OnBehalf(app): OnBehalf,
    Path(digest): Path<Digest>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let profile = app.service.matrix_profile(&digest).await?;
    let body = serde_json::to_vec(&Profile::from(&*profile)).map_err(Problem::internal)?;
    Ok(etag::tagged(&headers, "application/json", "private, max-age=86400", body.into()))
}
