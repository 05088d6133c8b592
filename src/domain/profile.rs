//! The shape of a matrix as distributions: what its features summarise, for those who want to look.

use serde::{Deserialize, Serialize};

/// Rows by length, and levels by width.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatrixProfile {
    /// In ascending order; bins without rows are left out. Every row is in exactly one.
    pub row_nnz: Vec<LengthBin>,
    /// Of the square matrix's strict lower triangle; absent where it is not square.
    pub lower: Option<LevelProfile>,
    /// Likewise of the upper.
    pub upper: Option<LevelProfile>,
}

/// Rows that have `least..=most` entries. One length a bin up to 16, then eight bins to each doubling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LengthBin {
    pub least: u64,
    pub most: u64,
    pub rows: u64,
}

/// How many rows each level of a triangular solve has: what can be computed at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LevelProfile {
    /// Levels of the dependency graph.
    pub levels: u64,
    /// Rows of the widest.
    pub widest: u64,
    /// In order of the levels, at most [`LevelProfile::MAX_BINS`] runs of equally many levels (the last may have fewer).
    pub bins: Vec<LevelBin>,
}

impl LevelProfile {
    /// Levels are drawn one a bin up to so many, else in runs.
    pub const MAX_BINS: usize = 256;
}

/// Levels `first..=last`, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LevelBin {
    pub first: u64,
    pub last: u64,
    /// Rows a level, on average over the run.
    pub mean: f64,
    /// Rows of the run's widest level.
    pub max: u64,
}
