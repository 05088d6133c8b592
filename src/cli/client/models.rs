//! Learned models and trainings, as the client asks for them.

use super::{Answer, Client, accepted};
use crate::domain::learned::{
    AtK, DataUsed, HeldOut, Importance, Learner, MODEL_VERSION, Op, RankerScore, Scope,
};
use crate::domain::training::TrainingStage;
use crate::domain::{DeviceClass, Digest, JobState, LearnedModel, ModelId, Timestamp};
use anyhow::Context;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

#[derive(Clone, Debug, Deserialize)]
pub struct TrainingView {
    pub id: String,
    pub op: Op,
    pub device_class: String,
    pub state: JobState,
    pub stage: TrainingStage,
    pub progress: super::views::ProgressView,
    pub message: Option<String>,
    pub model: Option<String>,
    pub activated: bool,
    pub error: Option<String>,
}

/// An analytic model on a class of device, and how good the newest plans found it.
#[derive(Clone, Debug, Deserialize)]
pub struct AnalyticView {
    pub model: String,
    pub op: String,
    pub device_class: String,
    pub plans: u64,
    pub trials: u64,
    pub median_ratio: f64,
    pub spread: f64,
    pub rank_correlation: Option<f64>,
}

/// A learned model.
#[derive(Clone, Debug, Deserialize)]
pub struct ModelView {
    pub id: String,
    pub kind: String,
    pub op: Op,
    pub device_class: String,
    pub features_version: u32,
    pub active: bool,
    pub data: DataView,
    pub quality: QualityView,
    /// How well it ranked here, where plans tell.
    pub ranked: Option<RankedView>,
    pub seed: u64,
    pub origin: String,
    pub digest: Digest,
    pub created_at: String,
    /// Told of a single model, not in lists.
    #[serde(default)]
    pub importance: Vec<Importance>,
}

impl ModelView {
    /// The card as it ships beside a model's file, where no training of this store is its origin.
    pub fn card(&self) -> anyhow::Result<LearnedModel> {
        let moment = |text: &str| text.parse::<Timestamp>().map_err(anyhow::Error::msg);
        let learner = Learner::ALL.into_iter().find(|learner| learner.name() == self.kind);
        let (data, quality) = (&self.data, &self.quality);
        let ranker = |view: &RankerView| RankerScore {
            name: view.name.clone(),
            ndcg10: view.ndcg10,
            at: view.at.clone(),
            regret: [view.regret.p50, view.regret.p90, view.regret.max],
        };
        Ok(LearnedModel {
            version: MODEL_VERSION,
            id: ModelId(self.id.clone()),
            learner: learner.with_context(|| format!("{} is no kind known here", self.kind))?,
            scope: Scope { op: self.op, device_class: DeviceClass(self.device_class.clone()) },
            features_version: self.features_version,
            data: DataUsed {
                groups: data.groups,
                matrices: data.matrices,
                generated: data.generated,
                trials: data.trials,
                newest: moment(&data.newest)?,
            },
            quality: HeldOut {
                folds: quality.folds,
                groups: quality.groups,
                rankers: quality.rankers.iter().map(ranker).collect(),
            },
            importance: self.importance.clone(),
            seed: self.seed,
            training: None,
            digest: self.digest,
            created_at: moment(&self.created_at)?,
        })
    }
}

/// The list, its two kinds of entries apart.
#[derive(Clone, Debug)]
pub struct ModelsView {
    pub analytic: Vec<AnalyticView>,
    pub learned: Vec<ModelView>,
}

impl<'de> Deserialize<'de> for ModelsView {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct All {
            items: Vec<Value>,
        }
        let mut all = Self { analytic: Vec::new(), learned: Vec::new() };
        for item in All::deserialize(deserializer)?.items {
            match item["kind"] == "analytic" {
                true => all.analytic.push(read(item)?),
                false => all.learned.push(read(item)?),
            }
        }
        Ok(all)
    }
}

fn read<T: DeserializeOwned, E: serde::de::Error>(item: Value) -> Result<T, E> {
    serde_json::from_value(item).map_err(E::custom)
}

#[derive(Clone, Debug, Deserialize)]
pub struct DataView {
    pub groups: u64,
    pub matrices: u64,
    pub generated: u64,
    pub trials: u64,
    pub newest: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct RankedView {
    pub plans: u64,
    pub trials: u64,
    pub rank_correlation: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct QualityView {
    pub folds: u32,
    pub groups: u64,
    #[serde(rename = "choosers")]
    pub rankers: Vec<RankerView>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct RankerView {
    pub name: String,
    pub ndcg10: Option<f64>,
    pub at: Vec<AtK>,
    pub regret: RegretView,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct RegretView {
    pub p50: f64,
    pub p90: f64,
    pub max: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ActivationView {
    pub op: Op,
    pub device_class: String,
    pub model: Option<String>,
}

impl Client {
    /// Asks for a training; one of its scope that is under way is answered instead of a new one (`false`).
    pub async fn train(&self, request: &Value) -> anyhow::Result<(Answer<TrainingView>, bool)> {
        let asked = self.request(Method::POST, "v1/models/train", &[])?.json(request);
        let (answer, status) = self.answer_with_status(asked).await?;
        Ok((answer, status != StatusCode::OK))
    }

    pub async fn training(&self, id: &str) -> anyhow::Result<Answer<TrainingView>> {
        self.answer(self.request(Method::GET, &format!("v1/jobs/{id}"), &[])?).await
    }

    /// All models: the analytic ones and the learned.
    pub async fn models(&self) -> anyhow::Result<Answer<ModelsView>> {
        self.answer(self.request(Method::GET, "v1/models", &[])?).await
    }

    pub async fn model(&self, id: &str) -> anyhow::Result<Answer<ModelView>> {
        self.answer(self.request(Method::GET, &format!("v1/models/{id}"), &[])?).await
    }

    pub async fn model_file(&self, id: &str) -> anyhow::Result<Vec<u8>> {
        let request = self.request(Method::GET, &format!("v1/models/{id}/file"), &[])?;
        let response = accepted(self.send(request).await?).await?;
        Ok(response.bytes().await.context("the model broke off")?.into())
    }

    pub async fn activate(
        &self,
        id: &str,
        reason: Option<&str>,
    ) -> anyhow::Result<Answer<ActivationView>> {
        let body = match reason {
            Some(reason) => json!({ "reason": reason }),
            None => json!({}),
        };
        let path = format!("v1/models/{id}/activate");
        self.answer(self.request(Method::POST, &path, &[])?.json(&body)).await
    }

    pub async fn roll_back(&self, op: Op, class: &str) -> anyhow::Result<Answer<ActivationView>> {
        let body = json!({ "op": op, "device": class });
        self.answer(self.request(Method::POST, "v1/models/roll-back", &[])?.json(&body)).await
    }
}
