//! Plans: by id and by matrix, and the blobs that they name.

use super::behalf::OnBehalf;
use super::elsewhere;
use super::error::Problem;
use super::etag;
use super::extract::{Path, PathPair, Query};
use super::page::PageQuery;
use crate::domain::{Digest, PlanId};
use crate::wire::{Page, Plan};
use axum::Json;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;

/// A plan never changes under its id (retuning creates another), so clients may keep it without revalidation.
pub async fn show(
    OnBehalf(app): OnBehalf,
    Path(id): Path<PlanId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let plan = Plan::from(app.service.plan(&id).await?);
    let body = serde_json::to_vec(&plan).map_err(Problem::internal)?;
    Ok(etag::tagged(&headers, "application/json", FOR_EVER, body.into()))
}

/// The newest plan of each problem, device class and cache policy for a matrix.
pub async fn of_matrix(
    OnBehalf(app): OnBehalf,
    Path(digest): Path<Digest>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Plan>>, Problem> {
    Ok(Json(Page::from(app.service.plans_of(&digest, &page.request()?).await?)))
}

const FOR_EVER: &str = "private, max-age=86400, immutable";

/// Source, cubin or an array of a plan, streamed from the disk: arrays may be as large as their matrix.
pub async fn blob(
    OnBehalf(app): OnBehalf,
    PathPair(id, digest): PathPair<PlanId, Digest>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    // The tag is known without reading the bytes: a blob is named by its digest.
    let tag = etag::named(&digest);
    let kind = HeaderValue::from_static("application/octet-stream");
    let cache = HeaderValue::from_static(FOR_EVER);
    if etag::matches(&headers, &tag) {
        // Nothing is opened for a client that already has it.
        app.service.check_plan_blob(&id, &digest).await?;
        return Ok(etag::respond(&headers, tag, kind, cache, Body::empty()));
    }
    if elsewhere::is_welcome(&headers)
        && let Some(link) = app.service.plan_blob_link(&id, &digest).await?
    {
        return elsewhere::redirect(&link);
    }
    let blob = app.service.plan_blob(&id, &digest).await?;
    let body = Body::from_stream(blob.content);
    let mut response = etag::respond(&headers, tag, kind, cache, body);
    response.headers_mut().insert(header::CONTENT_LENGTH, blob.bytes.into());
    Ok(response)
}
