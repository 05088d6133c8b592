//! LO-SpMM's constraints (sections 3.2 to 3.4), and those our kernels add, in the order they are applied.

use super::family::{self, Kernel, RowOrder, Tile, effective_layout};
use super::inspect::Inspection;
use crate::domain::{Candidate, Device, DeviceKind, Layout, Spmm};
use crate::search::{Constraint, Verdict};
use std::sync::Arc;

/// LO-SpMM's TH_row and TH_col.
const MAX_IMBALANCE: f64 = 0.25;
/// Packed values over entries above which a panel cannot pay: it would read that much more of A.
const MAX_FILL: f64 = 8.0;
/// The most registers a thread may have, and a block (compute capability 5.0 and later).
const REGISTERS_PER_THREAD: u32 = 255;
const REGISTERS_PER_BLOCK: u32 = 65_536;

struct Facts {
    inspection: Inspection,
    problem: Spmm,
    device: Device,
}

/// All constraints of a matrix on a device, in order.
pub fn all(inspection: &Inspection, problem: &Spmm, device: &Device) -> Vec<Box<dyn Constraint>> {
    let facts = Arc::new(Facts {
        inspection: inspection.clone(),
        problem: *problem,
        device: device.clone(),
    });
    let rule = |name, soft, judge: fn(&Facts, &Candidate) -> Verdict| -> Box<dyn Constraint> {
        Box::new(Rule { name, soft, judge, facts: facts.clone() })
    };
    match device.kind {
        DeviceKind::Cuda => vec![
            rule("register_resource", false, |f, c| with_tile(f, c, register_resource)),
            rule("hardware_utilization", true, |f, c| with_tile(f, c, hardware_utilization)),
            rule("load_balance", true, |f, c| with_tile(f, c, load_balance)),
            rule("shared_memory", false, |f, c| with_kernel(f, c, shared_memory)),
            rule("alignment", false, |f, c| with_tile(f, c, alignment)),
            rule("panel_fill", false, |f, c| with_kernel(f, c, panel_fill)),
        ],
        DeviceKind::Cpu => vec![
            rule("register_resource", false, host_registers),
            rule("hardware_utilization", true, host_utilization),
            rule("load_balance", true, host_balance),
        ],
    }
}

struct Rule {
    name: &'static str,
    soft: bool,
    judge: fn(&Facts, &Candidate) -> Verdict,
    facts: Arc<Facts>,
}

impl Constraint for Rule {
    fn name(&self) -> &'static str {
        self.name
    }
    fn judge(&self, candidate: &Candidate) -> Verdict {
        (self.judge)(&self.facts, candidate)
    }
    fn soft(&self) -> bool {
        self.soft
    }
}

fn with_kernel(
    facts: &Facts,
    candidate: &Candidate,
    judge: fn(&Facts, &dyn Kernel) -> Verdict,
) -> Verdict {
    match family::kernel(candidate, &facts.problem) {
        Some(kernel) => judge(facts, kernel.as_ref()),
        None => Verdict::Remove { excess: f64::INFINITY },
    }
}

fn with_tile(facts: &Facts, candidate: &Candidate, judge: fn(&Facts, &Tile) -> Verdict) -> Verdict {
    match family::kernel(candidate, &facts.problem) {
        Some(kernel) => judge(facts, &kernel.tile()),
        None => Verdict::Remove { excess: f64::INFINITY },
    }
}

/// Removes where `value` exceeds `most`.
fn at_most(value: f64, most: f64) -> Verdict {
    if value <= most { Verdict::Keep } else { Verdict::Remove { excess: value - most } }
}

/// Whether a thread's and a block's registers suffice, for any device we compile for.
pub fn fits_registers(tile: &Tile) -> bool {
    tile.registers <= REGISTERS_PER_THREAD
        && tile.threads <= tile.most_threads
        && tile.registers * tile.threads <= REGISTERS_PER_BLOCK
        && !tile.pointless
}

/// Whether a tile can be compiled and launched for a problem on any device; what is not never leaves the funnel.
pub fn is_legal(tile: &Tile, problem: &Spmm) -> bool {
    fits_registers(tile) && tile.whole_warps && problem.n.is_multiple_of(tile.vector)
}

