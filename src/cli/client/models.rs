//! Learned models and trainings, as the client asks for them.

use super::{Answer, Client, accepted};
use crate::domain::JobState;
use crate::domain::learned::Op;
use crate::domain::training::TrainingStage;
use anyhow::Context;
use reqwest::Method;
use serde::Deserialize;
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
    pub origin: String,
    pub created_at: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct DataView {
    pub groups: u64,
    pub matrices: u64,
    pub generated: u64,
    pub trials: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct QualityView {
    pub folds: u32,
    pub groups: u64,
    pub choosers: Vec<ChooserView>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ChooserView {
    pub name: String,
    pub at: Vec<AtView>,
    pub regret: RegretView,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct AtView {
    pub k: u32,
    pub share: f64,
    pub within_85: f64,
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
    /// Asks for a training; one of its scope that is under way is answered instead of a new one.
    pub async fn train(&self, request: &Value) -> anyhow::Result<Answer<TrainingView>> {
        self.answer(self.request(Method::POST, "v1/models/train", &[])?.json(request)).await
    }

    pub async fn training(&self, id: &str) -> anyhow::Result<Answer<TrainingView>> {
        self.answer(self.request(Method::GET, &format!("v1/jobs/{id}"), &[])?).await
    }

    /// All models as they are told, and those of them that were learned.
    pub async fn models(&self) -> anyhow::Result<(Value, Vec<ModelView>)> {
        #[derive(Deserialize)]
        struct All {
            items: Vec<Value>,
        }
        let all: Answer<All> = self.answer(self.request(Method::GET, "v1/models", &[])?).await?;
        let learned = all.view.items.iter().filter(|item| item["kind"] != "analytic");
        let learned = learned.map(ModelView::deserialize).collect::<Result<_, _>>();
        Ok((all.raw, learned.context("the answer lacks something this version needs")?))
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
