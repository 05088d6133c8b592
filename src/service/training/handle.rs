//! State shared between a running training and its lease keeper: progress and stop signals.

use crate::domain::Training;
use crate::domain::training::TrainingStage;
use crate::store::{Store, StoreError, TrainingFence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How often progress is stored and cancellation is checked.
const HEARTBEAT: Duration = Duration::from_secs(1);

pub(super) struct TrainingHandle {
    training: Mutex<Training>,
    /// The client cancelled the training.
    pub cancelled: CancellationToken,
    /// The lease is lost; another trainer may run the training, so nothing more may be written.
    pub lost: CancellationToken,
    /// Cancelled, lost, or shutdown; long computations check this.
    pub stop: CancellationToken,
}

impl TrainingHandle {
    pub fn new(training: Training, shutdown: &CancellationToken) -> Self {
        Self {
            training: Mutex::new(training),
            cancelled: CancellationToken::new(),
            lost: CancellationToken::new(),
            stop: shutdown.child_token(),
        }
    }

    pub fn stage(&self, stage: TrainingStage, message: impl Into<String>) {
        let message = message.into();
        tracing::debug!(?stage, message, "training");
        let mut training = self.training();
        training.stage = stage;
        training.message = Some(message);
        training.progress = training.progress.max(span(stage)[0]);
    }

    /// Reports the share of the stage that is done; returns false if the work must stop. Progress never decreases.
    pub fn progress(&self, share: f64) -> bool {
        let mut training = self.training();
        let [from, to] = span(training.stage);
        let now = from + (to - from) * share.clamp(0.0, 1.0);
        training.progress = training.progress.max(now);
        !self.stop.is_cancelled()
    }

    pub fn snapshot(&self) -> Training {
        self.training().clone()
    }

    fn training(&self) -> MutexGuard<'_, Training> {
        // After a panic elsewhere, at worst the stage and the message do not match.
        self.training.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of the overall progress that a stage covers, from typical durations when all trials have features.
fn span(stage: TrainingStage) -> [f64; 2] {
    match stage {
        TrainingStage::Waiting => [0.0, 0.0],
        TrainingStage::Describing => [0.0, 0.05],
        TrainingStage::Reading => [0.05, 0.1],
        TrainingStage::Judging => [0.1, 0.85],
        TrainingStage::Training => [0.85, 1.0],
        TrainingStage::Done => [1.0, 1.0],
    }
}

/// A task that renews the lease and stores progress until it is stopped.
pub(super) struct Keeper {
    task: JoinHandle<()>,
    ended: CancellationToken,
}

impl Keeper {
    pub fn start(
        store: Arc<dyn Store>,
        fence: TrainingFence,
        lease_ms: i64,
        handle: Arc<TrainingHandle>,
    ) -> Self {
        let ended = CancellationToken::new();
        let end = ended.clone();
        let task =
            tokio::spawn(async move { keep(&*store, &fence, lease_ms, &handle, &end).await });
        Self { task, ended }
    }

    /// Stops the task and waits for a renewal in progress, so that none follows the training's end.
    pub async fn end(self) {
        self.ended.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the lease keeper of a training failed");
        }
    }
}

async fn keep(
    store: &dyn Store,
    fence: &TrainingFence,
    lease_ms: i64,
    handle: &TrainingHandle,
    end: &CancellationToken,
) {
    let lease = Duration::from_millis(lease_ms.max(0) as u64);
    let mut renewed = Instant::now();
    loop {
        let pause = tokio::time::sleep(HEARTBEAT.min(lease / 3));
        if end.run_until_cancelled(pause).await.is_none() {
            return;
        }
        let asked = Instant::now();
        match store.update_training(fence, &handle.snapshot(), lease_ms).await {
            Ok(renewal) => {
                renewed = asked;
                if renewal.cancel_requested {
                    handle.cancelled.cancel();
                    handle.stop.cancel();
                }
            }
            Err(StoreError::Fenced(_)) => break,
            Err(error) if renewed.elapsed() >= lease => {
                tracing::error!(training = %fence.training, %error, "lease expired: the store does not respond");
                break;
            }
            Err(error) => {
                tracing::warn!(training = %fence.training, %error, "lease not renewed, retrying");
            }
        }
    }
    handle.lost.cancel();
    handle.stop.cancel();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::learned::{Op, Scope};
    use crate::domain::training::{Activate, TrainRequest};
    use crate::domain::{DeviceClass, Timestamp};

    #[test]
    fn progress_never_decreases_and_reports_when_to_stop() {
        let scope = Scope { op: Op::Spmm, device_class: DeviceClass("d".to_owned()) };
        let request = TrainRequest { scope, activate: Activate::Never, seed: 1 };
        let training = Training { created_at: Timestamp(0), ..Training::queued(request) };
        let shutdown = CancellationToken::new();
        let handle = TrainingHandle::new(training, &shutdown);
        handle.stage(TrainingStage::Judging, "judging");
        assert!(handle.progress(0.5));
        let half = handle.snapshot().progress;
        assert!((0.1..0.85).contains(&half));
        assert!(handle.progress(0.25));
        assert_eq!(handle.snapshot().progress, half);
        shutdown.cancel();
        assert!(!handle.progress(f64::NAN));
        assert_eq!(handle.snapshot().progress, half);
    }
}