/// LO-SpMM, section 3.2, by the count of variables. The paper also caps the compiler (`--maxrregcount`) slightly above
/// the count; our kernels spill nowhere without a cap (a test compiles them all), so none is set.
fn register_resource(facts: &Facts, tile: &Tile) -> Verdict {
    if !fits_registers(tile) {
        return Verdict::Remove { excess: f64::from(tile.registers) };
    }
    let a_block = tile.registers * tile.threads;
    at_most(f64::from(a_block), f64::from(facts.device.registers_per_block))
}

/// LO-SpMM, section 3.3: tiles of whole warps, and at least half as many blocks as multiprocessors.
fn hardware_utilization(facts: &Facts, tile: &Tile) -> Verdict {
    if !tile.whole_warps {
        return Verdict::Remove { excess: f64::INFINITY };
    }
    let rows_a_block = u64::from(tile.rows) * u64::from(tile.tiles_a_block.max(1));
    let blocks = facts.inspection.rows.div_ceil(rows_a_block) * column_tiles(&facts.problem, tile);
    let least = f64::from(facts.device.multiprocessors) / 2.0;
    at_most(least - tile.blocks.unwrap_or(blocks) as f64, 0.0)
}

fn column_tiles(problem: &Spmm, tile: &Tile) -> u64 {
    u64::from(problem.n.div_ceil(tile.columns))
}

/// LO-SpMM, section 3.4: WASTE_col is the share of padded columns, COV_row the variation of entries over A tiles of M1
/// rows. In the paper a block is one tile; where our blocks hold several, the tile is still what one subwarp or panel
/// works on, since a block's tiles end one by one and do not wait for each other.
///
/// Where every tile of a family breaks the rule (power-law rows), the least imbalanced stay, to the nearest tenth: a
/// finer distinction would leave one tile height by chance.
fn load_balance(facts: &Facts, tile: &Tile) -> Verdict {
    let padded = column_tiles(&facts.problem, tile) * u64::from(tile.columns);
    let waste = 1.0 - f64::from(facts.problem.n) / padded as f64;
    let by_length = tile.order == RowOrder::Length;
    let cov = if tile.balanced { 0.0 } else { facts.inspection.groups(tile.rows, by_length).cov };
    let over = |value: f64| ((value - MAX_IMBALANCE).max(0.0) * 10.0).ceil() / 10.0;
    at_most(over(waste) + over(cov), 0.0)
}

/// What a block takes of a multiprocessor's shared memory.
fn shared_memory(facts: &Facts, kernel: &dyn Kernel) -> Verdict {
    let bytes = kernel.shared_bytes(&facts.inspection);
    at_most(bytes as f64, facts.device.shared_bytes_per_block as f64)
}

fn alignment(facts: &Facts, tile: &Tile) -> Verdict {
    let aligned = facts.problem.n.is_multiple_of(tile.vector);
    if aligned { Verdict::Keep } else { Verdict::Remove { excess: 1.0 } }
}

/// Packed forms store a zero wherever a row lacks a column of its panel.
fn panel_fill(facts: &Facts, kernel: &dyn Kernel) -> Verdict {
    at_most(kernel.fill(&facts.inspection), MAX_FILL)
}

/// The host's registers are its vector registers: M1 rows of N1 columns must stay in them.
fn host_registers(facts: &Facts, candidate: &Candidate) -> Verdict {
    let m1 = candidate.int("m1").unwrap_or(1) as f64;
    let n1 = candidate.int("n1").unwrap_or(8) as f64;
    let accumulators = (m1 * n1 / f64::from(facts.device.warp_size.max(1))).ceil();
    at_most(accumulators, f64::from(facts.device.registers_per_thread.max(8)))
}

/// At least half as many tasks as threads.
fn host_utilization(facts: &Facts, candidate: &Candidate) -> Verdict {
    let rows = candidate.int("m1").or(candidate.int("rows_per_task")).unwrap_or(1).max(1) as u64;
    let tasks = facts.inspection.rows.div_ceil(rows) as f64;
    at_most(f64::from(facts.device.multiprocessors) / 2.0 - tasks, 0.0)
}

/// WASTE_col alone: tasks are balanced by entries and stolen by idle threads.
fn host_balance(facts: &Facts, candidate: &Candidate) -> Verdict {
    let n = facts.problem.n;
    let n1 = candidate.int("n1").and_then(|n1| u32::try_from(n1).ok()).unwrap_or(1).max(1);
    let columns = if effective_layout(&facts.problem) == Layout::Col { n1.min(n) } else { n1 };
    let padded = n.div_ceil(columns) * columns;
    at_most(1.0 - f64::from(n) / f64::from(padded) - MAX_IMBALANCE, 0.0)
}
