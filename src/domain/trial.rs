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
    /// The candidate's own features, for training; stored in a separate column and not part of the API.
    #[serde(skip)]
    pub features: Option<Vec<f32>>,
    pub created_at: Timestamp,
}

/// Pruned before it ran, or tried with an outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TrialState {
    Pruned { pruned_by: String },
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
            Self::Pruned { .. } => "pruned",
            Self::Tried(outcome) => outcome.state(),
        }
    }

    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Pruned { .. } => None,
            Self::Tried(outcome) => Some(outcome),
        }
    }
}
