//! The two clocks by which a call is timed: alone, or back to back with others of its kind.

use super::plan::{Baseline, Measured};
use super::{L2Policy, Plan, Timing};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a sample of a call's time spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Clock {
    /// One call, from an idle device to its end: what a program waits for that makes a single call.
    Isolated,
    /// Several calls back to back, divided by their number, as solvers and networks call: a launch is hidden behind the call
    /// before it.
    Pipelined,
}

/// A pipelined sample has at least this much work, in microseconds: what remains at its two ends is then a small part of it.
const STREAK_US: f64 = 400.0;

/// Most calls of a pipelined sample.
const MOST_CALLS: u32 = 32;

impl Clock {
    pub const ALL: [Self; 2] = [Self::Isolated, Self::Pipelined];

    /// The clock of times that name none: those that were stored when there was only one.
    pub const fn of_earlier_versions() -> Self {
        Self::Isolated
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Isolated => "isolated",
            Self::Pipelined => "pipelined",
        }
    }

    /// In words, for texts after a time.
    pub const fn how(self) -> &'static str {
        match self {
            Self::Isolated => "each call alone",
            Self::Pipelined => "calls back to back",
        }
    }

    pub const fn other(self) -> Self {
        match self {
            Self::Isolated => Self::Pipelined,
            Self::Pipelined => Self::Isolated,
        }
    }

    /// The clock that can be read if the cache is treated so: where it is swept before each call, calls do not follow each
    /// other.
    pub const fn under(self, policy: L2Policy) -> Self {
        match policy {
            L2Policy::Warm => self,
            L2Policy::Cold => Self::Isolated,
        }
    }

    /// The calls that one sample spans, for a call of about this many microseconds. One of a long call spans that alone: the
    /// gap between two calls does not count then.
    pub fn calls(self, estimate_us: f64) -> u32 {
        match self {
            Self::Isolated => 1,
            Self::Pipelined if estimate_us > 0.0 => {
                // The cast saturates.
                ((STREAK_US / estimate_us).ceil() as u32).clamp(1, MOST_CALLS)
            }
            Self::Pipelined => MOST_CALLS,
        }
    }

    /// The time that one sample of a call of about this many microseconds takes.
    pub fn sample_us(self, estimate_us: f64) -> f64 {
        let calls = self.calls(estimate_us);
        f64::from(calls + lead(calls)) * estimate_us
    }
}

impl Clock {
    /// The clock by which timings of one job are compared that asks for this one: it, unless only the other tells all of them. Those
    /// that it does not tell are not compared with the others.
    pub fn in_common<'t>(self, timings: impl Iterator<Item = &'t Timing> + Clone) -> Self {
        let of_all = |clock: &Self| timings.clone().all(|timing| timing.tells(*clock));
        [self, self.other()].into_iter().find(of_all).unwrap_or(self)
    }
}

impl Timing {
    /// Whether its median is a time by this clock: it was taken by it, or the call is so long that a sample by either is that
    /// one call.
    pub fn tells(&self, clock: Clock) -> bool {
        self.clock == clock || Clock::Pipelined.calls(self.median_us) == 1
    }
}

/// The calls before a sample of this many calls that it does not count: where several follow each other, the first of them has
/// none to hide behind.
pub const fn lead(calls: u32) -> u32 {
    if calls > 1 { 1 } else { 0 }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A call's time by each clock that was read, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Clocks {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolated: Option<ClockTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipelined: Option<ClockTime>,
}

/// The time of one call by one clock, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ClockTime {
    pub median_us: f64,
    pub ci95_us: [f64; 2],
    pub samples: u32,
}

impl Clocks {
    /// What the timings say, each by its clock; of two by the same clock, the first.
    pub fn of<'t>(timings: impl IntoIterator<Item = &'t Timing>) -> Self {
        let mut clocks = Self::default();
        for timing in timings {
            let place = match timing.clock {
                Clock::Isolated => &mut clocks.isolated,
                Clock::Pipelined => &mut clocks.pipelined,
            };
            place.get_or_insert_with(|| ClockTime {
                median_us: timing.median_us,
                ci95_us: timing.ci95_us,
                samples: timing.samples_us.len() as u32,
            });
        }
        clocks
    }

    pub const fn by(&self, clock: Clock) -> Option<&ClockTime> {
        match clock {
            Clock::Isolated => self.isolated.as_ref(),
            Clock::Pipelined => self.pipelined.as_ref(),
        }
    }

    pub const fn is_empty(&self) -> bool {
        self.isolated.is_none() && self.pipelined.is_none()
    }
}

impl Plan {
    /// The clock that decided, and by which all times are that name none; `None` in a predicted plan.
    pub fn clock(&self) -> Option<Clock> {
        self.measured.as_ref().map(|measured| measured.clock)
    }

