//! The finals of a session: the best few and the best vendor routine timed in turn, and the decision.

use super::session::{Session, SessionError};
use crate::domain::{Candidate, Outcome, Stage};
use crate::ops;
use crate::pool::PoolError;
use crate::search::{self, Budget, Contender, Decision};
use std::collections::BTreeMap;

impl Session<'_> {
    /// Times the best few and the best vendor routine in turn, and decides.
    pub(super) async fn finals(
        &mut self,
        budget: &Budget,
        expected_calls: Option<u64>,
    ) -> Result<(Vec<Contender>, Decision), SessionError> {
        let mut contenders = self.finalists(expected_calls);
        if contenders.is_empty() {
            return Err(SessionError::Hopeless(self.nothing_ran()));
        }
        let names: Vec<Candidate> = contenders.iter().map(|c| c.candidate.clone()).collect();
        self.recorder
            .stage(Stage::Finals, format!("{} finalists timed in turn", names.len()))
            .await?;
        let round_ms: f64 = contenders.iter().map(|c| c.timing.median_us / 1e3).sum();
        // A budget in seconds is kept to: what is left of it bounds the finals too.
        let left_ms = budget.left().map_or(f64::INFINITY, |left| left.as_secs_f64() * 1e3);
        let rounds = (self.measuring.finals_ms.min(left_ms) / round_ms.max(1e-6)) as u32;
        let rounds = if left_ms < self.measuring.finals_ms {
            rounds.clamp(5, self.measuring.rounds[1])
        } else {
            rounds.clamp(self.measuring.rounds[0], self.measuring.rounds[1])
        };
        match self.evaluator.pair(names, rounds, &self.signals.stop).await {
            Ok(timings) => {
                for (contender, timing) in contenders.iter_mut().zip(timings) {
                    contender.timing = timing;
                }
            }
            Err(PoolError::Cancelled) => return Err(SessionError::Stopped),
            // Each has a time of its own already: a finalist that fails only now must not cost the job its answer.
            Err(error) => {
                self.recorder.log(format!("finals failed ({error}); single timings decide")).await?
            }
        }
        let decision = search::decide(&contenders, expected_calls)
            .ok_or_else(|| SessionError::Hopeless(self.nothing_ran()))?;
        Ok((contenders, decision))
    }

    fn finalists(&self, expected_calls: Option<u64>) -> Vec<Contender> {
        let mut measured: Vec<Contender> = self
            .recorder
            .tried()
            .into_iter()
            .filter_map(|(candidate, outcome)| match outcome {
                Outcome::Measured { timing, preprocess_ms, .. } => Some(Contender {
                    candidate: candidate.clone(),
                    timing: timing.clone(),
                    preprocess_ms: *preprocess_ms,
                    complexity: ops::complexity(candidate),
                }),
                _ => None,
            })
            .collect();
        let cost = |c: &Contender| match expected_calls {
            Some(calls) => c.preprocess_ms * 1e3 + calls as f64 * c.timing.median_us,
            None => c.timing.median_us,
        };
        measured.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        let vendor = measured.iter().position(|c| c.candidate.family == "vendor");
        let vendor = vendor.map(|at| measured.remove(at));
        measured.retain(|c| c.candidate.family != "vendor");
        measured.truncate(self.measuring.finalists);
        measured.extend(vendor);
        measured
    }

    fn nothing_ran(&self) -> String {
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        let tried = self.recorder.tried();
        for (_, outcome) in &tried {
            *counts.entry(outcome.state()).or_default() += 1;
        }
        let counts: Vec<String> = counts.iter().map(|(state, n)| format!("{n} {state}")).collect();
        format!("none of {} candidates could be measured: {}", tried.len(), counts.join(", "))
    }
}
