//! What came of one trial: data, never an error.

use serde::{Deserialize, Serialize};

/// The result of trying one candidate on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Outcome {
    Measured {
        timing: Timing,
        /// Largest componentwise error |c - ref| / (|A||B|) over the whole output.
        rel_error: f64,
        resources: Option<Resources>,
        /// Host and device work before the first call, in milliseconds, uploads of extra arrays included.
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
    },
    Crashed {
        detail: String,
    },
}

/// Times of one call, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    pub median_us: f64,
    /// Distribution-free 95 % confidence interval of the median (order statistics).
    pub ci95_us: [f64; 2],
    /// The raw samples that were kept, in the order taken.
    pub samples_us: Vec<f64>,
    /// Samples dropped because the device throttled.
    #[serde(default)]
    pub dropped: u32,
}

/// What the compiler and the driver report of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// Registers a thread.
    pub registers: u32,
    /// Local memory a thread, bytes (spills and stack).
    pub local_bytes: u32,
    /// Static + dynamic shared memory a block, bytes.
    pub shared_bytes: u32,
    /// Blocks resident on one multiprocessor.
    pub blocks_per_multiprocessor: u32,
    /// Resident threads over the multiprocessor's most, 0..=1.
    pub occupancy: f64,
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

    /// The median in microseconds, when there is one.
    pub fn median_us(&self) -> Option<f64> {
        match self {
            Self::Measured { timing, .. } => Some(timing.median_us),
            _ => None,
        }
    }
}

impl Timing {
    /// Summary of raw samples in microseconds; `None` when there is none.
    ///
    /// The interval is the pair of order statistics at n/2 -+ 0.98 sqrt(n), which holds for any distribution.
    pub fn of(samples_us: Vec<f64>, dropped: u32) -> Option<Self> {
        let mut sorted = samples_us.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let half = sorted.len() as f64 / 2.0;
        let reach = 0.98 * (sorted.len() as f64).sqrt();
        let low = (half - reach).floor().max(0.0) as usize;
        let high = ((half + reach).ceil() as usize).min(last);
        let middle = sorted.len() / 2;
        let median_us = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        Some(Self {
            median_us,
            ci95_us: [sorted[low.min(last)], sorted[high]],
            samples_us,
            dropped,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Timing;

    #[test]
    fn median_and_interval() {
        assert_eq!(Timing::of(vec![], 0), None);
        let one = Timing::of(vec![2.0], 0).unwrap();
        assert_eq!((one.median_us, one.ci95_us), (2.0, [2.0, 2.0]));
        let many = Timing::of((1..=100).map(f64::from).rev().collect(), 3).unwrap();
        assert_eq!(many.median_us, 50.5);
        assert_eq!(many.ci95_us, [41.0, 61.0]);
        assert_eq!(many.samples_us[0], 100.0);
    }
}
