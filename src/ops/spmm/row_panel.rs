//! Family `row_panel`, row-major: LO-SpMM's tile of M1 rows by N1 columns (`kernels/spmm/row_panel.cuh`).

use super::family::{
    Beyond, RowOrder, SpmmFamily, SpmmKernel, Tile, among, count, effective_layout, gpu_family,
    is_local, order, order_serves, width_serves,
};
use super::inspect::Inspection;
use super::model::Work;
use super::panels::panel_arrays;
use super::phrases;
use super::shared::{Lowered, Shared};
use super::text::{self, elements, output, scale};
use super::walk::widest_vector;
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::recipe::{Arg, CudaProgram, Program, Step};
use crate::domain::{Candidate, Device, Layout, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys, parameters};
use crate::ops::program::{EntryPoint, number, parameter};
use crate::search::domain::{Domain, chosen};
use std::sync::LazyLock;

pub struct RowPanels;

#[derive(Clone, Copy, Debug)]
struct RowPanel {
    m1: u32,
    n1: u32,
    vec: u32,
    unroll: u32,
    block: u32,
    order: RowOrder,
    problem: Spmm,
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
                Domain::texts("order", &["length", "similarity", "locality"]),
            ]
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        if effective_layout(problem) != Layout::Row {
            return Vec::new();
        }
        chosen("row_panel", self.domains(), |c| {
            let number = |name| count(c, name).unwrap_or(0);
            let n1 = number("n1");
            // A narrower tile reads A once more; a wider one wastes lanes.
            let wide = n1 >= problem.n.min(64) && n1 < 2 * problem.n;
            // Tiles of three times a power of two fill blocks that are too.
            let block = n1.is_multiple_of(3) == number("block").is_multiple_of(3);
            // By locality neither panels of one row, which `row_split` walks, nor the small blocks that serve few rows.
            let local = number("m1") > 1 && number("block") >= 192;
            wide && block
                && order_serves(c, problem)
                && (!is_local(c) || local)
                && width_serves(problem.n, n1)
                && number("vec") == widest_vector(problem, false)
        })
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        if candidate.family != "row_panel" || effective_layout(problem) != Layout::Row {
            return None;
        }
        if !among(candidate, self.domains()) {
            return None;
        }
        let int = |name| count(candidate, name);
        Some(Box::new(RowPanel {
            m1: int("m1")?,
            n1: int("n1")?,
            vec: int("vec")?,
            unroll: int("unroll")?,
            block: int("block")?,
            order: order(candidate)?,
            problem: *problem,
        }))
    }
}

impl Family for RowPanels {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first("row_panel", Distinction::Alone)];
        FamilyDescriptor {
            title: "LO-SpMM's tiles",
            summary: "A thread computes M1 rows of few columns of C: the rows of a tile share each row of B that they read.",
            source: Some("LO-SpMM (TACO 2024), section 3"),
            parameters: parameters(
                self.domains(),
                &[
                    ("m1", "rows of a panel"),
                    phrases::N1,
                    phrases::VEC,
                    phrases::UNROLL,
                    phrases::BLOCK,
                    phrases::ORDER,
                ],
            ),
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
        let threads_per_tile = (self.n1 / self.vec).max(1);
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
            registers: (self.m1 * self.vec + self.unroll * (self.vec + self.m1)) * words
                + self.unroll
                + 28,
            shared_bytes: 0,
            vector: self.vec,
            balanced: false,
            grid_y: self.problem.n.div_ceil(self.n1),
            // Panels of one row are what `row_split` walks, which takes rows by length too.
            repeats: (self.m1 == 1 && matches!(self.order, RowOrder::Length | RowOrder::Locality))
                .then_some(Beyond::ANOTHER),
        }
    }

    fn work(&self, seen: &Inspection) -> Work {
        let reuse = self.reuse(seen);
        let union = seen.nnz as f64 / reuse;
        let packed = f64::from(self.m1);
        let element = self.problem.dtype.bytes() as f64;
        Work {
            entries: union,
            a_bytes: union * (4.0 + element * packed),
            instructions: 4.0 + (packed / 4.0).ceil() + packed * f64::from(self.vec),
            mean_walk: union * packed / seen.rows.max(1) as f64,
            reuse,
            ..Work::row_major(&self.tile(), seen, &self.problem)
        }
    }

    fn fill(&self, seen: &Inspection) -> f64 {
        f64::from(self.m1) / self.reuse(seen)
    }

    fn applies(&self, seen: &Inspection, device: &Device) -> bool {
        // Small blocks only serve to spread few panels over all multiprocessors.
        let large = if self.n1.is_multiple_of(3) { 192 } else { 256 };
        let panels_a_block = (large / self.tile().threads_per_tile).max(1);
        let panels = seen.rows.div_ceil(u64::from(self.m1 * panels_a_block));
        let column_tiles = u64::from(self.problem.n.div_ceil(self.n1));
        self.block == large || panels * column_tiles < 4 * u64::from(device.multiprocessors)
    }

    fn source(&self) -> String {
        let settings = [
            ("kM1", self.m1.into()),
            ("kN1", self.n1.into()),
            ("kVec", self.vec.into()),
            ("kUnroll", self.unroll.into()),
        ];
        text::program(&["spmm/row_panel.cuh"], &self.problem, &settings, &[self.kernel(0)])
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let (arrays, [order_ms, pack_ms]) = panel_arrays(shared, self.m1, self.order)?;
        let rows = shared.matrix.rows() as u32;
        let tile = self.tile();
        let blocks = rows.div_ceil(self.m1).div_ceil(tile.tiles_per_block);
        let step = Step {
            grid: [blocks, self.problem.n.div_ceil(self.n1), 1],
            ..self.kernel(rows).step(1, self.block)
        };
        let program = Program::Cuda(CudaProgram::of(self.source(), step));
        let (ms, update_ms) = (order_ms + pack_ms, Some(pack_ms));
        Ok(Lowered { arrays, ms, update_ms, ..Lowered::bare(program) })
    }
}

impl RowPanel {
    fn kernel(&self, rows: u32) -> EntryPoint {
        let Spmm { n, dtype, .. } = self.problem;
        let operands = vec![
            parameter("const u32*", "panel_ptr", Arg::Array(0)),
            parameter("const u32*", "panel_cols", Arg::Array(1)),
            parameter(elements(dtype), "panel_vals", Arg::Array(2)),
            parameter(elements(dtype), "b", Arg::B),
            output(&self.problem),
            parameter("const u32*", "order", Arg::Array(3)),
            number("rows", rows),
            number("tiles", rows.div_ceil(self.m1)),
            number("n", n),
            scale(&self.problem),
        ];
        text::kernel("row_panel", "RowPanelConfig", operands)
    }

    /// Ratio of entries to distinct columns of a panel. In the order by similarity it is known for panels of 8 rows; others
    /// gain in proportion.
    fn reuse(&self, seen: &Inspection) -> f64 {
        let by_length = seen.panel(self.m1).reuse;
        match self.order {
            RowOrder::Similarity | RowOrder::Locality => {
                let [similar, long] =
                    [self.order, RowOrder::Length].map(|order| seen.overlap(order).reuse);
                (by_length * similar / long.max(1.0)).clamp(1.0, f64::from(self.m1))
            }
            _ => by_length,
        }
    }
}
