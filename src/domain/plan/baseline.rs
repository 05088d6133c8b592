//! The baseline of a plan: what its winner is compared with.

use crate::domain::Clocks;
use crate::domain::catalog::vendor;
use serde::{Deserialize, Serialize};

/// The vendor routine, timed in the same session on the same buffers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Baseline {
    pub name: String,
    pub version: String,
    pub algorithm: String,
    pub median_us: f64,
    /// As of `measured`.
    #[serde(default, skip_serializing_if = "Clocks::is_empty")]
    pub clocks: Clocks,
    /// Its own work before the first call in milliseconds: SpSV's analysis, SpMM's preprocessing.
    #[serde(default)]
    pub preprocess_ms: f64,
}

impl Baseline {
    /// Whether it ran on one thread of the host, which has to be said beside a speed-up over it. Earlier versions compared plans
    /// for CPUs with the crate sprs, the first of them under other names of its algorithm.
    pub fn is_single_threaded(&self) -> bool {
        match vendor::routine(&self.algorithm) {
            Some(routine) => routine.library.is_single_threaded(),
            None => self.name == "sprs",
        }
    }

    /// Whether it is part of this program: of no vendor's library.
    pub fn is_own(&self) -> bool {
        vendor::routine(&self.algorithm).is_some_and(|routine| routine.library.own_name().is_some())
    }
}
