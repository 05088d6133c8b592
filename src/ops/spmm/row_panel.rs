//! Family `row_panel`, row-major: LO-SpMM's tile of M1 rows by N1 columns (`kernels/spmm/row_panel.cuh`).

use super::family::{
    Beyond, RowOrder, SpmmFamily, SpmmKernel, Tile, among, count, effective_layout, gpu_family,
    is_local, order, order_serves, width_serves,
};
use super::inspect::Inspection;
use super::model::{STAGE_US, Work};
use super::panel_ways::{COPIED_HEIGHTS, COPYING_BLOCK, Copies, WAYS};
use super::panels::panel_arrays;
use super::phrases;
use super::shared::{Lowered, Shared};
use super::text::{self, element, elements, scale};
use super::walk::{Walk, widest_vector};
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::recipe::{Arg, CudaProgram, Program, Step};
use crate::domain::{Candidate, Device, Layout, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys, Meaning, parameters};
use crate::ops::program::{EntryPoint, Setting, number, parameter};
use crate::search::domain::{Domain, chosen};
use std::sync::LazyLock;

const FAMILY: &str = "row_panel";

/// What the parameters of panels mean.
pub const MEANINGS: [Meaning; 6] = [
    ("m1", "rows of a panel"),
    phrases::N1,
    phrases::VEC,
    phrases::UNROLL,
    phrases::BLOCK,
    phrases::ORDER,
];

/// The part of a panel's waiting that is left where its columns and values have been copied ahead. A guess: half would be left if a step
/// waited for them as long as for B; of whole products 0.72 was measured on elasticity 36^3 and 0.94 on a band (H100, N = 128).
const COPIED_WAIT: f64 = 0.6;
/// Microseconds from a group's last column to the sum of all groups: a barrier, and two passes over shared memory.
const MEETING_US: f64 = 0.15;
/// Columns of a panel between which both forms are tried: with fewer, copies do not pay (46.2 us for 44.4 on a grid, 8 columns; H100,
/// N = 32), and with more they do (55.3 for 63.1 on a band, 20 columns).
const LEAST_COPIED: f64 = 12.0;
const MOST_PLAIN: f64 = 20.0;
/// How often the threads of a launch may fill the device before more groups a panel are of no use.
const MOST_WAVES: u64 = 2;

/// Rows of the panels of which the overlap in other orders is known, as a power of two.
const KNOWN_ROWS_LOG2: f64 = 3.0;

pub struct RowPanels;

/// A kernel of panels, whose columns each thread reads for itself, or groups of threads copy ahead (`panel_ways`).
#[derive(Clone, Copy, Debug)]
pub struct RowPanel {
    pub m1: u32,
    pub n1: u32,
    pub vec: u32,
    pub unroll: u32,
    pub block: u32,
    pub copies: Option<Copies>,
    pub order: RowOrder,
    /// The problem by rows.
    pub problem: Spmm,
    /// On column-major operands, what turns B into rows before the panels and C into columns after them.
    pub passes: Option<Walk>,
}

impl SpmmFamily for RowPanels {
    fn name(&self) -> &'static str {
        "row_panel"
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/row_panel.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            vec![
                Domain::ints("m1", &[1, 2, 4, 8, 16, 32]),
                Domain::ints("n1", &[16, 32, 48, 64, 96, 128, 192, 256]),
                Domain::ints("vec", &[1, 2, 4, 8]),
                Domain::ints("unroll", &[1, 2, 4]),
                Domain::ints("block", &[64, 96, 192, 256]),
                Domain::texts("order", &["natural", "length", "similarity", "locality"]),
            ]
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        if effective_layout(problem) != Layout::Row {
            return Vec::new();
        }
        chosen(FAMILY, self.domains(), |c| {
            let number = |name| count(c, name).unwrap_or(0);
            // Single rows in natural order are what `row_split` walks. An order by locality serves panels of several rows, in large
            // blocks.
            let single = number("m1") == 1 && order(c) == Some(RowOrder::Natural);
            let local = number("m1") > 1 && number("block") >= 192;
            fits(c, problem) && !single && (!is_local(c) || local)
        })
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        let alone = ![WAYS, "b"].iter().any(|name| candidate.params.contains_key(*name));
        let kernel = RowPanel::of(candidate, problem, self.domains()).filter(|_| alone)?;
        Some(Box::new(kernel))
    }
}

