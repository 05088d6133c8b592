//! Trainings: queued, claimed under a lease, ended.
#![allow(unused_variables)]

use super::SqliteStore;
use crate::domain::*;
use crate::store::*;
use async_trait::async_trait;

#[async_trait]
impl Trainings for SqliteStore {
    async fn submit_training(&self, training: &Training) -> Result<(Training, bool)> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn training(&self, id: &TrainingId) -> Result<Option<Training>> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn trainings(&self, page: &PageRequest) -> Result<Page<Training>> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn claim_training(
        &self,
        owner: &str,
        lease_ms: i64,
    ) -> Result<Option<(Training, TrainingFence)>> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn update_training(
        &self,
        fence: &TrainingFence,
        training: &Training,
        lease_ms: i64,
    ) -> Result<Renewal> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn finish_training(
        &self,
        fence: &TrainingFence,
        training: &Training,
        model: Option<(&LearnedModel, &[u8])>,
        activation: Option<&Activation>,
    ) -> Result<()> {
        Err(StoreError::Backend("not built".to_owned()))
    }
    async fn cancel_training(&self, id: &TrainingId) -> Result<Option<Training>> {
        Err(StoreError::Backend("not built".to_owned()))
    }
}
