//! Bundles: plans as files that run without the service.

use super::Result;
use crate::domain::{Digest, Matrix, Plan, PlanId, Timestamp};
use async_trait::async_trait;

/// A bundle whose file is a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBundle {
    pub plan: PlanId,
    /// Whether the matrix's values were left out.
    pub without_values: bool,
    pub blob: Digest,
    pub bytes: u64,
    pub sha256: [u8; 32],
    /// Whether it came from elsewhere, and cannot be built here.
    pub imported: bool,
    pub created_at: Timestamp,
}

#[async_trait]
pub trait Bundles: Send + Sync {
    /// The bundle of a plan, with or without values.
    async fn bundle(&self, plan: &PlanId, without_values: bool) -> Result<Option<StoredBundle>>;
    /// The bundle that a plan from elsewhere came in, whosever the plan is: for who may read that.
    async fn brought_by(&self, plan: &PlanId) -> Result<Option<StoredBundle>>;
    /// Keeps a bundle that was built, in place of an earlier one that was built; one that was imported stays. The plan must be
    /// stored.
    async fn put_bundle(&self, bundle: &StoredBundle) -> Result<()>;
    /// Stores a plan that was made elsewhere, with its bundle and the properties of its matrix, which itself need not be stored.
    /// False if a plan with this id is already there; then nothing changes.
    async fn import_plan(&self, plan: &Plan, facts: &Matrix, bundle: &StoredBundle)
    -> Result<bool>;
}
