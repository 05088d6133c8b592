//! Stored plans: one by its id, and the blobs that it names.

use super::{Result, Service, ServiceError};
use crate::domain::{Digest, Plan, PlanId};
use crate::store::blobs::BlobError;
use bytes::Bytes;
use futures_util::stream::BoxStream;

/// A blob as it is read.
pub struct Blob {
    /// Length of the whole.
    pub bytes: u64,
    pub content: BoxStream<'static, std::result::Result<Bytes, BlobError>>,
}

impl Service {
    pub async fn plan(&self, id: &PlanId) -> Result<Plan> {
        let plan = self.inner.store.plan(id).await?;
        plan.ok_or_else(|| ServiceError::not_found("plan", id))
    }

    /// Source, cubin or an array of a plan. Only what the plan names: matrices are blobs as well, and not for download.
    pub async fn plan_blob(&self, id: &PlanId, digest: &Digest) -> Result<Blob> {
        let plan = self.plan(id).await?;
        let named = plan.launch.is_some_and(|launch| {
            let mut arrays = launch.arrays.iter().map(|array| &array.blob);
            launch.source.as_ref() == Some(digest)
                || launch.cubin.as_ref() == Some(digest)
                || arrays.any(|blob| blob == digest)
        });
        if !named {
            return Err(ServiceError::not_found("blob of this plan", digest));
        }
        let (bytes, content) = self.inner.blobs.stream(digest).await?;
        Ok(Blob { bytes, content })
    }
}
