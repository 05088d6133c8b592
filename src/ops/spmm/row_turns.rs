//! Family `row_split` with several rows a group, one after another (`kernels/spmm/row_turns.cuh`): where rows next to each other
//! share columns, a block's later rows find what its earlier ones gathered in L1. Where C is column-major a block writes longer pieces
//! of its columns: on an H100 random rows of 64 columns took 327 us for 374 so (N = 128), and web-NotreDame 309 for 352.

use super::family::{
    SpmmFamily, SpmmKernel, Tile, count, effective_layout, gpu_family, is_ordered,
};
use super::inspect::Inspection;
use super::model::Work;
use super::row_split::row_order;
use super::shared::{Lowered, Shared};
use super::text;
use super::walk::{self, Bound, Dense, STATIC_SHARED, Walk};
use crate::domain::catalog::family::{
    Distinction, FamilyDescriptor, Parameter, StoredForm, Values,
};
use crate::domain::recipe::{CudaProgram, Program, Step};
use crate::domain::{Candidate, Device, Layout, Param, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Family, Keys};
use crate::ops::program::EntryPoint;
use crate::search::domain::Domain;
use std::sync::LazyLock;

const FAMILY: &str = "row_split";

/// The parameter that tells these candidates from those with one row a group.
pub const TURNS: &str = "turns";

/// Gain in reuse within L1 of a block whose groups take several rows in turn, as a factor of what rows near each other
/// share: on an H100 such kernels took 0.92 to 0.97 of the time of those with a row a group on grids and bands.
const REUSE_GAIN: f64 = 1.1;

/// Entries over distinct columns among 64 consecutive rows, from which rows in turn are tried.
const SHARING: f64 = 1.1;

/// Values of [`TURNS`].
const EACH: [u32; 2] = [2, 4];

/// Rows that the groups of a candidate compute one after another; `None` if that is no value of [`TURNS`].
pub fn turns_of(candidate: &Candidate) -> Option<u32> {
    match candidate.params.contains_key(TURNS) {
        true => count(candidate, TURNS).filter(|it| EACH.contains(it)),
        false => Some(1),
    }
}

/// Adds the candidates with rows in turn to those of a family that lists them beside it, where columns of C are written.
pub fn add_turned(candidates: &mut Vec<Candidate>, problem: &Spmm) {
    if effective_layout(problem) == Layout::Col {
        let in_turn = |candidate: &Candidate| {
            let turned = |turns| candidate.clone().with(TURNS, i64::from(turns));
            EACH.map(turned)
        };
        let turned: Vec<_> = candidates.iter().flat_map(in_turn).collect();
        candidates.extend(turned);
    }
}

/// Whether a walk that writes columns itself may compute so many rows in turn: no more rows than its block has threads.
pub fn serve(walk: &Walk, turns: u32) -> bool {
    let rows = walk.groups().max(1) * turns;
    let fits = rows <= walk.block && walk.shared_bytes(rows) <= STATIC_SHARED;
    turns == 1 || (walk.writes_columns() && walk.dense == Dense::Staged && walk.ways == 1 && fits)
}

/// [`TURNS`] of a family that lists candidates without it, too.
pub fn described() -> Parameter {
    Parameter {
        name: TURNS,
        values: Values::Among(EACH.map(|it| Param::Int(i64::from(it))).to_vec()),
        meaning: "rows that a group computes one after another; one where it is not given",
    }
}

/// The work of a walk with rows in turn.
pub fn in_turn(work: Work, turns: u32) -> Work {
    let mut locality = work.locality;
    if turns > 1 {
        locality.near *= REUSE_GAIN;
    }
    Work { in_turn: f64::from(turns), locality, ..work }
}

pub struct RowTurns;

struct RowTurn {
    walk: Walk,
    turns: u32,
}

impl RowTurn {
    fn kernel(&self, bound: Bound) -> EntryPoint {
        let mut operands = self.walk.operands(bound);
        operands.push(text::scale(&self.walk.problem));
        text::kernel("row_turns", "RowTurnsConfig", operands)
    }

    /// Whether it serves the layout: row-major operands are walked as given, and columns are written from staged panels, by no more
    /// rows than the block has threads.
    fn serves(&self) -> bool {
        match effective_layout(&self.walk.problem) {
            Layout::Row => self.walk.dense == Dense::Given,
            Layout::Col => serve(&self.walk, self.turns),
        }
    }

    /// Rows of a block.
    fn rows(&self) -> u32 {
        self.walk.groups().max(1) * self.turns
    }
}

