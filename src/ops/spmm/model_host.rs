//! Analytic time of a CPU candidate: bytes of A and C from memory, bytes of B from the cache its footprint fits.

use super::family::effective_layout;
use super::inspect::Inspection;
use crate::domain::{Candidate, Device, Layout, Spmm};

pub const NAME: &str = "host_bytes_v1";

/// Ratio of gather rate to copy rate when the rows of B in use fit the last-level cache.
const CACHE_RATIO: f64 = 3.0;
/// Handing a task to a thread, microseconds.
const TASK_US: f64 = 0.3;

/// Predicted microseconds of one call.
pub fn predict_us(
    candidate: &Candidate,
    seen: &Inspection,
    problem: &Spmm,
    device: &Device,
) -> f64 {
    let n1 =
        f64::from(candidate.int("n1").and_then(|n1| u32::try_from(n1).ok()).unwrap_or(1).max(1));
    let m1 = candidate.int("m1").map_or(1.0, |m1| m1 as f64);
    let rows_a_task = candidate.int("rows_per_task").map_or(m1, |rows| rows as f64);
    let (n, element) = (f64::from(problem.n), problem.dtype.bytes() as f64);
    let tiles = (n / n1).ceil();
    let nnz = seen.nnz as f64;
    let copy = device.copy_gbps.max(0.1) * 1e3;

    let a_us = (nnz * (4.0 + element) + seen.rows as f64 * 4.0) * tiles
        / (copy * if tiles > 1.0 { 1.5 } else { 1.0 });
    let width = if effective_layout(problem) == Layout::Row { n1.min(n) * element } else { 64.0 };
    let footprint = seen.touched_cols as f64 * width;
    let hit = (0.5 * device.l2_bytes as f64 / footprint.max(1.0)).min(1.0);
    let b_us = nnz * width * tiles * (hit / (copy * CACHE_RATIO) + (1.0 - hit) / copy);
    // C is also read if it is added to.
    let c_passes = if problem.accumulate { 2.0 } else { 1.0 };
    let c_us = seen.rows as f64 * n * element * c_passes / copy;
    let threads = f64::from(device.multiprocessors.max(1));
    let tasks = (seen.rows as f64 / rows_a_task.max(1.0)).ceil();
    // The last task alone, which stealing cannot spread.
    let tail = (a_us + b_us) * (rows_a_task / seen.rows.max(1) as f64).min(1.0) * threads;
    a_us + b_us + c_us + tasks * TASK_US / threads + tail
}
