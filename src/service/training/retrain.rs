//! Training without being asked: when enough new trials of a scope have come in.

use super::material::TOO_LITTLE;
use crate::domain::learned::Scope;
use crate::domain::training::{Activate, TrainRequest};
use crate::domain::{JobState, LearnedModel, Timestamp, Training};
use crate::ops::features;
use crate::service::{PageRequest, Result, Service};

/// Trainings looked back at: those of one scope may hide behind another's, but not for so long.
const LOOK_BACK: u32 = 100;

/// After a training that was cancelled, or failed for another reason than too little data, until the next one is queued
/// unasked, milliseconds.
const PAUSE_MS: i64 = 3_600_000;

impl Service {
    /// Queues a training for each scope of which `learning.retrain_trials` trials have come in since the last one; gives those
    /// queued. Where nothing was learned from features of the present version yet, all recorded trials count, described or
    /// not: a training describes them.
    pub async fn retrain_where_due(&self) -> Result<Vec<Training>> {
        let enough = self.inner.settings.learning.retrain_trials;
        if enough == 0 {
            return Ok(Vec::new());
        }
        let store = &self.inner.store;
        let mut queued = Vec::new();
        // All that there is first: a scope with fewer needs no closer look.
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
            // One that was asked for otherwise meanwhile is as good.
            let (training, created) = store.submit_training(&Training::queued(request)).await?;
            if created {
                let Scope { op, device_class } = &training.request.scope;
                tracing::info!(%op, %device_class, new, training = %training.id, "enough new trials: a training is queued");
                queued.push(training);
            }
        }
        Ok(queued)
    }

    /// When the scope's trials were last looked at to be learned from, by the features of the present version; the epoch where
    /// they never were, `None` where a training is under way or one broke off a short while ago. A training that found too
    /// little counts: the same trials would come to nothing again. A model that ships with sparsetune does not: it knows none
    /// of these trials.
    async fn last_trained(&self, scope: &Scope) -> Result<Option<Timestamp>> {
        let store = &self.inner.store;
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
