//! The outcome of a trial: data, never an error.

use super::Clock;
use serde::{Deserialize, Serialize};

/// The result of trying one candidate on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Outcome {
    Measured {
        timing: Timing,
        /// Maximum over the output. SpMM: largest |c - ref| / (|A||B|); SpTRSV: largest componentwise backward error
        /// |T x - b| / (|T||x| + |b|) over two right-hand sides. Each row's error is divided by its weight (row_nnz + 8) / 8.
        rel_error: f64,
        resources: Option<Resources>,
        /// Host and device work before the first call in milliseconds, including uploads of additional arrays.
        preprocess_ms: f64,
    },
    CompileFailed {
        detail: String,
    },
    /// The engine or the driver declined to run it, with the reason.
    Refused {
        detail: String,
    },
    Wrong {
        rel_error: Option<f64>,
        detail: String,
    },
    TimedOut {
        detail: String,
        /// It is not held against the candidate, which is not quarantined: its kernel's own watchdog stopped it because it was far
        /// slower than the best so far, or the job's time was used up, which `out_of_time` says.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stopped: bool,
        /// The job's time was used up before it was timed, so that nothing is known of its speed. It is `stopped`, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        out_of_time: bool,
    },
    Crashed {
        detail: String,
    },
}

/// Times per call, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    pub median_us: f64,
    /// Distribution-free confidence interval of the median (order statistics), at least 95 % from 6 samples on; with
    /// fewer it is the whole range, with a lower confidence (5 samples: 94 %, 3: 75 %).
    pub ci95_us: [f64; 2],
    /// The raw samples that were kept, in measurement order.
    pub samples_us: Vec<f64>,
    /// Samples dropped because the device throttled.
    #[serde(default)]
    pub dropped: u32,
    /// The clock that took the samples; a pipelined one is the mean of a few calls.
    #[serde(default = "Clock::of_earlier_versions")]
    pub clock: Clock,
    /// There are fewer samples than usual, because the job's time was used up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// Resource usage of a kernel, as reported by compiler and driver.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Local memory per thread in bytes (spills and stack).
    pub local_bytes: u32,
    /// Static + dynamic shared memory per block in bytes.
    pub shared_bytes: u32,
    /// Blocks resident on one multiprocessor.
    pub blocks_per_multiprocessor: u32,
    /// Resident threads divided by the multiprocessor's maximum, 0..=1.
    pub occupancy: f64,
}

impl Resources {
    /// Combines two kernels that are launched one after the other: the maximum of each resource, and the minimum
    /// occupancy.
    pub fn combined(self, other: Self) -> Self {
        let blocks_per_multiprocessor =
            self.blocks_per_multiprocessor.min(other.blocks_per_multiprocessor);
        Self {
            registers: self.registers.max(other.registers),
            local_bytes: self.local_bytes.max(other.local_bytes),
            shared_bytes: self.shared_bytes.max(other.shared_bytes),
            blocks_per_multiprocessor,
            occupancy: self.occupancy.min(other.occupancy),
        }
    }
}

/// The compiler's figures for one kernel on one device class; they do not depend on the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFigures {
    /// Registers per thread.
    pub registers: u32,
    /// Local memory per thread in bytes (spills and stack).
    pub local_bytes: u32,
}

impl Outcome {
    /// The wire name of the state.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Measured { .. } => "measured",
            Self::CompileFailed { .. } => "compile_failed",
            Self::Refused { .. } => "refused",
            Self::Wrong { .. } => "wrong",
            Self::TimedOut { .. } => "timed_out",
            Self::Crashed { .. } => "crashed",
        }
    }

    /// The category under which trials are counted: the state, except that trials stopped by their own watchdog or for want of
    /// the job's time are harmless and are counted separately as `stopped`.
    pub fn counted_as(&self) -> &'static str {
        match self {
            Self::TimedOut { stopped: true, .. } => "stopped",
            other => other.state(),
        }
    }

    /// Of a candidate that the job had no time for.
    pub fn out_of_time(detail: String) -> Self {
        Self::TimedOut { detail, stopped: true, out_of_time: true }
    }

    /// What a failed trial says of itself.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Measured { .. } => None,
            Self::CompileFailed { detail }
            | Self::Refused { detail }
            | Self::Wrong { detail, .. }
            | Self::TimedOut { detail, .. }
            | Self::Crashed { detail } => Some(detail),
        }
    }

    /// This outcome with another text about a failure.
    #[must_use]
    pub fn told(mut self, change: impl FnOnce(&str) -> String) -> Self {
        match &mut self {
            Self::Measured { .. } => {}
            Self::CompileFailed { detail }
            | Self::Refused { detail }
            | Self::Wrong { detail, .. }
            | Self::TimedOut { detail, .. }
            | Self::Crashed { detail } => *detail = change(detail),
        }
        self
    }

    /// The timing, if measured.
    pub fn timing(&self) -> Option<&Timing> {
        match self {
            Self::Measured { timing, .. } => Some(timing),
            _ => None,
        }
    }

    /// The median in microseconds, if measured.
    pub fn median_us(&self) -> Option<f64> {
        self.timing().map(|timing| timing.median_us)
    }
}

