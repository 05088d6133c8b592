//! LO-SpMM's constraints (sections 3.2 to 3.4) and those that our kernels add, in the order in which they are applied.

mod tile;

pub use tile::is_legal;

use super::family::{self, RowOrder, SpmmKernel, Tile, effective_layout};
use super::host;
use super::inspect::{Inspection, LOCALITY_PAYS};
use super::similarity;
use crate::domain::recipe::Stores;
use crate::domain::{Candidate, Device, DeviceKind, Fixed, KernelFigures, Layout, Spmm, funnel};
use crate::ops::Narrowing;
use crate::ops::limit::L2_OVER_MEMORY;
use crate::search::{Constraint, Verdict};
use std::collections::HashMap;
use std::sync::Arc;
use tile::Limits;

/// Ratio of packed values to entries above which a panel cannot pay off: it would read that much more of A.
const MAX_FILL: f64 = 8.0;
/// Bytes of a cache line of the host.
const LINE_BYTES: u64 = 64;
/// Local memory per thread, bytes, that a kernel may use: a small array may live there, but a kernel that spills more has
/// more accumulators than registers, and a narrower tile of its family does the same work without spills.
const MAX_LOCAL_BYTES: u32 = 64;

struct Facts {
    inspection: Inspection,
    problem: Spmm,
    device: Device,
    /// The compiler's figures for those candidates whose kernels were compiled before.
    compiled: HashMap<Candidate, KernelFigures>,
}

/// All constraints of a matrix on a device, in order.
pub fn all(
    inspection: &Inspection,
    problem: &Spmm,
    device: &Device,
    compiled: HashMap<Candidate, KernelFigures>,
) -> Vec<Box<dyn Constraint>> {
    let facts = Arc::new(Facts {
        inspection: inspection.clone(),
        problem: *problem,
        device: device.clone(),
        compiled,
    });
    let rule = |name, soft, judge: fn(&Facts, &Candidate) -> Verdict| -> Box<dyn Constraint> {
        Box::new(Rule { name, soft, judge, facts: facts.clone() })
    };
    match device.kind {
        DeviceKind::Cuda => vec![
            rule("duplicates", false, |f, c| with_tile(f, c, |_, tile| tile::duplicates(tile))),
            Box::new(Registers { facts: facts.clone() }),
            Box::new(Spills { facts: facts.clone() }),
            rule("launch_limits", false, |f, c| with_tile(f, c, launch_limits)),
            rule("whole_warps", false, |f, c| with_tile(f, c, whole_warps)),
            rule("capability", false, |f, c| with_kernel(f, c, capability)),
            // Before the soft rules: what is removed for these must not be what stands for its family there.
            rule("row_order", false, |f, c| with_kernel(f, c, row_order)),
            rule("panel_fill", false, |f, c| with_kernel(f, c, panel_fill)),
            rule("applicability", false, |f, c| with_kernel(f, c, applicability)),
            rule("hardware_utilization", true, |f, c| with_kernel(f, c, hardware_utilization)),
            Box::new(LoadBalance { facts: facts.clone() }),
            rule("shared_memory", false, |f, c| with_kernel(f, c, shared_memory)),
            rule("alignment", false, |f, c| with_tile(f, c, alignment)),
        ],
        DeviceKind::Cpu => vec![
            rule("duplicates", false, host_duplicates),
            rule("register_resource", false, host_registers),
            rule("row_order", false, host_row_order),
            rule("hardware_utilization", true, host_utilization),
            rule("load_balance", true, host_balance),
        ],
    }
}

/// Preferences among the rules that are hard otherwise: a candidate that breaks one runs all the same, only slowly, or like
/// one of another family.
const PREFERENCES: [&str; 3] = ["row_order", "panel_fill", "applicability"];

/// Whether what the rule removes can run all the same, and is no duplicate. On the host that is what any rule removes:
/// accumulators beyond the vector registers live in memory.
pub fn is_preference(rule: &dyn Constraint, kind: DeviceKind) -> bool {
    let asked = [funnel::REQUESTED, funnel::FIXED, "duplicates"].contains(&rule.name());
    let prefers = rule.soft() || PREFERENCES.contains(&rule.name());
    !asked && (prefers || kind == DeviceKind::Cpu)
}

