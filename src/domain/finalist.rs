//! What was timed alternately in the finals of a job, and which intervals may be told.

use super::Candidate;
use super::outcome::FEWEST_FOR_INTERVAL;
use super::plan::{Measured, RunnerUp};
use serde::{Deserialize, Serialize};

/// A candidate's times in the finals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finalist {
    pub candidate: Candidate,
    pub median_us: f64,
    pub ci95_us: [f64; 2],
    /// Rounds that were timed.
    pub samples: u32,
}

impl RunnerUp {
    /// The interval of its median. It was timed in as many rounds as the winner, which alone says how many; plans of earlier versions
    /// have an interval however few they were.
    pub fn interval_us(&self, winner: &Measured) -> Option<[f64; 2]> {
        self.ci95_us.filter(|_| enough(winner.samples))
    }
}

fn enough(samples: u32) -> bool {
    u64::from(samples) >= FEWEST_FOR_INTERVAL
}

impl Measured {
    /// The interval of the median, if the samples are enough for 95 % confidence.
    pub fn interval_us(&self) -> Option<[f64; 2]> {
        enough(self.samples).then_some(self.ci95_us)
    }
}
