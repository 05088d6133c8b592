//! Family `condensed_tc`, row-major: condensed panels of 8 rows on tensor cores (`kernels/spmm/condensed_tc.cuh`).
//!
//! Swapping the operands makes rows of A the short side of the MMA, so that a gathered row of B serves a vector of 8 values
//! (FlashSparse, PPoPP 2025). Our kernel holds its operands in registers alone, and leaves columns with few entries to a
//! residue on plain cores.

mod descriptor;
pub mod pack;

use super::family::{RowOrder, SpmmFamily, SpmmKernel, Tile, among, count, order, order_serves};
use super::inspect::{Inspection, Locality};
use super::model::{self, Work};
use super::shared::{self, Lowered, MOST_KEPT, Shared, array};
use super::text::{self, elements, output, scale};
use crate::domain::recipe::{Arg, Array, ArrayData, CudaProgram, Program, Step};
use crate::domain::{Candidate, Device, Dtype, Layout, Spmm};
use crate::ops::Refusal;
use crate::ops::program::{EntryPoint, aggregate, number, parameter};
use crate::search::domain::{Domain, chosen};
use half::{bf16, f16};
use pack::{Condensed, LISTS, Operand, ROWS, Shape};
use std::sync::{Arc, LazyLock};

pub const FAMILY: &str = "condensed_tc";

/// Narrowest B for which an MMA's 16 columns are worthwhile.
const LEAST_COLUMNS: u32 = 8;
/// With fewer warps per multiprocessor than this, panels are cut into parts.
const WARPS_A_MULTIPROCESSOR: u64 = 4;
/// Most parts that a panel is cut into: each writes the sums of all of C once more, and they are read again.
const MOST_PARTS: u64 = 16;
/// What cutting panels costs, microseconds: a fence and a counter's round trip after the last step, and adding up one part.
const ARRIVAL_US: f64 = 1.5;
const PARTIAL_US: f64 = 0.15;

pub struct CondensedTcs;

#[derive(Clone, Copy, Debug)]
struct CondensedTc {
    columns: u32,
    stages: u32,
    warps: u32,
    order: RowOrder,
    residue: u32,
    problem: Spmm,
}

impl SpmmFamily for CondensedTcs {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/condensed_tc.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            vec![
                Domain::ints("columns", &[32, 64, 128]),
                Domain::ints("stages", &[1, 2, 4]),
                Domain::ints("warps", &[2, 8]),
                Domain::texts("order", &["natural", "length", "similarity", "locality"]),
                Domain::ints("residue", &[0, 2]),
            ]
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        if !takes(problem) {
            return Vec::new();
        }
        chosen(FAMILY, self.domains(), |candidate| {
            order_serves(candidate, problem) && self.kernel(candidate, problem).is_some()
        })
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        if candidate.family != FAMILY || !takes(problem) || !among(candidate, self.domains()) {
            return None;
        }
        let int = |name| count(candidate, name);
        let kernel = CondensedTc {
            columns: int("columns")?,
            stages: int("stages")?,
            warps: int("warps")?,
            order: order(candidate)?,
            residue: int("residue")?,
            problem: *problem,
        };
        let whole = kernel.columns.is_multiple_of(kernel.group()) && kernel.groups() > 0;
        // More loads in flight per lane would take the registers of other warps.
        (whole && kernel.words_in_flight() <= 64).then(|| Box::new(kernel) as Box<dyn SpmmKernel>)
    }
}

fn takes(problem: &Spmm) -> bool {
    problem.layout == Layout::Row && problem.dtype != Dtype::F64 && problem.n >= LEAST_COLUMNS
}

impl CondensedTc {
    fn half(&self) -> bool {
        self.problem.dtype.is_half()
    }

    /// Columns of A per step: the MMA's k.
    fn depth(&self) -> u32 {
        if self.half() { 16 } else { 8 }
    }

    /// Columns of B that a warp loads at a time: a line of 128 bytes.
    fn group(&self) -> u32 {
        if self.half() { 64 } else { 32 }
    }

    fn groups(&self) -> u32 {
        self.columns / self.group()
    }

    /// Elements in 16 bytes.
    fn vector(&self) -> u32 {
        self.group() / 8
    }

    /// Words of B that each lane has in flight.
    fn words_in_flight(&self) -> u32 {
        self.groups() * self.stages * self.depth()
    }

