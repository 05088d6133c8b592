//! Stored plans: by id, by matrix, and the blobs that they name.

use super::{Result, Service, ServiceError};
use crate::domain::plan::PlanKey;
use crate::domain::{Digest, ModelQuality, Plan, PlanId};
use crate::store::{BlobError, Page, PageRequest, PlanQuery, StoreError};
use bytes::Bytes;
use futures_util::stream::BoxStream;

/// A blob being read.
pub struct Blob {
    /// Total length in bytes.
    pub bytes: u64,
    pub content: BoxStream<'static, std::result::Result<Bytes, BlobError>>,
}

impl Service {
    /// The newest plan of each key for this matrix's pattern, or for this pattern, newest first.
    pub async fn plans_of(&self, digest: &Digest, page: &PageRequest) -> Result<Page<Plan>> {
        let facts = self.store.known_matrix(digest).await?;
        let facts = facts.ok_or_else(|| ServiceError::not_found("matrix", digest))?;
        let newest = PlanQuery::NewestOfPattern(facts.pattern_digest);
        Ok(self.store.plans(&newest, page).await?)
    }

    /// Predicted plans for this matrix's pattern, or for this pattern, of keys that have no measured plan.
    pub async fn unmeasured_of(&self, digest: &Digest, limit: u32) -> Result<Vec<Plan>> {
        let facts = self.store.known_matrix(digest).await?;
        let facts = facts.ok_or_else(|| ServiceError::not_found("matrix", digest))?;
        let unmeasured = PlanQuery::UnmeasuredOfPattern(facts.pattern_digest);
        Ok(self.store.plans(&unmeasured, &PageRequest::first(limit)).await?.items)
    }

    /// The newest measured plan of a key.
    pub(super) async fn measured_plan(
        &self,
        key: &PlanKey,
    ) -> std::result::Result<Option<Plan>, StoreError> {
        let query = PlanQuery::Measured(key.clone());
        let newest = self.store.plans(&query, &PageRequest::first(1)).await?;
        Ok(newest.items.into_iter().next())
    }

    /// The accuracy of each analytic model on each device class, from the plans that report it; the model with the newest
    /// plan first.
    pub async fn models(&self) -> Result<Vec<ModelQuality>> {
        let mut all = self.store.model_quality().await?;
        let learned = self.store.learned_models(None).await?;
        all.retain(|quality| !learned.iter().any(|model| model.id.0 == quality.model));
        Ok(all)
    }

    /// Bytes of the plan's program and arrays, which count in the quota of its token. What cannot be read counts for nothing: the plan has
    /// been paid for by its search.
    pub(in crate::service) async fn charge_of(&self, plan: &Plan) -> u64 {
        let mut named: Vec<Digest> =
            plan.launch.iter().flat_map(|launch| launch.blobs().copied()).collect();
        named.sort_unstable();
        named.dedup();
        let facts = self.inner.blobs.facts(named).await.unwrap_or_default();
        facts.into_iter().flatten().map(|one| one.bytes).sum()
    }

    pub async fn plan(&self, id: &PlanId) -> Result<Plan> {
        let plan = self.store.plan(id).await?;
        plan.ok_or_else(|| ServiceError::not_found("plan", id))
    }

    /// Refuses blobs that the plan does not name: matrices are blobs as well, but not for download.
    pub async fn check_plan_blob(&self, id: &PlanId, digest: &Digest) -> Result<()> {
        let plan = self.plan(id).await?;
        if self.files_of(&plan).await?.contains(digest) {
            Ok(())
        } else {
            Err(ServiceError::not_found("blob of this plan", digest))
        }
    }

    /// Where a client may read a program or an array of a plan without this server, if that is configured.
    pub async fn plan_blob_link(&self, id: &PlanId, digest: &Digest) -> Result<Option<String>> {
        if !self.inner.blobs.has_links() {
            return Ok(None);
        }
        self.check_plan_blob(id, digest).await?;
        Ok(self.inner.blobs.link(digest, "application/octet-stream", None).await?)
    }

    /// A program, in any of its forms, or an array of a plan.
    pub async fn plan_blob(&self, id: &PlanId, digest: &Digest) -> Result<Blob> {
        self.check_plan_blob(id, digest).await?;
        let (bytes, content) = self.inner.blobs.stream(digest).await?;
        Ok(Blob { bytes, content })
    }
}