/// Whether a candidate's tile, block and vectors serve a problem, and its order does.
fn fits(candidate: &Candidate, problem: &Spmm) -> bool {
    let number = |name| count(candidate, name).unwrap_or(0);
    let n1 = number("n1");
    // A narrower tile reads A once more; a wider one wastes lanes.
    let wide = n1 >= problem.n.min(64) && n1 < 2 * problem.n;
    // Tiles of three times a power of two fill blocks that are too.
    let block = n1.is_multiple_of(3) == number("block").is_multiple_of(3);
    wide && block
        && order_serves(candidate, problem)
        && width_serves(problem.n, n1)
        && number("vec") == widest_vector(problem, false)
}

impl Family for RowPanels {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] =
            &[StoredForm::first(FAMILY, Distinction::Lacks(&[WAYS, "b"]))];
        FamilyDescriptor {
            title: "LO-SpMM's tiles",
            summary: "A thread computes M1 rows of few columns of C: the rows of a tile share each row of B that they read.",
            source: Some("LO-SpMM (TACO 2024), section 3"),
            parameters: parameters(self.domains(), &MEANINGS),
            ..gpu_family("spmm.row_panel", STORED, true)
        }
    }

    fn needs_finite_dense(&self, candidate: &Candidate) -> bool {
        candidate.int("m1") != Some(1)
    }

    fn keys(&self) -> Keys {
        Keys { prepared_by: &[], tiled_by: &["m1", "n1", "vec"], headers: &["spmm/row_panel.cuh"] }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}

impl SpmmKernel for RowPanel {
    fn tile(&self) -> Tile {
        let threads_per_tile = self.threads() * self.ways();
        let words = self.problem.dtype.bytes().max(4) as u32 / 4;
        Tile {
            rows: self.m1,
            columns: self.n1,
            threads: self.block,
            most_threads: 256,
            threads_per_tile,
            tiles_per_block: (self.block / threads_per_tile).max(1),
            order: self.order,
            unroll: self.unroll,
            elements_an_entry: self.vec,
            registers: self.registers(words),
            shared_bytes: self.copies.map_or(0, |copies| copies.bytes(self)),
            vector: self.vec,
            balanced: false,
            grid_y: self.problem.n.div_ceil(self.n1),
            // Panels of one row are what `row_split` walks, in these orders, too.
            repeats: (self.m1 == 1 && self.order != RowOrder::Similarity)
                .then_some(Beyond::ANOTHER),
        }
    }

    fn work(&self, seen: &Inspection) -> Work {
        let reuse = self.reuse(seen);
        let union = seen.nnz as f64 / reuse;
        let packed = f64::from(self.m1);
        let element = self.problem.dtype.bytes() as f64;
        let ways = f64::from(self.ways());
        let plain = Work::row_major(&self.tile(), seen, &self.problem);
        let turned =
            seen.cols as f64 * element + seen.rows as f64 * self.problem.result().bytes() as f64;
        // Read and written, by two kernels more: the model has one for what is staged.
        let (staged_bytes, turning_us) = match self.passes {
            Some(_) => (2.0 * f64::from(self.problem.n) * turned, STAGE_US),
            None => (0.0, 0.0),
        };
        Work {
            staged_bytes,
            entries: union,
            a_bytes: union * (4.0 + element * packed),
            // Of all groups' warps each executes its part.
            instructions: (4.0 + (packed / 4.0).ceil() + packed * f64::from(self.vec)) / ways,
            // A step waits for a column and then for its row of B; where columns are there, for B alone.
            mean_walk: union * packed / seen.rows.max(1) as f64 / ways
                * if self.copies.is_some() { COPIED_WAIT } else { 1.0 },
            longest_walk: plain.longest_walk / ways,
            // Sums that go to shared memory and come back.
            framed: if self.ways() > 1 { packed * f64::from(self.vec) } else { 0.0 },
            after_us: turning_us + if self.ways() > 1 { MEETING_US } else { 0.0 },
            reuse,
            ..plain
        }
    }

    fn imbalance(&self, seen: &Inspection) -> f64 {
        let order = match self.order {
            // Neighbouring rows even out, the more the higher a panel is: by that, only the highest would be left where lengths differ.
            RowOrder::Natural => RowOrder::Length,
            other => other,
        };
        seen.imbalance(self.m1, order)
    }

