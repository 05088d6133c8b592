//! A training: a job that makes models out of recorded trials.

use super::learned::Scope;
use super::{JobState, ModelId, Timestamp, TrainingId};
use serde::{Deserialize, Serialize};

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainRequest {
    pub scope: Scope,
    #[serde(default)]
    pub activate: Activate,
    #[serde(default = "first_seed")]
    pub seed: u64,
}

const fn first_seed() -> u64 {
    1
}

/// What becomes of the new model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Activate {
    /// It is put to use if it chooses better than the analytic model, and than a ranked search of ten that corrects that as it
    /// goes, and no worse than the one in use.
    #[default]
    IfBetter,
    Always,
    Never,
}

impl Activate {
    pub const fn name(self) -> &'static str {
        match self {
            Self::IfBetter => "if_better",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// What a running training is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum TrainingStage {
    Waiting,
    /// Features are computed for trials that have none of this version.
    Describing,
    /// Trials are read.
    Reading,
    /// Each part of the patterns is judged by models trained on the others.
    Judging,
    /// The model is trained on everything.
    Training,
    Done,
}

/// Version of the stored [`Training`].
pub const TRAINING_VERSION: u32 = 1;

/// A training as it stands. Its states are those of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    pub version: u32,
    pub id: TrainingId,
    pub request: TrainRequest,
    pub state: JobState,
    pub stage: TrainingStage,
    /// Share that is done, 0 to 1.
    pub progress: f64,
    /// The last line of its story.
    pub message: Option<String>,
    /// The model that came of it.
    pub model: Option<ModelId>,
    /// Whether that model was put to use.
    pub activated: bool,
    pub error: Option<String>,
    /// Version of the features it learns from; absent until it begins.
    #[serde(default)]
    pub features_version: Option<u32>,
    pub attempts: u32,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

impl Training {
    /// A new one, to be submitted.
    pub fn queued(request: TrainRequest) -> Self {
        Self {
            version: TRAINING_VERSION,
            id: TrainingId::fresh(),
            request,
            state: JobState::Queued,
            stage: TrainingStage::Waiting,
            progress: 0.0,
            message: None,
            model: None,
            activated: false,
            error: None,
            features_version: None,
            attempts: 0,
            created_at: Timestamp::now(),
            started_at: None,
            finished_at: None,
        }
    }
}
