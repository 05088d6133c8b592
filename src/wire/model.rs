//! The models that rank candidates, and which of them are in use.

use super::{Open, given};
use crate::domain;
use crate::domain::learned::{
    AtK, Importance, Learner, MODEL_VERSION, ModelId, RankerScore, Scope,
};
use crate::domain::{DeviceClass, Digest, ModelQuality, Op};
use serde::{Deserialize, Serialize};

/// How a model ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// By formulas and device properties; nothing was fitted to measurements.
    Analytic,
    Lambdamart,
    LambdamartContinued,
    Mlp,
    MlpRegret,
    MlpGraded,
    MlpTen,
}

impl From<Learner> for ModelKind {
    fn from(learner: Learner) -> Self {
        match learner {
            Learner::Lambdamart => Self::Lambdamart,
            Learner::LambdamartContinued => Self::LambdamartContinued,
            Learner::Mlp => Self::Mlp,
            Learner::MlpRegret => Self::MlpRegret,
            Learner::MlpGraded => Self::MlpGraded,
            Learner::MlpTen => Self::MlpTen,
        }
    }
}

/// All models, on one page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Models {
    pub items: Vec<Model>,
}

/// A model; its `kind` tells which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Model {
    Analytic(AnalyticModel),
    Learned(Box<LearnedModel>),
}

/// The kind of an analytic model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AnalyticKind {
    Analytic,
}

/// An analytic model on one device class, and the accuracy of its predictions for the newest plans.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AnalyticModel {
    pub kind: AnalyticKind,
    pub model: String,
    pub device_class: DeviceClass,
    #[cfg_attr(test, schemars(with = "Op"))]
    pub op: String,
    pub plans: u64,
    pub trials: u64,
    pub median_ratio: f64,
    pub spread: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_correlation: Option<f64>,
}

impl From<ModelQuality> for AnalyticModel {
    fn from(quality: ModelQuality) -> Self {
        Self {
            kind: AnalyticKind::Analytic,
            model: quality.model,
            device_class: quality.device_class,
            op: quality.op,
            plans: quality.plans,
            trials: quality.trials,
            median_ratio: quality.median_ratio,
            spread: quality.spread,
            rank_correlation: quality.rank_correlation,
        }
    }
}

/// A learned model for one operation, one device class and one version of the features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LearnedModel {
    pub kind: Open<Learner>,
    pub id: ModelId,
    pub op: Op,
    pub device_class: DeviceClass,
    pub features_version: u32,
    pub active: bool,
    pub data: DataUsed,
    pub quality: HeldOut,
    /// The accuracy of its rankings here; absent if no plan reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranked: Option<Ranked>,
    pub seed: u64,
    /// The id of the training that created it, or `shipped`.
    pub origin: String,
    /// The model of another class of device that its trees continue; absent for one trained from nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_from: Option<ModelId>,
    pub digest: Digest,
    pub created_at: String,
}

impl LearnedModel {
    /// A model as an item of a list.
    pub fn of(model: domain::LearnedModel, active: bool, ranked: Option<Ranked>) -> Self {
        let Scope { op, device_class } = model.scope;
        Self {
            kind: model.learner.into(),
            id: model.id,
            op,
            device_class,
            features_version: model.features_version,
            active,
            data: model.data.into(),
            quality: model.quality.into(),
            ranked,
            seed: model.seed,
            origin: model.training.map_or_else(|| "shipped".to_owned(), |training| training.0),
            started_from: model.started_from,
            digest: model.digest,
            created_at: model.created_at.to_rfc3339(),
        }
    }
}

/// The accuracy of a learned model's rankings in jobs that used it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Ranked {
    pub plans: u64,
    pub trials: u64,
    /// Null if no plan has one.
    pub rank_correlation: Option<f64>,
}

/// A learned model with details that are not part of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WholeModel {
    #[serde(flatten)]
    pub model: LearnedModel,
    /// Largest first; empty for a perceptron.
    #[serde(default)]
    pub importance: Vec<Importance>,
    /// The activations of its scope, newest first.
    #[serde(default)]
    pub activations: Vec<Activation>,
}

