//! A training: a job that trains models on recorded trials.

use super::learned::Scope;
use super::{JobId, JobState, ModelId, Timestamp};
use serde::{Deserialize, Serialize};

/// A client's request.
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

/// Whether to activate the new model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Activate {
    /// Activate it if it chooses better than the analytic model and than a ranked search of ten trials that corrects
    /// the analytic model during the search, and not worse than the active model.
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
    /// Computes features for trials that have none of the current version.
    Describing,
    /// Reads the trials.
    Reading,
    /// Cross-validation: each fold of the patterns is evaluated with models trained on the others.
    Judging,
    /// Trains the model on all data.
    Training,
    Done,
}

impl TrainingStage {
    /// Every stage, in the order in which a training passes them.
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Describing, Self::Reading, Self::Judging, Self::Training, Self::Done];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Describing => "describing",
            Self::Reading => "reading",
            Self::Judging => "judging",
            Self::Training => "training",
            Self::Done => "done",
        }
    }
}

/// Version of the stored [`Training`].
pub const TRAINING_VERSION: u32 = 1;

/// A training and its current state. Its states are those of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    pub version: u32,
    pub id: JobId,
    pub request: TrainRequest,
    pub state: JobState,
    pub stage: TrainingStage,
    /// Share done, from 0 to 1.
    pub progress: f64,
    /// The most recent progress message.
    pub message: Option<String>,
    /// The resulting model.
    pub model: Option<ModelId>,
    /// Whether that model was activated.
    pub activated: bool,
    pub error: Option<String>,
    /// Version of the features that it is trained on; absent until it starts.
    #[serde(default)]
    pub features_version: Option<u32>,
    pub attempts: u32,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

impl Training {
    /// A new training, ready to be submitted.
    pub fn queued(request: TrainRequest) -> Self {
        Self {
            version: TRAINING_VERSION,
            id: JobId::fresh(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_shown_by_the_name_that_the_api_gives_it() {
        for stage in TrainingStage::ALL {
            assert_eq!(serde_json::to_value(stage).unwrap(), stage.name());
        }
    }
}
