//! Automatic training once enough new trials of a scope have been recorded.

use super::material::TOO_LITTLE;
use crate::domain::learned::Scope;
use crate::domain::training::{Activate, TrainRequest};
use crate::domain::{JobState, LearnedModel, Timestamp, Training, Work};
use crate::ops::features;
use crate::service::{PageRequest, Result, Service};
use crate::store::Submission;

/// Number of recent trainings that are searched for the last one of a scope.
const LOOK_BACK: u32 = 100;

/// Pause in milliseconds before the next automatic training, after one that was cancelled or failed for another reason
/// than too little data.
const PAUSE_MS: i64 = 3_600_000;

impl Service {
    /// Queues a training for each scope with at least `learning.retrain_trials` new trials since the last one; returns
    /// those queued. If no training has used the current version of the features yet, all recorded trials count, with
    /// or without features, since the training computes them.
    pub async fn retrain_where_due(&self) -> Result<Vec<Training>> {
        let enough = self.inner.settings.learning.retrain_trials;
        if enough == 0 {
            return Ok(Vec::new());
        }
        let store = &self.store;
        let mut queued = Vec::new();
        // The total number first: a scope with fewer trials needs no further check.
        let mut recorded = store.recorded().await?;
        recorded.retain(|(_, known)| *known >= enough);
        recorded.sort();
        for (scope, known) in recorded {
            let Some(since) = self.last_trained(&scope).await? else { continue };
            let new = match since {
                Timestamp(0) => known,
                since => {
                    let version = features::version(scope.op);
                    store.described_since(&scope, version, since).await?
                }
            };
            if new < enough {
                continue;
            }
            let request = TrainRequest { scope, activate: Activate::IfBetter, seed: 1 };
            // One that was requested in the meantime is equivalent.
            let submission = store.submit(&Training::queued(request).into()).await?;
            if let Submission::Created(Work::Train(training)) = submission {
                let Scope { op, device_class } = &training.request.scope;
                tracing::info!(%op, %device_class, new, training = %training.id, "training queued: enough new trials");
                queued.push(*training);
            }
        }
        Ok(queued)
    }

    /// The time of the scope's last training with the current version of the features; the epoch if there was none,
    /// `None` if a training is in progress or one failed recently. A training with too little data counts, because the
    /// same trials would not suffice again. A model that ships with sparsetune does not count, because it was not
    /// trained on these trials.
    async fn last_trained(&self, scope: &Scope) -> Result<Option<Timestamp>> {
        let store = &self.store;
        let page = PageRequest { after: None, limit: LOOK_BACK };
        let trainings = store.trainings(&page).await?.items;
        let pause_over = Timestamp::now().plus_millis(-PAUSE_MS);
        let mut last = Timestamp(0);
        for training in trainings.iter().filter(|training| training.request.scope == *scope) {
            let too_little = training.error.as_deref().is_some_and(|w| w.starts_with(TOO_LITTLE));
            if training.state == JobState::Succeeded || too_little {
                if training.features_version == Some(features::version(scope.op)) {
                    last = last.max(training.started_at.unwrap_or(training.created_at));
                }
            } else if training.finished_at.is_none_or(|at| at > pause_over) {
                return Ok(None);
            }
        }
        let models = store.learned_models(Some(scope)).await?;
        let own = |m: &LearnedModel| {
            m.training.is_some() && m.features_version == features::version(scope.op)
        };
        let models = models.iter().filter(|model| own(model)).map(|model| model.data.newest);
        Ok(Some(models.fold(last, Timestamp::max)))
    }
}