impl WholeModel {
    /// The model card that is shipped with a model's file, for models that were not trained in this store. An error names
    /// the value that this version cannot interpret.
    pub fn card(&self) -> Result<domain::LearnedModel, String> {
        let model = self.model.clone();
        let learner = match model.kind {
            Open::Known(learner) => learner,
            Open::Unknown(kind) => return Err(format!("unknown kind of model: {kind}")),
        };
        let ranker = |ranker: Ranker| RankerScore {
            name: ranker.name,
            ndcg10: ranker.ndcg10,
            at: ranker.at,
            regret: [ranker.regret.p50, ranker.regret.p90, ranker.regret.max],
        };
        let DataUsed { groups, matrices, generated, trials, newest } = model.data;
        let HeldOut { folds, groups: judged, rankers } = model.quality;
        Ok(domain::LearnedModel {
            version: MODEL_VERSION,
            id: model.id,
            learner,
            scope: Scope { op: model.op, device_class: model.device_class },
            features_version: model.features_version,
            data: domain::learned::DataUsed {
                groups,
                matrices,
                generated,
                trials,
                newest: newest.parse()?,
            },
            quality: domain::learned::HeldOut {
                folds,
                groups: judged,
                rankers: rankers.into_iter().map(ranker).collect(),
            },
            importance: self.importance.clone(),
            seed: model.seed,
            started_from: model.started_from,
            training: None,
            digest: model.digest,
            created_at: model.created_at.parse()?,
        })
    }
}

/// The training data of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DataUsed {
    pub groups: u64,
    pub matrices: u64,
    pub generated: u64,
    pub trials: u64,
    /// The time at which the newest trial was measured.
    pub newest: String,
}

impl From<domain::learned::DataUsed> for DataUsed {
    fn from(data: domain::learned::DataUsed) -> Self {
        Self {
            groups: data.groups,
            matrices: data.matrices,
            generated: data.generated,
            trials: data.trials,
            newest: data.newest.to_rfc3339(),
        }
    }
}

/// The quality of the models' choices on patterns that were held out of their training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HeldOut {
    pub folds: u32,
    pub groups: u64,
    #[serde(rename = "choosers")]
    pub rankers: Vec<Ranker>,
}

impl From<domain::learned::HeldOut> for HeldOut {
    fn from(quality: domain::learned::HeldOut) -> Self {
        let rankers = quality.rankers.into_iter().map(Ranker::from).collect();
        Self { folds: quality.folds, groups: quality.groups, rankers }
    }
}

/// One selection method and its quality.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Ranker {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ndcg10: Option<f64>,
    pub at: Vec<AtK>,
    pub regret: Regret,
}

impl From<RankerScore> for Ranker {
    fn from(ranker: RankerScore) -> Self {
        let [p50, p90, max] = ranker.regret;
        let regret = Regret { p50, p90, max };
        Self { name: ranker.name, ndcg10: ranker.ndcg10, at: ranker.at, regret }
    }
}

/// Time of the first choice divided by the best time, minus 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Regret {
    pub p50: f64,
    pub p90: f64,
    pub max: f64,
}

/// Activations, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Activations {
    pub items: Vec<Activation>,
}

/// An activation of a model; without a model, the analytic one ranks from then on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Activation {
    pub op: Op,
    pub device_class: DeviceClass,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelId>,
    pub reason: String,
    pub at: String,
}

impl From<domain::learned::Activation> for Activation {
    fn from(activation: domain::learned::Activation) -> Self {
        Self {
            op: activation.scope.op,
            device_class: activation.scope.device_class,
            model: activation.model,
            reason: activation.reason,
            at: activation.at.to_rfc3339(),
        }
    }
}

/// Body of `POST /v1/models/{id}/activate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ActivateRequest {
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Body of `POST /v1/models/roll-back`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RollBackRequest {
    pub op: Op,
    /// A device, a full class name, or `auto`, the default.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::{Learner, ModelKind};

    #[test]
    fn each_learner_is_a_kind_of_its_own_name() {
        let kinds = Learner::ALL.map(|learner| serde_json::to_value(ModelKind::from(learner)));
        assert_eq!(kinds.map(Result::unwrap), Learner::ALL.map(Learner::name));
    }
}
