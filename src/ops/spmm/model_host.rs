//! Analytic time of a CPU candidate: bytes of A, B and C by the cache that they come from.

use super::family::{RowOrder, effective_layout};
use super::host;
use super::inspect::Inspection;
use crate::domain::recipe::Stores;
use crate::domain::{Candidate, Device, Layout, Spmm};

pub const NAME: &str = "host_bytes_v2";

/// Rates over that of a copy in memory: what a core's own cache holds, and what the last-level cache holds.
const PRIVATE_RATIO: f64 = 8.0;
const LAST_LEVEL_RATIO: f64 = 3.0;
/// A cache holds what is half as large, since the other operands pass through it too.
const SHARE: f64 = 0.5;
/// Handing a task to a thread, microseconds.
const TASK_US: f64 = 0.3;
/// What an entry costs in each pass beside the columns that it multiplies, as bytes of its row of B: halving the columns of a
/// pass made in-cache products 1.1 to 1.6 times as long.
const ENTRY_BYTES: f64 = 72.0;
/// What rows in another order than the matrix's cost, over what the reuse of columns says: C's rows are scattered, and caches
/// hold some of what recurs in the natural order beyond the windows that are looked at.
const SCATTERED: f64 = 1.3;
/// Entries that a processor looks ahead by itself. It begins anew where a row ends.
const WINDOW: f64 = 24.0;
/// Rows of the two windows in which [`Inspection::locality_in`] counts how often columns recur.
const NEAR_ROWS: f64 = 64.0;
const FAR_ROWS: f64 = 8192.0;

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
    let (rows, nnz) = (seen.rows as f64, seen.nnz as f64);
    let tiles = (n / n1).ceil();
    let copy = device.copy_gbps.max(0.1) * 1e3;
    let by_rows = effective_layout(problem) == Layout::Row;
    let width = if by_rows { n1.min(n) * element } else { 64f64.max(n1.min(n) * element) };

    // Tasks of single rows pass over their entries again while they are in the cache.
    let again = if candidate.int("m1").is_some() { 1.0 } else { 1.0 / PRIVATE_RATIO };
    let a_us = (nnz * (4.0 + element) + rows * 8.0) * (1.0 + (tiles - 1.0) * again) / copy;
    let order = host::order(candidate).unwrap_or(RowOrder::Natural);
    let ahead = candidate.int("ahead").unwrap_or(0) > 0;
    let b_us = tiles * b_us(width, order, ahead, seen, device, copy);
    let c_bytes = rows * n * element;
    // The part of C that the cache does not hold is read before it is written.
    let b_bytes = seen.touched_cols as f64 * n * element;
    let beyond = ((c_bytes + b_bytes) / device.l2_bytes.max(1) as f64).min(1.0);
    let c_us = match host::stores(candidate) {
        Some(Stores::Streamed) => c_bytes / copy,
        _ => c_bytes * (0.9 + beyond) / copy,
    };
    // C is also read if it is added to.
    let c_us = if problem.accumulate { c_us + c_bytes / copy } else { c_us };
    let threads = f64::from(device.multiprocessors.max(1));
    let tasks = (rows / rows_a_task.max(1.0)).ceil();
    // The last task alone, which stealing cannot spread.
    let tail = (a_us + b_us) * (rows_a_task / rows.max(1.0)).min(1.0) * threads;
    a_us + b_us + c_us + tasks * TASK_US / threads + tail
}

/// Microseconds for reading rows of B of `width` bytes once for each entry.
fn b_us(
    width: f64,
    order: RowOrder,
    ahead: bool,
    seen: &Inspection,
    device: &Device,
    copy: f64,
) -> f64 {
    let nnz = seen.nnz as f64;
    let from_last_level = nnz / reuse(order, device.shared_bytes_per_block as f64, width, seen);
    let from_memory = nnz / reuse(order, device.l2_bytes as f64, width, seen);
    // Short rows interrupt looking ahead, unless the kernel asks for what comes.
    let stalled = if ahead { 1.05 } else { 1.0 + WINDOW / (WINDOW + seen.mean_row) };
    let beyond = from_last_level / LAST_LEVEL_RATIO + from_memory;
    // Asking takes instructions.
    let asked = if ahead { 1.1 } else { 1.0 };
    let scattered = if order == RowOrder::Locality { SCATTERED } else { 1.0 };
    let held = nnz * asked * (width + ENTRY_BYTES) / PRIVATE_RATIO;
    (held + beyond * stalled * scattered * width) / copy
}

/// How many entries one row of B serves that a cache of so many bytes holds: of all rows of A, of the larger or of the
/// smaller window, whichever fits.
fn reuse(order: RowOrder, bytes: f64, width: f64, seen: &Inspection) -> f64 {
    let locality = seen.locality_in(order);
    let (nnz, rows) = (seen.nnz as f64, seen.rows as f64);
    let whole = nnz / (seen.touched_cols as f64).max(1.0);
    let fits = |window: f64, reuse: f64| {
        window.min(rows) * seen.mean_row / reuse.max(1.0) * width <= SHARE * bytes
    };
    let found = if seen.touched_cols as f64 * width <= SHARE * bytes {
        whole
    } else if fits(FAR_ROWS, locality.far) {
        locality.far
    } else if fits(NEAR_ROWS, locality.near) {
        locality.near
    } else {
        1.0
    };
    found.max(1.0)
}
