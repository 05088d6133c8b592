//! Family `tca`, row-major f16 and bf16: TCA-SpMM's dot products on tensor cores (section 4, `kernels/spmm/tca.cuh`).

mod count;
mod table;
#[cfg(test)]
mod tests;

use super::family::{
    Beyond, RowOrder, SpmmFamily, SpmmKernel, Tile, among, count, effective_layout, gpu_family,
};
use super::inspect::Inspection;
use super::model::{SECTOR, Work};
use super::phrases;
use super::shared::{Lowered, MOST_KEPT, Shared, array};
use super::text::{self, elements, output, scale};
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::recipe::{Arg, ArrayData, CudaProgram, Program};
use crate::domain::{Candidate, Device, Layout, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys, parameters};
use crate::ops::program::{EntryPoint, aggregate, number, parameter};
use crate::search::domain::{Domain, product};
use count::Count;
use std::sync::{Arc, LazyLock};
use table::Shape;

const FAMILY: &str = "tca";
/// Blocks and columns that the shared feed's buffer is laid out for: the paper's.
const SHARED_WARPS: u32 = 8;
const SHARED_COLUMNS: u32 = 64;
/// Bytes per lane in one load: the widest vector.
const VECTOR_BYTES: u32 = 16;

pub struct TensorDots;

#[derive(Clone, Copy, Debug)]
struct TensorDot {
    warps: u32,
    columns: u32,
    thresholds: [u32; 4],
    /// Rows of B pass through shared memory, as in the paper; otherwise they go from memory directly to the lanes that
    /// multiply them.
    shared: bool,
    problem: Spmm,
}

/// Most nonzeros of a row of each class. The paper's values make every product full; the others let a row process its
/// nonzeros in several steps of a lower class, which leaves fewer diagonal sums and reads longer pieces of B.
fn thresholds(name: &str) -> Option<[u32; 4]> {
    match name {
        "paper" => Some([8, 16, 32, 64]),
        "double" => Some([16, 32, 64, 128]),
        "eightfold" => Some([64, 128, 256, 512]),
        _ => None,
    }
}

impl SpmmFamily for TensorDots {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/tca.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            vec![
                Domain::ints("warps", &[4, 8]),
                Domain::ints("columns", &[32, 64, 128]),
                Domain::texts("thresholds", &["paper", "double", "eightfold"]),
                Domain::texts("feed", &["registers", "shared"]),
            ]
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        let takes = problem.dtype.is_half() && effective_layout(problem) == Layout::Row;
        if takes { product(FAMILY, self.domains()) } else { Vec::new() }
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        let takes = problem.dtype.is_half() && effective_layout(problem) == Layout::Row;
        if candidate.family != FAMILY || !takes || !among(candidate, self.domains()) {
            return None;
        }
        Some(Box::new(TensorDot {
            warps: count(candidate, "warps")?,
            columns: count(candidate, "columns")?,
            thresholds: thresholds(candidate.text("thresholds")?)?,
            shared: match candidate.text("feed")? {
                "registers" => false,
                "shared" => true,
                _ => return None,
            },
            problem: *problem,
        }))
    }
}

impl Family for TensorDots {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(FAMILY, Distinction::Alone)];
        FamilyDescriptor {
            title: "TCA-SpMM's dot products",
            summary: "Each dot product of a row becomes a small matrix product on the tensor cores, whose diagonal is \
                      summed; a row gets as many warps as its length needs.",
            source: Some("TCA-SpMM, section 4"),
            parameters: parameters(
                self.domains(),
                &[
                    phrases::WARPS,
                    phrases::COLUMNS_A_WARP,
                    ("thresholds", "how rows are divided into classes by their length"),
                    ("feed", "where the operands of a tensor-core product are assembled"),
                ],
            ),
            ..gpu_family("spmm.tca", STORED, false)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys { prepared_by: &[], tiled_by: &["columns", "warps"], headers: &["spmm/tca.cuh"] }
    }

    fn complexity(&self, _: &Candidate) -> u32 {
        3
    }
}

impl TensorDot {
    fn kernel(&self) -> EntryPoint {
        let Spmm { n, dtype, accumulate, .. } = self.problem;
        let [element, result] = [dtype, self.problem.result()].map(text::element);
        let operands = vec![
            parameter("const u32*", "cols", Arg::ColIdx),
            parameter(elements(dtype), "vals", Arg::Values),
            parameter(elements(dtype), "b", Arg::B),
            output(&self.problem),
            number("n", n),
            scale(&self.problem),
        ];
        let operands = vec![
            parameter("const u32*", "table", Arg::Array(0)),
            aggregate(format!("TcaOperands<{element}, {result}, {accumulate}>"), operands),
        ];
        text::kernel("tca", "TcaConfig", operands)
    }

    /// Columns per lane.
    fn width(&self) -> u32 {
        self.columns / 8
    }

    /// Loads through shared memory are laid out for one shape, and the widest shape serves to have more loads of whole vectors
    /// in flight.
    fn repeats(&self) -> Option<Beyond> {
        let wide = self.shared || !self.aligned();
        let columns = Beyond::most(self.columns, SHARED_COLUMNS).filter(|_| wide);
        let other = self.columns != SHARED_COLUMNS || self.warps != SHARED_WARPS;
        columns.or((self.shared && other).then_some(Beyond::ANOTHER))
    }

    /// Whether rows of B are aligned for whole vectors.
    fn aligned(&self) -> bool {
        self.problem.n.is_multiple_of(self.width())
    }

    /// Two stages of B, and the sums of two turns of 64 columns where these pass through shared memory, too.
    fn shared_bytes(&self) -> u32 {
        let collected = if self.problem.result().is_half() { 2 * 64 * 4 } else { 0 };
        2 * 64 * VECTOR_BYTES * self.warps + collected
    }

