//! Budgets of a search: wall-clock seconds and trials, counted over all attempts of a job.

use crate::domain::StoppedBy;
use std::time::{Duration, Instant};

/// The budget of a search. It is checked before each trial, so it is exceeded by at most one trial.
#[derive(Clone, Debug)]
pub struct Budget {
    started: Instant,
    /// Time spent by earlier attempts.
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

    /// Time left; `None` without a limit.
    pub fn left(&self) -> Option<Duration> {
        let seconds = self.seconds?;
        Some(
            Duration::try_from_secs_f64(seconds)
                .unwrap_or(Duration::MAX)
                .saturating_sub(self.spent()),
        )
    }

    /// The exhausted budget, if `trials_done` trials or the time spent end the search.
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
    fn trials_and_time_of_earlier_attempts_count() {
        let budget = Budget::start(Some(10.0), Some(3), Duration::from_secs(4));
        assert_eq!(budget.exhausted(2), None);
        assert_eq!(budget.exhausted(3), Some(StoppedBy::Trials));
        assert!(budget.left().is_some_and(|left| left <= Duration::from_secs(6)));
        let late = Budget::start(Some(10.0), None, Duration::from_secs(10));
        assert_eq!(late.exhausted(0), Some(StoppedBy::Seconds));
        assert_eq!(Budget::start(None, None, Duration::MAX / 2).exhausted(9), None);
    }
}
