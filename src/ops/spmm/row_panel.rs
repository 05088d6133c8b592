//! Family `row_panel`, row-major: LO-SpMM's tile of M1 rows by N1 columns (`kernels/spmm/row_panel.cuh`).

use super::family::{ENTRY, Family, Kernel, RowOrder, Tile, count, effective_layout, program};
use super::inspect::Inspection;
use super::model::Work;
use super::panels::panel_arguments;
use super::shared::{Lowered, Shared, Sparse};
use crate::domain::recipe::{Arg, CudaProgram, Program, Step};
use crate::domain::{Candidate, Dtype, Layout, Spmm};
use crate::ops::Refusal;
use crate::search::domain::{Domain, product};

pub struct RowPanels;

#[derive(Clone, Copy, Debug)]
struct RowPanel {
    m1: u32,
    n1: u32,
    vec: u32,
    unroll: u32,
    tiles: u32,
    problem: Spmm,
}

impl Family for RowPanels {
    fn names(&self) -> &'static [&'static str] {
        &["row_panel"]
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/row_panel.cuh")
    }

    fn domains(&self) -> Vec<Domain> {
        vec![
            Domain::ints("m1", &[1, 2, 4, 8, 16, 32]),
            Domain::ints("n1", &[32, 64, 128, 256]),
            Domain::ints("vec", &[1, 2, 4]),
            Domain::ints("unroll", &[1, 2, 4]),
            Domain::ints("tiles", &[1, 2, 4, 8]),
        ]
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        let takes = problem.dtype == Dtype::F32 && effective_layout(problem) == Layout::Row;
        if takes { product("row_panel", &self.domains()) } else { Vec::new() }
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn Kernel>> {
        if candidate.family != "row_panel" || effective_layout(problem) != Layout::Row {
            return None;
        }
        let int = |name| count(candidate, name);
        Some(Box::new(RowPanel {
            m1: int("m1")?,
            n1: int("n1")?,
            vec: int("vec")?,
            unroll: int("unroll")?,
            tiles: int("tiles")?,
            problem: *problem,
        }))
    }
}

impl Kernel for RowPanel {
    fn tile(&self) -> Tile {
        let threads_a_tile = self.n1 / self.vec;
        Tile {
            rows: self.m1,
            columns: self.n1,
            threads: threads_a_tile * self.tiles,
            most_threads: 256,
            threads_a_tile,
            tiles_a_block: self.tiles,
            blocks: None,
            order: RowOrder::Length,
            unroll: self.unroll,
            elements_an_entry: self.vec,
            registers: self.m1 * self.vec + self.unroll * (self.vec + self.m1 + 1) + 28,
            shared_bytes: 0,
            vector: self.vec,
            whole_warps: threads_a_tile.is_multiple_of(32),
            balanced: false,
            pointless: false,
        }
    }

    fn work(&self, seen: &Inspection) -> Work {
        let panel = seen.panel(self.m1);
        let packed = f64::from(self.m1);
        let element = self.problem.dtype.bytes() as f64;
        Work {
            entries: panel.union,
            a_bytes: panel.union * (4.0 + element * packed),
            instructions: 4.0 + (packed / 4.0).ceil() + packed * f64::from(self.vec),
            mean_walk: panel.union * packed / seen.rows.max(1) as f64,
            reuse: panel.reuse,
            ..Work::row_major(&self.tile(), seen, &self.problem)
        }
    }

    fn fill(&self, seen: &Inspection) -> f64 {
        if self.m1 > 1 { seen.panel(self.m1).fill } else { 1.0 }
    }

    fn source(&self) -> String {
        let Self { m1, n1, vec, unroll, .. } = self;
        program(
            "row_panel",
            "const u32* ptr, const u32* cols, const float* vals, const float* b, float* c, const u32* order, u32 rows, u32 tiles, u32 n",
            &format!(
                "row_panel<{m1}, {n1}, {vec}, {unroll}>(ptr, cols, vals, b, c, order, rows, tiles, n)"
            ),
        )
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let Sparse { arrays, mut args, ms, update_ms } = panel_arguments(shared, self.m1)?;
        let rows = shared.matrix.rows() as u32;
        let tiles = rows.div_ceil(self.m1);
        args.extend([Arg::U32(rows), Arg::U32(tiles), Arg::U32(self.problem.n)]);
        let step = Step {
            grid: [tiles.div_ceil(self.tiles), self.problem.n.div_ceil(self.n1), 1],
            block: [self.n1 / self.vec, self.tiles, 1],
            ..Step::of(ENTRY, 1, 1, args)
        };
        let program = Program::Cuda(CudaProgram::of(self.source(), step));
        Ok(Lowered { arrays, ms, update_ms, ..Lowered::bare(program) })
    }
}
