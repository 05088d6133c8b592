//! A trial: one candidate tried (or pruned) for one job on one device.

use super::{Candidate, JobId, Outcome, Timestamp};
use serde::{Deserialize, Serialize};

/// A candidate of a job and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    pub job: JobId,
    /// Position in the job, from 0; with the job it is the trial's identity.
    pub ordinal: u32,
    pub candidate: Candidate,
    pub state: TrialState,
    /// The model's prediction, in microseconds.
    pub predicted_us: Option<f64>,
    /// Its own features, for training; beside the stored text, and told to nobody.
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

/// How many of a job's trials are of one family and came to one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialCount {
    pub family: String,
    /// See [`TrialState::name`].
    pub state: String,
    /// Which constraint removed them, where they were pruned.
    pub pruned_by: Option<String>,
    pub count: u64,
}

/// Which of a job's trials are asked for: those of one state, or all that were tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TrialFilter {
    /// All but the pruned.
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
