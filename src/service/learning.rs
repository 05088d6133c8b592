//! Learned models as use cases: which there are, which is in use, and how to change that.

use super::{Page, PageRequest, Result, Service, ServiceError};
use crate::domain::learned::{Activation, Learner, Op, Scope};
use crate::domain::{
    DeviceClass, Digest, LearnedModel, ModelId, ModelQuality, Timestamp, TrainRequest, Training,
    Work,
};
use crate::learn::ModelFile;
use crate::ops::features;
use crate::store::{ActivationQuery, RollBack, StoreError, Submission};
use metrics::gauge;
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

/// A learned model, and whether it ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelStanding {
    pub model: LearnedModel,
    /// Put to use, and of the features that are computed here.
    pub active: bool,
    /// How well it ranked, over the plans of jobs that searched by it; absent where none did.
    pub ranked: Option<Ranked>,
}

/// What is known of a model from the trials that it ranked. Its times are none of its own, so that their bias and spread say
/// nothing of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    pub plans: u64,
    /// Measured trials of those plans.
    pub trials: u64,
    /// Spearman's, averaged over plans by their trials; absent where no plan has one.
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

/// A model in use, ready to rank.
#[derive(Clone, Debug)]
pub struct ActiveModel {
    pub card: LearnedModel,
    pub file: Arc<ModelFile>,
}

