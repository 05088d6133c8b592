//! A scheme of the `chains` family: its parameters as types.

use crate::domain::{Candidate, Dtype};

/// The family's name.
pub const FAMILY: &str = "chains";

/// All parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    pub shape: Shape,
    /// Columns of a panel that a lane has under way.
    pub unroll: u32,
    /// Warps per multiprocessor, in one block.
    pub warps: u32,
}

/// The parameters that decide how a system is cut into tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Most rows of a chain.
    pub rows: u32,
    /// Most values of a task's panel, but that a chain whose panels are not staged may always have the columns of two whole chains; the
    /// early columns of a larger one become partial sums.
    pub terms: u32,
    /// The rows of a chain are substituted in each other beforehand.
    pub substitute: bool,
    /// Panels of such chains are copied to shared memory a task ahead.
    pub staged: bool,
}

impl Shape {
    /// Columns that a warp copies to shared memory at once if panels are staged: `ChainTask::piece` of the kernel.
    pub fn piece(&self, rows: usize) -> usize {
        (self.terms as usize / rows / 4 * 4).max(4)
    }
}

impl Scheme {
    /// The parameters of a candidate of this family; `None` if one is missing or has a value that the kernel cannot have.
    pub fn of(candidate: &Candidate) -> Option<Self> {
        let int = |name| candidate.int(name).and_then(|value| u32::try_from(value).ok());
        // These came later, and only candidates that have them say so.
        let says = |name| match candidate.params.contains_key(name) {
            true => (int(name) == Some(1)).then_some(true),
            false => Some(false),
        };
        let (substitute, staged) = (says("substitute")?, says("staged")?);
        let shape = Shape { rows: int("rows")?, terms: int("terms")?, substitute, staged };
        let (unroll, warps) = (int("unroll")?, int("warps")?);
        let possible = [4, 8, 16, 32].contains(&shape.rows)
            && (64..=1 << 20).contains(&shape.terms)
            && (!staged || (substitute && shape.terms.is_multiple_of(4) && shape.terms >= 128))
            && (!staged || unroll > 1)
            && (1..=8).contains(&unroll)
            && (1..=32).contains(&warps);
        (candidate.family == FAMILY && possible).then_some(Self { shape, unroll, warps })
    }

    pub fn candidate(&self) -> Candidate {
        let candidate = Candidate::new(FAMILY)
            .with("rows", i64::from(self.shape.rows))
            .with("terms", i64::from(self.shape.terms))
            .with("unroll", i64::from(self.unroll))
            .with("warps", i64::from(self.warps));
        let Shape { substitute, staged, .. } = self.shape;
        let candidate = if substitute { candidate.with("substitute", 1) } else { candidate };
        if staged { candidate.with("staged", 1) } else { candidate }
    }

    /// Shared memory of a block, bytes. For each warp: what the rows of its chain have of each other, `ChainsConfig::kInner` of the kernel,
    /// or, if panels are staged, those of two tasks and a group of unknowns.
    pub fn block_bytes(&self, dtype: Dtype) -> u64 {
        let values = match self.shape.staged {
            true => 2 * u64::from(self.shape.terms) + 32,
            false => u64::from(self.shape.rows * (self.shape.rows - 1)),
        };
        u64::from(self.warps) * values * dtype.bytes()
    }
}