/// The constraints of a search among the families that a request names, with the parameter values that it fixes: all others go
/// first, and no preference hides what was asked for.
pub fn requested(
    rest: Vec<Box<dyn Constraint>>,
    narrowing: &Narrowing,
) -> Vec<Box<dyn Constraint>> {
    let Narrowing { families, fixed, exact, .. } = narrowing;
    let mut first: Vec<Box<dyn Constraint>> = Vec::new();
    if !families.is_empty() {
        first.push(Box::new(Requested { families: families.clone() }));
    }
    if narrowing.asks_for_values() {
        first.push(Box::new(FixedValues { fixed: fixed.clone(), exact: *exact }));
    }
    let rest = rest.into_iter().map(|rule| match PREFERENCES.contains(&rule.name()) {
        true => Box::new(Softened { rule }),
        false => rule,
    });
    first.into_iter().chain(rest).collect()
}

struct Requested {
    families: Vec<String>,
}

impl Constraint for Requested {
    fn name(&self) -> &'static str {
        funnel::REQUESTED
    }
    fn judge(&self, candidate: &Candidate) -> Verdict {
        match self.families.contains(&candidate.family) {
            true => Verdict::Keep,
            false => Verdict::refused(1.0),
        }
    }
    fn soft(&self) -> bool {
        false
    }
    fn detail(&self) -> Option<String> {
        Some(format!("the request names {}", self.families.join(", ")))
    }
}

struct FixedValues {
    fixed: Fixed,
    exact: bool,
}

impl Constraint for FixedValues {
    fn name(&self) -> &'static str {
        funnel::FIXED
    }
    fn judge(&self, candidate: &Candidate) -> Verdict {
        match self.fixed.leaves(candidate, self.exact) {
            true => Verdict::Keep,
            false => Verdict::refused(1.0),
        }
    }
    fn soft(&self) -> bool {
        false
    }
    fn detail(&self) -> Option<String> {
        Some(format!("the request fixes {}", self.fixed))
    }
}

/// A rule that keeps those of a family that violate it least.
struct Softened {
    rule: Box<dyn Constraint>,
}

impl Constraint for Softened {
    fn name(&self) -> &'static str {
        self.rule.name()
    }
    fn judge(&self, candidate: &Candidate) -> Verdict {
        self.rule.judge(candidate)
    }
    fn soft(&self) -> bool {
        true
    }
    fn detail(&self) -> Option<String> {
        self.rule.detail()
    }
}

/// LO-SpMM's load balance, where the least imbalanced tiles of a family stay if none passes.
struct LoadBalance {
    facts: Arc<Facts>,
}

impl Constraint for LoadBalance {
    fn name(&self) -> &'static str {
        "load_balance"
    }
    fn judge(&self, candidate: &Candidate) -> Verdict {
        with_kernel(&self.facts, candidate, load_balance)
    }
    fn soft(&self) -> bool {
        true
    }
    fn spares(&self, least: f64) -> f64 {
        tile::spared(least)
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

/// LO-SpMM, section 3.2: by the compiler's figures if the kernel was compiled before, by the count of variables otherwise.
struct Registers {
    facts: Arc<Facts>,
}

impl Constraint for Registers {
    fn name(&self) -> &'static str {
        "register_resource"
    }
    fn judge(&self, candidate: &Candidate) -> Verdict {
        let compiled = self.facts.compiled.get(candidate);
        with_tile(&self.facts, candidate, |facts, tile| {
            tile::registers(tile, &Limits::of(&facts.device), compiled)
        })
    }
    fn soft(&self) -> bool {
        false
    }
    fn detail(&self) -> Option<String> {
        let known = self.facts.compiled.len();
        (known > 0).then(|| {
            format!("{known} judged by the compiler's own figures, the others by an estimate")
        })
    }
}

