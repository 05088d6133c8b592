//! The distributions behind a matrix's features: rows by length, levels by width.

use super::App;
use super::error::Problem;
use super::etag;
use super::extract::Path;
use super::plans::shown;
use crate::domain::profile::{LengthBin, LevelBin, LevelProfile};
use crate::domain::{Digest, MatrixProfile};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;

#[derive(Debug, Serialize)]
struct ProfileOut {
    row_nnz: Vec<LengthBinOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lower: Option<LevelsOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upper: Option<LevelsOut>,
}

shown!(LengthBinOut from LengthBin { least: u64, most: u64, rows: u64 });
shown!(LevelBinOut from LevelBin { first: u64, last: u64, mean: f64, max: u64 });

#[derive(Debug, Serialize)]
struct LevelsOut {
    levels: u64,
    widest: u64,
    bins: Vec<LevelBinOut>,
}

impl From<&LevelProfile> for LevelsOut {
    fn from(profile: &LevelProfile) -> Self {
        Self {
            levels: profile.levels,
            widest: profile.widest,
            bins: profile.bins.iter().copied().map(LevelBinOut::from).collect(),
        }
    }
}

impl From<&MatrixProfile> for ProfileOut {
    fn from(profile: &MatrixProfile) -> Self {
        Self {
            row_nnz: profile.row_nnz.iter().copied().map(LengthBinOut::from).collect(),
            lower: profile.lower.as_ref().map(LevelsOut::from),
            upper: profile.upper.as_ref().map(LevelsOut::from),
        }
    }
}

/// The digest names the content, so the answer can change only with the code that makes it.
pub async fn show(
    State(app): State<App>,
    Path(digest): Path<Digest>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let profile = app.service.matrix_profile(&digest).await?;
    let body = serde_json::to_vec(&ProfileOut::from(&*profile)).map_err(Problem::internal)?;
    Ok(etag::tagged(&headers, "application/json", "private, max-age=86400", body.into()))
}
