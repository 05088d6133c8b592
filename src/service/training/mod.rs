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
use crate::domain::Work;
use crate::store::{Claim, Queue, StoreError};
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Why a training ended without a model.
#[derive(Debug)]
enum Halt {
    /// Stopped: cancelled, lease lost, or shutdown; the handle says which.
    Stopped,
    /// The store is temporarily unavailable (busy, full, I/O), with its error; the training returns to the queue.
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

/// What became of a look at the queue.
#[derive(Debug)]
enum Look {
    /// No training was waiting.
    Nothing,
    /// A training was claimed and has ended, or was left to another trainer.
    Done,
    /// A training was returned to the queue for this reason, and is not claimed again at once.
    Later(String),
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
            // Subscribe before looking, so that no training falls between the two.
            let mut queued = self.service.signals().queue();
            match self.take_one(&stop).await {
                Ok(Look::Done) => continue,
                Ok(Look::Nothing) => {}
                Ok(Look::Later(why)) => {
                    tracing::error!(why, "training returned to the queue");
                    queued.mark_unchanged();
                }
                Err(error) => tracing::error!(%error, "training not completed"),
            }
            if looked.is_none_or(|at| at.elapsed() >= check) {
                looked = Some(Instant::now());
                if let Err(error) = self.service.retrain_where_due().await {
                    tracing::warn!(%error, "new trials could not be counted");
                }
            }
            tokio::select! {
                _ = queued.changed() => {}
                // Another process may have queued one: no notification tells of it.
                () = tokio::time::sleep(poll) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Claims and runs one training.
    async fn take_one(&self, stop: &CancellationToken) -> Result<Look, StoreError> {
        let claim = self.service.claim(&Queue::Trainings, &self.owner).await?;
        match claim {
            Some(Claim { work: Work::Train(training), fence, .. }) => {
                self.run_training(*training, &fence, stop).await
            }
            _ => Ok(Look::Nothing),
        }
    }
}
