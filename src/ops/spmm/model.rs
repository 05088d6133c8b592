//! Analytic time of a GPU candidate: effective intensity (Tiled SpMM, Eq. 3-6) generalised to row-major operands.
//!
//! The paper counts the bytes one thread moves for its multiply-adds: A with its indices (times Z, the zero padding), the
//! gather of B (over rho, the reuse inside a tile), C. We count them for the whole call and at each level of the memory:
//! what L1 serves, what L2 serves (reuse among rows near each other taken off), what device memory serves (reuse among
//! the rows in flight, or one read where B stays in L2). Beside the bytes stand what they leave out: loads in flight
//! against latency, issue slots, and the chain of the longest row.
//!
//! The constants were fitted to 16,000 measurements of every legal candidate on an H100 (12 matrices, N = 32 and 128) and
//! scale with the device's measured copy bandwidth; `benches/NOTES.md` has the figures.

use super::family::{RowOrder, Tile};
use super::inspect::{Inspection, Locality};
use crate::domain::{Device, Spmm};

pub const NAME: &str = "effective_intensity_v3";

/// Rates relative to the device's copy rate: device memory, gathers from L2, gathers from L1.
pub(super) const MEMORY_RATIO: f64 = 1.08;
pub(super) const L2_RATIO: f64 = 2.08;
pub(super) const L1_RATIO: f64 = 8.3;
/// Exponent that says how much of the reuse among 64 rows becomes hits in L1.
const L1_REUSE: f64 = 0.85;
/// Share of L2 that B keeps while A and C stream through it.
pub(super) const L2_SHARE: f64 = 0.48;
/// One step of a subwarp (an index, then the row of B that it names), microseconds, with all its loads in flight.
pub(super) const STEP_US: f64 = 0.33;
/// The same for an isolated chain, per entry of the longest row: a part shared by the entries in flight, a part of each
/// entry, and a part of each float of B that a thread loads.
pub(super) const CHAIN_STEP_US: f64 = 0.141;
pub(super) const CHAIN_ENTRY_US: f64 = 0.0171;
const CHAIN_FLOAT_US: f64 = 0.0056;
/// Share of the longest chain that extends the end of a call if rows are not taken longest first.
const EXPOSED: f64 = 0.1;
/// Exponent that says how much of the lockstep loss is felt: idle lanes cost issue slots, not bandwidth.
const LOCKSTEP: f64 = 0.46;
/// Share of the issue slots (4 per multiprocessor and cycle, about 1.7 GHz) that such code fills.
const ISSUE_PER_US: f64 = 4.0 * 1700.0 * 0.24;
/// Warp instructions per row, besides its outputs.
const FRAME: f64 = 33.0;
/// A second kernel in a call, microseconds.
pub(super) const STAGE_US: f64 = 1.6;
/// An empty launch, with its event pair.
pub(super) const LAUNCH_US: f64 = 3.6;
pub const SECTOR: f64 = 32.0;

/// What one candidate does on one matrix.
pub struct Work {
    /// Entries walked for one column tile (a panel's union counts once).
    pub entries: f64,
    /// Bytes of A for one column tile.
    pub a_bytes: f64,
    /// Bytes of B that an entry fetches for one column tile, in whole sectors.
    pub fetched: f64,
    /// Bytes of a row of B that one column tile needs.
    pub width: f64,
    /// Warp instructions per entry and column tile.
    pub instructions: f64,
    /// Walks of one column tile: rows, panels or segments.
    pub walks: f64,
    /// Entries that one thread walks in sequence, in a mean tile and in the longest.
    pub mean_walk: f64,
    pub longest_walk: f64,
    /// Cost factor of unequal rows in the lockstep of a warp, >= 1.
    pub lockstep: f64,
    pub locality: Locality,
    /// Entries that already share a load inside a tile.
    pub reuse: f64,
    /// Warp instructions per tile beyond the fixed ones: combining the sums of its threads.
    pub framed: f64,
    /// Bytes of B copied before the walk begins, read and written; 0 if B is walked as given.
    pub staged_bytes: f64,
    /// Bytes of partial sums for one column tile, written and read again.
    pub c_again: f64,
    /// Microseconds after the last entry, for work that waits for other threads.
    pub after_us: f64,
    /// Walks that one group of threads makes one after another.
    pub in_turn: f64,
}

impl Work {
    /// Common to all row-major kernels: every entry gathers a row of B as wide as the tile.
    pub fn row_major(tile: &Tile, seen: &Inspection, problem: &Spmm) -> Self {
        let (nnz, element) = (seen.nnz as f64, problem.dtype.bytes() as f64);
        let width = f64::from(tile.columns.min(problem.n)) * element;
        Self {
            entries: nnz,
            a_bytes: nnz * (4.0 + element) + seen.rows as f64 * 4.0,
            fetched: (width / SECTOR).ceil() * SECTOR,
            width,
            instructions: 0.0,
            walks: seen.rows as f64 / f64::from(tile.rows),
            mean_walk: seen.mean_row,
            longest_walk: seen.longest_row as f64,
            lockstep: 1.0,
            locality: seen.locality_in(tile.order),
            reuse: 1.0,
            framed: 0.0,
            staged_bytes: 0.0,
            c_again: 0.0,
            after_us: 0.0,
            in_turn: 1.0,
        }
    }
}

