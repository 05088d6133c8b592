//! The finals of a session: the best candidates and the best vendor routine are timed alternately, and the winner is
//! decided.

use super::contenders::{best_of, decide, of_few_preparations};
use super::session::{Session, SessionError};
use crate::domain::candidate::VENDOR;
use crate::domain::protocol::Effort;
use crate::domain::{Candidate, Clock, Outcome, SearchStrategy, Stage, Timing};
use crate::pool::PoolError;
use crate::search::{Budget, Contender, Decision, Samples};
use std::collections::BTreeMap;
use std::time::Duration;

/// Minimum number of paired rounds for a 95 % interval.
const FEWEST_ROUNDS: u32 = 6;

/// Share of the finals' time planned for the first rung of `halving`.
const FIRST_RUNG: f64 = 0.4;

/// A finalist is stopped when a call takes this many times its median, but not before [`PATIENT_US`], since each has
/// already been verified and measured.
const GIVE_UP: f64 = 3.0;
const PATIENT_US: f64 = 1e6;

/// Rounds before those that count.
const WARM_UP: u32 = 2;

/// Finals are planned to take this share of what is left of the budget: the machine may have become busier since the trials.
const MARGIN: f64 = 0.5;

/// The share of a trial's time that making a finalist ready takes again: it was verified, and is compiled.
const SETUP: f64 = 0.3;

/// All recipes of the finals are in memory at the same time. For a matrix with more entries than this, the first rung
/// takes contenders of only a few preparations.
const LARGE: u64 = 1_000_000;

/// The pool's default deadline for one call of a candidate.
const POOLS_OWN: Duration = Duration::from_secs(10);

/// The finals' result.
pub struct Finals {
    pub contenders: Vec<Contender>,
    pub decision: Decision,
    /// By the clock that did not decide, for the contenders that a plan names; `None` for the others, and if it was not read.
    pub other: Vec<Option<Timing>>,
    /// Whether the contenders were timed alternately; otherwise their trials decided.
    pub paired: bool,
}

