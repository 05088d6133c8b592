//! A trial: one candidate that was tried or pruned for a job on one device.

use super::{Candidate, JobId, Outcome, Timestamp};
use serde::{Deserialize, Serialize};

/// A candidate of a job and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    pub job: JobId,
    /// Position in the job, from 0; together with the job it identifies the trial.
    pub ordinal: u32,
    pub candidate: Candidate,
    pub state: TrialState,
    /// The model's prediction, in microseconds.
    pub predicted_us: Option<f64>,
    /// The rule that would have removed the candidate from the space, if a search of the full space tried it all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub despite: Option<Removal>,
    /// The candidate's own features, for training; stored in a separate column and not part of the API.
    #[serde(skip)]
    pub features: Option<Vec<f32>>,
    pub created_at: Timestamp,
}

/// Why a pruning rule removes a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Removal {
    /// Name of the rule.
    pub pruned_by: String,
    /// What the rule computed for the candidate, in the rule's own unit; absent if the rule compares no numbers, and in trials of
    /// earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// What it would have to keep to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
}

impl Removal {
    /// A rule that compares no numbers, such as the restriction to the best K.
    pub fn by(rule: &str) -> Self {
        Self { pruned_by: rule.to_owned(), value: None, limit: None }
    }
}

/// Pruned before it ran, or tried with an outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TrialState {
    Pruned(Removal),
    Tried(Outcome),
}

/// The number of a job's trials with a given family and state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialCount {
    pub family: String,
    /// See [`TrialState::name`].
    pub state: String,
    /// The constraint that removed them, if they were pruned.
    pub pruned_by: Option<String>,
    pub count: u64,
}

/// Filter for a job's trials: those with one state, or all that were tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TrialFilter {
    /// All except pruned ones.
    Tried,
    Pruned,
    Measured,
    CompileFailed,
    Refused,
    Wrong,
    TimedOut,
    Crashed,
}

impl TrialState {
    /// The wire name of the state.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pruned(_) => "pruned",
            Self::Tried(outcome) => outcome.state(),
        }
    }

    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Pruned(_) => None,
            Self::Tried(outcome) => Some(outcome),
        }
    }
}
