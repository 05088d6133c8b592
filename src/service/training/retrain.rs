//! Training without being asked: when enough new trials of a scope have come in.

use crate::domain::learned::Scope;
use crate::domain::training::{Activate, TrainRequest};
use crate::domain::{Timestamp, Training};
use crate::ops::features;
use crate::service::{PageRequest, Result, Service};

/// Trainings looked back at: those of one scope may hide behind another's, but not for so long.
const LOOK_BACK: u32 = 100;

impl Service {
    /// Queues a training for each scope of which `learning.retrain_trials` new trials are described; gives those queued.
    pub async fn retrain_where_due(&self) -> Result<Vec<Training>> {
        let enough = self.inner.settings.learning.retrain_trials;
        if enough == 0 {
            return Ok(Vec::new());
        }
        let store = &self.inner.store;
        let mut queued = Vec::new();
        // All that there is first: a scope with fewer needs no closer look.
        for (scope, known) in store.described_since(features::VERSION, Timestamp(0)).await? {
            if known < enough {
                continue;
            }
            let since = self.last_trained(&scope).await?;
            let counts = store.described_since(features::VERSION, since).await?;
            let new = counts.iter().find(|(of, _)| *of == scope).map_or(0, |(_, count)| *count);
            if new < enough {
                continue;
            }
            let request = TrainRequest { scope, activate: Activate::IfBetter, seed: 1 };
            let (training, created) = self.train(&request).await?;
            if created {
                let Scope { op, device_class } = &training.request.scope;
                tracing::info!(%op, %device_class, new, training = %training.id, "enough new trials: a training is queued");
                queued.push(training);
            }
        }
        Ok(queued)
    }

    /// When the scope's trials were last looked at to be learned from; the epoch where they never were. A training that came
    /// to nothing counts: the same trials would come to nothing again. A model that ships with sparsetune does not: it
    /// knows none of these trials.
    async fn last_trained(&self, scope: &Scope) -> Result<Timestamp> {
        let store = &self.inner.store;
        let page = PageRequest { after: None, limit: LOOK_BACK };
        let trainings = store.trainings(&page).await?.items;
        let trainings = trainings.into_iter().filter(|training| training.request.scope == *scope);
        let trainings =
            trainings.map(|training| training.started_at.unwrap_or(training.created_at));
        let models = store.learned_models(Some(scope)).await?;
        let own = |m: &crate::domain::LearnedModel| {
            m.training.is_some() && m.features_version == features::VERSION
        };
        let models = models.iter().filter(|model| own(model)).map(|model| model.data.newest);
        Ok(trainings.chain(models).max().unwrap_or(Timestamp(0)))
    }
}
