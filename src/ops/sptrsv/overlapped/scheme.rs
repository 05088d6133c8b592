//! A scheme of the `overlapped` family: its parameters as types.

use crate::domain::{Candidate, Dtype};

/// The family's name.
pub const FAMILY: &str = "overlapped";

/// Slots of a group's shared memory before the unknowns that it awaits; the first is a zero for padding.
pub const FIRST_AWAITED: u32 = 4;

/// All parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    pub shape: Shape,
    /// Warps per multiprocessor, in one block.
    pub warps: u32,
}

/// The parameters that decide how a system is cut into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Most levels of a window: passes of a group.
    pub levels: u32,
    /// Lanes per row.
    pub lanes: u32,
    /// Terms of a lane: rows of more than `lanes * unroll` terms are summed in parts.
    pub unroll: u32,
    /// Unknowns of earlier windows that a lane awaits.
    pub awaited: u32,
}

impl Shape {
    /// Rows of a pass.
    pub fn rows(&self) -> u32 {
        32 / self.lanes
    }

    /// Terms of the lanes of a pass.
    pub fn pass_terms(&self) -> u32 {
        32 * self.unroll
    }

    /// Most terms of a row.
    pub fn row_terms(&self) -> u32 {
        self.lanes * self.unroll
    }

    /// Place of a group's first row in its shared memory.
    pub fn first_row(&self) -> u32 {
        FIRST_AWAITED + 32 * self.awaited
    }

    /// Shared memory of a warp, bytes: `GroupMemory` of the kernel.
    pub fn warp_bytes(&self, dtype: Dtype) -> u64 {
        let rows = u64::from(self.levels * self.rows());
        let terms = u64::from(self.levels * self.pass_terms());
        let values = u64::from(self.first_row()) + 2 * rows + terms;
        let bytes = values * dtype.bytes() + 2 * terms + 4 * rows + 8 * u64::from(self.levels);
        bytes.next_multiple_of(16)
    }
}

impl Scheme {
    /// The parameters of a candidate of this family; `None` if one is missing or has a value that the kernel cannot have.
    pub fn of(candidate: &Candidate) -> Option<Self> {
        let int = |name| candidate.int(name).and_then(|value| u32::try_from(value).ok());
        let shape = Shape {
            levels: int("levels")?,
            lanes: int("lanes")?,
            unroll: int("unroll")?,
            awaited: int("awaited")?,
        };
        let warps = int("warps")?;
        let possible = (1..=32).contains(&shape.levels)
            && [1, 2, 4, 8].contains(&shape.lanes)
            && (1..=8).contains(&shape.unroll)
            && (1..=4).contains(&shape.awaited)
            // One row's terms may all be unknowns of earlier windows.
            && shape.row_terms() <= 32 * shape.awaited
            && shape.row_terms() >= 2
            && (1..=16).contains(&warps);
        (candidate.family == FAMILY && possible).then_some(Self { shape, warps })
    }

    pub fn candidate(&self) -> Candidate {
        Candidate::new(FAMILY)
            .with("levels", i64::from(self.shape.levels))
            .with("lanes", i64::from(self.shape.lanes))
            .with("unroll", i64::from(self.shape.unroll))
            .with("awaited", i64::from(self.shape.awaited))
            .with("warps", i64::from(self.warps))
    }
}
