//! Comparison of the finals with the trials: the finals measure again, so the fastest trial need not have won.

use super::tried::{by_time, parameters};
use crate::domain::{Candidate, Job, Plan, Trial};
use crate::explain::WHY_SLOWER;
use crate::http::dashboard::format::{count, family, micros};

/// The effect of the finals.
#[derive(Default)]
pub struct Finals {
    /// Why the winner's time differs from that of its trial.
    pub timed_again: Option<String>,
    /// Why the fastest trial lost, if it did.
    pub fastest_lost: Option<String>,
}

/// The candidate of the job's plan; a job without a plan has none.
pub fn winner(job: &Job) -> Option<&Candidate> {
    job.plan.as_ref().and(job.best.as_ref()).map(|best| &best.candidate)
}

impl Finals {
    pub fn of(plan: &Plan, trials: &[Trial]) -> Self {
        let timed = by_time(trials);
        let own = timed.iter().find(|(trial, _)| trial.candidate == plan.candidate);
        let then = own.map(|(_, us)| *us);
        // Exactly equal if there were no finals.
        let timed_again = plan.median_us().zip(then).filter(|(now, then)| now != then);
        let timed_again = timed_again.map(|(now, then)| {
            let slower = now > then;
            let (now, then) = (micros(now), micros(then));
            let why = if slower { format!(" {WHY_SLOWER}") } else { String::new() };
            format!(
                "Timed again in turn with the other finalists: {now} ({then} in its trial).{why}"
            )
        });
        let fastest = timed.first().filter(|(trial, _)| trial.candidate != plan.candidate);
        Self {
            timed_again,
            fastest_lost: fastest.map(|(trial, us)| why(plan, &trial.candidate, *us)),
        }
    }
}

fn why(plan: &Plan, fastest: &Candidate, us: f64) -> String {
    let name = format!("{} {}", family(fastest), parameters(fastest));
    let again = plan.runner_up.as_ref().filter(|second| second.candidate == *fastest);
    let held = plan.finals.iter().find(|one| one.candidate == *fastest);
    let mut text = format!("The fastest trial was {} of {}", micros(us), name.trim_end());
    match again {
        None if held.is_some() => text.push_str(&format!(
            "; timed again it took {}.",
            micros(held.map_or(us, |one| one.median_us))
        )),
        Some(second) => text.push_str(&format!(
            "; timed again it took {}, the runner-up.",
            micros(second.median_us)
        )),
        None => text.push_str("; it was neither the winner nor the runner-up in the finals."),
    }
    if plan.tie {
        text.push_str(" The difference is within the noise: of the tied, the simpler one wins.");
    }
    if let Some(calls) = plan.expected_calls {
        text.push_str(&format!(" It was chosen for {} calls, preparation counted.", count(calls)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::plan::RunnerUp;
    use crate::domain::{Clocks, JobId, Outcome, PlanId, Timestamp, Timing, TrialState};

    fn trial(ordinal: u32, family: &str, us: f64) -> Trial {
        Trial {
            job: JobId("j".to_owned()),
            ordinal,
            candidate: Candidate::new(family).with("lanes", 8),
            state: TrialState::Tried(Outcome::Measured {
                timing: Timing::of(vec![us], 0).unwrap(),
                rel_error: 0.0,
                resources: None,
                preprocess_ms: 0.0,
            }),
            predicted_us: None,
            despite: None,
            features: None,
            created_at: Timestamp(0),
        }
    }

    fn plan(won: &Trial, us: f64) -> Plan {
        let text = include_str!("../../../../tests/http/plan.json");
        let mut plan: Plan = serde_json::from_str(text).unwrap();
        plan.id = PlanId::fresh();
        plan.candidate = won.candidate.clone();
        plan.measured.as_mut().unwrap().median_us = us;
        (plan.tie, plan.runner_up, plan.expected_calls) = (false, None, None);
        plan
    }

    #[test]
    fn a_fastest_trial_that_lost_is_told_with_its_second_time() {
        let trials = [trial(0, "won", 63.5), trial(1, "lost", 60.0)];
        let mut plan = plan(&trials[0], 70.1);
        plan.tie = true;
        let candidate = trials[1].candidate.clone();
        plan.runner_up =
            Some(RunnerUp { candidate, median_us: 70.0, ci95_us: None, clocks: Clocks::default() });
        let told = Finals::of(&plan, &trials);
        let again = "Timed again in turn with the other finalists: 70.1 µs (63.5 µs in its trial). In the finals";
        assert!(told.timed_again.is_some_and(|told| told.starts_with(again)));
        let lost = "The fastest trial was 60.0 µs of lost lanes=8; timed again it took 70.0 µs, the runner-up. \
                    The difference is within the noise: of the tied, the simpler one wins.";
        assert_eq!(told.fastest_lost.as_deref(), Some(lost));
    }

    #[test]
    fn a_winner_that_was_the_fastest_and_never_timed_again_needs_no_words() {
        let trials = [trial(0, "won", 63.5), trial(1, "lost", 80.0)];
        let told = Finals::of(&plan(&trials[0], 63.5), &trials);
        assert!(told.timed_again.is_none() && told.fastest_lost.is_none());
    }
}