/// Fewest samples from which an interval has a confidence of 95 %.
pub const FEWEST_FOR_INTERVAL: u64 = 6;

impl Timing {
    /// The interval, if it has a confidence of 95 %.
    pub fn interval_us(&self) -> Option<[f64; 2]> {
        (self.samples_us.len() as u64 >= FEWEST_FOR_INTERVAL).then_some(self.ci95_us)
    }

    /// Summarises raw samples of single calls in microseconds; `None` if there are none.
    ///
    /// The interval is the narrowest pair of order statistics with at most 2.5 % of the binomial distribution (n, 1/2)
    /// beyond each side; it is valid for any distribution.
    pub fn of(samples_us: Vec<f64>, dropped: u32) -> Option<Self> {
        let mut sorted = samples_us.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let cut = cut_off(sorted.len());
        let middle = sorted.len() / 2;
        let median_us = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        let ci95_us = [sorted[cut], sorted[last - cut]];
        Some(Self { median_us, ci95_us, samples_us, dropped, clock: Clock::Isolated, cut: false })
    }

    /// The same, taken by this clock.
    #[must_use]
    pub fn by(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// The same, perhaps of fewer samples than were wanted.
    #[must_use]
    pub fn cut_if(self, cut: bool) -> Self {
        Self { cut, ..self }
    }
}

/// Number of samples outside the interval at either end: the largest k with P(Binomial(n, 1/2) < k + 1) <= 2.5 %, or 0.
fn cut_off(n: usize) -> usize {
    // In logarithms, because 2^-n would underflow.
    let mut term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    for k in 0..n / 2 {
        below += term.exp();
        if below > 0.025 {
            return k.saturating_sub(1);
        }
        term += ((n - k) as f64 / (k + 1) as f64).ln();
    }
    0
}

#[cfg(test)]
mod tests {
    use super::Timing;
    use crate::domain::Resources;

    #[test]
    fn several_kernels_combine_to_the_maximum_of_each_resource() {
        let of = |registers, local_bytes, blocks_per_multiprocessor, occupancy| Resources {
            registers,
            local_bytes,
            shared_bytes: 0,
            blocks_per_multiprocessor,
            occupancy,
        };
        assert_eq!(of(64, 0, 2, 0.5).combined(of(32, 96, 8, 1.0)), of(64, 96, 2, 0.5));
    }

    #[test]
    fn the_interval_covers_95_percent_from_six_samples_on() {
        let binomial = |n: usize| -> Vec<f64> {
            let mut row = vec![1.0f64];
            for _ in 0..n {
                let mut next = vec![0.0; row.len() + 1];
                for (k, p) in row.iter().enumerate() {
                    next[k] += p / 2.0;
                    next[k + 1] += p / 2.0;
                }
                row = next;
            }
            row
        };
        for n in 6..200 {
            let cut = super::cut_off(n);
            let beyond = |cut: usize| 2.0 * binomial(n)[..=cut].iter().sum::<f64>();
            assert!(beyond(cut) <= 0.05, "{n} samples, {cut} cut: {}", beyond(cut));
            assert!(
                beyond(cut + 1) > 0.05,
                "{n} samples: the interval with {cut} cut off is too wide"
            );
        }
    }

    #[test]
    fn median_and_interval() {
        assert_eq!(Timing::of(vec![], 0), None);
        let one = Timing::of(vec![2.0], 0).unwrap();
        assert_eq!((one.median_us, one.ci95_us), (2.0, [2.0, 2.0]));
        let many = Timing::of((1..=100).map(f64::from).rev().collect(), 3).unwrap();
        assert_eq!(many.median_us, 50.5);
        assert_eq!(many.ci95_us, [40.0, 61.0]);
        assert_eq!(many.samples_us[0], 100.0);
    }
}