impl Service {
    /// Queues a training; the one of its scope that is queued or running already is answered instead (`false`). `Conflict`
    /// where that one was asked for otherwise.
    pub async fn train(&self, request: &TrainRequest) -> Result<(Training, bool)> {
        let new = Training::queued(request.clone()).into();
        let (training, created) = match self.inner.store.submit(&new).await? {
            Submission::Created(Work::Train(training)) => (training, true),
            Submission::Existing(Work::Train(training)) => (training, false),
            other => {
                return Err(ServiceError::internal(format!(
                    "a training was answered by {other:?}"
                )));
            }
        };
        if training.request == *request {
            return Ok((training, created));
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
        Ok(self.inner.store.trainings(page).await?)
    }

    /// Newest first.
    pub async fn learned_models(&self) -> Result<Vec<ModelStanding>> {
        let active = self.inner.store.activations(ActivationQuery::InUse).await?;
        let models = self.inner.store.learned_models(None).await?;
        let quality = self.inner.store.model_quality().await?;
        Ok(models.into_iter().map(|model| ModelStanding::of(model, &active, &quality)).collect())
    }

    /// `NotFound` where there is none of this id.
    pub async fn learned_model(&self, id: &ModelId) -> Result<ModelStanding> {
        let model = self.inner.store.learned_model(id).await?;
        let model = model.ok_or_else(|| ServiceError::not_found("model", id))?;
        let active = self.inner.store.activations(ActivationQuery::InUse).await?;
        Ok(ModelStanding::of(model, &active, &self.inner.store.model_quality().await?))
    }

    pub async fn model_file(&self, id: &ModelId) -> Result<Option<Vec<u8>>> {
        Ok(self.inner.store.model_file(id).await?)
    }

    /// The newest first.
    pub async fn activations(&self, scope: &Scope, limit: u32) -> Result<Vec<Activation>> {
        Ok(self.inner.store.activations(ActivationQuery::OfScope(scope, limit)).await?)
    }

    /// The class of devices with the most recorded trials of the operation; the first by name of equals. `Unavailable` where
    /// there are none.
    pub async fn most_recorded_class(&self, op: Op) -> Result<DeviceClass> {
        let recorded = self.inner.store.recorded().await?.into_iter();
        let of_op = recorded.filter(|(scope, _)| scope.op == op);
        let most = of_op.max_by(|(a, of_a), (b, of_b)| of_a.cmp(of_b).then_with(|| b.cmp(a)));
        most.map(|(scope, _)| scope.device_class).ok_or_else(|| ServiceError::Unavailable {
            message: format!("no trials of {op} are recorded here"),
        })
    }

    /// Puts a model to use, for its own scope. `Conflict` for one that reads other features than are computed here: it would
    /// rank nothing.
    pub async fn activate_model(&self, id: &ModelId, reason: &str) -> Result<Activation> {
        let model = self.inner.store.learned_model(id).await?;
        let model = model.ok_or_else(|| ServiceError::not_found("model", id))?;
        if !fits(&model) {
            return Err(other_features(id, model.scope.op, model.features_version));
        }
        if reason == Activation::ROLLED_BACK {
            let message = format!("{reason:?} is the reason of a roll-back alone");
            return Err(ServiceError::invalid("/reason", message));
        }
        let activation = Activation {
            scope: model.scope,
            model: Some(model.id),
            reason: reason.to_owned(),
            at: Timestamp::now(),
        };
        self.inner.store.activate(&activation).await?;
        Ok(activation)
    }

    /// Takes the newest change of the model in use back that was not taken back before: what was in use before it ranks
    /// again, be it the analytic model. Models that read other features than are computed here are passed over.
    pub async fn roll_back(&self, scope: &Scope) -> Result<Activation> {
        let now = Timestamp::now();
        match self.inner.store.roll_back(scope, features::version(scope.op), now).await? {
            RollBack::Done(activation) => Ok(activation),
            RollBack::Nothing => {
                let id = format!("to take back for {} on {}", scope.op, scope.device_class);
                Err(ServiceError::not_found("activation", id))
            }
        }
    }

    /// The model in use for a scope, if it can be used here: one that cannot be read, or reads other features, is told of
    /// once and counts as none. Costs next to nothing while nothing changes.
    pub async fn active_model(&self, scope: &Scope) -> Result<Option<Arc<ActiveModel>>> {
        // Before the look: what changes meanwhile makes the next caller look again.
        let epoch = self.plans_epoch();
        if let Some(found) = self.in_use().of(scope, epoch) {
            return Ok(found);
        }
        let mut in_use = self.look_in_use(epoch).await?;
        Ok(in_use.remove(scope).flatten())
    }

    /// Reads the models in use before anybody asks for one, and tells the gauges of them.
    pub async fn tell_models(&self) -> Result<()> {
        self.look_in_use(self.plans_epoch()).await.map(drop)
    }

    /// The models in use as the store now has them, remembered as of `epoch`.
    async fn look_in_use(&self, epoch: u64) -> Result<HashMap<Scope, Usable>> {
        let active = self.inner.store.activations(ActivationQuery::InUse).await?;
        let mut in_use = HashMap::new();
        for Activation { scope, model, .. } in active {
            let Some(id) = model else {
                tell_in_use(&scope, None);
                continue;
            };
            let known = self.in_use().read.get(&id).cloned();
            let model = match known {
                Some(known) => known,
                None => self.read_model(&scope, &id).await?,
            };
            tell_in_use(&scope, model.as_deref());
            in_use.insert(scope, (id, model));
        }
        let found = in_use.iter().map(|(scope, (_, model))| (scope.clone(), model.clone()));
        let found = found.collect();
        self.in_use().keep(epoch, in_use);
        Ok(found)
    }

    /// `None` for one that cannot be used. A store that does not answer is an error, and nothing is remembered then.
    async fn read_model(&self, scope: &Scope, id: &ModelId) -> Result<Option<Arc<ActiveModel>>> {
        let store = &self.inner.store;
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
        // A large file takes milliseconds to read, which requests on this thread shall not wait for.
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
        // Whole entries come and go: a panic elsewhere leaves none half made.
        self.inner.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a model reads the features that are computed here; any other ranks nothing.
pub(super) fn fits(model: &LearnedModel) -> bool {
    model.features_version == features::version(model.scope.op)
}

/// A model that would rank nothing here.
fn other_features(id: &ModelId, op: Op, reads: u32) -> ServiceError {
    let here = features::version(op);
    let message =
        format!("model {id} reads features of version {reads}, here they are of version {here}");
    ServiceError::Conflict { message }
}

/// The models in use as of one moment, read and checked once for each.
#[derive(Debug, Default)]
pub(super) struct InUse {
    /// [`Service::plans_epoch`] at the look; absent before the first.
    epoch: Option<u64>,
    by_scope: HashMap<Scope, ModelId>,
    /// A model never changes under its id.
    read: HashMap<ModelId, Usable>,
}

/// Absent for a model that cannot be used.
type Usable = Option<Arc<ActiveModel>>;
type Read = (ModelId, Usable);

impl InUse {
    /// The outer option is absent where somebody must look.
    fn of(&self, scope: &Scope, epoch: u64) -> Option<Option<Arc<ActiveModel>>> {
        let found = self.by_scope.get(scope).and_then(|id| self.read.get(id)).cloned().flatten();
        (self.epoch == Some(epoch)).then_some(found)
    }

    fn keep(&mut self, epoch: u64, in_use: HashMap<Scope, Read>) {
        // Another look may have been quicker and newer.
        if self.epoch.is_some_and(|kept| kept > epoch) {
            return;
        }
        self.epoch = Some(epoch);
        self.by_scope = in_use.iter().map(|(scope, (id, _))| (scope.clone(), id.clone())).collect();
        self.read = in_use.into_values().collect();
    }
}

fn usable(
    card: &LearnedModel,
    bytes: &[u8],
    scope: &Scope,
) -> std::result::Result<ActiveModel, String> {
    if card.digest != Digest::of(bytes) {
        return Err("the file is not the one of its card".to_owned());
    }
    let file = ModelFile::parse(bytes).map_err(|error| error.to_string())?;
    let (shared, own) = features::names(scope.op);
    file.accepts(scope, features::version(scope.op), (&shared, &own))
        .map_err(|error| error.to_string())?;
    Ok(ActiveModel { card: card.clone(), file: Arc::new(file) })
}

/// One gauge for each learner of a scope, 1 where its model ranks.
fn tell_in_use(Scope { op, device_class }: &Scope, model: Option<&ActiveModel>) {
    let used = model.map(|model| model.card.learner);
    for learner in Learner::ALL {
        let (op, class, name) = (op.name(), device_class.to_string(), learner.name());
        gauge!("sparsetune_model_in_use", "op" => op, "device_class" => class, "learner" => name)
            .set(f64::from(u8::from(used == Some(learner))));
    }
}
