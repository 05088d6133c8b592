//! A scheme of the `sweeps` family: its parameters as types.

use crate::domain::Candidate;

pub use crate::domain::candidate::SWEEPS as FAMILY;

/// Values of the parameters. A block has at most 1,024 threads.
pub const SWEEPS: [u32; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];
pub const INNER: [u32; 3] = [1, 2, 4];
pub const ROWS: [u32; 3] = [64, 256, 1024];
pub const LANES: [u32; 6] = [1, 2, 4, 8, 16, 32];
const MOST_THREADS: u32 = 1024;

/// All parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// Launches, each of which computes every row once, or `inner` times.
    pub sweeps: u32,
    pub blocking: Blocking,
    /// Lanes a row.
    pub lanes: u32,
}

/// The parameters that decide, with the number of sweeps, what is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocking {
    /// Rows of a block.
    pub rows: u32,
    /// Sweeps among the rows of a block in each launch.
    pub inner: u32,
}

impl Scheme {
    /// The parameters of a candidate of this family; `None` if one is missing or has a value that the kernel cannot have.
    pub fn of(candidate: &Candidate) -> Option<Self> {
        let int = |name| candidate.int(name).and_then(|value| u32::try_from(value).ok());
        let blocking = Blocking { rows: int("rows")?, inner: int("inner")? };
        let scheme = Self { sweeps: int("sweeps")?, blocking, lanes: int("lanes")? };
        let possible = (1..=SWEEPS[SWEEPS.len() - 1]).contains(&scheme.sweeps)
            && INNER.contains(&blocking.inner)
            && ROWS.contains(&blocking.rows)
            && LANES.contains(&scheme.lanes)
            && scheme.threads() <= MOST_THREADS;
        (candidate.family == FAMILY && possible).then_some(scheme)
    }

    pub fn candidate(&self) -> Candidate {
        Candidate::new(FAMILY)
            .with("sweeps", self.sweeps.into())
            .with("inner", self.blocking.inner.into())
            .with("rows", self.blocking.rows.into())
            .with("lanes", self.lanes.into())
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.blocking.rows * self.lanes
    }

    /// Every scheme whose blocks are not too large.
    pub fn every() -> Vec<Self> {
        let mut all = Vec::new();
        for sweeps in SWEEPS {
            for inner in INNER {
                for rows in ROWS {
                    let blocking = Blocking { rows, inner };
                    let schemes = LANES.map(|lanes| Self { sweeps, blocking, lanes });
                    all.extend(schemes.into_iter().filter(|it| it.threads() <= MOST_THREADS));
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_their_candidates() {
        let all = Scheme::every();
        // Lanes up to 16, 4 and 1 for blocks of 64, 256 and 1,024 rows.
        assert_eq!(all.len(), SWEEPS.len() * INNER.len() * (5 + 3 + 1));
        for scheme in &all {
            assert_eq!(Scheme::of(&scheme.candidate()), Some(*scheme));
        }
        let one = all[0].candidate();
        for (name, value) in
            [("sweeps", 0), ("sweeps", 33), ("inner", 3), ("rows", 32), ("lanes", 32)]
        {
            assert_eq!(Scheme::of(&one.clone().with(name, value)), None, "{name} = {value}");
        }
    }
}
