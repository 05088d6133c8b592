//! Two bundles in one file: the plans of both triangles of one matrix. `docs/bundle.md` describes the file.

use super::{HostUpdate, Manifest, MatrixIdentity, Member, Promise, UpdateValues};
use crate::domain::plan::Baseline;
use crate::domain::{ClockTime, Clocks, Problem};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The value of [`PairManifest::format`].
pub const PAIR_FORMAT: &str = "sparsetune pair";

/// The newest version of the format; readers refuse later ones.
pub const PAIR_VERSION: u32 = 1;

/// The members that hold the two bundles, in the order of their calls.
pub const PARTS: [&str; 2] = ["first.stplan", "second.stplan"];

/// The manifest of a file with two bundles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairManifest {
    pub format: String,
    pub version: u32,
    /// The problem whose parts the two bundles solve, in the order of [`PARTS`].
    pub problem: Problem,
    /// The two bundles, by the member that holds them.
    pub members: BTreeMap<String, Member>,
}

/// What is to be said of a pair as of one plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairSummary<'m> {
    pub format: &'static str,
    pub version: u32,
    pub problem: Problem,
    pub matrix: &'m MatrixIdentity,
    pub promise: Promise,
    pub update_values: UpdateValues,
    /// The manifests of the two bundles.
    pub parts: [&'m Manifest; 2],
}

