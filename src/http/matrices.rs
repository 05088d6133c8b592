//! Matrices: upload as a stream, facts, lists, pictures, removal.

use super::App;
use super::error::{Kind, Problem};
use super::extract::{Path, Query};
use super::page::{PageOut, PageQuery};
use super::upload::Upload;
use crate::domain::matrix::{Spread, TriangleFeatures};
use crate::domain::{Digest, Features, Matrix};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

/// Facts of a matrix.
#[derive(Debug, Serialize)]
pub struct MatrixOut {
    digest: Digest,
    pattern_digest: Digest,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    rows: u64,
    cols: u64,
    nnz: u64,
    symmetric: bool,
    has_full_diagonal: bool,
    features: FeaturesOut,
    created_at: String,
}

#[derive(Debug, Serialize)]
struct FeaturesOut {
    version: u32,
    density: f64,
    row_nnz: SpreadOut,
    col_nnz: SpreadOut,
    empty_rows: u64,
    empty_cols: u64,
    bandwidth: u64,
    mean_offset: f64,
    neighbour_overlap: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lower: Option<TriangleOut>,
}

#[derive(Debug, Serialize)]
struct SpreadOut {
    max: u64,
    mean: f64,
    cov: f64,
}

#[derive(Debug, Serialize)]
struct TriangleOut {
    nnz: u64,
    rnnz: SpreadOut,
    lnnz: SpreadOut,
    levels: u64,
    dep_dist: f64,
}

impl From<Matrix> for MatrixOut {
    fn from(matrix: Matrix) -> Self {
        Self {
            digest: matrix.digest,
            pattern_digest: matrix.pattern_digest,
            name: matrix.name,
            rows: matrix.rows,
            cols: matrix.cols,
            nnz: matrix.nnz,
            symmetric: matrix.symmetric,
            has_full_diagonal: matrix.has_full_diagonal,
            features: matrix.features.into(),
            created_at: matrix.created_at.to_rfc3339(),
        }
    }
}

impl From<Features> for FeaturesOut {
    fn from(features: Features) -> Self {
        Self {
            version: features.version,
            density: features.density,
            row_nnz: features.row_nnz.into(),
            col_nnz: features.col_nnz.into(),
            empty_rows: features.empty_rows,
            empty_cols: features.empty_cols,
            bandwidth: features.bandwidth,
            mean_offset: features.mean_offset,
            neighbour_overlap: features.neighbour_overlap,
            lower: features.lower.map(TriangleOut::from),
        }
    }
}

impl From<Spread> for SpreadOut {
    fn from(spread: Spread) -> Self {
        Self { max: spread.max, mean: spread.mean, cov: spread.cov }
    }
}

impl From<TriangleFeatures> for TriangleOut {
    fn from(lower: TriangleFeatures) -> Self {
        Self {
            nnz: lower.nnz,
            rnnz: lower.rnnz.into(),
            lnnz: lower.lnnz.into(),
            levels: lower.levels,
            dep_dist: lower.dep_dist,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UploadQuery {
    name: Option<String>,
}

/// Longest name of a matrix, in characters.
const MAX_NAME: usize = 200;

fn checked_name(name: Option<String>) -> Result<Option<String>, Problem> {
    match &name {
        Some(text)
            if text.is_empty()
                || text.chars().count() > MAX_NAME
                || text.chars().any(char::is_control) =>
        {
            let detail =
                format!("a name is 1 to {MAX_NAME} characters, none of them a control character");
            Err(Problem::new(Kind::InvalidParameter, detail).with("parameter", Some("name")))
        }
        _ => Ok(name),
    }
}

pub async fn upload(
    State(app): State<App>,
    Query(query): Query<UploadQuery>,
    request: Request,
) -> Result<Response, Problem> {
    let name = checked_name(query.name)?;
    let upload = Upload::begin(&app.uploads, request)?;
    let uploaded = upload.run(|body| app.service.upload(body, name)).await?;
    let status = if uploaded.created { StatusCode::CREATED } else { StatusCode::OK };
    let location = format!("/v1/matrices/{}", uploaded.matrix.digest);
    Ok((status, [(header::LOCATION, location)], Json(MatrixOut::from(uploaded.matrix)))
        .into_response())
}

pub async fn list(
    State(app): State<App>,
    Query(page): Query<PageQuery>,
) -> Result<Json<PageOut<MatrixOut>>, Problem> {
    Ok(Json(PageOut::of(app.service.matrices(&page.request()?).await?)))
}

pub async fn show(
    State(app): State<App>,
    Path(digest): Path<Digest>,
) -> Result<Json<MatrixOut>, Problem> {
    Ok(Json(app.service.matrix(&digest).await?.into()))
}

pub async fn remove(
    State(app): State<App>,
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

/// Pixels a side when the client does not say, and the bounds.
const SPY_SIZE: u32 = 512;
const SPY_SIZES: std::ops::RangeInclusive<u32> = 16..=2048;

pub async fn spy(
    State(app): State<App>,
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
    // The digest names the content, so the picture of one size can change only with the code that draws it.
    Ok(super::etag::tagged(&headers, "image/png", "private, max-age=86400", png))
}