impl Session<'_> {
    /// The clock by which the job's candidates are timed and chosen.
    pub(super) fn clock(&self) -> Clock {
        self.recorder.clock()
    }

    /// Times the best candidates and the best vendor routine alternately, decides, and reads the other clock for those that a
    /// plan names. `halving` has an additional rung before.
    pub(super) async fn finals(
        &mut self,
        budget: &Budget,
        strategy: SearchStrategy,
        expected_calls: Option<u64>,
        nnz: u64,
    ) -> Result<Finals, SessionError> {
        let clock = self.clock();
        let halving = has_a_rung(strategy);
        let [many, few] = self.measuring.rungs;
        let places = if halving { many } else { self.measuring.finalists };
        let mut contenders = best_of(self.measured(), places, expected_calls, clock);
        if contenders.is_empty() {
            return Err(SessionError::Hopeless(self.nothing_ran()));
        }
        if nnz > LARGE {
            contenders = of_few_preparations(contenders, self.kernels());
        }
        let mut ms = self.measuring.finals_ms;
        if halving && contenders.iter().filter(|c| c.candidate.family != VENDOR).count() > few {
            let first = FIRST_RUNG * ms;
            if let Some(rounds) =
                self.rounds(&contenders, clock, budget, (first, self.measuring.rung_rounds))
            {
                self.pair(&mut contenders, rounds, clock).await?;
                ms -= first;
            }
            contenders = best_of(contenders, few, expected_calls, clock);
        }
        let samples = match self.rounds(&contenders, clock, budget, (ms, self.measuring.rounds)) {
            Some(rounds) => self.pair(&mut contenders, rounds, clock).await?,
            None => Samples::Separate,
        };
        loop {
            let search = &self.recorder.job.request.search;
            let decision = decide(&contenders, search, expected_calls, samples, clock)
                .ok_or_else(|| SessionError::Hopeless(self.nothing_ran()))?;
            // If the finals failed, one of the finalists is the cause, so the winner must run successfully once more.
            if samples == Samples::Paired || self.stands(&contenders[decision.winner]).await? {
                let other = self.by_other_clock(&contenders, &decision, budget).await?;
                let paired = samples == Samples::Paired;
                return Ok(Finals { contenders, decision, other, paired });
            }
            contenders.remove(decision.winner);
        }
    }

    /// The number of rounds that fit the planned time and the remaining budget; `None` if too few fit.
    fn rounds(
        &self,
        contenders: &[Contender],
        clock: Clock,
        budget: &Budget,
        (aim_ms, [fewest, most]): (f64, [u32; 2]),
    ) -> Option<u32> {
        let samples_us = contenders.iter().map(|c| clock.sample_us(c.timing.median_us));
        let round_ms = samples_us.sum::<f64>() / 1e3;
        let left_ms = budget.left().map_or(f64::INFINITY, |left| left.as_secs_f64() * 1e3);
        let fitting = |ms: f64| (ms / round_ms.max(1e-6)) as u32;
        let ready_ms = self.setup(contenders.len()).as_secs_f64() * 1e3;
        let affordable = fitting(MARGIN * (left_ms - ready_ms)).saturating_sub(WARM_UP);
        let wanted = fitting(aim_ms).clamp(fewest, most);
        (affordable >= FEWEST_ROUNDS).then(|| wanted.min(affordable))
    }

    /// About how long it takes to make this many finalists ready again, by the trials of this attempt.
    fn setup(&self, finalists: usize) -> Duration {
        self.usual_trial().mul_f64(SETUP * finalists as f64)
    }

    /// How long a trial of this attempt took on average; nothing before the first.
    pub(super) fn usual_trial(&self) -> Duration {
        let (trials, took) = self.pace;
        took / trials.max(1)
    }

    /// About how long the finals of the best so far take: trials leave this much of the budget.
    pub(super) fn finals_need(&self) -> Duration {
        let request = &self.recorder.job.request;
        let places = match has_a_rung(request.search.strategy) {
            true => self.measuring.rungs[1],
            false => self.measuring.finalists,
        };
        let clock = self.clock();
        let best = best_of(self.measured(), places, request.expected_calls, clock);
        let us = |clock: Clock| -> f64 {
            best.iter().map(|c| clock.sample_us(c.timing.median_us)).sum::<f64>()
                * f64::from(FEWEST_ROUNDS + WARM_UP)
        };
        let timing = (us(clock) + us(clock.other())) / 1e6 / MARGIN;
        let timing = Duration::try_from_secs_f64(timing).unwrap_or(Duration::MAX);
        timing.saturating_add(self.setup(best.len()))
    }

    /// Times the contenders alternately. A finalist that fails only now must not fail the job.
    async fn pair(
        &mut self,
        contenders: &mut [Contender],
        rounds: u32,
        clock: Clock,
    ) -> Result<Samples, SessionError> {
        let number = contenders.len();
        let message = format!("{number} finalists timed alternately, {rounds} rounds, {clock}");
        let us: f64 = contenders.iter().map(|c| clock.sample_us(c.timing.median_us)).sum();
        let timing = Duration::try_from_secs_f64(us * f64::from(rounds + WARM_UP) / 1e6);
        // With the rounds by the other clock, and the winner's program.
        let expected = timing.unwrap_or_default().mul_f64(1.5) + self.setup(number + 1);
        self.recorder.long_stage(Stage::Finals, expected, message).await?;
        match self.alternately(contenders, rounds, clock).await {
            Ok(timings) => {
                for (contender, timing) in contenders.iter_mut().zip(timings) {
                    contender.timing = timing;
                }
                Ok(Samples::Paired)
            }
            Err(error @ (PoolError::Cancelled | PoolError::Unavailable { .. })) => {
                Err(error.into())
            }
            Err(error) => {
                self.recorder
                    .log(format!("finals failed ({error}); the individual timings decide"))
                    .await?;
                Ok(Samples::Separate)
            }
        }
    }

    /// A few rounds by the clock that did not decide, of winner, runner-up and the vendor's routine. The plan is complete without
    /// them, so whatever fails here fails no job.
    async fn by_other_clock(
        &mut self,
        contenders: &[Contender],
        decision: &Decision,
        budget: &Budget,
    ) -> Result<Vec<Option<Timing>>, SessionError> {
        let mut all = vec![None; contenders.len()];
        let other = self.clock().other();
        if other.under(self.service.settings().l2_policy) != other {
            return Ok(all);
        }
        let vendor = contenders.iter().position(|c| c.candidate.is_baseline());
        let mut places = vec![decision.winner];
        for place in decision.runner_up.into_iter().chain(vendor) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let named: Vec<Contender> = places.iter().map(|&at| contenders[at].clone()).collect();
        let aim = (self.measuring.other_ms, self.measuring.other_rounds);
        let Some(rounds) = self.rounds(&named, other, budget, aim) else { return Ok(all) };
        match self.alternately(&named, rounds, other).await {
            Ok(timings) => {
                for (place, timing) in places.into_iter().zip(timings) {
                    all[place] = Some(timing);
                }
            }
            Err(PoolError::Cancelled) => return Err(PoolError::Cancelled.into()),
            Err(error) => {
                let message = format!("the plan has no times by the clock {other}: {error}");
                self.recorder.log(message).await?;
            }
        }
        Ok(all)
    }

    async fn alternately(
        &mut self,
        contenders: &[Contender],
        rounds: u32,
        clock: Clock,
    ) -> Result<Vec<Timing>, PoolError> {
        let names: Vec<Candidate> = contenders.iter().map(|c| c.candidate.clone()).collect();
        let slowest = contenders.iter().map(|c| c.timing.median_us).fold(0.0, f64::max);
        let give_up_us = Some(give_up_us(slowest));
        self.evaluator.pair(names, rounds, clock, give_up_us, &self.signals.stop).await
    }

    async fn stands(&mut self, winner: &Contender) -> Result<bool, SessionError> {
        let give_up_us = Some(give_up_us(winner.timing.median_us));
        let effort = Effort {
            warmups: 0,
            min_samples: 1,
            max_samples: 1,
            budget_ms: 0.0,
            give_up_us,
            clock: self.clock(),
            left_ms: None,
            needed: false,
        };
        let deadline = self.patience().filter(|patience| *patience > POOLS_OWN);
        let candidate = &winner.candidate;
        let again = self.evaluator.measure(candidate, effort, deadline, &self.signals.stop).await?;
        Ok(matches!(again.outcome, Outcome::Measured { .. }))
    }

    /// All measured candidates.
    fn measured(&self) -> Vec<Contender> {
        let kernels = self.kernels();
        let tried = self.recorder.tried().into_iter();
        let measured = tried.filter_map(|(candidate, outcome)| match outcome {
            Outcome::Measured { timing, preprocess_ms, .. } => Some(Contender {
                candidate: candidate.clone(),
                timing: timing.clone(),
                preprocess_ms: *preprocess_ms,
                complexity: kernels.complexity(candidate),
            }),
            _ => None,
        });
        measured.collect()
    }

    fn nothing_ran(&self) -> String {
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        let tried = self.recorder.tried();
        for (_, outcome) in &tried {
            *counts.entry(outcome.counted_as()).or_default() += 1;
        }
        let counts: Vec<String> = counts.iter().map(|(state, n)| format!("{n} {state}")).collect();
        format!("none of {} candidates could be measured: {}", tried.len(), counts.join(", "))
    }
}

/// Whether many candidates are timed alternately before the finals: the least of thousands of times measured once is rarely the least
/// time.
fn has_a_rung(strategy: SearchStrategy) -> bool {
    matches!(strategy, SearchStrategy::Halving | SearchStrategy::Full)
}

fn give_up_us(median_us: f64) -> f64 {
    (GIVE_UP * median_us).max(PATIENT_US)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_finalist_is_not_stopped_early() {
        assert_eq!(give_up_us(30.0), 1e6);
        assert_eq!(give_up_us(2e6), 6e6);
    }
}