impl SpmmFamily for RowTurns {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn header(&self) -> &'static str {
        include_str!("../../../kernels/spmm/row_turns.cuh")
    }

    fn domains(&self) -> &'static [Domain] {
        static DOMAINS: LazyLock<Vec<Domain>> = LazyLock::new(|| {
            let mut domains = vec![Domain::ints(TURNS, &EACH)];
            domains.extend(walk::DOMAINS.iter().map(|domain| match domain.name {
                "ways" => Domain::ints("ways", &[1]),
                "block" => Domain::ints("block", &[256]),
                "order" => Domain::texts("order", &["natural", "locality"]),
                "b" => Domain::texts("b", &["given", "staged"]),
                _ => domain.clone(),
            }));
            domains
        });
        &DOMAINS
    }

    fn candidates(&self, problem: &Spmm) -> Vec<Candidate> {
        let mut all = walk::candidates(FAMILY, self.domains(), problem);
        all.retain(|candidate| self.kernel(candidate, problem).is_some());
        all
    }

    fn kernel(&self, candidate: &Candidate, problem: &Spmm) -> Option<Box<dyn SpmmKernel>> {
        if candidate.family != FAMILY {
            return None;
        }
        let walk = Walk::of(candidate, problem, self.domains())?;
        let kernel = RowTurn { walk, turns: count(candidate, TURNS)? };
        kernel.serves().then(|| Box::new(kernel) as _)
    }
}

impl Family for RowTurns {
    fn descriptor(&self) -> FamilyDescriptor {
        const STORED: &[StoredForm] = &[StoredForm::first(FAMILY, Distinction::Has(TURNS))];
        FamilyDescriptor {
            title: "Row split, several rows in turn",
            summary: "As row_split, but a group of threads computes several rows one after another, so that neighbouring rows share L1, and blocks write longer pieces of columns.",
            source: None,
            parameters: walk::described(
                self.domains(),
                &[(TURNS, "rows that a group computes one after another")],
            ),
            ..gpu_family("spmm.row_turns", STORED, false)
        }
    }

    fn needs_finite_dense(&self, _: &Candidate) -> bool {
        false
    }

    fn keys(&self) -> Keys {
        Keys {
            prepared_by: &[],
            tiled_by: &["cols", "lanes", "vec"],
            headers: &["spmm/row_turns.cuh", "spmm/stage.cuh"],
        }
    }

    fn complexity(&self, candidate: &Candidate) -> u32 {
        1 + u32::from(is_ordered(candidate)) + u32::from(walk::is_near(candidate))
    }
}

impl SpmmKernel for RowTurn {
    fn tile(&self) -> Tile {
        Tile { shared_bytes: self.walk.shared_bytes(self.rows()), ..self.walk.tile() }
    }

    fn blocks(&self, seen: &Inspection, problem: &Spmm) -> u64 {
        seen.rows.div_ceil(self.rows().into()) * u64::from(problem.n.div_ceil(self.walk.columns()))
    }

    /// Rows that have nothing in common gain nothing by following each other, but for longer pieces of columns.
    fn applies(&self, seen: &Inspection, _: &Device) -> bool {
        let by_columns = effective_layout(&self.walk.problem) == Layout::Col;
        by_columns || seen.locality_in(self.walk.order).near >= SHARING
    }

    fn work(&self, seen: &Inspection) -> Work {
        in_turn(self.walk.work(seen), self.turns)
    }

    fn source(&self) -> String {
        let own = [("kTurns", self.turns.into())];
        self.walk.source_with("spmm/row_turns.cuh", self.kernel(Bound::default()), &own)
    }

    fn lower(&self, shared: &mut Shared) -> Result<Lowered, Refusal> {
        let walk = &self.walk;
        let (rows, b_rows) = (shared.matrix.rows() as u32, shared.matrix.cols() as u32);
        let (mut arrays, order, mut ms) = row_order(shared, walk.order);
        let equal = walk.add_equal(shared, &mut arrays, &mut ms);
        let near = walk.add_near(shared, &mut arrays, &mut ms)?;
        let (mut steps, scratch) = walk.stage((rows, b_rows), &shared.device)?;
        steps.push(Step {
            grid: [rows.div_ceil(self.rows()), walk.column_tiles(), 1],
            ..self.kernel(Bound { rows, b_rows, order, equal, near }).step(1, walk.block)
        });
        let program = CudaProgram::of_steps(self.source(), steps);
        Ok(Lowered { arrays, scratch, ms, ..Lowered::bare(Program::Cuda(program)) })
    }
}