/// What the compiler spilled, if the kernel was compiled before. Soft, since a spill slows a kernel but does not rule it out.
struct Spills {
    facts: Arc<Facts>,
}

impl Constraint for Spills {
    fn name(&self) -> &'static str {
        "local_memory"
    }
    fn judge(&self, candidate: &Candidate) -> Verdict {
        spills(self.facts.compiled.get(candidate))
    }
    fn soft(&self) -> bool {
        true
    }
}

fn spills(compiled: Option<&KernelFigures>) -> Verdict {
    let judge = |figures: &KernelFigures| {
        Verdict::at_most(f64::from(figures.local_bytes), f64::from(MAX_LOCAL_BYTES))
    };
    compiled.map_or(Verdict::Keep, judge)
}

fn with_kernel(
    facts: &Facts,
    candidate: &Candidate,
    judge: fn(&Facts, &dyn SpmmKernel) -> Verdict,
) -> Verdict {
    match family::kernel(candidate, &facts.problem) {
        Some(kernel) => judge(facts, kernel.as_ref()),
        None => Verdict::refused(f64::INFINITY),
    }
}

fn with_tile(
    facts: &Facts,
    candidate: &Candidate,
    judge: impl Fn(&Facts, &Tile) -> Verdict,
) -> Verdict {
    match family::kernel(candidate, &facts.problem) {
        Some(kernel) => judge(facts, &kernel.tile()),
        None => Verdict::refused(f64::INFINITY),
    }
}

fn launch_limits(facts: &Facts, tile: &Tile) -> Verdict {
    tile::launch_limits(tile, &Limits::of(&facts.device))
}

fn whole_warps(facts: &Facts, tile: &Tile) -> Verdict {
    tile::whole_warps(tile, &Limits::of(&facts.device))
}

/// LO-SpMM, section 3.3, by the blocks that a call launches. Where a block is done before others could have begun, idle multiprocessors
/// cost nothing, and what a block does for a long row is worth more: such products are not judged.
fn hardware_utilization(facts: &Facts, kernel: &dyn SpmmKernel) -> Verdict {
    let blocks = kernel.blocks(&facts.inspection, &facts.problem);
    match is_brief(facts, blocks) {
        true => Verdict::Keep,
        false => tile::enough_blocks(blocks, &facts.device),
    }
}

/// Whether a block takes a multiprocessor less than a microsecond: its entries, and the row of B that each needs, by the rate of L2.
fn is_brief(facts: &Facts, blocks: u64) -> bool {
    let (problem, device) = (&facts.problem, &facts.device);
    let element = problem.dtype.bytes() as f64;
    let entry = 4.0 + element + f64::from(problem.n) * element;
    let bytes = facts.inspection.nnz as f64 * entry / blocks.max(1) as f64;
    // GB/s are thousands of bytes a microsecond.
    let rate = L2_OVER_MEMORY * device.copy_gbps * 1e3 / f64::from(device.multiprocessors.max(1));
    bytes <= rate
}

/// LO-SpMM, section 3.4. In the paper a block is one tile; where our blocks hold several, the tile is still what one subwarp or
/// panel works on, since the tiles of a block end independently and do not wait for each other.
fn load_balance(facts: &Facts, kernel: &dyn SpmmKernel) -> Verdict {
    let waste = tile::waste(facts.problem.n, kernel.tile().columns);
    tile::balanced(kernel.imbalance(&facts.inspection), waste)
}

/// The shared memory of a multiprocessor that a block takes.
fn shared_memory(facts: &Facts, kernel: &dyn SpmmKernel) -> Verdict {
    let bytes = kernel.shared_bytes(&facts.inspection);
    Verdict::at_most(bytes as f64, facts.device.shared_bytes_per_block as f64)
}

fn alignment(facts: &Facts, tile: &Tile) -> Verdict {
    Verdict::at_most(f64::from(facts.problem.n % tile.vector), 0.0)
}

