//! Training data of models, and the models themselves.

use super::{Page, PageRequest, Result, Store};
use crate::domain::learned::{Activation, Scope};
use crate::domain::{
    Candidate, CandidateId, Device, Digest, JobFeatures, JobId, LearnedModel, ModelId, Namespace,
    Problem, Timestamp,
};
use crate::store::Fence;
use async_trait::async_trait;

/// The candidates of a job, as training data.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingGroup {
    pub job: JobId,
    pub features: JobFeatures,
    pub rows: Vec<TrainingRow>,
}

/// A tried candidate with its own features.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingRow {
    pub candidate: Candidate,
    pub own: Vec<f32>,
    /// Median of the measured times; absent if the candidate failed or its measurement was stopped early.
    pub us: Option<f64>,
    pub predicted_us: Option<f64>,
}

/// A job whose trials have no features of the current version.
#[derive(Clone, Debug, PartialEq)]
pub struct Undescribed {
    pub job: JobId,
    /// Where the job and its matrix are.
    pub namespace: Namespace,
    pub problem: Problem,
    pub matrix: Digest,
    /// The device it ran on, as recorded in its plan.
    pub device: Device,
}

/// Training data of models, and the models themselves.
#[async_trait]
pub trait Learning: Send + Sync {
    /// Stores the features that a job's candidates share. If they are already stored with the same version, nothing changes;
    /// another version is replaced, and the features of the job's trials are removed. `Fenced` if another worker has the
    /// running job; `Missing` if there is no such job, and `InUse` if it has not ended.
    async fn describe(&self, job: DescribedJob<'_>, features: &JobFeatures) -> Result<()>;
    /// Ended jobs with a plan of the scope whose trials have no features of this version, whether or not their matrix is
    /// still stored; oldest first. Jobs whose plan cannot be read are left out.
    async fn undescribed(
        &self,
        scope: &Scope,
        features_version: u32,
        page: &PageRequest,
    ) -> Result<Page<Undescribed>>;
    /// A page of training data: the succeeded jobs of the scope after the job `after`, ordered by the time of their
    /// description, oldest first, each with its tried candidates that have features, ordered by ordinal, but for those whose trials the
    /// job's time ended: they have no time, or too few samples. Empty only if nothing follows. Unreadable jobs and trials are left out. `Missing` if `after` has no description.
    async fn training_groups(
        &self,
        scope: &Scope,
        features_version: u32,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<TrainingGroup>>;
    /// Number of tried candidates per scope, over all jobs with a plan, with or without features; in no particular order.
    async fn recorded(&self) -> Result<Vec<(Scope, u64)>>;
    /// Number of trials of the scope with features of this version, from jobs that have succeeded since the given time.
    async fn described_since(
        &self,
        scope: &Scope,
        features_version: u32,
        since: Timestamp,
    ) -> Result<u64>;

    /// Stores a model with its file. Returns false if the id was already known.
    async fn insert_model(&self, model: &LearnedModel, file: &[u8]) -> Result<bool>;
    /// Models of one scope or of all scopes, newest first. Models that cannot be read are left out.
    async fn learned_models(&self, scope: Option<&Scope>) -> Result<Vec<LearnedModel>>;
    async fn learned_model(&self, id: &ModelId) -> Result<Option<LearnedModel>>;
    async fn model_file(&self, id: &ModelId) -> Result<Option<Vec<u8>>>;
    /// Activates a model for its scope, or deactivates all of the scope's models. `Missing` if the scope has no such model.
    /// Returns false, and changes nothing, if [`PutToUse::only_after`] does not hold.
    async fn put_to_use(&self, change: PutToUse<'_>) -> Result<bool>;
    /// Rolls back the newest activation that has not been rolled back yet. Directly preceding activations of models with
    /// another features version are rolled back with it.
    async fn roll_back(
        &self,
        scope: &Scope,
        features_version: u32,
        at: Timestamp,
    ) -> Result<RollBack>;
    async fn activations(&self, of: ActivationQuery<'_>) -> Result<Vec<Activation>>;
}

impl dyn Store + '_ {
    /// [`Learning::put_to_use`] regardless of which model is active.
    pub async fn activate(&self, activation: &Activation) -> Result<()> {
        self.put_to_use(PutToUse { activation, only_after: None }).await.map(drop)
    }
}

/// The job whose candidates are described.
#[derive(Clone, Copy, Debug)]
pub enum DescribedJob<'a> {
    /// A running job: its trials bring their own features later.
    Running(&'a Fence),
    /// An ended job, with the features of its tried candidates. Untried candidates are ignored.
    Ended { job: &'a JobId, own: &'a [(CandidateId, Vec<f32>)] },
}

/// Selects activations.
#[derive(Clone, Copy, Debug)]
pub enum ActivationQuery<'a> {
    /// The newest activation of every scope.
    InUse,
    /// The newest activations of a scope, newest first, up to the given number.
    OfScope(&'a Scope, u32),
}

/// The result of a roll-back.
#[derive(Clone, Debug, PartialEq)]
pub enum RollBack {
    /// The model that was active before the rolled-back change is active again.
    Done(Activation),
    /// The scope has no activation left to roll back.
    Nothing,
}

/// An activation with an optional condition on the one that it replaces.
#[derive(Clone, Copy, Debug)]
pub struct PutToUse<'a> {
    pub activation: &'a Activation,
    /// If set, activates only while this is still the newest activation of the scope (`Some(None)`: there is none yet).
    /// `None` activates in any case.
    pub only_after: Option<Option<&'a Activation>>,
}
