//! Models as the API tells them.

use crate::domain::learned::{
    Activation, AtK, DataUsed, HeldOut, Importance, LearnedModel, Learner, Op, RankerScore, Scope,
};
use crate::domain::{DeviceClass, Digest, ModelId, ModelQuality};
use crate::http::plans::shown;
use crate::service::{ModelStanding, Ranked};
use serde::{Deserialize, Serialize};

/// What a model goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// Formulas and facts of the device; nothing was fitted to measurements.
    Analytic,
    Lambdamart,
    Mlp,
    MlpRegret,
    MlpGraded,
}

impl From<Learner> for ModelKind {
    fn from(learner: Learner) -> Self {
        match learner {
            Learner::Lambdamart => Self::Lambdamart,
            Learner::Mlp => Self::Mlp,
            Learner::MlpRegret => Self::MlpRegret,
            Learner::MlpGraded => Self::MlpGraded,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct ModelsOut {
    pub items: Vec<ModelOut>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum ModelOut {
    Analytic(AnalyticOut),
    Learned(Box<LearnedOut>),
}

/// An analytic model on one class of device.
#[derive(Debug, Serialize)]
pub struct AnalyticOut {
    kind: ModelKind,
    model: String,
    device_class: DeviceClass,
    op: String,
    plans: u64,
    trials: u64,
    median_ratio: f64,
    spread: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank_correlation: Option<f64>,
}

impl From<ModelQuality> for ModelOut {
    fn from(quality: ModelQuality) -> Self {
        Self::Analytic(AnalyticOut {
            kind: ModelKind::Analytic,
            model: quality.model,
            device_class: quality.device_class,
            op: quality.op,
            plans: quality.plans,
            trials: quality.trials,
            median_ratio: quality.median_ratio,
            spread: quality.spread,
            rank_correlation: quality.rank_correlation,
        })
    }
}

impl From<ModelStanding> for ModelOut {
    fn from(standing: ModelStanding) -> Self {
        Self::Learned(Box::new(standing.into()))
    }
}

/// A learned model, bound to one operation, one class of device and one version of the features.
#[derive(Debug, Serialize)]
pub struct LearnedOut {
    kind: ModelKind,
    id: ModelId,
    op: Op,
    device_class: DeviceClass,
    features_version: u32,
    active: bool,
    data: DataOut,
    quality: QualityOut,
    #[serde(skip_serializing_if = "Option::is_none")]
    ranked: Option<RankedOut>,
    seed: u64,
    /// The id of the training that made it, or `shipped`.
    origin: String,
    digest: Digest,
    created_at: String,
}

impl From<ModelStanding> for LearnedOut {
    fn from(ModelStanding { model, active, ranked }: ModelStanding) -> Self {
        let LearnedModel { learner, scope: Scope { op, device_class }, training, .. } = model;
        Self {
            kind: learner.into(),
            id: model.id,
            op,
            device_class,
            features_version: model.features_version,
            active,
            data: model.data.into(),
            quality: model.quality.into(),
            ranked: ranked.map(RankedOut::from),
            seed: model.seed,
            origin: training.map_or_else(|| "shipped".to_owned(), |training| training.0),
            digest: model.digest,
            created_at: model.created_at.to_rfc3339(),
        }
    }
}

shown!(RankedOut from Ranked { plans: u64, trials: u64, rank_correlation: Option<f64> });

/// A learned model, and more of it than a list needs.
#[derive(Debug, Serialize)]
pub struct WholeOut {
    #[serde(flatten)]
    model: LearnedOut,
    /// Largest first; empty for a perceptron.
    importance: Vec<ImportanceOut>,
    /// Those of its scope, newest first.
    activations: Vec<ActivationOut>,
}

impl WholeOut {
    pub fn new(standing: ModelStanding, activations: Vec<Activation>) -> Self {
        let importance = standing.model.importance.iter().cloned().map(ImportanceOut::from);
        Self {
            importance: importance.collect(),
            model: standing.into(),
            activations: activations.into_iter().map(ActivationOut::from).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
struct DataOut {
    groups: u64,
    matrices: u64,
    generated: u64,
    trials: u64,
    newest: String,
}

impl From<DataUsed> for DataOut {
    fn from(data: DataUsed) -> Self {
        Self {
            groups: data.groups,
            matrices: data.matrices,
            generated: data.generated,
            trials: data.trials,
            newest: data.newest.to_rfc3339(),
        }
    }
}

#[derive(Debug, Serialize)]
struct QualityOut {
    folds: u32,
    groups: u64,
    #[serde(rename = "choosers")]
    rankers: Vec<RankerOut>,
}

impl From<HeldOut> for QualityOut {
    fn from(quality: HeldOut) -> Self {
        let rankers = quality.rankers.into_iter().map(RankerOut::from).collect();
        Self { folds: quality.folds, groups: quality.groups, rankers }
    }
}

#[derive(Debug, Serialize)]
struct RankerOut {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ndcg10: Option<f64>,
    at: Vec<AtOut>,
    regret: RegretOut,
}

#[derive(Debug, Serialize)]
struct AtOut {
    k: u32,
    share: f64,
    within_85: f64,
}

#[derive(Debug, Serialize)]
struct RegretOut {
    p50: f64,
    p90: f64,
    max: f64,
}

impl From<RankerScore> for RankerOut {
    fn from(ranker: RankerScore) -> Self {
        let at = |AtK { k, share, within_85 }| AtOut { k, share, within_85 };
        let [p50, p90, max] = ranker.regret;
        Self {
            name: ranker.name,
            ndcg10: ranker.ndcg10,
            at: ranker.at.into_iter().map(at).collect(),
            regret: RegretOut { p50, p90, max },
        }
    }
}

#[derive(Debug, Serialize)]
struct ImportanceOut {
    feature: String,
    share: f64,
}

impl From<Importance> for ImportanceOut {
    fn from(importance: Importance) -> Self {
        Self { feature: importance.feature, share: importance.share }
    }
}

#[derive(Debug, Serialize)]
pub struct ActivationsOut {
    pub items: Vec<ActivationOut>,
}

/// A model put to use; none where the analytic one ranks from then on.
#[derive(Debug, Serialize)]
pub struct ActivationOut {
    op: Op,
    device_class: DeviceClass,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<ModelId>,
    reason: String,
    at: String,
}

impl From<Activation> for ActivationOut {
    fn from(activation: Activation) -> Self {
        Self {
            op: activation.scope.op,
            device_class: activation.scope.device_class,
            model: activation.model,
            reason: activation.reason,
            at: activation.at.to_rfc3339(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ModelKind;
    use crate::domain::learned::Learner;
    use crate::http::OPENAPI;
    use serde_json::{Value, json};

    /// Every list of kinds in the contract, with where it stands.
    fn kinds(value: &Value, at: &str, found: &mut Vec<(String, Value)>) {
        for (name, member) in value.as_object().into_iter().flatten() {
            if name == "enum" && at.to_lowercase().ends_with("kind") {
                found.push((at.to_owned(), member.clone()));
            }
            kinds(member, &format!("{at}/{name}"), found);
        }
    }

    #[test]
    fn the_contract_lists_the_learners_that_there_are() {
        let learned = Learner::ALL.map(Learner::name).to_vec();
        let told =
            Learner::ALL.map(|learner| serde_json::to_value(ModelKind::from(learner)).unwrap());
        assert_eq!(json!(told), json!(learned));
        let mut found = Vec::new();
        let contract: Value = serde_yaml_ng::from_str(OPENAPI).unwrap();
        kinds(&contract["components"]["schemas"], "", &mut found);
        let of = |at: &str| found.iter().find(|(of, _)| of == at).map(|(_, kinds)| kinds.clone());
        for at in ["/LearnedModel/properties/kind", "/WholeModel/properties/kind"] {
            assert_eq!(of(at), Some(json!(learned)), "{at}");
        }
        assert_eq!(of("/ModelKind"), Some(json!([vec!["analytic"], learned].concat())));
        assert_eq!(of("/Model/properties/kind"), Some(json!(["analytic"])));
    }
}
