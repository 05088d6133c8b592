//! A scheme of the `inverse` family: its parameters as types.

use crate::domain::Candidate;

pub use crate::domain::candidate::INVERSE as FAMILY;

/// Values of the parameters.
pub const POWERS: [u32; 6] = [1, 2, 3, 4, 6, 8];
pub const STEPS: [u32; 2] = [1, 2];
pub const LANES: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// Threads of a block. Nothing of it is shared, so that its size hardly matters.
pub const THREADS: u32 = 256;

/// All parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scheme {
    pub map: Map,
    /// Lanes a row.
    pub lanes: u32,
}

/// The parameters that decide what is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Map {
    /// Hops through entries of the triangle over which a row of M reaches.
    pub power: u32,
    /// 1 for x = M b; with 2 what that leaves of b is multiplied by M, too, and added.
    pub steps: u32,
}

impl Scheme {
    /// The parameters of a candidate of this family; `None` if one is missing or has a value that the kernel cannot have.
    pub fn of(candidate: &Candidate) -> Option<Self> {
        let int = |name| candidate.int(name).and_then(|value| u32::try_from(value).ok());
        let map = Map { power: int("power")?, steps: int("steps")? };
        let scheme = Self { map, lanes: int("lanes")? };
        let possible = POWERS.contains(&map.power)
            && STEPS.contains(&map.steps)
            && LANES.contains(&scheme.lanes);
        (candidate.family == FAMILY && possible).then_some(scheme)
    }

    pub fn candidate(&self) -> Candidate {
        Candidate::new(FAMILY)
            .with("power", self.map.power.into())
            .with("steps", self.map.steps.into())
            .with("lanes", self.lanes.into())
    }

    /// Rows of a block.
    pub const fn rows(&self) -> u32 {
        THREADS / self.lanes
    }

    pub fn every() -> Vec<Self> {
        let maps = POWERS.into_iter().flat_map(|power| STEPS.map(|steps| Map { power, steps }));
        maps.flat_map(|map| LANES.map(|lanes| Self { map, lanes })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_their_candidates() {
        let all = Scheme::every();
        assert_eq!(all.len(), POWERS.len() * STEPS.len() * LANES.len());
        for scheme in &all {
            assert_eq!(Scheme::of(&scheme.candidate()), Some(*scheme));
            assert_eq!(scheme.rows() * scheme.lanes, THREADS);
        }
        let one = all[0].candidate();
        for (name, value) in [("power", 0), ("power", 5), ("steps", 0), ("steps", 3), ("lanes", 3)]
        {
            assert_eq!(Scheme::of(&one.clone().with(name, value)), None, "{name} = {value}");
        }
    }
}
