//! What models learn from, and the models.
#![allow(unused_variables)]

use super::SqliteStore;
use crate::domain::learned::{Activation, Scope};
use crate::domain::*;
use crate::store::*;
use async_trait::async_trait;

#[async_trait]
impl Learning for SqliteStore {
    async fn describe_job(&self, fence: &Fence, features: &JobFeatures) -> Result<()> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn describe_ended(
        &self,
        job: &JobId,
        features: &JobFeatures,
        own: &[(CandidateId, Vec<f32>)],
    ) -> Result<()> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn undescribed(
        &self,
        scope: &Scope,
        features_version: u32,
        limit: u32,
    ) -> Result<Vec<Undescribed>> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn training_groups(
        &self,
        scope: &Scope,
        features_version: u32,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<TrainingGroup>> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn described_since(
        &self,
        features_version: u32,
        since: Timestamp,
    ) -> Result<Vec<(Scope, u64)>> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn insert_model(&self, model: &LearnedModel, file: &[u8]) -> Result<bool> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn learned_models(&self, scope: Option<&Scope>) -> Result<Vec<LearnedModel>> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn learned_model(&self, id: &ModelId) -> Result<Option<LearnedModel>> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn model_file(&self, id: &ModelId) -> Result<Option<Vec<u8>>> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn activate(&self, activation: &Activation) -> Result<()> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn active(&self) -> Result<Vec<Activation>> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn activations(&self, scope: &Scope, limit: u32) -> Result<Vec<Activation>> {
        Err(StoreError::Backend("not built".to_owned()))
    }
}
