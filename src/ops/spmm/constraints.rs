//! LO-SpMM's constraints (sections 3.2 to 3.4) and those that our kernels add, in the order in which they are applied.

use super::family::{self, RowOrder, SpmmKernel, Tile, effective_layout};
use super::inspect::Inspection;
use crate::domain::{Candidate, Device, DeviceKind, KernelFigures, Layout, Spmm, funnel};
use crate::search::{Constraint, Verdict};
use std::collections::HashMap;
use std::sync::Arc;

/// LO-SpMM's TH_row and TH_col.
const MAX_IMBALANCE: f64 = 0.25;
/// Ratio of packed values to entries above which a panel cannot pay off: it would read that much more of A.
const MAX_FILL: f64 = 8.0;
/// The most registers per thread, and per block (compute capability 5.0 and later).
const REGISTERS_PER_THREAD: u32 = 255;
const REGISTERS_PER_BLOCK: u32 = 65_536;

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
            Box::new(Registers { facts: facts.clone() }),
            Box::new(Spills { facts: facts.clone() }),
            rule("hardware_utilization", true, |f, c| with_kernel(f, c, hardware_utilization)),
            rule("load_balance", true, |f, c| with_tile(f, c, load_balance)),
            rule("shared_memory", false, |f, c| with_kernel(f, c, shared_memory)),
            rule("alignment", false, |f, c| with_tile(f, c, alignment)),
            rule("panel_fill", false, |f, c| with_kernel(f, c, panel_fill)),
            rule("applicability", false, |f, c| with_kernel(f, c, applicability)),
        ],
        DeviceKind::Cpu => vec![
            rule("register_resource", false, host_registers),
            rule("hardware_utilization", true, host_utilization),
            rule("load_balance", true, host_balance),
        ],
    }
}

/// Preferences among the rules that are hard otherwise: a candidate that breaks one runs all the same, only slowly, or like
/// one of another family.
const PREFERENCES: [&str; 2] = ["panel_fill", "applicability"];