    /// Number of products that compute one: f32 operands are split unless the client accepts tf32.
    fn terms(&self) -> u32 {
        if self.half() || self.problem.tf32 { 1 } else { 3 }
    }

    fn shape(&self) -> Shape {
        Shape { depth: self.depth() as usize, residue: self.residue as usize }
    }

    /// Columns in steps, without padding, and entries in the residue.
    fn columns_and_residue(&self, seen: &Inspection) -> (f64, f64) {
        let (nnz, overlap) = (seen.nnz as f64, seen.overlap(self.order));
        let lone = if self.residue > 1 { nnz * overlap.lone } else { 0.0 };
        (nnz / overlap.reuse - lone, lone)
    }

    /// Columns in steps, including those that fill up the last step of a panel.
    fn padded_columns(&self, seen: &Inspection) -> f64 {
        let (columns, lone) = self.columns_and_residue(seen);
        let panels = (seen.rows as f64 / ROWS as f64).ceil();
        let padding = panels * f64::from(self.depth() - 1) / 2.0;
        // Lone columns fill the room of a last step first, and a panel that has none keeps no step.
        if self.residue > 1 { columns + padding.min(columns).min(lone) } else { columns + padding }
    }

    /// Warp instructions per step and column tile, counted in the kernel's loop.
    fn step_instructions(&self) -> f64 {
        let (fetch, mmas) = (self.depth() / 4, self.vector() / 2);
        let group = match (self.half(), self.terms()) {
            (true, _) => fetch + mmas * (4 + 1),
            (false, 1) => fetch + mmas * (4 + 1),
            _ => fetch + mmas * (4 * 3 + 3 + 8),
        };
        let frame = 4 + fetch * 3 + if self.terms() == 3 { 6 } else { 2 };
        f64::from(frame + self.groups() * group)
    }

    fn column_tiles(&self) -> u32 {
        self.problem.n.div_ceil(self.columns)
    }

    /// Parts that panels are cut into along their steps, so that a matrix with few rows fills the device.
    fn parts(&self, panels: u64, steps: u64, multiprocessors: u32) -> u32 {
        let warps = panels.max(1) * u64::from(self.column_tiles());
        let wanted = u64::from(multiprocessors) * WARPS_A_MULTIPROCESSOR;
        if warps >= wanted {
            return 1;
        }
        (2 * wanted).div_ceil(warps).min(self.most_parts(panels, steps)) as u32
    }

    /// A part has at least four rounds of steps.
    fn most_parts(&self, panels: u64, steps: u64) -> u64 {
        (steps / panels.max(1) / (4 * u64::from(self.stages))).clamp(1, MOST_PARTS)
    }

    /// Panels, and approximately their steps.
    fn panels_and_steps(&self, seen: &Inspection) -> (u64, u64) {
        let steps = self.padded_columns(seen) / f64::from(self.depth());
        (seen.rows.div_ceil(ROWS as u64), steps as u64)
    }

    /// Bytes of the partial sums of all parts.
    fn partial_bytes(&self, panels: u64, parts: u32) -> u64 {
        let columns = u64::from(self.column_tiles() * self.columns);
        u64::from(parts) * panels * ROWS as u64 * columns * 4
    }

    /// The work of warps that each take one of several parts: less of a panel, but sums that are written and added up.
    fn cut(&self, work: Work, seen: &Inspection, parts: u32) -> Work {
        if parts == 1 {
            return work;
        }
        let (panels, _) = self.panels_and_steps(seen);
        let share = f64::from(parts);
        Work {
            instructions: work.instructions / share,
            mean_walk: work.mean_walk / share,
            longest_walk: work.longest_walk / share,
            c_again: 2.0 * self.partial_bytes(panels, parts) as f64
                / f64::from(self.column_tiles()),
            after_us: ARRIVAL_US + share * PARTIAL_US,
            ..work
        }
    }
}

