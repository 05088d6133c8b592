//! Use cases of learned models: list them, and change which one is in use.

use super::rankers::{InUse, tell_in_use, usable};
use super::{ActiveModel, Page, PageRequest, Ranker, Result, Service, ServiceError};
use crate::domain::learned::{Activation, Scope};
use crate::domain::{
    DeviceClass, LearnedModel, ModelId, ModelQuality, Op, Timestamp, TrainRequest, Training, Work,
};
use crate::ops::features;
use crate::store::{ActivationQuery, RollBack, StoreError, Submission};
use std::collections::HashSet;
use std::sync::{Arc, MutexGuard, PoisonError};

/// A learned model, and whether it is in use.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelStanding {
    pub model: LearnedModel,
    /// Active, and compatible with the features computed by this version.
    pub active: bool,
    /// How well it ranked, from the plans of jobs that used it; absent if there are none.
    pub ranked: Option<Ranked>,
}

/// The accuracy of a model on the trials that it ranked. Its output is not a time, so bias and spread of predicted times do
/// not apply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    pub plans: u64,
    /// Number of measured trials in these plans.
    pub trials: u64,
    /// Spearman's rank correlation, averaged over plans by their number of trials; absent if no plan has one.
    pub rank_correlation: Option<f64>,
}

impl Ranked {
    fn of(model: &LearnedModel, all: &[ModelQuality]) -> Option<Self> {
        let Scope { op, device_class } = &model.scope;
        let own = all.iter().find(|quality| {
            quality.model == model.id.0
                && quality.op == op.name()
                && quality.device_class == *device_class
        })?;
        let (plans, trials, rank_correlation) = (own.plans, own.trials, own.rank_correlation);
        Some(Self { plans, trials, rank_correlation })
    }
}

impl ModelStanding {
    fn of(model: LearnedModel, newest: &[Activation], quality: &[ModelQuality]) -> Self {
        let in_use = newest.iter().any(|change| change.model.as_ref() == Some(&model.id));
        let active = in_use && fits(&model);
        let ranked = Ranked::of(&model, quality);
        Self { model, active, ranked }
    }
}

impl Service {
    /// Queues a training. If one of its scope is already queued or running, returns that one instead (`false`), or
    /// `Conflict` if its parameters differ.
    pub async fn train(&self, request: &TrainRequest) -> Result<(Training, bool)> {
        let new = Training::queued(request.clone()).into();
        let (training, created) = match self.store.submit(&new).await? {
            Submission::Created(Work::Train(training)) => (training, true),
            Submission::Existing(Work::Train(training)) => (training, false),
            other => {
                return Err(ServiceError::internal(format!(
                    "a training was answered by {other:?}"
                )));
            }
        };
        if training.request == *request {
            return Ok((*training, created));
        }
        let TrainRequest { activate, seed, .. } = training.request;
        let message = format!(
            "training {} of the same operation and class is under way with activate {} and seed {seed}: wait for it, or \
             cancel it",
            training.id,
            activate.name()
        );
        Err(ServiceError::Conflict { message })
    }

    /// Newest first.
    pub async fn trainings(&self, page: &PageRequest) -> Result<Page<Training>> {
        Ok(self.store.trainings(page).await?)
    }

    /// Newest first.
    pub async fn learned_models(&self) -> Result<Vec<ModelStanding>> {
        let active = self.store.activations(ActivationQuery::InUse).await?;
        let models = self.store.learned_models(None).await?;
        let quality = self.store.model_quality().await?;
        Ok(models.into_iter().map(|model| ModelStanding::of(model, &active, &quality)).collect())
    }

    /// `NotFound` if the id is unknown.
    pub async fn learned_model(&self, id: &ModelId) -> Result<ModelStanding> {
        let model = self.store.learned_model(id).await?;
        let model = model.ok_or_else(|| ServiceError::not_found("model", id))?;
        let active = self.store.activations(ActivationQuery::InUse).await?;
        Ok(ModelStanding::of(model, &active, &self.store.model_quality().await?))
    }

    pub async fn model_file(&self, id: &ModelId) -> Result<Option<Vec<u8>>> {
        Ok(self.store.model_file(id).await?)
    }

