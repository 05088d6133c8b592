//! A scheme of the `streamed` family: its parameters as types.

use crate::domain::{Candidate, Dtype};

/// The family's name.
pub const FAMILY: &str = "streamed";

/// Warps of a block.
pub const WARPS_A_BLOCK: u32 = 8;

/// Terms of a lane.
pub const ENTRIES: [u32; 3] = [4, 6, 8];

/// Warps per multiprocessor, in blocks of [`WARPS_A_BLOCK`].
pub const WARPS: [u32; 4] = [8, 16, 24, 32];

/// All parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// Terms of a lane: a run has at most 32 times as many.
    pub entries: u32,
    /// Warps per multiprocessor.
    pub warps: u32,
}

impl Scheme {
    /// The whole product, one by one.
    pub fn every() -> Vec<Self> {
        ENTRIES.iter().flat_map(|&entries| WARPS.map(|warps| Self { entries, warps })).collect()
    }

    /// The parameters of a candidate of this family; `None` if one is missing or has a value that the kernel cannot have.
    pub fn of(candidate: &Candidate) -> Option<Self> {
        let int = |name| candidate.int(name).and_then(|value| u32::try_from(value).ok());
        let scheme = Self { entries: int("entries")?, warps: int("warps")? };
        let possible = ENTRIES.contains(&scheme.entries) && WARPS.contains(&scheme.warps);
        (candidate.family == FAMILY && possible).then_some(scheme)
    }

    pub fn candidate(&self) -> Candidate {
        Candidate::new(FAMILY)
            .with("entries", i64::from(self.entries))
            .with("warps", i64::from(self.warps))
    }

    /// Most terms of a run.
    pub const fn run_terms(&self) -> u32 {
        32 * self.entries
    }

    /// Shared memory of a block, bytes: two stages of `StreamedConfig` of the kernel for each warp.
    pub fn block_bytes(&self, dtype: Dtype) -> u64 {
        u64::from(WARPS_A_BLOCK * 2 * self.run_terms()) * (4 + dtype.bytes())
    }

    /// Blocks per multiprocessor.
    pub const fn blocks(&self) -> u32 {
        self.warps / WARPS_A_BLOCK
    }
}