impl SpmmKernel for CondensedTc {
    fn tile(&self) -> Tile {
        let sums = self.groups() * 2 * self.vector();
        let split = if self.terms() == 3 { 8 } else { 0 };
        Tile {
            rows: ROWS as u32,
            columns: self.columns,
            threads: 32 * self.warps,
            most_threads: 256,
            threads_per_tile: 32,
            tiles_per_block: self.warps,
            order: self.order,
            // The columns of a step are loaded together, so walks are counted in steps.
            unroll: self.stages,
            elements_an_entry: (self.columns / 32).max(1),
            registers: sums
                + self.words_in_flight()
                + self.stages * (self.depth() / 4 + 2)
                + split
                + 24,
            shared_bytes: 0,
            vector: self.vector(),
            balanced: false,
            grid_y: self.column_tiles(),
            repeats: None,
        }
    }

    fn work(&self, seen: &Inspection) -> Work {
        let (columns, lone) = self.columns_and_residue(seen);
        let padded = self.padded_columns(seen);
        let (depth, panels) = (f64::from(self.depth()), seen.rows.div_ceil(ROWS as u64) as f64);
        let element = self.problem.dtype.bytes() as f64;
        let gathered = padded.max(columns + lone);
        // Four lists of a residue are walked side by side, each by the lanes of one pair of rows.
        let vectors = f64::from(self.groups());
        let lone_instructions =
            (4.0 + vectors * (3.0 + 3.0 * f64::from(self.vector()))) / LISTS as f64;
        let stepped = padded / depth * self.step_instructions();
        let reuse = seen.overlap(self.order).reuse;
        let row_major = Work::row_major(&self.tile(), seen, &self.problem);
        let Locality { near, far } = row_major.locality;
        // Steps, and batches of the residue.
        let walked = padded / depth + lone * vectors / (LISTS * 4) as f64;
        let heaviest = seen.groups(ROWS as u32, self.order == RowOrder::Length).heaviest as f64;
        Work {
            entries: gathered,
            a_bytes: padded * (4.0 + element * ROWS as f64) + lone * 8.0 + panels * 20.0,
            instructions: (stepped + lone * lone_instructions) / gathered.max(1.0),
            mean_walk: walked / panels.max(1.0),
            longest_walk: (heaviest / reuse).max(seen.longest_row as f64) / depth,
            locality: Locality { near: near.max(reuse), far: far.max(reuse) },
            reuse,
            ..row_major
        }
    }

    fn predict_us(&self, seen: &Inspection, problem: &Spmm, device: &Device) -> f64 {
        let (panels, steps) = self.panels_and_steps(seen);
        let parts = self.parts(panels, steps, device.multiprocessors);
        // A tile has one warp per part, and each executes its share of the instructions.
        let tile = Tile { threads_per_tile: 32 * parts, ..self.tile() };
        model::predict_us(&tile, &self.cut(self.work(seen), seen, parts), seen, problem, device)
    }

    /// As many as panels may be cut in: they are cut where there would be too few.
    fn blocks(&self, seen: &Inspection, _problem: &Spmm) -> u64 {
        let (panels, steps) = self.panels_and_steps(seen);
        let blocks = panels.div_ceil(self.warps.into()) * u64::from(self.column_tiles());
        blocks * self.most_parts(panels, steps)
    }

    fn fill(&self, seen: &Inspection) -> f64 {
        let (columns, lone) = self.columns_and_residue(seen);
        let stored = self.padded_columns(seen).max(columns) * ROWS as f64 + lone;
        stored / seen.nnz.max(1) as f64
    }

