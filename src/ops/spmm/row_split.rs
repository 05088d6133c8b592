//! Family `row_split`: a group of threads per row, output columns in registers (`kernels/spmm/row_split.cuh`).

use super::family::{RowOrder, SpmmFamily, SpmmKernel, Tile, gpu_family, is_ordered};
use super::inspect::Inspection;
use super::model::Work;
use super::row_turns::TURNS;
use super::shared::{Lowered, Shared};
use super::text;
use super::walk::{self, Bound, Walk};
use crate::domain::catalog::family::{Distinction, FamilyDescriptor, StoredForm};
use crate::domain::recipe::{Array, CudaProgram, Program, Step};
use crate::domain::{Candidate, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys};
use crate::ops::program::{EntryPoint, Operand};
use crate::search::domain::Domain;

const FAMILY: &str = "row_split";

pub struct RowSplits;

struct RowSplit {
    walk: Walk,
}

impl RowSplit {
    fn kernel(&self, bound: Bound) -> EntryPoint {
        let mut operands = ["blockIdx.x", "blockIdx.y"].map(Operand::Expression).to_vec();
        operands.extend(self.walk.operands(bound));
        operands.extend([Operand::Expression("~0u"), text::scale(&self.walk.problem)]);
        text::kernel("row_split", "RowSplitConfig", operands)
    }
}

impl SpmmFamily for RowSplits {
    fn name(&self) -> &'static str {
        FAMILY
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

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        let walk = Walk::of(candidate, problem, self.domains()).filter(|_| is_own(candidate))?;
        Some(Box::new(RowSplit { walk }))
    }
}

/// Whether a candidate has a row a group.
fn is_own(candidate: &Candidate) -> bool {
    candidate.family == FAMILY && !candidate.params.contains_key(TURNS)
}

impl Family for RowSplits {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] =
            &[StoredForm::first(FAMILY, Distinction::Lacks(&["r", TURNS]))];
        FamilyDescriptor {
            title: "Row split",
            summary: "A group of threads computes each row, with the output columns in registers: a tile of one row.",
            source: Some("LO-SpMM (TACO 2024), section 3.1, with tiles one row high"),
            parameters: walk::described(self.domains(), &[]),
            ..gpu_family("spmm.row_split", STORED, false)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &[],
            tiled_by: &["cols", "lanes", "vec"],
            headers: &["spmm/row_split.cuh", "spmm/stage.cuh", "spmm/unstage.cuh"],
        }
    }

    fn complexity(&self, candidate: &Candidate) -> u32 {
        1 + u32::from(is_ordered(candidate)) + u32::from(walk::is_near(candidate))
    }
}

impl SpmmKernel for RowSplit {
    fn tile(&self) -> Tile {
        self.walk.tile()
    }

    fn work(&self, seen: &Inspection) -> Work {
        self.walk.work(seen)
    }

    fn source(&self) -> String {
        self.walk.source("spmm/row_split.cuh", self.kernel(Bound::default()))
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let walk = &self.walk;
        let (rows, b_rows) = (shared.matrix.rows() as u32, shared.matrix.cols() as u32);
        let (mut arrays, order, mut ms) = row_order(shared, walk.order);
        let equal = walk.add_equal(shared, &mut arrays, &mut ms);
        let near = walk.add_near(shared, &mut arrays, &mut ms)?;
        let (mut steps, scratch) = walk.stage((rows, b_rows), &shared.device)?;
        steps.push(Step {
            grid: [rows.div_ceil(walk.groups()), walk.column_tiles(), 1],
            ..self.kernel(Bound { rows, b_rows, order, equal, near }).step(1, walk.block)
        });
        steps.extend(walk.unstage(rows));
        let program = CudaProgram::of_steps(self.source(), steps);
        Ok(Lowered { arrays, scratch, ms, ..Lowered::bare(Program::Cuda(program)) })
    }
}

/// The order of rows as the first array (none for the natural order), and the milliseconds that computing it took.
pub fn row_order(shared: &mut Shared, order: RowOrder) -> (Vec<Array>, Option<usize>, f64) {
    match shared.ordered(order) {
        (None, ms) => (Vec::new(), None, ms),
        (Some(rows), ms) => (vec![order.array(rows)], Some(0), ms),
    }
}
