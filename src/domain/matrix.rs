//! A stored matrix: identity, shape and the features that models and constraints read.

use super::{Digest, Timestamp};
use serde::{Deserialize, Serialize};

/// Longest name of a matrix, in characters.
pub const LONGEST_NAME: usize = 200;

/// What files of matrices may end in, in the order in which the endings are taken off for a name.
pub const FILE_ENDINGS: [&str; 8] = [".gz", ".zst", ".mtx", ".npz", ".smtx", ".rb", ".rsa", ".rua"];

/// Properties of a stored matrix. Its entries are stored as a blob identified by `digest`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    /// BLAKE3 of the pattern digest and the values.
    pub digest: Digest,
    /// BLAKE3 of shape and structure alone.
    pub pattern_digest: Digest,
    pub name: Option<String>,
    pub rows: u64,
    pub cols: u64,
    pub nnz: u64,
    /// Numerically symmetric: square, and A equals its transpose.
    pub symmetric: bool,
    /// Square, and every diagonal entry is stored and nonzero.
    pub has_full_diagonal: bool,
    pub features: Features,
    pub created_at: Timestamp,
}

impl Matrix {
    /// What the matrix counts for in a quota of bytes: 12 for each entry and for each row that has any.
    pub fn charged_bytes(&self) -> u64 {
        let filled = self.rows.saturating_sub(self.features.empty_rows);
        self.nnz.saturating_add(filled).saturating_mul(12)
    }
}

/// Features of LO-SpMM (its table of sparse attributes) and of AG-SpTRSV (the ten features), computed once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// Version of this set; a model trained on another version refuses it.
    pub version: u32,
    /// nnz / (rows * cols); 0 for an empty shape.
    pub density: f64,
    pub row_nnz: Spread,
    pub col_nnz: Spread,
    pub empty_rows: u64,
    pub empty_cols: u64,
    /// Largest |column - row| over the entries.
    pub bandwidth: u64,
    /// Mean over the entries of |column - row| / max(cols, 1).
    pub mean_offset: f64,
    /// Mean number of columns that a row has in common with the previous row, divided by the mean row length.
    pub neighbour_overlap: f64,
    /// Features of forward substitution with the lower triangle; absent for matrices that are not square.
    pub lower: Option<TriangleFeatures>,
}

/// Maximum, mean and coefficient of variation (standard deviation / mean) of a set of counts; zeros if it is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Spread {
    pub max: u64,
    pub mean: f64,
    pub cov: f64,
}

/// Features of tril(A) as in AG-SpTRSV; a missing diagonal entry counts as present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TriangleFeatures {
    /// Entries of tril(A), with one diagonal entry per row.
    pub nnz: u64,
    /// Entries per row of tril(A).
    pub rnnz: Spread,
    /// Rows per level, where the paper counts the level's entries.
    pub lnnz: Spread,
    pub levels: u64,
    /// Mean over rows of 1 / (i - last off-diagonal column), which is 0 for rows without one.
    pub dep_dist: f64,
}