    /// The winner's microseconds per call by this clock.
    pub fn median_by(&self, clock: Clock) -> Option<f64> {
        self.measured.as_ref()?.median_by(clock)
    }

    /// The vendor's microseconds per call by this clock.
    pub fn baseline_by(&self, clock: Clock) -> Option<f64> {
        self.measured.as_ref()?.baseline_by(self.baseline.as_ref()?, clock)
    }

    /// The vendor's median divided by the winner's, both by this clock.
    pub fn speedup_by(&self, clock: Clock) -> Option<f64> {
        Some(self.baseline_by(clock)? / self.median_by(clock)?)
    }
}

impl Measured {
    /// Microseconds per call by this clock, if it was read.
    pub fn median_by(&self, clock: Clock) -> Option<f64> {
        self.by(clock, self.median_us, &self.clocks)
    }

    /// The vendor's microseconds per call by this clock, if it was read.
    pub fn baseline_by(&self, baseline: &Baseline, clock: Clock) -> Option<f64> {
        self.by(clock, baseline.median_us, &baseline.clocks)
    }

    /// The median by a clock, of a time by the one that decided and what is known by each.
    fn by(&self, clock: Clock, median_us: f64, clocks: &Clocks) -> Option<f64> {
        match clock == self.clock {
            true => Some(median_us),
            false => clocks.by(clock).map(|time| time.median_us),
        }
    }

    /// By the other clock, if it was read: its name, the winner's microseconds, and the vendor's if that is known.
    pub fn by_other(&self, baseline: Option<&Baseline>) -> Option<(Clock, f64, Option<f64>)> {
        let other = self.clock.other();
        let vendor = baseline.and_then(|baseline| self.baseline_by(baseline, other));
        Some((other, self.median_by(other)?, vendor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_a_streak_of_short_calls_and_one_long_call() {
        let calls = |us| Clock::Pipelined.calls(us);
        assert_eq!([0.0, 1.0, 12.5, 13.0].map(calls), [32, 32, 32, 31]);
        assert_eq!([100.0, 399.0, 400.0, 1e9].map(calls), [4, 2, 1, 1]);
        assert_eq!([f64::NAN, f64::INFINITY, -1.0].map(calls), [32, 1, 32]);
        assert_eq!([0.0, 5.0, 1e9].map(|us| Clock::Isolated.calls(us)), [1, 1, 1]);
        assert_eq!(Clock::Pipelined.sample_us(100.0), 500.0);
        assert_eq!(Clock::Pipelined.sample_us(500.0), 500.0);
        assert_eq!(Clock::Isolated.sample_us(5.0), 5.0);
    }

    #[test]
    fn where_the_cache_is_swept_every_call_is_alone() {
        for clock in Clock::ALL {
            assert_eq!(clock.under(L2Policy::Warm), clock);
            assert_eq!(clock.under(L2Policy::Cold), Clock::Isolated);
            assert_eq!(clock.other().other(), clock);
        }
    }

    #[test]
    fn times_of_two_clocks_are_compared_only_where_one_tells_both() {
        let by = |us: f64, clock| Timing::of(vec![us], 0).unwrap().by(clock);
        let (alone, row) = (by(50.0, Clock::Isolated), by(40.0, Clock::Pipelined));
        let long = by(5000.0, Clock::Pipelined);
        let common = |timings: &[&Timing]| Clock::Pipelined.in_common(timings.iter().copied());
        assert_eq!(common(&[]), Clock::Pipelined);
        assert_eq!(common(&[&alone, &row]), Clock::Pipelined);
        assert_eq!(common(&[&row, &long]), Clock::Pipelined);
        assert_eq!([&alone, &row].map(|timing| timing.tells(Clock::Pipelined)), [false, true]);
        assert_eq!(common(&[&alone]), Clock::Isolated);
        // A long call is alone by either.
        assert_eq!(common(&[&alone, &long]), Clock::Isolated);
        assert!(by(400.0, Clock::Isolated).tells(Clock::Pipelined));
    }

    #[test]
    fn each_clock_has_its_own_time() {
        let pipelined = Timing::of(vec![2.0], 0).unwrap().by(Clock::Pipelined);
        let isolated = Timing::of(vec![5.0; 3], 0).unwrap();
        let clocks = Clocks::of([&pipelined, &isolated]);
        let said =
            Clock::ALL.map(|clock| clocks.by(clock).map(|time| (time.median_us, time.samples)));
        assert_eq!(said, [Some((5.0, 3)), Some((2.0, 1))]);
        assert_eq!(serde_json::to_string(&Clocks::default()).unwrap(), "{}");
        assert!(Clocks::of([]).is_empty());
    }
}