    fn fill(&self, seen: &Inspection) -> f64 {
        f64::from(self.m1) / self.reuse(seen)
    }

    fn applies(&self, seen: &Inspection, device: &Device) -> bool {
        // Rows of one length are by length as they are in natural order.
        let repeats = self.order == RowOrder::Length && seen.row_lengths.len() <= 1;
        if repeats {
            return false;
        }
        let columns = self.columns(seen);
        if let Some(Copies { ways, .. }) = self.copies {
            return columns >= LEAST_COPIED && (ways == 1 || self.needs_ways(ways, seen, device));
        }
        // The same panels are better copied ahead.
        if columns >= MOST_PLAIN && self.may_copy() {
            return false;
        }
        // Small blocks only serve to spread few panels over all multiprocessors.
        let large = if self.n1.is_multiple_of(3) { 192 } else { 256 };
        let panels_a_block = (large / self.tile().threads_per_tile).max(1);
        let panels = seen.rows.div_ceil(u64::from(self.m1 * panels_a_block));
        let column_tiles = u64::from(self.problem.n.div_ceil(self.n1));
        self.block == large || panels * column_tiles < 4 * u64::from(device.multiprocessors)
    }

    fn source(&self) -> String {
        let (header, settings) = self.settings();
        let mut kernels = vec![self.kernel(0)];
        let header = match &self.passes {
            Some(passes) => {
                kernels.extend([passes.staging(0, false), passes.turning(0)]);
                "spmm/panel_columns.cuh"
            }
            None => header,
        };
        text::program(&[header], &self.problem, &settings, &kernels)
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let (rows, b_rows) = (shared.matrix.rows() as u32, shared.matrix.cols() as u32);
        let (mut steps, scratch) = match &self.passes {
            Some(passes) => passes.stage((rows, b_rows), &shared.device)?,
            None => (Vec::new(), Vec::new()),
        };
        // Copies are of 16 bytes, so of whole fours of columns.
        let whole = if self.copies.is_some() { 4 } else { 1 };
        let (arrays, [order_ms, pack_ms]) = panel_arrays(shared, self.m1, self.order, whole)?;
        steps.push(self.step(rows));
        steps.extend(self.passes.and_then(|passes| passes.unstage(rows)));
        let program = Program::Cuda(CudaProgram::of_steps(self.source(), steps));
        let (ms, update_ms) = (order_ms + pack_ms, Some(pack_ms));
        Ok(Lowered { arrays, scratch, ms, update_ms, ..Lowered::bare(program) })
    }
}

