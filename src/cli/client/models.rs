//! Client requests for learned models and trainings.

use super::{Answer, Client, accepted};
use crate::domain::Op;
use crate::wire::{ActivateRequest, Activation, Models, RollBackRequest, Training, WholeModel};
use anyhow::Context;
use reqwest::{Method, StatusCode};
use serde_json::Value;

impl Client {
    /// Submits a training; if one of its scope is already queued or running, that one is returned (`false`).
    pub async fn train(&self, request: &Value) -> anyhow::Result<(Answer<Training>, bool)> {
        let asked = self.request(Method::POST, "v1/models/train", &[])?.json(request);
        let (answer, status) = self.answer_with_status(asked).await?;
        Ok((answer, status != StatusCode::OK))
    }

    pub async fn training(&self, id: &str) -> anyhow::Result<Answer<Training>> {
        self.answer(self.request(Method::GET, &format!("v1/jobs/{id}"), &[])?).await
    }

    /// All models, analytic and learned.
    pub async fn models(&self) -> anyhow::Result<Answer<Models>> {
        self.answer(self.request(Method::GET, "v1/models", &[])?).await
    }

    pub async fn model(&self, id: &str) -> anyhow::Result<Answer<WholeModel>> {
        self.answer(self.request(Method::GET, &format!("v1/models/{id}"), &[])?).await
    }

    pub async fn model_file(&self, id: &str) -> anyhow::Result<Vec<u8>> {
        let request = self.request(Method::GET, &format!("v1/models/{id}/file"), &[])?;
        let response = accepted(self.send(request).await?).await?;
        Ok(response.bytes().await.context("the download of the model was interrupted")?.into())
    }

    pub async fn activate(
        &self,
        id: &str,
        reason: Option<&str>,
    ) -> anyhow::Result<Answer<Activation>> {
        let body = ActivateRequest { reason: reason.map(str::to_owned) };
        let path = format!("v1/models/{id}/activate");
        self.answer(self.request(Method::POST, &path, &[])?.json(&body)).await
    }

    pub async fn roll_back(&self, op: Op, class: &str) -> anyhow::Result<Answer<Activation>> {
        let body = RollBackRequest { op, device: Some(class.to_owned()) };
        self.answer(self.request(Method::POST, "v1/models/roll-back", &[])?.json(&body)).await
    }
}
