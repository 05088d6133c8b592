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
    /// Most values of a task's panel, but that a chain may always have the columns of two whole chains; the early columns of a larger
    /// one become partial sums.
    pub terms: u32,
    /// The rows of a chain are substituted in each other beforehand.
    pub substitute: bool,
}

impl Scheme {
    /// The parameters of a candidate of this family; `None` if one is missing or has a value that the kernel cannot have.
    pub fn of(candidate: &Candidate) -> Option<Self> {
        let int = |name| candidate.int(name).and_then(|value| u32::try_from(value).ok());
        // It came later, and only candidates that have it say so.
        let substitute = candidate.params.contains_key("substitute");
        if substitute && int("substitute") != Some(1) {
            return None;
        }
        let shape = Shape { rows: int("rows")?, terms: int("terms")?, substitute };
        let (unroll, warps) = (int("unroll")?, int("warps")?);
        let possible = [4, 8, 16, 32].contains(&shape.rows)
            && (64..=1 << 20).contains(&shape.terms)
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
        if self.shape.substitute { candidate.with("substitute", 1) } else { candidate }
    }

    /// Shared memory of a block, bytes: what the rows of each warp's chain have of each other, `ChainsConfig::kInner` of the kernel.
    pub fn block_bytes(&self, dtype: Dtype) -> u64 {
        let inner = u64::from(self.shape.rows * (self.shape.rows - 1));
        u64::from(self.warps) * inner * dtype.bytes()
    }
}