/// The parts of the prediction, microseconds each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    /// Bytes from device memory.
    pub memory: f64,
    /// Bytes from the caches.
    pub cache: f64,
    /// Latency over the loads in flight.
    pub in_flight: f64,
    /// Instructions over the issue slots.
    pub issue: f64,
    /// The longest walk alone.
    pub chain: f64,
}

impl Parts {
    pub fn of(
        tile: &Tile,
        work: &Work,
        seen: &Inspection,
        problem: &Spmm,
        device: &Device,
    ) -> Self {
        let column_tiles = f64::from(problem.n.div_ceil(tile.columns));
        let elements = f64::from(tile.elements_an_entry);
        let step =
            CHAIN_STEP_US / f64::from(tile.unroll) + CHAIN_ENTRY_US + CHAIN_FLOAT_US * elements;
        Self {
            memory: memory_us(work, column_tiles, seen, problem, device),
            cache: cache_us(work, column_tiles, device),
            in_flight: in_flight_us(tile, work, column_tiles, device),
            issue: issue_us(tile, work, column_tiles, device),
            chain: work.longest_walk * step,
        }
    }
}

/// Predicted microseconds of one call.
pub fn predict_us(
    tile: &Tile,
    work: &Work,
    seen: &Inspection,
    problem: &Spmm,
    device: &Device,
) -> f64 {
    let Parts { memory, cache, in_flight, issue, chain } =
        Parts::of(tile, work, seen, problem, device);
    // The parts overlap, but not fully: a norm between their sum and their largest.
    let parts = [memory, cache, in_flight, issue];
    let together = parts.iter().map(|us| us.powi(3)).sum::<f64>().cbrt();
    let exposed = if tile.order == RowOrder::Length { 0.0 } else { EXPOSED * chain };
    let staging = match work.staged_bytes {
        0.0 => 0.0,
        bytes => STAGE_US + bytes / copy_rate(device),
    };
    LAUNCH_US + staging + together.max(chain) + exposed + work.after_us
}

/// Bytes per microsecond at which the device copies.
fn copy_rate(device: &Device) -> f64 {
    device.copy_gbps.max(1.0) * 1e3
}

/// Device memory: A, C, and what of B does not stay in L2 between its uses.
fn memory_us(
    work: &Work,
    column_tiles: f64,
    seen: &Inspection,
    problem: &Spmm,
    device: &Device,
) -> f64 {
    let touched = seen.touched_cols as f64;
    let kept = (L2_SHARE * device.l2_bytes as f64 / (touched * work.width).max(1.0)).min(1.0);
    let again = seen.nnz as f64 / work.locality.far;
    let rows_of_b = (again * (1.0 - kept) + touched * kept).max(touched);
    let c_bytes = seen.rows as f64 * f64::from(problem.n) * problem.result().bytes() as f64;
    let bytes = (rows_of_b * work.width + work.a_bytes + work.c_again) * column_tiles + c_bytes;
    bytes / (copy_rate(device) * MEMORY_RATIO)
}

/// The slower of L1, which serves every gather, and L2, which serves those that L1 does not have.
fn cache_us(work: &Work, column_tiles: f64, device: &Device) -> f64 {
    let gathered = work.entries * work.fetched * column_tiles;
    let hits = (work.locality.near / work.reuse).max(1.0).powf(L1_REUSE);
    let copy = copy_rate(device);
    let (l1_us, l2_us) = (gathered / (copy * L1_RATIO), gathered / hits / (copy * L2_RATIO));
    (l1_us.powi(3) + l2_us.powi(3)).cbrt()
}

/// Little's law: steps of all tiles, divided by the tiles that registers allow to be resident at a time.
fn in_flight_us(tile: &Tile, work: &Work, column_tiles: f64, device: &Device) -> f64 {
    let threads_per_tile = f64::from(tile.threads_per_tile);
    let launched = work.walks / work.in_turn * threads_per_tile * column_tiles;
    let registers = tile.registers.next_multiple_of(8) * tile.threads;
    let by_registers = device.registers_per_multiprocessor / registers.max(1);
    // The driver reserves a kilobyte per block.
    let by_memory = device.shared_bytes_per_multiprocessor / (u64::from(tile.shared_bytes) + 1024);
    let blocks =
        by_registers.min(by_memory as u32).clamp(1, device.max_blocks_per_multiprocessor.max(1));
    let resident = (blocks * tile.threads).min(device.max_threads_per_multiprocessor);
    let resident = (f64::from(resident) * f64::from(device.multiprocessors)).min(launched);
    // Reading the row's bounds is one more step before the first entry.
    let steps = (work.mean_walk.max(0.1) / f64::from(tile.unroll)).ceil() + 1.0;
    let lockstep = work.lockstep.powf(LOCKSTEP);
    work.walks * column_tiles * steps * lockstep * STEP_US / (resident / threads_per_tile).max(1.0)
}

fn issue_us(tile: &Tile, work: &Work, column_tiles: f64, device: &Device) -> f64 {
    let warps_per_tile = f64::from(tile.threads_per_tile) / 32.0;
    let outputs = f64::from(tile.rows * tile.elements_an_entry);
    let walked = work.entries * work.instructions * warps_per_tile * work.lockstep.powf(LOCKSTEP);
    let framed = work.walks * (FRAME + outputs + work.framed) * warps_per_tile;
    (walked + framed) * column_tiles / (ISSUE_PER_US * f64::from(device.multiprocessors.max(1)))
}
