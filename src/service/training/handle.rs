//! State shared between a running training and the task that stores its progress.

use crate::domain::Training;
use crate::domain::training::TrainingStage;
use crate::service::lease::LeaseSignals;
use crate::store::{Fence, Store};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often progress is stored.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct TrainingHandle {
    training: Mutex<Training>,
    pub signals: LeaseSignals,
}

impl TrainingHandle {
    pub fn new(training: Training, shutdown: &CancellationToken) -> Self {
        Self { training: Mutex::new(training), signals: LeaseSignals::new(shutdown) }
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
        !self.signals.stop.is_cancelled()
    }

    pub fn snapshot(&self) -> Training {
        self.training().clone()
    }

    /// Stores stage and progress whenever they have changed, until `over`; an update under way is waited for, so that none
    /// follows the training's end.
    pub async fn report(&self, store: &dyn Store, fence: &Fence, over: &CancellationToken) {
        let mut stored = None;
        while over.run_until_cancelled(tokio::time::sleep(PAUSE)).await.is_some() {
            let now = self.snapshot();
            if stored.as_ref() == Some(&now) {
                continue;
            }
            match store.update(fence, &now.clone().into()).await {
                Ok(()) => stored = Some(now),
                // The keeper of the lease finds out what that means.
                Err(error) => {
                    tracing::warn!(job = %fence.job, %error, "progress not stored, trying again")
                }
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::learned::Scope;
    use crate::domain::training::{Activate, TrainRequest};
    use crate::domain::{DeviceClass, Op, Timestamp};

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
