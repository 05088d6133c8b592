//! A trial: one candidate of a job and its outcome.

use super::{Candidate, Open};
use crate::domain;
use crate::domain::{Clock, Outcome, Removal, TrialState};
use serde::{Deserialize, Serialize};

/// A candidate of a job, either pruned by a constraint or tried. Its `state` determines which optional members are present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Trial {
    /// `<job>/<ordinal>`.
    pub id: String,
    pub candidate: Candidate,
    /// Whether the candidate is a baseline: speed-ups are relative to the fastest of these.
    #[serde(default)]
    pub baseline: bool,
    /// See [`TrialState::name`].
    pub state: String,
    /// The category under which a plan's `trials` counts it: its state, or `stopped`. Empty if an earlier server does not
    /// send it.
    #[serde(default)]
    pub counted_as: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pruned_by: Option<String>,
    /// What the rule computed for the candidate, and what it would have to keep to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pruned_value: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pruned_limit: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_us: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95_us: Option<[f64; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// There are fewer samples than usual, because the job's time was used up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// The clock of these times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Open<Clock>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rel_error: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registers: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occupancy: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preprocess_ms: Option<f64>,
    /// For `timed_out`: the kernel's own watchdog ended it, or the job's time was used up; the candidate may be tried again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// For `timed_out`: the job's time was used up before it was timed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub out_of_time: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    pub created_at: String,
}

impl From<domain::Trial> for Trial {
    fn from(trial: domain::Trial) -> Self {
        let mut out = Self {
            id: format!("{}/{}", trial.job, trial.ordinal),
            baseline: trial.candidate.is_baseline(),
            candidate: trial.candidate.into(),
            state: trial.state.name().to_owned(),
            counted_as: match trial.state.outcome() {
                Some(outcome) => outcome.counted_as().to_owned(),
                None => trial.state.name().to_owned(),
            },
            pruned_by: None,
            pruned_value: None,
            pruned_limit: None,
            predicted_us: finite(trial.predicted_us),
            median_us: None,
            ci95_us: None,
            samples: None,
            cut: false,
            clock: None,
            rel_error: None,
            registers: None,
            occupancy: None,
            preprocess_ms: None,
            stopped: false,
            out_of_time: false,
            detail: None,
            created_at: trial.created_at.to_rfc3339(),
        };
        match trial.state {
            TrialState::Pruned(removal) => out.set_removal(removal),
            TrialState::Tried(outcome) => out.set_outcome(outcome),
        }
        if let Some(removal) = trial.despite {
            out.set_removal(removal);
        }
        out
    }
}

impl Trial {
    fn set_removal(&mut self, removal: Removal) {
        self.pruned_by = Some(removal.pruned_by);
        self.pruned_value = finite(removal.value);
        self.pruned_limit = finite(removal.limit);
    }

    fn set_outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Measured { timing, rel_error, resources, preprocess_ms } => {
                self.median_us = Some(timing.median_us);
                self.ci95_us = timing.interval_us();
                self.samples = Some(timing.samples_us.len() as u64);
                self.cut = timing.cut;
                self.clock = Some(timing.clock.into());
                self.rel_error = finite(Some(rel_error));
                self.registers = resources.map(|resources| resources.registers);
                self.occupancy = resources.map(|resources| resources.occupancy);
                self.preprocess_ms = Some(preprocess_ms);
            }
            Outcome::TimedOut { detail, stopped, out_of_time } => {
                self.stopped = stopped;
                self.out_of_time = out_of_time;
                self.detail = Some(detail);
            }
            Outcome::Wrong { rel_error, detail } => {
                self.rel_error = finite(rel_error);
                self.detail = Some(detail);
            }
            Outcome::CompileFailed { detail }
            | Outcome::Refused { detail }
            | Outcome::Crashed { detail } => self.detail = Some(detail),
        }
    }
}

/// JSON cannot represent infinity. The error of a wrong result may be infinite, and then `detail` says so.
fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{JobId, Timestamp};

    #[test]
    fn a_kernel_that_stopped_itself_says_so() {
        let late = |stopped| {
            let detail = "late".to_owned();
            Outcome::TimedOut { detail, stopped, out_of_time: false }
        };
        let shown = |outcome| {
            let trial = domain::Trial {
                job: JobId("j".to_owned()),
                ordinal: 0,
                candidate: domain::Candidate::new("row_split"),
                state: TrialState::Tried(outcome),
                predicted_us: None,
                despite: None,
                features: None,
                created_at: Timestamp(0),
            };
            serde_json::to_value(Trial::from(trial)).unwrap()
        };
        assert_eq!(shown(late(true))["stopped"], true);
        assert_eq!(shown(late(true))["counted_as"], "stopped");
        assert_eq!(shown(late(true)).get("out_of_time"), None);
        assert_eq!(shown(late(false)).get("stopped"), None);
        assert_eq!(shown(late(false))["counted_as"], "timed_out");
        let beyond = shown(Outcome::out_of_time("late".to_owned()));
        assert_eq!((&beyond["stopped"], &beyond["out_of_time"]), (&true.into(), &true.into()));
    }
}
