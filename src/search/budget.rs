//! Budgets of a search: wall-clock seconds and trials, counted over all attempts of a job.

use crate::domain::StoppedBy;
use std::time::{Duration, Instant};

/// Most of the time budget that trials leave to the finals.
const MOST_KEPT: f64 = 0.25;

/// The budget of a search, from loading to the finals. Before each trial it is compared with what is left after what is kept for the
/// finals, and a trial that has begun is cut when its share is used up. It is exceeded only by what is not ended once it has begun: lowering
/// a candidate, compiling it, and one call of a kernel.
#[derive(Clone, Debug)]
pub struct Budget {
    /// What trials leave to the finals,
    finals: Duration,
    /// and, with the time of a usual trial, what is left when none is begun any more.
    kept: Duration,
    started: Instant,
    /// Time spent by earlier attempts.
    spent_before: Duration,
    seconds: Option<f64>,
    trials: Option<u32>,
}

impl Budget {
    pub fn start(seconds: Option<f64>, trials: Option<u32>, spent_before: Duration) -> Self {
        let (finals, kept) = (Duration::ZERO, Duration::ZERO);
        Self { finals, kept, started: Instant::now(), spent_before, seconds, trials }
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

    /// Has trials leave this much to the finals, but at most a quarter of the whole, and time for the trial that begins next.
    pub fn keep(&mut self, finals: Duration, trial: Duration) {
        let most = self.seconds.map(|seconds| Duration::try_from_secs_f64(MOST_KEPT * seconds));
        let finals = most.map_or(finals, |most| finals.min(most.unwrap_or(Duration::MAX)));
        self.finals = finals;
        self.kept = finals.saturating_add(trial);
    }

    /// What a trial that begins now may take, so that the finals have what is kept for them; `None` without a limit.
    pub fn share(&self) -> Option<Duration> {
        self.left().map(|left| left.saturating_sub(self.finals))
    }

    /// The exhausted budget, if `trials_done` trials or the time spent end the search.
    pub fn exhausted(&self, trials_done: u32) -> Option<StoppedBy> {
        if self.trials.is_some_and(|most| trials_done >= most) {
            return Some(StoppedBy::Trials);
        }
        match self.left() {
            Some(left) if left <= self.kept => Some(StoppedBy::Seconds),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_for_the_finals_is_not_spent_on_trials() {
        let mut budget = Budget::start(Some(10.0), None, Duration::from_secs(8));
        assert_eq!(budget.exhausted(0), None);
        budget.keep(Duration::from_secs(1), Duration::ZERO);
        assert_eq!(budget.exhausted(0), None);
        budget.keep(Duration::from_secs(60), Duration::ZERO);
        assert_eq!(budget.exhausted(0), Some(StoppedBy::Seconds));
        assert!(budget.left().is_some_and(|left| left > Duration::from_secs(1)));
        // No more than a quarter, however long the finals may be.
        let mut early = Budget::start(Some(10.0), None, Duration::from_secs(7));
        early.keep(Duration::from_secs(60), Duration::ZERO);
        assert_eq!(early.exhausted(0), None);
        assert!(early.share().is_some_and(|share| share <= Duration::from_millis(500)));
        // A trial that would not end in time is not begun.
        early.keep(Duration::from_secs(60), Duration::from_secs(1));
        assert_eq!(early.exhausted(0), Some(StoppedBy::Seconds));
    }

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
