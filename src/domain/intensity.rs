//! The terms of Tiled SpMM's performance model for one candidate on one matrix, as plans keep them.

use serde::{Deserialize, Serialize};

/// Terms of the model (Table 1, Eq. 2 to 6) for a candidate of the column-major family `tiled`. Intensities are in
/// floating-point operations per byte of device memory, two operations for each multiply-add.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Intensity {
    /// Whether the candidate is the plan's.
    pub winner: bool,
    /// Order of the rows, or of the segments that they are cut into.
    pub order: String,
    /// Entries after which a row is cut; absent where rows stay whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<u32>,
    /// R: columns of C per thread.
    pub r: u32,
    /// Rows or segments per block.
    pub rows: u32,
    /// Rows of B that a stage gathers at most.
    pub buffer: u32,
    /// The model's time of a call, microseconds.
    pub predicted_us: f64,
    /// Mean entries of a row, and of what rows are cut into.
    pub mu: f64,
    pub mu_segment: f64,
    /// Entries that a gathered element of B serves.
    pub rho: f64,
    /// Stored entries, with padding, over real ones.
    pub z: f64,
    /// Bytes of the lines that gathers touch over the bytes they need.
    pub c: f64,
    /// How often blocks gather a row of B, on average.
    pub l: f64,
    /// C / L: cost of a gather if a line once read stays in L2.
    pub gamma: f64,
    /// U: blocks over multiprocessors, before rows are cut.
    pub utilization: f64,
    /// Of one thread per output, without tiles (Eq. 2).
    pub naive: f64,
    /// Of the tiles, if every gather cost what it needs (Eq. 3 or 6 with 1 for Gamma).
    pub algorithmic: f64,
    /// With every gather a miss (Gamma = C), and with first reads alone missing (Gamma = C / L).
    pub effective: f64,
    pub optimistic: f64,
}
