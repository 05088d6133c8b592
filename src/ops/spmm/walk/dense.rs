//! Where a walk finds B and leaves C, and the kernels that copy them: B into panels before it (`kernels/spmm/stage.cuh`), and C from rows
//! into columns after it (`kernels/spmm/unstage.cuh`).

use super::{Walk, by_columns};
use crate::domain::recipe::{Arg, Scratch, Step};
use crate::domain::{Candidate, Device, Spmm};
use crate::ops::Refusal;
use crate::ops::program::{EntryPoint, number, parameter};
use crate::ops::spmm::shared::scratch;
use crate::ops::spmm::text::{element, elements, output};

/// Rows and columns of B that one block stages; as in `stage.cuh`.
const STAGED_ROWS: u32 = 64;
pub(super) const STAGED_COLUMNS: u32 = 32;
/// Threads per staging block; as in `stage.cuh`.
const STAGING_THREADS: u32 = 256;
/// Where a walk finds B and leaves C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dense {
    /// Both are walked as given.
    Given,
    /// B is copied into panels before each call.
    Staged,
    /// So is B, and C is computed by rows in memory of its own and turned into columns after each call.
    Both,
}

impl Dense {
    pub(super) const ALL: [Self; 3] = [Self::Given, Self::Staged, Self::Both];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Staged => "staged",
            Self::Both => "both",
        }
    }

    pub(super) fn of(candidate: &Candidate) -> Option<Self> {
        let text = candidate.text("b")?;
        Self::ALL.into_iter().find(|dense| dense.name() == text)
    }

    /// Whether B is staged.
    pub fn stages(self) -> bool {
        self != Self::Given
    }
}

impl Walk {
    /// Blocks along the columns of B that stage it.
    pub(super) fn staged_tiles(&self) -> u32 {
        match self.dense.stages() {
            true => self.column_tiles() * self.columns().div_ceil(STAGED_COLUMNS),
            false => 0,
        }
    }

    /// The kernel that turns `rows` rows of C into columns.
    pub fn turning(&self, rows: u32) -> EntryPoint {
        let result = self.problem.result();
        EntryPoint {
            name: "unstage",
            launch_bounds: None,
            cluster: 1,
            function: format!("sparsetune::unstage<{}>", element(result)),
            operands: vec![
                parameter(elements(result), "by_rows", Arg::Scratch(1)),
                output(&self.problem),
                number("rows", rows),
                number("n", self.problem.n),
            ],
        }
    }

    /// The step that turns C into columns, the last of a call; none if the walk writes C itself.
    pub fn unstage(&self, rows: u32) -> Option<Step> {
        (self.dense == Dense::Both).then(|| Step {
            grid: [rows.div_ceil(STAGED_ROWS).max(1), self.problem.n.div_ceil(STAGED_COLUMNS), 1],
            ..self.turning(rows).step(2, STAGING_THREADS)
        })
    }

    /// The kernel that stages a B of `b_rows` rows, whose columns leave L2 before all else if they are `passing`.
    pub fn staging(&self, b_rows: u32, passing: bool) -> EntryPoint {
        let Spmm { n, dtype, .. } = self.problem;
        let (element, from_columns) = (element(dtype), by_columns(&self.problem));
        EntryPoint {
            name: "stage",
            launch_bounds: None,
            cluster: 1,
            function: format!("sparsetune::stage<{element}, {}, {from_columns}>", self.columns()),
            operands: vec![
                parameter(elements(dtype), "b", Arg::B),
                parameter(format!("{element}*"), "staged", Arg::Scratch(0)),
                number("b_rows", b_rows),
                number("n", n),
                number("passing", passing.into()),
            ],
        }
    }

    /// Whether B should leave L2 first: where its columns, their copy and C are together three quarters to twice as large as that.
    /// Smaller ones stay whole; of larger ones little stays, and to say so costs 1 to 3 %. On an H100 delaunay_n15 took 24.4 us for 26.6
    /// so, and email-Enron, with rows in turn, 42.4 for 52.3 (N = 128).
    fn passes(&self, (rows, b_rows): (u32, u32), device: &Device) -> bool {
        let passes_over_c = if self.dense == Dense::Both { 2 } else { 1 };
        let b_bytes = 2 * u64::from(b_rows) * self.problem.dtype.bytes();
        let c_bytes = passes_over_c * u64::from(rows) * self.problem.result().bytes();
        let bytes = (b_bytes + c_bytes) * u64::from(self.problem.n);
        by_columns(&self.problem) && (3 * device.l2_bytes / 4..2 * device.l2_bytes).contains(&bytes)
    }

    /// The staging step, the panels that it fills (scratch 0) and the memory of C by rows (scratch 1); nothing if B is walked as
    /// given.
    pub fn stage(
        &self,
        (rows, b_rows): (u32, u32),
        device: &Device,
    ) -> Result<(Vec<Step>, Vec<Scratch>), Refusal> {
        if !self.dense.stages() {
            return Ok((Vec::new(), Vec::new()));
        }
        let step = Step {
            grid: [b_rows.div_ceil(STAGED_ROWS).max(1), self.staged_tiles(), 1],
            ..self.staging(b_rows, self.passes((rows, b_rows), device)).step(1, STAGING_THREADS)
        };
        let elements = u64::from(self.column_tiles() * self.columns()) * u64::from(b_rows);
        let bytes = elements * self.problem.dtype.bytes();
        let mut own = vec![scratch("staged panels of B", bytes, device)?];
        if self.dense == Dense::Both {
            let elements = u64::from(rows) * u64::from(self.problem.n);
            let bytes = elements * self.problem.result().bytes();
            own.push(scratch("C by rows", bytes, device)?);
        }
        Ok((vec![step], own))
    }
}
