//! The baseline of a plan: what its winner is compared with.

use crate::domain::Clocks;
use crate::domain::catalog::vendor;
use serde::{Deserialize, Serialize};
use std::fmt;

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

/// What people call it: `cuSPARSE 12.6.3's csr_alg2`, `plain substitution 0.2.0 (one thread)`. The algorithm is left out if it is named like
/// the library, or is all that there is.
impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, version, algorithm, .. } = self;
        write!(f, "{name} {version}")?;
        if !algorithm.is_empty() && name != algorithm && !self.is_own() {
            write!(f, "'s {algorithm}")?;
        }
        if self.is_single_threaded() { f.write_str(" (one thread)") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_is_called_by_what_it_is() {
        let said = |name: &str, algorithm: &str| {
            let baseline = Baseline {
                name: name.to_owned(),
                version: "1".to_owned(),
                algorithm: algorithm.to_owned(),
                median_us: 1.0,
                clocks: Clocks::default(),
                preprocess_ms: 0.0,
            };
            baseline.to_string()
        };
        // Of plans of earlier versions.
        assert_eq!(said("sprs", "sprs"), "sprs 1 (one thread)");
        assert_eq!(said("sprs", "a"), "sprs 1's a (one thread)");
        assert_eq!(said("cuSPARSE", "csr_alg2"), "cuSPARSE 1's csr_alg2");
        assert_eq!(said("MKL", "mkl_mm"), "MKL 1's mkl_mm");
        assert_eq!(said("plain CSR product", "plain_csr"), "plain CSR product 1");
        assert_eq!(said("plain substitution", "plain_solve"), "plain substitution 1 (one thread)");
    }
}