    fn shape(&self) -> Shape {
        Shape {
            warps: self.warps,
            span: self.columns,
            thresholds: self.thresholds,
            grouped: self.shared,
            n: self.problem.n,
        }
    }

    /// Warp instructions of one step, and of one row's diagonal sums, for a class of rows, counted in the kernel's text.
    fn instructions(&self, eights: u32) -> (f64, f64) {
        let width = f64::from(self.width());
        let loads = if self.aligned() { 2.0 * (2.0 + width / 8.0) } else { 8.0 * width };
        let gather = if self.shared { 22.0 } else { 0.0 };
        // Indices and values, addresses, the transposition (`width` permutations), the products.
        let step = 22.0 + loads + 1.5 * width + gather;
        let folds = match eights {
            1 => 0.0,
            2 => 2.0,
            4 => 3.0,
            _ => 3.5,
        };
        (step, 16.0 + width * (1.0 + folds))
    }
}

impl SpmmKernel for TensorDot {
    fn tile(&self) -> Tile {
        let width = self.width();
        Tile {
            rows: 1,
            columns: self.columns,
            threads: 32 * self.warps,
            most_threads: 256,
            threads_per_tile: 32,
            // A row of the last class fills its block; how many shorter ones share theirs is counted by `blocks`.
            tiles_per_block: 1,
            order: RowOrder::Natural,
            unroll: 8,
            elements_an_entry: width,
            registers: 28
                + if self.aligned() { 3 } else { 5 } * width
                + 12 * u32::from(self.shared),
            shared_bytes: if self.shared { self.shared_bytes() } else { 0 },
            vector: 1,
            // Warps are assigned by nonzeros.
            balanced: true,
            grid_y: 1,
            repeats: self.repeats(),
        }
    }

    /// Short rows pack up to eight into a block, and long ones take several.
    fn blocks(&self, seen: &Inspection, _: &Spmm) -> u64 {
        count::blocks(&self.shape(), &seen.row_lengths)
    }

    /// The gather of B is not reduced, and the eightfold multiply-adds cost no more than the instructions of the products.
    /// Steps and tasks are counted by class from the lengths of all rows; a walk is a task of the table.
    fn work(&self, seen: &Inspection) -> Work {
        let shape = self.shape();
        let count = Count::of(&shape, &seen.row_lengths);
        let base = Work::row_major(&self.tile(), seen, &self.problem);
        let column_tiles = f64::from(self.problem.n.div_ceil(self.columns));
        let (mut instructions, mut fetched) = (0.0, 0.0);
        for class in 0..4 {
            let eights = 1 << class;
            let (step, frame) = self.instructions(eights);
            instructions += count.steps[class] * step + count.turns[class] * frame;
            // A lane of the higher classes reads a piece of a row alone, which may be less than a sector.
            let alone = if self.shared { 1 } else { eights };
            let piece = f64::from(self.columns / alone) * self.problem.dtype.bytes() as f64;
            let pieces = (base.width / piece).ceil();
            fetched += count.nonzeros[class] * pieces * (piece / SECTOR).ceil() * SECTOR;
        }
        let (nnz, tasks) = ((seen.nnz as f64).max(1.0), count.tasks.max(1.0));
        let table = self.blocks(seen, &self.problem) as f64 * f64::from(self.warps) * 16.0;
        let longest = u32::try_from(seen.longest_row).unwrap_or(u32::MAX);
        let turns = shape.turns(longest).div_ceil(shape.parts(longest));
        Work {
            fetched: fetched / nnz,
            // Each warp has an entry of the table; A is read once, since a row's column tiles follow each other.
            a_bytes: (base.a_bytes + table) / column_tiles,
            instructions: instructions / (nnz * column_tiles),
            walks: tasks / column_tiles,
            mean_walk: count.walked / tasks,
            longest_walk: f64::from(longest) / f64::from(1 << shape.class(longest))
                * f64::from(turns),
            ..base
        }
    }

    fn source(&self) -> String {
        let settings = [
            ("kWidth", self.width().into()),
            ("kShared", self.shared.into()),
            ("kAligned", self.aligned().into()),
        ];
        text::program(&["spmm/tca.cuh"], &self.problem, &settings, &[self.kernel()])
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        needs_ampere(&shared.device)?;
        let shape = self.shape();
        let Shape { warps, span, thresholds, grouped, .. } = shape;
        let name = format!("tca_warps_{warps}_{span}_{}_{grouped}", thresholds[0]);
        let bytes = |table: &Arc<[u32]>| 4 * table.len() as u64;
        let (table, ms) = shared.once(&name, bytes, |shared| {
            let table = table::build(&shared.matrix, &shape).ok_or_else(|| {
                Refusal(format!("a table of warps takes more than {} GiB", MOST_KEPT >> 30))
            })?;
            Ok::<Arc<[u32]>, Refusal>(table.into())
        })?;
        let blocks = table.len() / (table::WORDS * warps as usize);
        let step = self.kernel().step(blocks as u32, 32 * warps);
        let program = Program::Cuda(CudaProgram::of(self.source(), step));
        let arrays = vec![array(name, ArrayData::U32((*table).clone()))];
        Ok(Lowered { arrays, ms, ..Lowered::bare(program) })
    }
}

/// The kernel's products and asynchronous copies came with compute capability 8.0.
fn needs_ampere(device: &Device) -> Result<(), Refusal> {
    match device.compute_major() {
        Some(8..) => Ok(()),
        Some(0..8) | None => Err(Refusal(format!(
            "tca needs compute capability 8.0, the device has {}",
            device.compute_capability
        ))),
    }
}
