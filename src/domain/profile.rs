//! Distributions of row lengths and level widths, which the features of a matrix summarise.

use serde::{Deserialize, Serialize};

/// Row lengths and level widths of a matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatrixProfile {
    /// In ascending order, without empty bins. Every row is in exactly one bin.
    pub row_nnz: Vec<LengthBin>,
    /// Levels of the strict lower triangle; absent if the matrix is not square.
    pub lower: Option<LevelProfile>,
    /// The same for the upper triangle.
    pub upper: Option<LevelProfile>,
}

/// Rows with `least..=most` entries. One length per bin up to 16, then eight bins per doubling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LengthBin {
    pub least: u64,
    pub most: u64,
    pub rows: u64,
}

/// Numbers of rows in the levels of a triangular solve; the rows of a level can be computed in parallel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LevelProfile {
    /// Number of levels of the dependency graph.
    pub levels: u64,
    /// Rows of the widest level.
    pub widest: u64,
    /// In order of the levels, at most [`LevelProfile::MAX_BINS`] runs of equally many levels (the last may have
    /// fewer).
    pub bins: Vec<LevelBin>,
}

impl LevelProfile {
    /// Up to this many levels each has its own bin; more are combined in runs.
    pub const MAX_BINS: usize = 256;
}

/// Levels `first..=last`, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LevelBin {
    pub first: u64,
    pub last: u64,
    /// Mean number of rows per level over the run.
    pub mean: f64,
    /// Rows of the run's widest level.
    pub max: u64,
}