/// Rows are sorted by content only if that lets their panels share more columns (Tiled SpMM, section 4.2): the paper keeps an
/// order for its estimated rho. By locality they are sorted for the caches, which must gain more: hardware keeps much without.
fn row_order(facts: &Facts, kernel: &dyn SpmmKernel) -> Verdict {
    let least = match kernel.tile().order {
        RowOrder::Locality => LOCALITY_PAYS,
        _ => similarity::PAYS,
    };
    kernel
        .order_gain(&facts.inspection, &facts.device)
        .map_or(Verdict::Keep, |gain| Verdict::at_least(gain, least))
}

/// Packed forms store a zero wherever a row lacks a column of its panel.
fn panel_fill(facts: &Facts, kernel: &dyn SpmmKernel) -> Verdict {
    Verdict::at_most(kernel.fill(&facts.inspection), MAX_FILL)
}

/// Removes what no such device can execute.
fn capability(facts: &Facts, kernel: &dyn SpmmKernel) -> Verdict {
    if kernel.runs_on(&facts.device) { Verdict::Keep } else { Verdict::refused(1.0) }
}

/// Removes what would do the same as a candidate of another family (nnz_split without a row above its chunk), and applies
/// rules of a family that need the matrix, such as Tiled SpMM's decision chart.
fn applicability(facts: &Facts, kernel: &dyn SpmmKernel) -> Verdict {
    let applies = kernel.applies(&facts.inspection, &facts.device);
    if applies { Verdict::Keep } else { Verdict::refused(1.0) }
}

/// Rows of C that are no whole cache lines are written through the caches, whatever the candidate says, and so are panels that
/// do not fill a tile of columns.
fn host_duplicates(facts: &Facts, candidate: &Candidate) -> Verdict {
    if host::stores(candidate) != Some(Stores::Streamed) {
        return Verdict::Keep;
    }
    let n = u64::from(facts.problem.n);
    let n1 = candidate.int("n1").and_then(|n1| u64::try_from(n1).ok()).unwrap_or(1);
    let whole = |columns: u64| (columns * facts.problem.dtype.bytes()).is_multiple_of(LINE_BYTES);
    let writes_lines =
        n1 <= n && effective_layout(&facts.problem) == Layout::Row && whole(n) && whole(n1);
    if writes_lines { Verdict::Keep } else { Verdict::refused(1.0) }
}

fn host_row_order(facts: &Facts, candidate: &Candidate) -> Verdict {
    match host::order(candidate) {
        Some(RowOrder::Locality) => {
            Verdict::at_least(facts.inspection.locality_gain(), LOCALITY_PAYS)
        }
        _ => Verdict::Keep,
    }
}

/// The host's registers are its vector registers: M1 rows of N1 columns must stay in them.
fn host_registers(facts: &Facts, candidate: &Candidate) -> Verdict {
    let m1 = candidate.int("m1").unwrap_or(1) as f64;
    let n1 = candidate.int("n1").unwrap_or(8) as f64;
    // The device states its lanes in f32.
    let lanes = f64::from(facts.device.warp_size.max(1)) * 4.0 / facts.problem.dtype.bytes() as f64;
    let accumulators = (m1 * n1 / lanes).ceil();
    Verdict::at_most(accumulators, f64::from(facts.device.registers_per_thread.max(8)))
}

/// At least half as many tasks as threads.
fn host_utilization(facts: &Facts, candidate: &Candidate) -> Verdict {
    let rows = candidate.int("m1").or(candidate.int("rows_per_task")).unwrap_or(1).max(1) as u64;
    let tasks = facts.inspection.rows.div_ceil(rows) as f64;
    Verdict::at_least(tasks, f64::from(facts.device.multiprocessors) / 2.0)
}

/// WASTE_col alone: tasks are balanced by entries, and idle threads steal them.
fn host_balance(facts: &Facts, candidate: &Candidate) -> Verdict {
    let n = facts.problem.n;
    let n1 = candidate.int("n1").and_then(|n1| u32::try_from(n1).ok()).unwrap_or(1).max(1);
    let columns = if effective_layout(&facts.problem) == Layout::Col { n1.min(n) } else { n1 };
    tile::balanced(0.0, tile::waste(n, columns))
}

#[cfg(test)]
mod tests;