    /// Newest first.
    pub async fn activations(&self, scope: &Scope, limit: u32) -> Result<Vec<Activation>> {
        Ok(self.store.activations(ActivationQuery::OfScope(scope, limit)).await?)
    }

    /// The device class with the most recorded trials of the operation; the first by name among equals. `Unavailable` if
    /// there are none.
    pub async fn most_recorded_class(&self, op: Op) -> Result<DeviceClass> {
        let recorded = self.store.recorded().await?.into_iter();
        let of_op = recorded.filter(|(scope, _)| scope.op == op);
        let most = of_op.max_by(|(a, of_a), (b, of_b)| of_a.cmp(of_b).then_with(|| b.cmp(a)));
        most.map(|(scope, _)| scope.device_class).ok_or_else(|| ServiceError::Unavailable {
            message: format!("no trials of {op} are recorded here"),
        })
    }

    /// Activates a model for its own scope. `Conflict` if it uses other features than this version computes, because it
    /// could not rank.
    pub async fn activate_model(&self, id: &ModelId, reason: &str) -> Result<Activation> {
        let model = self.store.learned_model(id).await?;
        let model = model.ok_or_else(|| ServiceError::not_found("model", id))?;
        if !fits(&model) {
            return Err(other_features(id, model.scope.op, model.features_version));
        }
        if reason == Activation::ROLLED_BACK {
            let message = format!("{reason:?} is reserved for roll-backs");
            return Err(ServiceError::invalid("/reason", message));
        }
        let activation = Activation {
            scope: model.scope,
            model: Some(model.id),
            reason: reason.to_owned(),
            at: Timestamp::now(),
        };
        self.store.activate(&activation).await?;
        Ok(activation)
    }

    /// Rolls back the newest activation that has not been rolled back yet: the model that was in use before, possibly the
    /// analytic one, ranks again. Models that use other features than this version computes are skipped.
    pub async fn roll_back(&self, scope: &Scope) -> Result<Activation> {
        let now = Timestamp::now();
        match self.store.roll_back(scope, features::version(scope.op), now).await? {
            RollBack::Done(activation) => Ok(activation),
            RollBack::Nothing => {
                let id = format!("to take back for {} on {}", scope.op, scope.device_class);
                Err(ServiceError::not_found("activation", id))
            }
        }
    }

    /// The model that ranks for a scope: its own active one, or, where the scope has none and nobody deactivated it, the
    /// active one of the nearest class of device ([`DeviceClass::distance`]). A model that cannot be read, or uses other
    /// features, is logged once and ignored. Cheap while nothing changes.
    pub async fn active_model(&self, scope: &Scope) -> Result<Option<Ranker>> {
        self.among_models(|in_use| in_use.ranker(scope)).await
    }

    /// The active model of the nearest other class of device that saw no measurement of this scope, whether or not the scope
    /// has a model of its own.
    pub async fn nearest_model(&self, scope: &Scope) -> Result<Option<Arc<ActiveModel>>> {
        for model in self.among_models(|in_use| in_use.by_distance(scope)).await? {
            if !self.descends_from(&model.card, scope).await? {
                return Ok(Some(model));
            }
        }
        Ok(None)
    }

    /// The model that a training of this scope may start from, and is compared with, since it saw no measurement of this store:
    /// the scope's active one, or what that was continued from, if it was trained elsewhere, as those that ship; else the
    /// nearest other class's ([`Self::nearest_model`]).
    pub async fn lender(&self, scope: &Scope) -> Result<Option<Arc<ActiveModel>>> {
        if let Some(Ranker::Own(model)) = self.active_model(scope).await?
            && let Some(elsewhere) = self.trained_elsewhere(model).await?
        {
            return Ok(Some(elsewhere));
        }
        self.nearest_model(scope).await
    }

    /// The first among a model and those it was continued from, one after another and all of its scope, that no training of this
    /// store made.
    async fn trained_elsewhere(&self, model: Arc<ActiveModel>) -> Result<Option<Arc<ActiveModel>>> {
        let store = &self.store;
        let mut card = model.card.clone();
        let mut met = HashSet::new();
        while met.insert(card.id.clone()) {
            let here = match &card.training {
                Some(training) => store.training(training).await?.is_some(),
                None => false,
            };
            if !here && card.id == model.card.id {
                return Ok(Some(model));
            }
            if !here {
                return match fits(&card) {
                    true => self.read_model(&card.scope, &card.id).await,
                    false => Ok(None),
                };
            }
            let Some(before) = &card.started_from else { return Ok(None) };
            let before = store.learned_model(before).await?;
            let Some(before) = before.filter(|before| before.scope == card.scope) else {
                return Ok(None);
            };
            card = before;
        }
        Ok(None)
    }

