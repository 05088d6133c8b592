//! Budgets of a search: wall-clock seconds and trials, counted over all the times a job was taken up.

use crate::domain::StoppedBy;
use std::time::{Duration, Instant};

/// What a search may spend. Checked before each trial, so it is overrun by at most one trial.
#[derive(Clone, Debug)]
pub struct Budget {
    started: Instant,
    /// Spent before this start, by an earlier worker.
    spent_before: Duration,
    seconds: Option<f64>,
    trials: Option<u32>,
}

impl Budget {
    pub fn start(seconds: Option<f64>, trials: Option<u32>, spent_before: Duration) -> Self {
        Self { started: Instant::now(), spent_before, seconds, trials }
    }

    /// Time spent on the search so far.
    pub fn spent(&self) -> Duration {
        self.spent_before + self.started.elapsed()
    }

    /// Time left, `None` without a limit.
    pub fn left(&self) -> Option<Duration> {
        let seconds = self.seconds?;
        Some(
            Duration::try_from_secs_f64(seconds)
                .unwrap_or(Duration::MAX)
                .saturating_sub(self.spent()),
        )
    }

    /// Whether `trials_done` trials and the time spent end the search.
    pub fn exhausted(&self, trials_done: u32) -> Option<StoppedBy> {
        if self.trials.is_some_and(|most| trials_done >= most) {
            return Some(StoppedBy::Trials);
        }
        match self.left() {
            Some(left) if left.is_zero() => Some(StoppedBy::Seconds),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_and_earlier_time_count() {
        let budget = Budget::start(Some(10.0), Some(3), Duration::from_secs(4));
        assert_eq!(budget.exhausted(2), None);
        assert_eq!(budget.exhausted(3), Some(StoppedBy::Trials));
        assert!(budget.left().is_some_and(|left| left <= Duration::from_secs(6)));
        let late = Budget::start(Some(10.0), None, Duration::from_secs(10));
        assert_eq!(late.exhausted(0), Some(StoppedBy::Seconds));
        assert_eq!(Budget::start(None, None, Duration::MAX / 2).exhausted(9), None);
    }
}