    fn source(&self) -> String {
        let settings = [
            ("kTerms", self.terms().into()),
            ("kColumns", self.columns.into()),
            ("kStages", self.stages.into()),
            ("kResidue", (self.residue > 0).into()),
            ("kFull", self.problem.n.is_multiple_of(self.columns).into()),
        ];
        let kernel = self.kernel(&Bound::default());
        text::program(&["spmm/condensed_tc.cuh"], &self.problem, &settings, &[kernel])
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let (rows, order_ms) = shared.ordered(self.order);
        let (mut arrays, pack_ms) = match self.problem.dtype {
            Dtype::F16 => self.packed::<f16>(shared, rows.clone(), ArrayData::F16)?,
            Dtype::Bf16 => self.packed::<bf16>(shared, rows.clone(), ArrayData::Bf16)?,
            _ => self.packed::<f32>(shared, rows.clone(), ArrayData::F32)?,
        };
        let mut bound = Bound { residue: self.residue > 0, ..Bound::default() };
        if let Some(rows) = rows {
            bound.order = Some(arrays.len());
            arrays.push(self.order.array(rows));
        }
        let height = shared.matrix.rows() as u32;
        bound.rows = height;
        let panels = height.div_ceil(ROWS as u32);
        let steps = match &arrays[1].data {
            ArrayData::U32(cols) => cols.len() as u64 / u64::from(self.depth()),
            _ => 0,
        };
        let parts = self.parts(panels.into(), steps, shared.device.multiprocessors);
        let mut scratch = Vec::new();
        if parts > 1 {
            let counters = u64::from(panels) * u64::from(self.column_tiles()) * 4;
            let partials = self.partial_bytes(panels.into(), parts);
            scratch.push(shared::scratch("sums of parts", partials, &shared.device)?);
            scratch.push(shared::scratch("counters of parts", counters, &shared.device)?);
            bound.cut = true;
        }
        let step = Step {
            grid: [panels.div_ceil(self.warps), self.column_tiles(), parts],
            ..self.kernel(&bound).step(1, 32 * self.warps)
        };
        let program = Program::Cuda(CudaProgram::of(self.source(), step));
        let (ms, update_ms) = (order_ms + pack_ms, Some(pack_ms));
        Ok(Lowered { arrays, scratch, ms, update_ms, ..Lowered::bare(program) })
    }
}

/// Operands that depend on the matrix; the default serves if only the text is needed.
#[derive(Default)]
struct Bound {
    rows: u32,
    /// Whether a residue was packed.
    residue: bool,
    /// The array that holds the order of rows; none in natural order.
    order: Option<usize>,
    /// Whether panels are cut into parts, which leave their sums in scratch memory.
    cut: bool,
}

impl CondensedTc {
    fn kernel(&self, bound: &Bound) -> EntryPoint {
        let Spmm { n, dtype, .. } = self.problem;
        let pointer = |name, argument: Option<Arg>| {
            parameter("const u32*", name, argument.unwrap_or(Arg::NULL))
        };
        let panels = vec![
            pointer("step_ptr", Some(Arg::Array(0))),
            pointer("cols", Some(Arg::Array(1))),
            pointer("values", Some(Arg::Array(2))),
            pointer("residue_ptr", bound.residue.then_some(Arg::Array(3))),
            pointer("residue", bound.residue.then_some(Arg::Array(4))),
            pointer("order", bound.order.map(Arg::Array)),
            number("rows", bound.rows),
        ];
        let part = |ctype: &str, name, at| {
            parameter(ctype, name, if bound.cut { Arg::Scratch(at) } else { Arg::NULL })
        };
        let parts = vec![part("float4*", "partial", 0), part("u32*", "arrived", 1)];
        let operands = vec![
            aggregate("CondensedPanels", panels),
            parameter(elements(dtype), "b", Arg::B),
            output(&self.problem),
            number("n", n),
            aggregate("CondensedParts", parts),
            scale(&self.problem),
        ];
        text::kernel("condensed_tc", "CondensedTcConfig", operands)
    }

    /// The packed arrays in the kernel's order, with those of the residue only if there is one.
    fn packed<V: Operand>(
        &self,
        shared: &mut Shared,
        order: Option<Arc<[u32]>>,
        values: impl Fn(Arc<[V::Stored]>) -> ArrayData,
    ) -> Result<(Vec<Array>, f64), Refusal> {
        let named = self.order.name();
        let name = format!("condensed_{named}_{}", self.residue);
        let (packed, ms) = shared.once(&name, Condensed::<V::Stored>::bytes, |shared| {
            let order = order.unwrap_or_else(|| (0..shared.matrix.rows() as u32).collect());
            pack::pack::<V>(&shared.matrix, &order, self.shape()).ok_or_else(|| {
                Refusal(format!("condensed panels take more than {} GiB", MOST_KEPT >> 30))
            })
        })?;
        let each = |part: &str, data| array(format!("{name}_{part}"), data);
        let mut arrays = vec![
            each("steps", ArrayData::U32(packed.step_ptr.clone())),
            each("cols", ArrayData::U32(packed.cols.clone())),
            each("values", values(packed.values.clone())),
        ];
        if self.residue > 0 {
            arrays.push(each("residue_ptr", ArrayData::U32(packed.residue_ptr.clone())));
            arrays.push(each("residue", ArrayData::U32(packed.residue.clone())));
        }
        Ok((arrays, ms))
    }
}
