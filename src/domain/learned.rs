//! Learned models: what they are, what they were trained on, and how well they choose on what they had not seen.

pub use super::Op;
use super::{DeviceClass, Digest, Problem, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A learned model's name: a UUIDv7, or what the file that ships with sparsetune calls itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct ModelId(pub String);

impl ModelId {
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A training's name: a UUIDv7.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct TrainingId(pub String);

impl TrainingId {
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

impl fmt::Display for TrainingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a model is bound to: it knows the candidates of one operation, as one class of device runs them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Scope {
    pub op: Op,
    pub device_class: DeviceClass,
}

/// How a model was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Learner {
    /// Boosted regression trees on listwise gradients (LO-SpMM, section 3.5).
    Lambdamart,
    /// Multi-label perceptron over schemes (AG-SpTRSV, section 6), each matrix counted alike.
    Mlp,
    /// The same, each scheme counted by what choosing it wrongly costs.
    MlpRegret,
    /// The same, of labels that say how surely a scheme is satisfactory.
    MlpGraded,
}

impl Learner {
    pub const ALL: [Self; 4] = [Self::Lambdamart, Self::Mlp, Self::MlpRegret, Self::MlpGraded];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Lambdamart => "lambdamart",
            Self::Mlp => "mlp",
            Self::MlpRegret => "mlp_regret",
            Self::MlpGraded => "mlp_graded",
        }
    }
}

/// Version of the stored [`LearnedModel`].
pub const MODEL_VERSION: u32 = 1;

/// A trained model, without its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearnedModel {
    pub version: u32,
    pub id: ModelId,
    pub learner: Learner,
    pub scope: Scope,
    /// Version of the features it reads; it ranks nothing that was described by another.
    pub features_version: u32,
    pub data: DataUsed,
    pub quality: HeldOut,
    /// Features by their share of all gain, largest first; shares sum to 1. Empty for a perceptron.
    pub importance: Vec<Importance>,
    pub seed: u64,
    /// The training that made it; absent for a model that ships with sparsetune.
    pub training: Option<TrainingId>,
    /// Digest of the model file.
    pub digest: Digest,
    pub created_at: Timestamp,
}

/// What a model was trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataUsed {
    /// Lists that were ranked: one matrix and problem each.
    pub groups: u64,
    /// Distinct patterns.
    pub matrices: u64,
    /// Patterns among them that were generated.
    pub generated: u64,
    pub trials: u64,
    /// When the newest of them was measured.
    pub newest: Timestamp,
}

/// How well models choose among the measured candidates of patterns that were left out of their training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// Parts that the patterns were dealt into; each part is judged by models trained on the others.
    pub folds: u32,
    pub groups: u64,
    /// One for each way to choose: the learners, the analytic model, that model corrected as a search goes, chance.
    #[serde(rename = "choosers")]
    pub rankers: Vec<RankerScore>,
}

/// One way to choose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankerScore {
    /// A learner's name, `analytic`, `analytic_corrected` or `random`.
    pub name: String,
    /// Normalised discounted cumulative gain of its first ten; absent for chance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ndcg10: Option<f64>,
    /// For rising numbers of candidates that may be tried.
    pub at: Vec<AtK>,
    /// Regret of its first choice, time over the best's less 1: median, 90th percentile, largest.
    pub regret: [f64; 3],
}

/// What the best of the first `k` comes to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AtK {
    pub k: u32,
    /// Geometric mean over groups of the best time over that of the best of the first `k`: 1 is the best always found.
    pub share: f64,
    /// Share of groups where the best of the first `k` is within 85 % of the best.
    pub within_85: f64,
}

/// A feature's part in what trees decide.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Importance {
    pub feature: String,
    pub share: f64,
}

/// A model put to use, or (`model` absent) all models of a scope put out of use: the analytic model ranks then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activation {
    pub scope: Scope,
    pub model: Option<ModelId>,
    /// Why: by whom, or what it beat.
    pub reason: String,
    pub at: Timestamp,
}

impl Activation {
    /// The reason of an activation that takes another back, and of no other.
    pub const ROLLED_BACK: &str = "rolled back";
}

/// What the candidates of one job have in common, for training: stored once, beside the trials' own features.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFeatures {
    pub scope: Scope,
    pub problem: Problem,
    pub matrix: Digest,
    pub pattern: Digest,
    /// The matrix's name; a generated one is named by its specification.
    pub name: Option<String>,
    pub features_version: u32,
    pub shared: Vec<f32>,
    pub created_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::Learner;

    /// The learner after this one, in the order of their list: whoever adds one has to say here where it stands.
    const fn next(learner: Learner) -> Option<Learner> {
        match learner {
            Learner::Lambdamart => Some(Learner::Mlp),
            Learner::Mlp => Some(Learner::MlpRegret),
            Learner::MlpRegret => Some(Learner::MlpGraded),
            Learner::MlpGraded => None,
        }
    }

    #[test]
    fn all_learners_are_listed_and_stored_by_their_names() {
        let walked = std::iter::successors(Some(Learner::Lambdamart), |learner| next(*learner));
        assert_eq!(walked.collect::<Vec<_>>(), Learner::ALL);
        for learner in Learner::ALL {
            assert_eq!(serde_json::to_value(learner).unwrap(), learner.name());
        }
    }
}