    /// Whether a model was continued, over however many steps, from one of this scope, or from one that is unknown here.
    async fn descends_from(&self, model: &LearnedModel, scope: &Scope) -> Result<bool> {
        let mut before = model.started_from.clone();
        let mut met = HashSet::from([model.id.clone()]);
        while let Some(id) = before {
            let card = self.store.learned_model(&id).await?;
            let Some(card) = card.filter(|card| card.scope != *scope && met.insert(id)) else {
                return Ok(true);
            };
            before = card.started_from;
        }
        Ok(false)
    }

    async fn among_models<T>(&self, of: impl FnOnce(&InUse) -> T) -> Result<T> {
        // The epoch is read before the store, so that a change in between makes the next caller read again.
        let epoch = self.plans_epoch();
        {
            let kept = self.in_use();
            if kept.is_of(epoch) {
                return Ok(of(&kept));
            }
        }
        Ok(of(&self.look_in_use(epoch).await?))
    }

    /// Reads the active models before the first request for one, and updates the gauges.
    pub async fn tell_models(&self) -> Result<()> {
        self.look_in_use(self.plans_epoch()).await.map(drop)
    }

    /// Reads the active models from the store and remembers them as of `epoch`.
    async fn look_in_use(&self, epoch: u64) -> Result<InUse> {
        let active = self.store.activations(ActivationQuery::InUse).await?;
        let mut found = InUse::at(epoch);
        for Activation { scope, model, .. } in active {
            let Some(id) = model else {
                tell_in_use(&scope, None);
                found.closed(scope);
                continue;
            };
            let known = self.in_use().read(&id);
            let model = match known {
                Some(known) => known,
                None => self.read_model(&scope, &id).await?,
            };
            tell_in_use(&scope, model.as_deref());
            found.opened(scope, id, model);
        }
        self.in_use().keep(found.clone());
        Ok(found)
    }

    /// `None` for a model that cannot be used. If the store does not answer, this is an error and nothing is remembered.
    async fn read_model(&self, scope: &Scope, id: &ModelId) -> Result<Option<Arc<ActiveModel>>> {
        let store = &self.store;
        let stored = match (store.learned_model(id).await, store.model_file(id).await) {
            (Ok(card), Ok(file)) => card.zip(file),
            (Err(error @ StoreError::Corrupt { .. }), _)
            | (_, Err(error @ StoreError::Corrupt { .. })) => {
                tracing::error!(model = %id, %error, "the model in use cannot be read: none is used");
                return Ok(None);
            }
            (Err(error), _) | (_, Err(error)) => return Err(error.into()),
        };
        let Some((card, bytes)) = stored else {
            tracing::error!(model = %id, "the model in use is not in the store: none is used");
            return Ok(None);
        };
        let of = scope.clone();
        // Reading a large file takes milliseconds, so it is not done on this thread, which serves requests.
        let read = tokio::task::spawn_blocking(move || usable(&card, &bytes, &of)).await?;
        match read {
            Ok(model) => Ok(Some(Arc::new(model))),
            Err(why) => {
                tracing::error!(model = %id, op = %scope.op, why, "the model in use is refused: none is used");
                Ok(None)
            }
        }
    }

    fn in_use(&self) -> MutexGuard<'_, InUse> {
        // Entries are inserted and removed whole, so a panic elsewhere leaves none incomplete.
        self.inner.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a model uses the features that this version computes; any other cannot rank.
pub(super) fn fits(model: &LearnedModel) -> bool {
    model.features_version == features::version(model.scope.op)
}

/// The reason why a model cannot rank here.
fn other_features(id: &ModelId, op: Op, reads: u32) -> ServiceError {
    let here = features::version(op);
    let message = format!(
        "model {id} uses features of version {reads}, but this server computes version {here}"
    );
    ServiceError::Conflict { message }
}
