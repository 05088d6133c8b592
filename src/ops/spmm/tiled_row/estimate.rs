//! Predicted time of kernels that read B from shared memory: the bytes of Tiled SpMM's model (Eq. 3-6) for a whole call, with
//! shared memory's own rate, and what its barriers cost.
//!
//! Where the general model has no figure (`model.rs` was fitted to kernels that gather from L2), the rates here are those of
//! the hardware's data sheet and not fitted.

use crate::domain::{Device, Dtype};
use crate::ops::spmm::inspect::Inspection;

/// An empty launch with its event pair, and rates relative to the device's copy rate, as in `model.rs`.
pub const LAUNCH_US: f64 = 3.6;
const MEMORY_RATIO: f64 = 1.08;
const L2_RATIO: f64 = 2.08;
/// Share of L2 that stays while other operands stream through it.
const L2_SHARE: f64 = 0.48;
/// Cycles per microsecond, and bytes that shared memory moves per cycle and multiprocessor.
const CLOCK: f64 = 1700.0;
const SHARED_BYTES: f64 = 128.0;
/// Warp instructions per cycle and multiprocessor that loops without a branch per entry reach.
const ISSUE: f64 = 4.0 * 0.7;
/// A subwarp's group of four entries in isolation: cycles from one group's sums to those of the next.
const GROUP_CYCLES: f64 = 70.0;

/// What a call moves and does, for all column tiles together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Bytes that device memory moves, and L2.
    pub memory: f64,
    pub l2: f64,
    /// Entries walked, padding included, times column tiles.
    pub entries: f64,
    /// Bytes written to shared memory.
    pub stationed: f64,
    /// Cost factor of idle multiprocessors and subwarps, >= 1.
    pub imbalance: f64,
    /// Microseconds in which none of the above proceeds.
    pub still_us: f64,
    /// Entries that the busiest subwarp walks.
    pub longest_walk: f64,
}

/// How a subwarp reads a row of B: `lanes` threads, `row_bytes` together.
#[derive(Clone, Copy, Debug)]
pub struct Reads {
    pub lanes: u32,
    pub row_bytes: u32,
    pub dtype: Dtype,
}

impl Reads {
    /// Factor by which bank conflicts slow reads of narrow rows: the mean largest number of balls in a bin, with as many
    /// balls as bins, which are the rows that a quarter of a warp reads.
    fn conflicts(&self) -> f64 {
        match 128 / self.row_bytes.clamp(1, 128) {
            0 | 1 => 1.0,
            2 => 1.5,
            3..=4 => 2.1,
            _ => 2.6,
        }
    }

    /// Cycles of a multiprocessor per entry: bytes through shared memory's port, which each lane's loads of A's entries also
    /// use, or issue slots.
    fn cycles(&self) -> f64 {
        let (lanes, element) = (f64::from(self.lanes), self.dtype.bytes() as f64);
        let bytes = f64::from(self.row_bytes) * self.conflicts() + lanes * (2.0 + element);
        let elements = f64::from(self.row_bytes) / element;
        // Halves are widened one by one; doubles multiply at half the rate.
        let each = if self.dtype == Dtype::F32 { 1.0 } else { 2.0 };
        let vectors = f64::from(self.row_bytes) / 16.0;
        let slots = (elements * each + vectors + 4.0 * lanes) / 32.0;
        (bytes / SHARED_BYTES).max(slots / ISSUE)
    }
}

/// Predicted microseconds of one call.
pub fn microseconds(traffic: &Traffic, reads: &Reads, device: &Device) -> f64 {
    let copy = device.copy_gbps.max(1.0) * 1e3;
    let multiprocessors = f64::from(device.multiprocessors.max(1));
    let cycles = traffic.entries * reads.cycles() + traffic.stationed / SHARED_BYTES;
    let parts = [
        traffic.memory / (copy * MEMORY_RATIO),
        traffic.l2 / (copy * L2_RATIO),
        cycles / (CLOCK * multiprocessors) * traffic.imbalance.max(1.0),
    ];
    let together = parts.iter().map(|us| us.powi(3)).sum::<f64>().cbrt();
    let chain = traffic.longest_walk / 4.0 * GROUP_CYCLES / CLOCK;
    LAUNCH_US + traffic.still_us + together.max(chain)
}

/// Bytes of an operand that device memory moves for `times` readings of all of it.
pub fn from_memory(bytes: f64, times: f64, device: &Device) -> f64 {
    let kept = (L2_SHARE * device.l2_bytes as f64 / bytes.max(1.0)).min(1.0);
    bytes * (kept + times.max(1.0) * (1.0 - kept))
}

/// Entries with padding to groups, where a row's entries lie in `runs` pieces.
pub fn padded(seen: &Inspection, runs: f64) -> f64 {
    let nnz = seen.nnz as f64;
    let mean = seen.mean_row / runs.max(1.0);
    // A run of entries is on average 1.5 short of a group; runs without entries take nothing.
    let touched = seen.rows as f64 * runs.max(1.0) * (1.0 - (-mean).exp());
    (nnz + 1.5 * touched).min(4.0 * nnz)
}
