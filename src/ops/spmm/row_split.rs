//! Family `row_split`, row-major: a subwarp per row, output columns in registers (`kernels/spmm/row_split.cuh`).

use super::family::{
    ENTRY, Family, Kernel, RowOrder, Tile, count, effective_layout, order, program,
};
use super::inspect::Inspection;
use super::model::Work;
use super::shared::{Lowered, Shared, Sparse, array};
use crate::domain::recipe::{Arg, ArrayData, CudaProgram, Program, Step};
use crate::domain::{Candidate, Dtype, Layout, Spmm};
use crate::ops::Refusal;
use crate::search::domain::{Domain, product};

pub struct RowSplits;

#[derive(Clone, Copy, Debug)]
struct RowSplit {
    lanes: u32,
    vec: u32,
    cols: u32,
    unroll: u32,
    block: u32,
    shuffle: bool,
    order: RowOrder,
    problem: Spmm,
}

impl Family for RowSplits {
    fn names(&self) -> &'static [&'static str] {
        &["row_split"]
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/row_split.cuh")
    }

    fn domains(&self) -> Vec<Domain> {
        vec![
            Domain::ints("lanes", &[4, 8, 16, 32]),
            Domain::ints("vec", &[1, 2, 4]),
            Domain::ints("cols", &[1, 2, 4]),
            Domain::ints("unroll", &[2, 4, 8]),
            Domain::ints("block", &[128, 256]),
            Domain::texts("fetch", &["direct", "shuffle"]),
            Domain::texts("order", &["natural", "length"]),
        ]
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        let takes = problem.dtype == Dtype::F32 && effective_layout(problem) == Layout::Row;
        if takes { product("row_split", &self.domains()) } else { Vec::new() }
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn Kernel>> {
        if candidate.family != "row_split" || effective_layout(problem) != Layout::Row {
            return None;
        }
        let int = |name| count(candidate, name);
        Some(Box::new(RowSplit {
            lanes: int("lanes")?,
            vec: int("vec")?,
            cols: int("cols")?,
            unroll: int("unroll")?,
            block: int("block")?,
            shuffle: match candidate.text("fetch")? {
                "direct" => false,
                "shuffle" => true,
                _ => return None,
            },
            order: order(candidate)?,
            problem: *problem,
        }))
    }
}

impl Kernel for RowSplit {
    fn tile(&self) -> Tile {
        let elements = self.vec * self.cols;
        Tile {
            rows: 1,
            columns: self.lanes * elements,
            threads: self.block,
            most_threads: 256,
            threads_a_tile: self.lanes,
            tiles_a_block: self.block / self.lanes,
            blocks: None,
            order: self.order,
            unroll: self.unroll,
            elements_an_entry: elements,
            registers: elements + self.unroll * (elements + 2) + 28,
            shared_bytes: 0,
            vector: self.vec,
            whole_warps: self.block.is_multiple_of(32),
            balanced: false,
            // A shuffle hands round at most `lanes` entries, so more in flight are never used.
            pointless: self.shuffle && self.unroll > self.lanes,
        }
    }

    fn work(&self, seen: &Inspection) -> Work {
        let by_length = self.order == RowOrder::Length;
        let fetch = if self.shuffle { 2.0 + 4.0 / f64::from(self.lanes) } else { 3.0 };
        Work {
            instructions: fetch + f64::from(self.cols * (2 + self.vec)),
            lockstep: seen.groups(32 / self.lanes, by_length).lockstep,
            ..Work::row_major(&self.tile(), seen, &self.problem)
        }
    }

    fn source(&self) -> String {
        let full = self.problem.n.is_multiple_of(self.tile().columns);
        let Self { lanes, vec, cols, unroll, shuffle, .. } = self;
        program(
            "row_split",
            "const u32* row_ptr, const u32* cols, const float* vals, const float* b, float* c, const u32* order, u32 rows, u32 n",
            &format!(
                "row_split<{lanes}, {vec}, {cols}, {unroll}, {shuffle}, {full}>(row_ptr, cols, vals, b, c, order, rows, n)"
            ),
        )
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let Sparse { arrays, mut args, ms, .. } = csr_arguments(shared, self.order);
        let rows = shared.matrix.rows() as u32;
        args.extend([Arg::U32(rows), Arg::U32(self.problem.n)]);
        let tile = self.tile();
        let step = Step {
            grid: [rows.div_ceil(tile.tiles_a_block), self.problem.n.div_ceil(tile.columns), 1],
            ..Step::of(ENTRY, 1, tile.threads, args)
        };
        let program = Program::Cuda(CudaProgram::of(self.source(), step));
        Ok(Lowered { arrays, ms, ..Lowered::bare(program) })
    }
}

/// The CSR itself with an order of its rows, and B and C.
pub fn csr_arguments(shared: &mut Shared, order: RowOrder) -> Sparse {
    let mut args = vec![Arg::RowPtr, Arg::ColIdx, Arg::Values, Arg::B, Arg::C];
    if order == RowOrder::Natural {
        args.push(Arg::U64(0));
        return Sparse { arrays: Vec::new(), args, ms: 0.0, update_ms: None };
    }
    args.push(Arg::Array(0));
    let (order, ms) = shared.by_length();
    let arrays = vec![array("rows_by_length", ArrayData::U32(order))];
    Sparse { arrays, args, ms, update_ms: None }
}
