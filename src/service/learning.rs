//! Learned models as use cases: which there are, which is in use, and how to change that.

use super::{Page, PageRequest, Result, Service, ServiceError};
use crate::domain::learned::{Activation, Scope};
use crate::domain::{LearnedModel, ModelId, TrainRequest, Training, TrainingId};
use crate::learn::ModelFile;
use std::sync::Arc;

/// A learned model, and whether it ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelStanding {
    pub model: LearnedModel,
    pub active: bool,
}

/// A model in use, ready to rank.
#[derive(Clone, Debug)]
pub struct ActiveModel {
    pub card: LearnedModel,
    pub file: Arc<ModelFile>,
}

impl Service {
    /// Queues a training; the one of its scope that is queued or running already is answered instead (`false`).
    pub async fn train(&self, request: &TrainRequest) -> Result<(Training, bool)> {
        let training = Training::queued(request.clone());
        Ok(self.inner.store.submit_training(&training).await?)
    }

    pub async fn training(&self, id: &TrainingId) -> Result<Option<Training>> {
        Ok(self.inner.store.training(id).await?)
    }

    /// Newest first.
    pub async fn trainings(&self, page: &PageRequest) -> Result<Page<Training>> {
        Ok(self.inner.store.trainings(page).await?)
    }

    pub async fn cancel_training(&self, id: &TrainingId) -> Result<Option<Training>> {
        Ok(self.inner.store.cancel_training(id).await?)
    }

    /// Newest first.
    pub async fn learned_models(&self) -> Result<Vec<ModelStanding>> {
        let active = self.inner.store.active().await?;
        let models = self.inner.store.learned_models(None).await?;
        let stand = |model: LearnedModel| {
            let active = active.iter().any(|a| a.model.as_ref() == Some(&model.id));
            ModelStanding { model, active }
        };
        Ok(models.into_iter().map(stand).collect())
    }

    pub async fn model_file(&self, id: &ModelId) -> Result<Option<Vec<u8>>> {
        Ok(self.inner.store.model_file(id).await?)
    }

    /// The newest first.
    pub async fn activations(&self, scope: &Scope, limit: u32) -> Result<Vec<Activation>> {
        Ok(self.inner.store.activations(scope, limit).await?)
    }

    /// Puts a model to use, for its own scope.
    pub async fn activate_model(&self, id: &ModelId, reason: &str) -> Result<Activation> {
        let model = self.inner.store.learned_model(id).await?;
        let model = model.ok_or_else(|| ServiceError::not_found("model", id))?;
        self.put_to_use(model.scope, Some(model.id), reason).await
    }

    /// Takes the newest change of the model in use back: the one before it ranks again, or the analytic model.
    pub async fn roll_back(&self, scope: &Scope) -> Result<Activation> {
        let history = self.inner.store.activations(scope, 2).await?;
        if history.is_empty() {
            let id = format!("for {} on {}", scope.op, scope.device_class);
            return Err(ServiceError::not_found("activation", id));
        }
        let before = history.get(1).and_then(|activation| activation.model.clone());
        self.put_to_use(scope.clone(), before, "rolled back").await
    }

    async fn put_to_use(
        &self,
        scope: Scope,
        model: Option<ModelId>,
        reason: &str,
    ) -> Result<Activation> {
        let at = crate::domain::Timestamp::now();
        let activation = Activation { scope, model, reason: reason.to_owned(), at };
        self.inner.store.activate(&activation).await?;
        Ok(activation)
    }

    /// The model in use for a scope, if it reads the features of this version.
    pub async fn active_model(&self, scope: &Scope) -> Result<Option<Arc<ActiveModel>>> {
        let active = self.inner.store.active().await?;
        let id = active.into_iter().find(|a| a.scope == *scope).and_then(|a| a.model);
        let Some(id) = id else { return Ok(None) };
        let store = &self.inner.store;
        let (Some(card), Some(file)) =
            (store.learned_model(&id).await?, store.model_file(&id).await?)
        else {
            return Ok(None);
        };
        let file: ModelFile = serde_json::from_slice(&file)
            .map_err(|error| ServiceError::Internal(format!("model {id}: {error}")))?;
        Ok(Some(Arc::new(ActiveModel { card, file: Arc::new(file) })))
    }
}
