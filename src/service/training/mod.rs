//! Training: queued trainings are claimed under a lease and run one at a time on separate threads, so that they do not
//! delay requests.

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

/// Why a training ended without a model.
#[derive(Debug)]
enum Halt {
    /// Stopped: cancelled, lease lost, or shutdown; the handle says which.
    Stopped,
    /// The store is temporarily unavailable (busy, full, I/O), with its error; a later attempt may succeed.
    Later(String),
    /// The training failed, with the reason.
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

/// The process's trainer: one loop that runs beside the workers.
pub struct Trainer {
    service: Service,
    /// Unique among all starts of all trainers of a store, so that claims made before a restart are not mistaken for
    /// its own.
    owner: String,
}

impl Trainer {
    pub fn new(service: Service) -> Self {
        let owner = format!("{}/trainer/{}", service.settings().owner, uuid::Uuid::now_v7());
        Self { service, owner }
    }

    /// Runs trainings until stopped. A training in progress then returns to the queue, and the next claim starts it
    /// from the beginning.
    pub async fn run(self, stop: CancellationToken) {
        let (poll, check) = (self.service.settings().poll, self.service.settings().learning.check);
        let mut looked: Option<Instant> = None;
        while !stop.is_cancelled() {
            match self.take_one(&stop).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => tracing::error!(%error, "training not completed"),
            }
            if looked.is_none_or(|at| at.elapsed() >= check) {
                looked = Some(Instant::now());
                if let Err(error) = self.service.retrain_where_due().await {
                    tracing::warn!(%error, "new trials could not be counted");
                }
            }
            // Polling, because another process may have queued the training.
            stop.run_until_cancelled(tokio::time::sleep(poll)).await;
        }
    }

    /// Claims and carries through one training; false when there is none, or the store could not answer for long
    /// enough.
    async fn take_one(&self, stop: &CancellationToken) -> Result<bool, StoreError> {
        let lease_ms = self.service.settings().lease_ms;
        let claim = self.service.store().claim_training(&self.owner, lease_ms).await?;
        let Some((training, fence)) = claim else { return Ok(false) };
        self.carry(training, &fence, stop).await
    }
}
