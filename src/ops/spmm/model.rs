//! Analytic time of a GPU candidate: effective intensity (Tiled SpMM, Eq. 3-6) generalised to row-major operands.
//!
//! The paper counts the bytes one thread moves for its multiply-adds: A with its indices (times Z, the zero padding), the
//! gather of B (over rho, the reuse inside a tile), C. We count the same bytes for the whole call, charge the gather at
//! the rate of the cache its footprint fits, and take the slowest of bytes, loads in flight and issue slots, since short
//! rows on many SMs are bound by the latter two. Rates scale from the device's measured copy bandwidth by the ratios
//! measured on an H100 (random gathers of B rows: 2.55x the copy rate from L2, 0.87x from HBM).

use super::inspect::Inspection;
use super::shape::{RowOrder, Shape, effective_layout};
use crate::domain::{Candidate, Device, Layout, Spmm};

pub const NAME: &str = "effective_intensity_v1";

/// Gather rate over copy rate: footprint in L2, and in device memory.
const L2_RATIO: f64 = 2.55;
const MEMORY_RATIO: f64 = 0.87;
/// Share of L2 that B keeps while A and C stream through it.
const L2_SHARE: f64 = 0.6;
/// A dependent load from L2, microseconds.
const LATENCY_US: f64 = 0.6;
/// Warp instructions a multiprocessor issues a microsecond: 4 schedulers, about 1.7 GHz, two thirds of the slots.
const ISSUE_PER_US: f64 = 4.0 * 1700.0 * 0.66;
/// An empty launch.
const LAUNCH_US: f64 = 2.0;
const SECTOR: f64 = 32.0;

/// What one candidate does on one matrix, in totals of a call.
struct Work {
    /// Entries walked, summed over row tiles (a panel's union counts once), for one column tile.
    entries: f64,
    /// Bytes of A for one column tile.
    a_bytes: f64,
    /// Bytes of B gathered over the call.
    b_bytes: f64,
    /// Bytes of B that one column tile touches: what a cache would have to hold.
    footprint: f64,
    /// Warp instructions an entry and column tile.
    instructions: f64,
    /// Entries of the longest tile: the shortest possible chain.
    longest: f64,
    /// What lockstep of unequal rows in a warp costs, >= 1.
    lockstep: f64,
}

/// Predicted microseconds of one call; infinite for what is not a candidate of this space.
pub fn predict_us(
    candidate: &Candidate,
    seen: &Inspection,
    problem: &Spmm,
    device: &Device,
) -> f64 {
    let Some(shape) = Shape::of(candidate, problem) else { return f64::INFINITY };
    let work = match effective_layout(problem) {
        Layout::Row => row_major(&shape, seen, problem),
        Layout::Col => column_major(&shape, seen, problem),
    };
    let column_tiles = f64::from(problem.n.div_ceil(shape.columns_a_tile()));
    let bytes = bytes_us(&work, column_tiles, seen, problem, device);
    let flight = in_flight_us(&shape, &work, column_tiles, seen, device);
    let issue = issue_us(&shape, &work, column_tiles, seen, device);
    let chain = work.longest / f64::from(shape.unroll()) * 2.0 * LATENCY_US;
    // Longest rows first, their chain overlaps with the rest; in natural order part of it sticks out at the end.
    let exposed = if shape.order() == RowOrder::Length { 0.0 } else { 0.25 * chain };
    LAUNCH_US + bytes.max(flight).max(issue).max(chain) + exposed
}

fn row_major(shape: &Shape, seen: &Inspection, problem: &Spmm) -> Work {
    let nnz = seen.nnz as f64;
    let tile_bytes = f64::from(shape.columns_a_tile().min(problem.n)) * 4.0;
    // A row of B is fetched in sectors.
    let row_bytes = (tile_bytes / SECTOR).ceil()
        * SECTOR
        * f64::from(problem.n.div_ceil(shape.columns_a_tile()));
    let footprint = seen.touched_cols as f64 * tile_bytes;
    match *shape {
        Shape::RowPanel { m1, vec, .. } => {
            let panel = seen.panel(m1);
            let packed = f64::from(m1);
            Work {
                entries: panel.union,
                a_bytes: panel.union * (4.0 + 4.0 * packed),
                b_bytes: panel.union * row_bytes,
                footprint,
                instructions: 4.0 + (packed / 4.0).ceil() + packed * f64::from(vec),
                longest: seen.longest_row as f64,
                lockstep: 1.0,
            }
        }
        Shape::RowSplit { lanes, vec, cols, shuffle, order, .. } => {
            let fetch = if shuffle { 3.0 + 2.0 / f64::from(lanes) } else { 3.0 };
            Work {
                entries: nnz,
                a_bytes: nnz * 8.0 + seen.rows as f64 * 4.0,
                // Rows ordered by length lose the locality of their neighbours in L1.
                b_bytes: nnz * row_bytes * if order == RowOrder::Length { 1.1 } else { 1.0 },
                footprint,
                instructions: fetch + f64::from(cols) * (2.0 + f64::from(vec)),
                longest: seen.longest_row as f64,
                lockstep: seen.groups(32 / lanes, order == RowOrder::Length).lockstep,
            }
        }
        Shape::ColumnMajor { .. } => unreachable_shape(),
    }
}

