//! A matrix: its facts, its features, and the distributions behind them.

use crate::domain;
use crate::domain::matrix::{Spread, TriangleFeatures};
use crate::domain::profile::{LengthBin, LevelProfile};
use crate::domain::{Digest, MatrixProfile};
use serde::{Deserialize, Serialize};

/// Facts of a stored matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Matrix {
    pub digest: Digest,
    pub pattern_digest: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub rows: u64,
    pub cols: u64,
    pub nnz: u64,
    pub symmetric: bool,
    pub has_full_diagonal: bool,
    pub features: Features,
    pub created_at: String,
}

/// Features as defined by LO-SpMM and AG-SpTRSV.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Features {
    pub version: u32,
    pub density: f64,
    pub row_nnz: Spread,
    pub col_nnz: Spread,
    pub empty_rows: u64,
    pub empty_cols: u64,
    pub bandwidth: u64,
    pub mean_offset: f64,
    pub neighbour_overlap: f64,
    /// Features of the lower triangle; absent for matrices that are not square.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower: Option<TriangleFeatures>,
}

impl From<domain::Matrix> for Matrix {
    fn from(matrix: domain::Matrix) -> Self {
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

impl From<domain::Features> for Features {
    fn from(features: domain::Features) -> Self {
        Self {
            version: features.version,
            density: features.density,
            row_nnz: features.row_nnz,
            col_nnz: features.col_nnz,
            empty_rows: features.empty_rows,
            empty_cols: features.empty_cols,
            bandwidth: features.bandwidth,
            mean_offset: features.mean_offset,
            neighbour_overlap: features.neighbour_overlap,
            lower: features.lower,
        }
    }
}

/// The distributions behind the features: rows by length, levels by width.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Profile {
    pub row_nnz: Vec<LengthBin>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lower: Option<LevelProfile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upper: Option<LevelProfile>,
}

impl From<&MatrixProfile> for Profile {
    fn from(MatrixProfile { row_nnz, lower, upper }: &MatrixProfile) -> Self {
        Self { row_nnz: row_nnz.clone(), lower: lower.clone(), upper: upper.clone() }
    }
}