/// The constraints of a search among families that a request names: all others go first, and no preference hides a family that
/// was asked for.
pub fn requested(rest: Vec<Box<dyn Constraint>>, families: &[String]) -> Vec<Box<dyn Constraint>> {
    let first: Box<dyn Constraint> = Box::new(Requested { families: families.to_vec() });
    let rest = rest.into_iter().map(|rule| match PREFERENCES.contains(&rule.name()) {
        true => Box::new(Softened { rule }),
        false => rule,
    });
    std::iter::once(first).chain(rest).collect()
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
        with_tile(&self.facts, candidate, |facts, tile| register_resource(facts, tile, compiled))
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
    let spilled = compiled.map_or(0, |figures| figures.local_bytes);
    Verdict::at_most(f64::from(spilled), f64::from(MAX_LOCAL_BYTES))
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

/// Whether the registers per thread and per block suffice on every device we compile for, and the tile consists of whole
/// warps.
pub fn fits_registers(tile: &Tile) -> bool {
    tile.registers <= REGISTERS_PER_THREAD
        && tile.threads <= tile.most_threads
        && tile.registers * tile.threads <= REGISTERS_PER_BLOCK
        && tile.whole_warps
        && !tile.pointless
}

/// Whether a tile can be compiled and launched for a problem on any device; a tile that cannot is always removed.
pub fn is_legal(tile: &Tile, problem: &Spmm) -> bool {
    fits_registers(tile) && problem.n.is_multiple_of(tile.vector)
}

/// LO-SpMM, section 3.2, by the count of variables. The paper also caps the compiler's registers (`--maxrregcount`) slightly
/// above the count; our kernels spill nowhere without a cap (a test compiles them all), so none is set.
fn register_resource(facts: &Facts, tile: &Tile, compiled: Option<&KernelFigures>) -> Verdict {
    if !fits_registers(tile) {
        return Verdict::within(
            tile.registers.into(),
            REGISTERS_PER_THREAD.into(),
            f64::from(tile.registers),
        );
    }
    // A device allocates registers by whole warps, eight per thread at a time.
    let a_block = match compiled {
        Some(figures) => figures.registers.next_multiple_of(8) * tile.threads.next_multiple_of(32),
        None => tile.registers * tile.threads,
    };
    Verdict::at_most(f64::from(a_block), f64::from(facts.device.registers_per_block))
}

/// LO-SpMM, section 3.3: at least half as many blocks as multiprocessors. That tiles consist of whole warps is a requirement
/// of the kernels, not a preference: `fits_registers` checks it.
fn hardware_utilization(facts: &Facts, kernel: &dyn SpmmKernel) -> Verdict {
    let least = f64::from(facts.device.multiprocessors) / 2.0;
    Verdict::at_least(kernel.blocks(&facts.inspection, &facts.problem) as f64, least)
}

fn column_tiles(problem: &Spmm, tile: &Tile) -> u64 {
    u64::from(problem.n.div_ceil(tile.columns))
}

/// LO-SpMM, section 3.4: WASTE_col is the share of padded columns, COV_row the variation of entries over tiles of M1 rows of
/// A. In the paper a block is one tile; where our blocks hold several, the tile is still what one subwarp or panel works on,
/// since the tiles of a block end independently and do not wait for each other.
///
/// If every tile of a family breaks the rule (power-law rows), the least imbalanced stay, to the nearest tenth: a finer
/// distinction would leave one tile height by chance.
fn load_balance(facts: &Facts, tile: &Tile) -> Verdict {
    let padded = column_tiles(&facts.problem, tile) * u64::from(tile.columns);
    let waste = 1.0 - f64::from(facts.problem.n) / padded as f64;
    let by_length = tile.order == RowOrder::Length;
    let cov = if tile.balanced { 0.0 } else { facts.inspection.groups(tile.rows, by_length).cov };
    let over = |value: f64| ((value - MAX_IMBALANCE).max(0.0) * 10.0).ceil() / 10.0;
    // The one that is further off is stored.
    let value = if over(cov) > over(waste) { cov } else { waste };
    Verdict::within(value, MAX_IMBALANCE, over(waste) + over(cov))
}

/// The shared memory of a multiprocessor that a block takes.
fn shared_memory(facts: &Facts, kernel: &dyn SpmmKernel) -> Verdict {
    let bytes = kernel.shared_bytes(&facts.inspection);
    Verdict::at_most(bytes as f64, facts.device.shared_bytes_per_block as f64)
}

fn alignment(facts: &Facts, tile: &Tile) -> Verdict {
    Verdict::at_most(f64::from(facts.problem.n % tile.vector), 0.0)
}

/// Packed forms store a zero wherever a row lacks a column of its panel.
fn panel_fill(facts: &Facts, kernel: &dyn SpmmKernel) -> Verdict {
    Verdict::at_most(kernel.fill(&facts.inspection), MAX_FILL)
}

/// Removes what would do the same as a candidate of another family (nnz_split without a row above its chunk), and applies
/// rules of a family that need the matrix, such as Tiled SpMM's decision chart.
fn applicability(facts: &Facts, kernel: &dyn SpmmKernel) -> Verdict {
    let applies = kernel.applies(&facts.inspection, &facts.device);
    if applies { Verdict::Keep } else { Verdict::refused(1.0) }
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
    let padded = n.div_ceil(columns) * columns;
    Verdict::at_most(1.0 - f64::from(n) / f64::from(padded), MAX_IMBALANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile() -> Tile {
        let candidate =
            [("lanes", 8), ("ways", 1), ("vec", 4), ("cols", 1), ("unroll", 2), ("block", 256)]
                .into_iter()
                .fold(Candidate::new("row_split"), |candidate, (name, value)| {
                    candidate.with(name, value)
                })
                .with_text("fetch", "direct")
                .with_text("order", "natural")
                .with_text("b", "given");
        family::kernel(&candidate, &Spmm::new(32, crate::domain::Dtype::F32, Layout::Row))
            .unwrap()
            .tile()
    }

    /// Registers a block may have on a device that is otherwise nothing.
    fn facts(registers_per_block: u32) -> Facts {
        let device = serde_json::json!({
            "id": "cuda:0", "kind": "cuda", "name": "G", "compute_capability": "9.0", "multiprocessors": 1,
            "warp_size": 32, "max_threads_per_block": 1024, "max_threads_per_multiprocessor": 2048,
            "max_blocks_per_multiprocessor": 32, "registers_per_thread": 255,
            "registers_per_block": registers_per_block, "registers_per_multiprocessor": 65536,
            "shared_bytes_per_block": 0, "shared_bytes_per_multiprocessor": 0, "l2_bytes": 0, "memory_bytes": 0,
            "copy_gbps": 1.0, "driver": "", "compiler": "", "vendor": null,
        });
        let matrix = crate::sparse::Csr::new(1, 1, vec![0, 1], vec![0], vec![1.0]).unwrap();
        Facts {
            inspection: Inspection::of(&matrix),
            problem: Spmm::new(32, crate::domain::Dtype::F32, Layout::Row),
            device: serde_json::from_value(device).unwrap(),
            compiled: HashMap::new(),
        }
    }

    #[test]
    fn constraints_apply_in_the_order_that_the_house_knows() {
        for kind in [DeviceKind::Cuda, DeviceKind::Cpu] {
            let Facts { inspection, problem, device, .. } = facts(1);
            let device = Device { kind, ..device };
            let all = all(&inspection, &problem, &device, HashMap::new());
            let all = requested(all, &["row_split".to_owned()]);
            let place = |name: &str| funnel::ORDER.iter().position(|known| *known == name);
            let places: Vec<_> = all.iter().map(|constraint| place(constraint.name())).collect();
            assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
        }
    }

    #[test]
    fn compiler_figures_take_precedence_over_the_estimate() {
        let (tile, facts) = (tile(), facts(16_384));
        let judge = |compiled: Option<(u32, u32)>| {
            let figures =
                compiled.map(|(registers, local_bytes)| KernelFigures { registers, local_bytes });
            let fits = register_resource(&facts, &tile, figures.as_ref()).keeps();
            (fits, spills(figures.as_ref()).keeps())
        };
        assert!(tile.registers * tile.threads <= 16_384);
        assert_eq!(judge(None), (true, true));
        assert_eq!(judge(Some((64, 0))), (true, true));
        assert_eq!(judge(Some((57, MAX_LOCAL_BYTES))), (true, true));
        // 65 registers are allocated as 72.
        assert_eq!(judge(Some((65, 0))), (false, true));
        assert_eq!(judge(Some((40, MAX_LOCAL_BYTES + 8))), (true, false));
    }
}