/// Gathers of single floats: a sector each, shared with the entries that lie near in the same row or the next rows.
fn column_major(shape: &Shape, seen: &Inspection, problem: &Spmm) -> Work {
    let Shape::ColumnMajor { m1, lanes, r, order, .. } = *shape else { return unreachable_shape() };
    let panel = seen.panel(m1);
    let entries = if m1 == 1 { seen.nnz as f64 } else { panel.union };
    let shared = if order == RowOrder::Natural { 2.0 } else { 1.0 };
    let element = (SECTOR / (1.0 + shared * SECTOR / 4.0 / seen.mean_gap)).clamp(4.0, SECTOR);
    let by_length = order == RowOrder::Length;
    // Lanes past a row's end idle.
    let mean = (entries * f64::from(m1) / seen.rows.max(1) as f64).max(0.01);
    let idle = (mean / f64::from(lanes)).ceil() * f64::from(lanes) / mean;
    // A thread that reads its own row alone drags whole sectors of A through L1.
    let stride = if lanes >= 4 { 1.0 } else { 1.3 };
    Work {
        entries,
        a_bytes: entries * (4.0 + 4.0 * f64::from(m1)) * stride + seen.rows as f64 * 4.0,
        b_bytes: entries * element * f64::from(problem.n),
        footprint: seen.touched_cols as f64 * 4.0 * f64::from(r),
        instructions: (4.0 + f64::from(m1) + f64::from(r) * (2.0 + f64::from(m1))) * idle.min(8.0),
        longest: seen.longest_row as f64 / f64::from(lanes),
        lockstep: seen.groups(32 / lanes * m1, by_length).lockstep,
    }
}

/// A shape of the other layout has no work here; predicting it never ends ranks it last.
fn unreachable_shape() -> Work {
    let never = f64::INFINITY;
    Work {
        entries: never,
        a_bytes: never,
        b_bytes: never,
        footprint: never,
        instructions: never,
        longest: never,
        lockstep: 1.0,
    }
}

fn bytes_us(
    work: &Work,
    column_tiles: f64,
    seen: &Inspection,
    problem: &Spmm,
    device: &Device,
) -> f64 {
    let copy = device.copy_gbps.max(1.0) * 1e3;
    let c_bytes = seen.rows as f64 * f64::from(problem.n) * 4.0;
    // A is read from memory once, then from wherever it stays.
    let a_again =
        if work.a_bytes < L2_SHARE * device.l2_bytes as f64 { copy * L2_RATIO } else { copy };
    let a_us = work.a_bytes / copy + work.a_bytes * (column_tiles - 1.0) / a_again;
    a_us + work.b_bytes / gather_rate(work.footprint, device) + c_bytes / copy
}

/// Bytes a microsecond at which B rows come in, given how much of B is in use at a time.
fn gather_rate(footprint: f64, device: &Device) -> f64 {
    let copy = device.copy_gbps.max(1.0) * 1e3;
    let hit = (L2_SHARE * device.l2_bytes as f64 / footprint.max(1.0)).min(1.0);
    1.0 / (hit / (copy * L2_RATIO) + (1.0 - hit) / (copy * MEMORY_RATIO))
}

/// Little's law: bytes of B in flight on the device over two dependent latencies (the index, then the row).
fn in_flight_us(
    shape: &Shape,
    work: &Work,
    column_tiles: f64,
    seen: &Inspection,
    device: &Device,
) -> f64 {
    let tiles = seen.rows as f64 / f64::from(shape.rows_a_tile());
    let launched = tiles * f64::from(shape.threads_a_tile()) * column_tiles;
    let resident_a_sm = (device.registers_per_multiprocessor / shape.registers().max(1))
        .min(device.max_threads_per_multiprocessor);
    let resident =
        (f64::from(resident_a_sm) * f64::from(device.multiprocessors)).min(launched).max(1.0);
    let mean_tile = (work.entries / tiles.max(1.0)).max(0.1);
    // Rows shorter than the unrolled loop leave part of it empty.
    let chunks = (mean_tile / f64::from(shape.unroll())).ceil();
    let loads = mean_tile / chunks * f64::from(shape.floats_an_entry()) * 4.0;
    let per_us = resident * loads / (2.0 * LATENCY_US) / work.lockstep;
    let useful = work.entries
        * f64::from(shape.threads_a_tile())
        * f64::from(shape.floats_an_entry())
        * 4.0
        * column_tiles;
    useful / per_us
}

fn issue_us(
    shape: &Shape,
    work: &Work,
    column_tiles: f64,
    seen: &Inspection,
    device: &Device,
) -> f64 {
    let warps_a_tile = f64::from(shape.threads_a_tile()) / 32.0;
    let tiles = seen.rows as f64 / f64::from(shape.rows_a_tile());
    let outputs = f64::from(shape.rows_a_tile() * shape.floats_an_entry());
    let walked = work.entries * work.instructions * warps_a_tile * work.lockstep;
    let framed = tiles * (30.0 + outputs) * warps_a_tile;
    (walked + framed) * column_tiles / (ISSUE_PER_US * f64::from(device.multiprocessors.max(1)))
}
