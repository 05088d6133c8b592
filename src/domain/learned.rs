//! Learned models: identity, training data, and evaluation on held-out data.

use super::{DeviceClass, Digest, JobId, Op, Problem, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A learned model's id: a UUIDv7, or the name of a model that ships with sparsetune.
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

/// The validity of a model: one operation on one device class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Scope {
    pub op: Op,
    pub device_class: DeviceClass,
}

/// The learning method of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Learner {
    /// Boosted regression trees on listwise gradients (LO-SpMM, section 3.5).
    Lambdamart,
    /// The same, continued from the trees of the nearest class of device's model.
    LambdamartContinued,
    /// Multi-label perceptron over schemes (AG-SpTRSV, section 4.5), with equal weight for each matrix.
    Mlp,
    /// The same, with each scheme weighted by the cost of misclassifying it.
    MlpRegret,
    /// The same, with graded labels instead of binary ones.
    MlpGraded,
    /// The paper's own perceptron (AG-SpTRSV, section 4.5): ten features, two hidden layers, one network.
    MlpTen,
}

impl Learner {
    pub const ALL: [Self; 6] = [
        Self::Lambdamart,
        Self::LambdamartContinued,
        Self::Mlp,
        Self::MlpRegret,
        Self::MlpGraded,
        Self::MlpTen,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Lambdamart => "lambdamart",
            Self::LambdamartContinued => "lambdamart_continued",
            Self::Mlp => "mlp",
            Self::MlpRegret => "mlp_regret",
            Self::MlpGraded => "mlp_graded",
            Self::MlpTen => "mlp_ten",
        }
    }

    /// Whether its models are boosted trees, whose scores are logarithms of time; of a perceptron's only the order counts.
    pub const fn tells_times(self) -> bool {
        matches!(self, Self::Lambdamart | Self::LambdamartContinued)
    }

    /// What a reader must know to compare it with its source, as a sentence.
    pub const fn remark(self) -> Option<&'static str> {
        match self {
            Self::MlpTen => Some(
                "mlp_ten reads AG-SpTRSV's ten inputs, but its lnnz, lnnz_max and lnnz_cov count a level's rows, where the paper \
                 counts a level's entries. The mean of those is given by two other inputs, nnz over levels.",
            ),
            Self::Lambdamart
            | Self::LambdamartContinued
            | Self::Mlp
            | Self::MlpRegret
            | Self::MlpGraded => None,
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
    /// Version of the features it reads; it cannot rank candidates described by another version.
    pub features_version: u32,
    pub data: DataUsed,
    pub quality: HeldOut,
    /// Feature importance: features by their share of the total gain, largest first; shares sum to 1. Empty for a
    /// perceptron.
    pub importance: Vec<Importance>,
    pub seed: u64,
    /// The model of another class of device that its trees continue; absent for one trained from nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_from: Option<ModelId>,
    /// The training that produced it; absent for a model that ships with sparsetune.
    pub training: Option<JobId>,
    /// Digest of the model file.
    pub digest: Digest,
    pub created_at: Timestamp,
}

/// A summary of a model's training data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataUsed {
    /// Number of ranked lists, one per matrix and problem.
    pub groups: u64,
    /// Distinct patterns.
    pub matrices: u64,
    /// Number of patterns that were generated.
    pub generated: u64,
    pub trials: u64,
    /// When the newest trial was measured.
    pub newest: Timestamp,
}

/// Evaluation by cross-validation: how well rankings choose among the measured candidates of held-out patterns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// Number of folds that the patterns were divided into; each fold is evaluated with models trained on the others.
    pub folds: u32,
    pub groups: u64,
    /// One per ranking: the learners, the analytic model, the analytic model corrected during the search, random choice,
    /// and the active model of the nearest class of device if there is one.
    #[serde(rename = "choosers")]
    pub rankers: Vec<RankerScore>,
}

/// The evaluation of one ranking.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankerScore {
    /// A learner's name, `analytic`, `analytic_corrected`, `borrowed` (the model of the nearest class of device) or `random`.
    pub name: String,
    /// Normalised discounted cumulative gain of the first ten; absent for random choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ndcg10: Option<f64>,
    /// For ascending numbers of tried candidates.
    pub at: Vec<AtK>,
    /// Regret of the first choice (its time / best time - 1): median, 90th percentile, maximum.
    pub regret: [f64; 3],
}

/// Quality of the best of the first `k` candidates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AtK {
    pub k: u32,
    /// Geometric mean over groups of best time / time of the best of the first `k`; 1 means the best was always found.
    pub share: f64,
    /// Share of groups in which the best of the first `k` reaches 85 % of the best performance.
    pub within_85: f64,
}

/// A feature's share of the total gain of all splits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Importance {
    pub feature: String,
    pub share: f64,
}

/// A model became active, or (`model` absent) all models of a scope were deactivated, so that the analytic model ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Activation {
    pub scope: Scope,
    pub model: Option<ModelId>,
    /// Why: by whom, or the evaluation that justified it.
    pub reason: String,
    pub at: Timestamp,
}

impl Activation {
    /// The reason of activations by roll-back, and of no others.
    pub const ROLLED_BACK: &str = "rolled back";
}

/// The features that all candidates of a job share, for training: stored once, in addition to the trials' own features.
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

    /// The learner after this one in `Learner::ALL`; the match makes the compiler require an entry for each new
    /// learner.
    const fn next(learner: Learner) -> Option<Learner> {
        match learner {
            Learner::Lambdamart => Some(Learner::LambdamartContinued),
            Learner::LambdamartContinued => Some(Learner::Mlp),
            Learner::Mlp => Some(Learner::MlpRegret),
            Learner::MlpRegret => Some(Learner::MlpGraded),
            Learner::MlpGraded => Some(Learner::MlpTen),
            Learner::MlpTen => None,
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
