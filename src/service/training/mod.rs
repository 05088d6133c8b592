//! Training: queued trainings are claimed under a lease, one at a time, and carried through on threads of their own, so that
//! no request waits for one.

mod course;
mod describe;
mod handle;
mod lesson;
mod material;
mod replay;
mod retrain;
pub(super) mod shipped;
mod threads;
mod verdict;

use super::Service;
use crate::store::StoreError;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Why a training comes to no model.
#[derive(Debug)]
enum Halt {
    /// It was told to: cancelled, the lease lost, or the process ends. The handle knows which.
    Stopped,
    /// The store does not answer now (busy, full, I/O), with what it says: another time it may.
    Later(String),
    /// It cannot be done, with the reason.
    Failed(String),
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Self {
        match error {
            error if error.is_transient() => Self::Later(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

/// The process' trainer: one loop beside the workers.
pub struct Trainer {
    service: Service,
    /// Unique among all starts of all trainers of a store: a claim made before a restart is not ours any more.
    owner: String,
}

impl Trainer {
    pub fn new(service: Service) -> Self {
        let owner = format!("{}/trainer/{}", service.settings().owner, uuid::Uuid::now_v7());
        Self { service, owner }
    }

    /// Trains until told to stop; a training in hand goes back to the queue then, and begins anew with whoever claims it next.
    pub async fn run(self, stop: CancellationToken) {
        let (poll, check) = (self.service.settings().poll, self.service.settings().learning.check);
        let mut looked: Option<Instant> = None;
        while !stop.is_cancelled() {
            match self.take_one(&stop).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => tracing::error!(%error, "training not carried through"),
            }
            if looked.is_none_or(|at| at.elapsed() >= check) {
                looked = Some(Instant::now());
                if let Err(error) = self.service.retrain_where_due().await {
                    tracing::warn!(%error, "new trials were not counted");
                }
            }
            // Whoever queues a training does not tell: it may be another process.
            stop.run_until_cancelled(tokio::time::sleep(poll)).await;
        }
    }

    /// Claims and carries through one training; false when there is none, or the store could not answer for long enough.
    async fn take_one(&self, stop: &CancellationToken) -> Result<bool, StoreError> {
        let lease_ms = self.service.settings().lease_ms;
        let claim = self.service.store().claim_training(&self.owner, lease_ms).await?;
        let Some((training, fence)) = claim else { return Ok(false) };
        self.carry(training, &fence, stop).await
    }
}
