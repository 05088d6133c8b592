//! What is known of plans since they were made: uses, measuring again, renewal.

use super::Result;
use crate::domain::drift::Check;
use crate::domain::{DeviceClass, Namespace, Plan, PlanId, Timestamp};
use async_trait::async_trait;

/// A plan that answers its key, and that lookups were answered with.
#[derive(Clone, Debug, PartialEq)]
pub struct UsedPlan {
    pub namespace: Namespace,
    pub plan: Plan,
    /// For what a job was queued that measures its key anew.
    pub renewed_for: Option<String>,
}

/// All of it is for the service as a whole, of every namespace. Only plans that are stored have entries.
#[async_trait]
pub trait Drift: Send + Sync {
    /// Adds to the number of times that plans were used.
    async fn count_uses(&self, uses: &[(PlanId, u64)]) -> Result<()>;
    /// Plans of this class that were used since then, whose matrix is stored and which are the newest of their key: namespaces in turns,
    /// the most used of each first, by the uses of this half of a month and the one before.
    async fn most_used(
        &self,
        class: &DeviceClass,
        since: Timestamp,
        limit: u32,
    ) -> Result<Vec<UsedPlan>>;
    /// Notes that the key of a plan is measured anew for this reason. False if it was noted for the same reason before, or if `most`
    /// have been noted since then.
    async fn renew_plan(
        &self,
        plan: &PlanId,
        why: &str,
        since: Timestamp,
        most: u32,
    ) -> Result<bool>;
    /// Pinned measured plans of this class whose matrix is stored, and which were not measured again since then: namespaces in turns,
    /// the longest ago of each first.
    async fn unchecked(
        &self,
        class: &DeviceClass,
        since: Timestamp,
        limit: u32,
    ) -> Result<Vec<(Namespace, Plan)>>;
    /// Replaces what was known of measuring this plan again. False if the plan is gone.
    async fn record_check(&self, check: &Check) -> Result<bool>;
    /// What is known of all plans, the newest first.
    async fn checks(&self, limit: u32) -> Result<Vec<Check>>;
}
