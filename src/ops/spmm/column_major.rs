//! Families `row_split` and `row_panel` on column-major operands (`kernels/spmm/column_major.cuh`).

use super::family::{
    ENTRY, Family, Kernel, RowOrder, Tile, count, effective_layout, order, program,
};
use super::inspect::Inspection;
use super::model::{SECTOR, Work};
use super::panels::panel_arguments;
use super::row_split::csr_arguments;
use super::shared::{Lowered, Shared, Sparse};
use crate::domain::recipe::{Arg, CudaProgram, Program, Step};
use crate::domain::{Candidate, Dtype, Layout, Spmm};
use crate::ops::Refusal;
use crate::search::domain::{Domain, product};

pub struct ColumnMajors;

/// Row-split has `m1 == 1`.
#[derive(Clone, Copy, Debug)]
struct ColumnMajor {
    m1: u32,
    lanes: u32,
    r: u32,
    unroll: u32,
    block: u32,
    order: RowOrder,
    problem: Spmm,
}

impl Family for ColumnMajors {
    fn names(&self) -> &'static [&'static str] {
        &["row_split", "row_panel"]
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/column_major.cuh")
    }

    fn domains(&self) -> Vec<Domain> {
        vec![
            Domain::ints("m1", &[1, 2, 4]),
            Domain::ints("lanes", &[1, 2, 4, 8, 16, 32]),
            Domain::ints("r", &[1, 2, 4, 8]),
            Domain::ints("unroll", &[1, 2, 4]),
            Domain::ints("block", &[128, 256]),
            Domain::texts("order", &["natural", "length"]),
        ]
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        if problem.dtype != Dtype::F32 || effective_layout(problem) != Layout::Col {
            return Vec::new();
        }
        let all = product("", &self.domains()).into_iter();
        all.filter_map(|mut candidate| {
            let panel = candidate.int("m1") != Some(1);
            if panel {
                // Panels are cut from rows ordered by length: there is no natural order to choose.
                if candidate.text("order") == Some("natural") {
                    return None;
                }
                candidate.params.remove("order");
            } else {
                candidate.params.remove("m1");
            }
            candidate.family = if panel { "row_panel" } else { "row_split" }.to_owned();
            Some(candidate)
        })
        .collect()
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn Kernel>> {
        if effective_layout(problem) != Layout::Col {
            return None;
        }
        let int = |name| count(candidate, name);
        let (m1, order) = match candidate.family.as_str() {
            "row_panel" => (int("m1")?, RowOrder::Length),
            "row_split" => (1, order(candidate)?),
            _ => return None,
        };
        Some(Box::new(ColumnMajor {
            m1,
            lanes: int("lanes")?,
            r: int("r")?,
            unroll: int("unroll")?,
            block: int("block")?,
            order,
            problem: *problem,
        }))
    }
}

impl Kernel for ColumnMajor {
    fn tile(&self) -> Tile {
        Tile {
            rows: self.m1,
            columns: self.r,
            threads: self.block,
            most_threads: 256,
            threads_a_tile: self.lanes,
            tiles_a_block: self.block / self.lanes,
            blocks: None,
            order: self.order,
            unroll: self.unroll,
            elements_an_entry: self.r,
            registers: self.m1 * self.r + self.unroll * (self.r + self.m1 + 1) + 28,
            shared_bytes: 0,
            vector: 1,
            whole_warps: self.block.is_multiple_of(32),
            balanced: false,
            pointless: false,
        }
    }

    /// Gathers of single elements: a sector each, shared with the entries that lie near in the same row or the next rows.
    fn work(&self, seen: &Inspection) -> Work {
        let (r, lanes) = (f64::from(self.r), f64::from(self.lanes));
        let panel = seen.panel(self.m1);
        let packed = f64::from(self.m1);
        let bytes = self.problem.dtype.bytes() as f64;
        let by_length = self.order == RowOrder::Length;
        let shared = if by_length { 1.0 } else { 2.0 };
        let element =
            (SECTOR / (1.0 + shared * SECTOR / bytes / seen.mean_gap)).clamp(bytes, SECTOR);
        let mean = (panel.union * packed / seen.rows.max(1) as f64).max(0.01);
        // Lanes past a row's end idle, and a thread that reads its row alone drags whole sectors of A through L1.
        let idle = (mean / lanes).ceil() * lanes / mean;
        let stride = if self.lanes >= 4 { 1.0 } else { 1.3 };
        Work {
            entries: panel.union,
            a_bytes: panel.union * (4.0 + bytes * packed) * stride + seen.rows as f64 * 4.0,
            fetched: element * r,
            width: bytes * r,
            instructions: (4.0 + packed + r * (2.0 + packed)) * idle.min(8.0) / lanes,
            mean_walk: (mean / lanes).max(1.0),
            longest_walk: (seen.longest_row as f64 / lanes).ceil(),
            lockstep: seen.groups(32 / self.lanes * self.m1, by_length).lockstep,
            locality: seen.locality(by_length),
            reuse: panel.reuse,
            framed: 0.0,
            staged_bytes: 0.0,
            c_again: 0.0,
            after_us: 0.0,
        }
    }

    fn fill(&self, seen: &Inspection) -> f64 {
        if self.m1 > 1 { seen.panel(self.m1).fill } else { 1.0 }
    }

    fn source(&self) -> String {
        let full = self.problem.n.is_multiple_of(self.r);
        let Self { m1, lanes, r, unroll, .. } = self;
        program(
            "column_major",
            "const u32* ptr, const u32* cols, const float* vals, const float* b, float* c, const u32* order, u32 rows, u32 tiles, u32 b_rows, u32 n",
            &format!(
                "column_major<{m1}, {lanes}, {r}, {unroll}, {full}>(ptr, cols, vals, b, c, order, rows, tiles, b_rows, n)"
            ),
        )
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let sparse = match self.m1 {
            1 => csr_arguments(shared, self.order),
            m1 => panel_arguments(shared, m1)?,
        };
        let Sparse { arrays, mut args, ms, update_ms } = sparse;
        let (rows, b_rows) = (shared.matrix.rows() as u32, shared.matrix.cols() as u32);
        let tiles = rows.div_ceil(self.m1);
        args.extend([rows, tiles, b_rows, self.problem.n].map(Arg::U32));
        let tile = self.tile();
        let step = Step {
            grid: [tiles.div_ceil(tile.tiles_a_block), self.problem.n.div_ceil(self.r), 1],
            ..Step::of(ENTRY, 1, tile.threads, args)
        };
        let program = Program::Cuda(CudaProgram::of(self.source(), step));
        Ok(Lowered { arrays, ms, update_ms, ..Lowered::bare(program) })
    }
}
