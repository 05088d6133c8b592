//! Family `row_split`: a group of threads per row, output columns in registers (`kernels/spmm/row_split.cuh`).

use super::family::{ENTRY, Family, Kernel, RowOrder, Tile, program};
use super::inspect::Inspection;
use super::model::Work;
use super::shared::{Lowered, Shared};
use super::walk::{self, Walk};
use crate::domain::recipe::{Arg, CudaProgram, Program, Step};
use crate::domain::{Candidate, Device, Spmm};
use crate::ops::Refusal;
use crate::search::domain::Domain;

const FAMILY: &str = "row_split";

pub struct RowSplits;

struct RowSplit {
    walk: Walk,
}

impl Family for RowSplits {
    fn names(&self) -> &'static [&'static str] {
        &[FAMILY]
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/row_split.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        &walk::DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        walk::candidates(FAMILY, self.domains(), problem)
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn Kernel>> {
        let walk =
            Walk::of(candidate, problem, self.domains()).filter(|_| candidate.family == FAMILY)?;
        Some(Box::new(RowSplit { walk }))
    }
}

impl Kernel for RowSplit {
    fn tile(&self) -> Tile {
        self.walk.tile()
    }

    fn applies(&self, seen: &Inspection, device: &Device) -> bool {
        self.walk.suits(seen, device)
    }

    fn work(&self, seen: &Inspection) -> Work {
        self.walk.work(seen)
    }

    fn source(&self) -> String {
        let (alpha_beta, scale) = walk::scale(&self.walk.problem);
        let element = walk::element(self.walk.problem.dtype);
        let call = format!(
            "row_split<{}>(blockIdx.x, blockIdx.y, row_ptr, cols, vals, Dense<{element}>{{b, tile_step, stride}}, c, order, rows, n, ~0u, {scale})",
            self.walk.template()
        );
        let parameters = self.walk.parameters() + &alpha_beta;
        program(FAMILY, &parameters, &call) + &self.walk.stage_source()
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let walk = &self.walk;
        let (rows, b_rows) = (shared.matrix.rows() as u32, shared.matrix.cols() as u32);
        let (arrays, order, ms) = row_order(shared, walk.order, 0);
        let mut args = walk.arguments(order, rows, b_rows);
        args.extend(walk::scale_arguments(&walk.problem));
        let (mut steps, scratch) = walk.stage(b_rows, &shared.device)?;
        steps.push(Step {
            grid: [rows.div_ceil(walk.groups()), walk.column_tiles(), 1],
            ..Step::of(ENTRY, 1, walk.block, args)
        });
        let program = CudaProgram {
            steps,
            ..CudaProgram::of(self.source(), Step::of(ENTRY, 1, 1, Vec::new()))
        };
        Ok(Lowered { arrays, scratch, ms, ..Lowered::bare(Program::Cuda(program)) })
    }
}

/// The order of rows as array `at`, or a null pointer for the natural one.
pub fn row_order(
    shared: &mut Shared,
    order: RowOrder,
    at: usize,
) -> (Vec<crate::domain::recipe::Array>, Arg, f64) {
    match shared.ordered(order) {
        (None, ms) => (Vec::new(), Arg::U64(0), ms),
        (Some(rows), ms) => (vec![order.array(rows)], Arg::Array(at), ms),
    }
}