impl RowPanel {
    /// The header of its kernel, and what a program sets in the kernel's configuration.
    fn settings(&self) -> (&'static str, Vec<(&'static str, Setting)>) {
        let mut settings = vec![
            ("kM1", self.m1.into()),
            ("kN1", self.n1.into()),
            ("kVec", self.vec.into()),
            ("kUnroll", self.unroll.into()),
        ];
        let header = match self.copies {
            None => "spmm/row_panel.cuh",
            Some(Copies { ways, stage }) => {
                let own = [("kWays", ways), ("kBlock", self.block), ("kStage", stage)];
                settings.extend(own.map(|(name, value)| (name, value.into())));
                "spmm/panel_ways.cuh"
            }
        };
        (header, settings)
    }

    /// The kernel over `rows` rows.
    fn kernel(&self, rows: u32) -> EntryPoint {
        let Spmm { n, dtype, .. } = self.problem;
        let [b, c] = match self.passes {
            Some(_) => [Arg::Scratch(0), Arg::Scratch(1)],
            None => [Arg::B, Arg::C],
        };
        let result = self.problem.result();
        let operands = vec![
            parameter("const u32*", "panel_ptr", Arg::Array(0)),
            parameter("const u32*", "panel_cols", Arg::Array(1)),
            parameter(elements(dtype), "panel_vals", Arg::Array(2)),
            parameter(elements(dtype), "b", b),
            parameter(format!("{}*", element(result)), "c", c),
            parameter("const u32*", "order", Arg::Array(3)),
            number("rows", rows),
            number("tiles", rows.div_ceil(self.m1)),
            number("n", n),
            scale(&self.problem),
        ];
        match self.copies {
            None => text::kernel("row_panel", "RowPanelConfig", operands),
            Some(_) => text::kernel("panel_ways", "PanelWaysConfig", operands),
        }
    }

    /// Its step.
    fn step(&self, rows: u32) -> Step {
        let blocks = rows.div_ceil(self.m1).div_ceil(self.tile().tiles_per_block);
        Step {
            grid: [blocks, self.problem.n.div_ceil(self.n1), 1],
            shared_bytes: self.tile().shared_bytes,
            ..self.kernel(rows).step(1, self.block)
        }
    }

    /// The parsed parameters, with copies where the family's domains have a number of groups; `None` if one is missing, or has a value that
    /// is not in its domain, if the layout has no panels, or if a block has no room for the copies.
    pub fn of(candidate: &Candidate, problem: &Spmm, domains: &[Domain]) -> Option<Self> {
        if candidate.family != FAMILY || effective_layout(problem) != Layout::Row {
            return None;
        }
        if !among(candidate, domains) {
            return None;
        }
        let int = |name| count(candidate, name);
        let panel = Self {
            m1: int("m1")?,
            n1: int("n1")?,
            vec: int("vec")?,
            unroll: int("unroll")?,
            block: int("block")?,
            copies: None,
            order: order(candidate)?,
            problem: *problem,
            passes: None,
        };
        if !domains.iter().any(|domain| domain.name == WAYS) {
            return Some(panel);
        }
        Some(Self { copies: Some(Copies::of(&panel, int(WAYS)?)?), ..panel })
    }

    /// Threads along the columns of a tile.
    pub fn threads(&self) -> u32 {
        (self.n1 / self.vec).max(1)
    }

    /// Groups of threads that share the columns of a panel.
    fn ways(&self) -> u32 {
        self.copies.map_or(1, |copies| copies.ways)
    }

    /// Whether a form of these panels whose columns are copied ahead is among the candidates.
    fn may_copy(&self) -> bool {
        let panel = Self { block: COPYING_BLOCK, ..*self };
        COPIED_HEIGHTS.contains(&self.m1) && Copies::of(&panel, 1).is_some()
    }

    /// Registers a thread, by its sums and what it has in flight (`words` of four bytes an element).
    fn registers(&self, words: u32) -> u32 {
        let sums = self.m1 * self.vec;
        match self.copies {
            // Values are in shared memory until they are used.
            Some(_) => (sums + self.unroll * self.vec + self.m1) * words + 24,
            None => (sums + self.unroll * (self.vec + self.m1)) * words + self.unroll + 28,
        }
    }

    /// Columns of a panel, in the mean.
    fn columns(&self, seen: &Inspection) -> f64 {
        let panels = seen.rows.div_ceil(u64::from(self.m1));
        seen.nnz as f64 / self.reuse(seen) / panels.max(1) as f64
    }

    /// Whether half as many groups a panel would fill the device twice at most, and each group has four columns, which are the least part.
    fn needs_ways(&self, ways: u32, seen: &Inspection, device: &Device) -> bool {
        let panels = seen.rows.div_ceil(u64::from(self.m1));
        let column_tiles = u64::from(self.problem.n.div_ceil(self.n1));
        let half = panels * column_tiles * u64::from(self.threads() * ways / 2);
        let resident =
            u64::from(device.multiprocessors) * u64::from(device.max_threads_per_multiprocessor);
        half <= MOST_WAVES * resident && self.columns(seen) >= f64::from(4 * ways)
    }

    /// Ratio of entries to distinct columns of a panel. In other orders than by length it is known for panels of 8 rows, how much more
    /// rows share there than by length. Lower panels gain the root of it that belongs to their height, higher ones no more than those of 8.
    fn reuse(&self, seen: &Inspection) -> f64 {
        let by_length = seen.panel(self.m1).reuse;
        if self.order == RowOrder::Length {
            return by_length;
        }
        let [here, long] = [self.order, RowOrder::Length].map(|order| seen.overlap(order).reuse);
        let doublings = f64::from(self.m1).log2();
        let gain = (here / long.max(1.0)).powf((doublings / KNOWN_ROWS_LOG2).min(1.0));
        (by_length * gain).clamp(1.0, f64::from(self.m1))
    }
}
