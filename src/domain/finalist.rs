//! What was timed alternately in the finals of a job, and which intervals may be told.

use super::Candidate;
use super::outcome::FEWEST_FOR_INTERVAL;
use super::plan::Measured;
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

impl Measured {
    /// The interval of the median, if the samples are enough for 95 % confidence.
    pub fn interval_us(&self) -> Option<[f64; 2]> {
        (u64::from(self.samples) >= FEWEST_FOR_INTERVAL).then_some(self.ci95_us)
    }
}
