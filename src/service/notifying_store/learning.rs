//! Learning and trainings pass through; what a new model changes is told by the store's revision.

use super::NotifyingStore;
use crate::domain::learned::{Activation, Scope};
use crate::domain::{
    CandidateId, JobFeatures, JobId, LearnedModel, ModelId, Timestamp, Training, TrainingId,
};
use crate::store::{
    Fence, Learning, Page, PageRequest, PutToUse, Renewal, Result, RollBack, TrainingFence,
    TrainingGroup, Trainings, Undescribed,
};
use async_trait::async_trait;

#[async_trait]
impl Learning for NotifyingStore {
    async fn describe_job(&self, fence: &Fence, features: &JobFeatures) -> Result<()> {
        self.store.describe_job(fence, features).await
    }
    async fn describe_ended(
        &self,
        job: &JobId,
        features: &JobFeatures,
        own: &[(CandidateId, Vec<f32>)],
    ) -> Result<()> {
        self.store.describe_ended(job, features, own).await
    }
    async fn undescribed(
        &self,
        scope: &Scope,
        features_version: u32,
        page: &PageRequest,
    ) -> Result<Page<Undescribed>> {
        self.store.undescribed(scope, features_version, page).await
    }
    async fn training_groups(
        &self,
        scope: &Scope,
        features_version: u32,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<TrainingGroup>> {
        self.store.training_groups(scope, features_version, after, limit).await
    }
    async fn recorded(&self) -> Result<Vec<(Scope, u64)>> {
        self.store.recorded().await
    }
    async fn described_since(
        &self,
        scope: &Scope,
        features_version: u32,
        since: Timestamp,
    ) -> Result<u64> {
        self.store.described_since(scope, features_version, since).await
    }
    async fn insert_model(&self, model: &LearnedModel, file: &[u8]) -> Result<bool> {
        self.store.insert_model(model, file).await
    }
    async fn learned_models(&self, scope: Option<&Scope>) -> Result<Vec<LearnedModel>> {
        self.store.learned_models(scope).await
    }
    async fn learned_model(&self, id: &ModelId) -> Result<Option<LearnedModel>> {
        self.store.learned_model(id).await
    }
    async fn model_file(&self, id: &ModelId) -> Result<Option<Vec<u8>>> {
        self.store.model_file(id).await
    }
    async fn activate(&self, activation: &Activation) -> Result<()> {
        self.store.activate(activation).await?;
        self.look_at_revision().await;
        Ok(())
    }
    async fn put_to_use(&self, change: PutToUse<'_>) -> Result<bool> {
        let done = self.store.put_to_use(change).await?;
        self.look_at_revision().await;
        Ok(done)
    }
    async fn roll_back(
        &self,
        scope: &Scope,
        features_version: u32,
        at: Timestamp,
    ) -> Result<RollBack> {
        let back = self.store.roll_back(scope, features_version, at).await?;
        self.look_at_revision().await;
        Ok(back)
    }
    async fn active(&self) -> Result<Vec<Activation>> {
        self.store.active().await
    }
    async fn activations(&self, scope: &Scope, limit: u32) -> Result<Vec<Activation>> {
        self.store.activations(scope, limit).await
    }
}

#[async_trait]
impl Trainings for NotifyingStore {
    async fn submit_training(&self, training: &Training) -> Result<(Training, bool)> {
        self.store.submit_training(training).await
    }
    async fn training(&self, id: &TrainingId) -> Result<Option<Training>> {
        self.store.training(id).await
    }
    async fn trainings(&self, page: &PageRequest) -> Result<Page<Training>> {
        self.store.trainings(page).await
    }
    async fn claim_training(
        &self,
        owner: &str,
        lease_ms: i64,
    ) -> Result<Option<(Training, TrainingFence)>> {
        self.store.claim_training(owner, lease_ms).await
    }
    async fn update_training(
        &self,
        fence: &TrainingFence,
        training: &Training,
        lease_ms: i64,
    ) -> Result<Renewal> {
        self.store.update_training(fence, training, lease_ms).await
    }
    async fn finish_training(
        &self,
        fence: &TrainingFence,
        training: &Training,
        model: Option<(&LearnedModel, &[u8])>,
        change: Option<PutToUse<'_>>,
    ) -> Result<Training> {
        let ended = self.store.finish_training(fence, training, model, change).await?;
        if change.is_some() {
            self.look_at_revision().await;
        }
        Ok(ended)
    }
    async fn release_training(&self, fence: &TrainingFence) -> Result<()> {
        self.store.release_training(fence).await
    }
    async fn cancel_training(&self, id: &TrainingId) -> Result<Option<Training>> {
        self.store.cancel_training(id).await
    }
}