impl<'m> PairSummary<'m> {
    pub fn of(problem: Problem, parts: [&'m Manifest; 2]) -> Self {
        let [first, second] = parts;
        Self {
            format: PAIR_FORMAT,
            version: PAIR_VERSION,
            problem,
            matrix: &first.matrix,
            promise: Promise::of_two(&first.promise, &second.promise),
            update_values: UpdateValues::of_two(&first.update_values, &second.update_values),
            parts,
        }
    }
}

impl Promise {
    /// One call after the other: times are added, where both were measured by the same clock. The vendor's time is that of its best
    /// routine for the one and for the other. Intervals do not add up and are left out, and so is the number of calls to break
    /// even. The error of the second solve is relative to what the first has computed, so neither's error, nor the larger, is that of
    /// both.
    pub fn of_two(first: &Self, second: &Self) -> Self {
        fn sum<T>(first: Option<T>, second: Option<T>, add: impl Fn(T, T) -> T) -> Option<T> {
            Some(add(first?, second?))
        }
        let add = |first: f64, second: f64| first + second;
        let clock = first.clock.filter(|_| first.clock == second.clock);
        let alike = first.clock == second.clock;
        let median_us = sum(first.median_us, second.median_us, add).filter(|_| alike);
        let vendor = sum(first.vendor.clone(), second.vendor.clone(), two_vendors);
        let vendor = vendor.filter(|_| alike);
        let times = vendor.as_ref().zip(median_us);
        Self {
            median_us,
            ci95_us: None,
            rel_error: None,
            speedup: times.map(|(vendor, median)| vendor.median_us / median),
            vendor,
            preprocess_ms: sum(first.preprocess_ms, second.preprocess_ms, add),
            break_even_calls: None,
            clock,
            clocks: two_times(&first.clocks, &second.clocks),
        }
    }
}

fn two_vendors(first: Baseline, second: Baseline) -> Baseline {
    let joined = |first: String, second: String| match first == second {
        true => first,
        false => format!("{first} and {second}"),
    };
    Baseline {
        median_us: first.median_us + second.median_us,
        clocks: two_times(&first.clocks, &second.clocks),
        preprocess_ms: first.preprocess_ms + second.preprocess_ms,
        algorithm: joined(first.algorithm, second.algorithm),
        name: joined(first.name, second.name),
        version: joined(first.version, second.version),
    }
}

/// The sums of what both have. The ends of intervals are added, too: the sum lies between them at least as surely.
fn two_times(first: &Clocks, second: &Clocks) -> Clocks {
    let two = |first: &Option<ClockTime>, second: &Option<ClockTime>| {
        let (first, second) = (first.as_ref()?, second.as_ref()?);
        Some(ClockTime {
            median_us: first.median_us + second.median_us,
            ci95_us: [first.ci95_us[0] + second.ci95_us[0], first.ci95_us[1] + second.ci95_us[1]],
            samples: first.samples.min(second.samples),
        })
    };
    Clocks {
        isolated: two(&first.isolated, &second.isolated),
        pipelined: two(&first.pipelined, &second.pipelined),
    }
}

impl UpdateValues {
    /// How both get new values: as the one of the two that asks for more.
    pub fn of_two(first: &Self, second: &Self) -> Self {
        let milliseconds = |update: &Self| match update {
            Self::Host(host) => host.milliseconds,
            Self::Gather(_) | Self::Impossible { .. } => 0.0,
        };
        match (first, second) {
            (Self::Impossible { .. }, _) => first.clone(),
            (_, Self::Impossible { .. }) => second.clone(),
            (Self::Gather(one), Self::Gather(_)) => {
                if one.kernel.is_some() {
                    second.clone()
                } else {
                    first.clone()
                }
            }
            _ => {
                Self::Host(HostUpdate { milliseconds: milliseconds(first) + milliseconds(second) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Clock;
    use crate::domain::bundle::GatherValues;

    fn promise(median_us: f64, vendor_us: f64) -> Promise {
        let vendor = Baseline {
            name: "cuSPARSE".to_owned(),
            version: "12.6.3".to_owned(),
            algorithm: "spsv".to_owned(),
            median_us: vendor_us,
            clocks: Clocks::default(),
            preprocess_ms: 1.0,
        };
        Promise {
            median_us: Some(median_us),
            ci95_us: Some([median_us, median_us]),
            rel_error: Some(median_us * 1e-16),
            vendor: Some(vendor),
            speedup: Some(vendor_us / median_us),
            preprocess_ms: Some(2.0),
            break_even_calls: Some(1),
            clock: Some(Clock::Pipelined),
            clocks: Clocks::default(),
        }
    }

    #[test]
    fn times_of_two_calls_are_added_and_so_are_the_vendors() {
        let both = Promise::of_two(&promise(10.0, 40.0), &promise(30.0, 80.0));
        assert_eq!((both.median_us, both.speedup), (Some(40.0), Some(3.0)));
        assert_eq!((both.rel_error, both.preprocess_ms), (None, Some(4.0)));
        let vendor = both.vendor.unwrap();
        assert_eq!((vendor.median_us, vendor.preprocess_ms), (120.0, 2.0));
        assert_eq!((vendor.name.as_str(), vendor.version.as_str()), ("cuSPARSE", "12.6.3"));
        // Where the best routines are of two vendors, both are named.
        let mut other = promise(30.0, 80.0);
        let vendor = other.vendor.as_mut().unwrap();
        (vendor.name, vendor.version) = ("MKL".to_owned(), "2025.0".to_owned());
        let vendor = Promise::of_two(&promise(10.0, 40.0), &other).vendor.unwrap();
        assert_eq!(vendor.name, "cuSPARSE and MKL");
        assert_eq!(
            (vendor.algorithm.as_str(), vendor.version.as_str()),
            ("spsv", "12.6.3 and 2025.0")
        );
        assert_eq!(both.clock, Some(Clock::Pipelined));
        // Times by different clocks have no sum.
        let other = Promise { clock: Some(Clock::Isolated), ..promise(30.0, 80.0) };
        let both = Promise::of_two(&promise(10.0, 40.0), &other);
        assert_eq!((both.median_us, both.speedup, both.clock), (None, None, None));
    }

    #[test]
    fn new_values_cost_what_they_cost_both() {
        let gather = UpdateValues::Gather(GatherValues { kernel: None });
        let host = |milliseconds| UpdateValues::Host(HostUpdate { milliseconds });
        let not = UpdateValues::Impossible { reason: "of a test".to_owned() };
        assert_eq!(UpdateValues::of_two(&gather, &gather), gather);
        assert_eq!(UpdateValues::of_two(&gather, &host(2.0)), host(2.0));
        assert_eq!(UpdateValues::of_two(&host(3.0), &host(2.0)), host(5.0));
        assert_eq!(UpdateValues::of_two(&host(3.0), &not), not);
    }
}
