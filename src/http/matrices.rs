//! Matrices: streamed upload, facts, lists, pictures, deletion.

use super::audit::Unchanged;
use super::behalf::OnBehalf;
use super::error::{Kind, Problem};
use super::extract::{Path, Query};
use super::page::page_request;
use super::upload::Upload;
use crate::domain::{Digest, LONGEST_NAME};
use crate::service::{Direction, MatrixColumn, MatrixOrder};
use crate::wire::{Matrix, Page};
use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UploadQuery {
    name: Option<String>,
}

fn checked_name(name: Option<String>) -> Result<Option<String>, Problem> {
    match &name {
        Some(text)
            if text.is_empty()
                || text.chars().count() > LONGEST_NAME
                || text.chars().any(char::is_control) =>
        {
            let detail = format!(
                "a name is 1 to {LONGEST_NAME} characters, none of them a control character"
            );
            Err(Problem::new(Kind::InvalidParameter, detail).with("parameter", Some("name")))
        }
        _ => Ok(name),
    }
}

pub async fn upload(
    OnBehalf(app): OnBehalf,
    Query(query): Query<UploadQuery>,
    request: Request,
) -> Result<Response, Problem> {
    let name = checked_name(query.name)?;
    let upload = Upload::begin(&app, request)?;
    let coding = upload.coding;
    let uploaded = upload.run(|body| app.service.upload_coded(body, coding, name)).await?;
    let status = if uploaded.created { StatusCode::CREATED } else { StatusCode::OK };
    let location = format!("/v1/matrices/{}", uploaded.matrix.digest);
    let answer = (status, [(header::LOCATION, location)], Json(Matrix::from(uploaded.matrix)));
    Ok(Unchanged::unless(uploaded.created, answer))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    limit: Option<u32>,
    cursor: Option<String>,
    q: Option<String>,
    sort: Option<MatrixColumn>,
    order: Option<Direction>,
}

pub async fn list(
    OnBehalf(app): OnBehalf,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<Matrix>>, Problem> {
    let page = page_request(query.limit, query.cursor)?;
    let text = query.q.as_deref();
    if text.is_some_and(|text| text.is_empty() || text.chars().count() > LONGEST_NAME) {
        let detail = format!("q is 1 to {LONGEST_NAME} characters");
        return Err(Problem::new(Kind::InvalidParameter, detail).with("parameter", Some("q")));
    }
    let order = MatrixOrder::asked(query.sort, query.order);
    Ok(Json(Page::from(app.service.sorted_matrices(text, order, &page).await?)))
}

pub async fn show(
    OnBehalf(app): OnBehalf,
    Path(digest): Path<Digest>,
) -> Result<Json<Matrix>, Problem> {
    Ok(Json(app.service.matrix(&digest).await?.into()))
}

pub async fn remove(
    OnBehalf(app): OnBehalf,
    Path(digest): Path<Digest>,
) -> Result<StatusCode, Problem> {
    app.service.delete_matrix(&digest).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpyQuery {
    size: Option<u32>,
}

/// Default size of a picture in pixels per side, and the permitted range.
const SPY_SIZE: u32 = 512;
const SPY_SIZES: std::ops::RangeInclusive<u32> = 16..=2048;

pub async fn spy(
    OnBehalf(app): OnBehalf,
    Path(digest): Path<Digest>,
    Query(query): Query<SpyQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let size = query.size.unwrap_or(SPY_SIZE);
    if !SPY_SIZES.contains(&size) {
        let detail = format!("size must be {} to {}", SPY_SIZES.start(), SPY_SIZES.end());
        return Err(Problem::new(Kind::InvalidParameter, detail).with("parameter", Some("size")));
    }
    let png = app.service.spy_png(&digest, size).await?;
    // The digest identifies the content, so a picture of one size changes only with the drawing code.
    Ok(super::etag::tagged(&headers, "image/png", "private, max-age=86400", png))
}
