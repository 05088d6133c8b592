//! What models learn from, and the models.

use super::{Page, PageRequest, Result, Store};
use crate::domain::learned::{Activation, Scope};
use crate::domain::{
    Candidate, CandidateId, Device, Digest, JobFeatures, JobId, LearnedModel, ModelId, Problem,
    Timestamp,
};
use crate::store::Fence;
use async_trait::async_trait;

/// A job's candidates as training sees them.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingGroup {
    pub job: JobId,
    pub features: JobFeatures,
    pub rows: Vec<TrainingRow>,
}

/// One tried candidate with its own features.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingRow {
    pub candidate: Candidate,
    pub own: Vec<f32>,
    /// Median of what was measured; absent for one that failed or was given up.
    pub us: Option<f64>,
    pub predicted_us: Option<f64>,
}

/// A job whose trials have no features of the version in use.
#[derive(Clone, Debug, PartialEq)]
pub struct Undescribed {
    pub job: JobId,
    pub problem: Problem,
    pub matrix: Digest,
    /// The device it ran on, as its plan has it.
    pub device: Device,
}

/// What models learn from, and the models.
#[async_trait]
pub trait Learning: Send + Sync {
    /// Stores what a job's candidates have in common; the same version again changes nothing. Another version takes its
    /// place, and the features of the job's trials go. `Fenced` where a running job is another's; `Missing` without such an
    /// ended job, `InUse` while it has not ended.
    async fn describe(&self, job: DescribedJob<'_>, features: &JobFeatures) -> Result<()>;
    /// Ended jobs with a plan of the scope whose trials have no features of this version, whether their matrix is here or
    /// not; oldest first. One whose plan cannot be read is left out.
    async fn undescribed(
        &self,
        scope: &Scope,
        features_version: u32,
        page: &PageRequest,
    ) -> Result<Page<Undescribed>>;
    /// Jobs of the scope that have succeeded, oldest description first, after `after` (a job), with their tried candidates
    /// that have features, by ordinal: a page of what a training reads, empty only where nothing follows. What cannot be
    /// read is left out, be it a job or a trial. `Missing` where `after` is not described.
    async fn training_groups(
        &self,
        scope: &Scope,
        features_version: u32,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<TrainingGroup>>;
    /// Tried candidates by scope, of all jobs with a plan, whether they are described or not; in no order.
    async fn recorded(&self) -> Result<Vec<(Scope, u64)>>;
    /// Trials of the scope with features of a version, of jobs that have succeeded since a moment.
    async fn described_since(
        &self,
        scope: &Scope,
        features_version: u32,
        since: Timestamp,
    ) -> Result<u64>;

    /// Stores a model with its file; false where the id was known.
    async fn insert_model(&self, model: &LearnedModel, file: &[u8]) -> Result<bool>;
    /// Newest first; of a scope, or of all. One that cannot be read is left out.
    async fn learned_models(&self, scope: Option<&Scope>) -> Result<Vec<LearnedModel>>;
    async fn learned_model(&self, id: &ModelId) -> Result<Option<LearnedModel>>;
    async fn model_file(&self, id: &ModelId) -> Result<Option<Vec<u8>>>;
    /// Activates a model of its scope, or deactivates all of them. `Missing` where the scope has no such model; false where
    /// [`PutToUse::only_after`] does not hold: nothing changes then.
    async fn put_to_use(&self, change: PutToUse<'_>) -> Result<bool>;
    /// Takes the newest change back that was not taken back before, and with it those to models that read other features
    /// than of this version, as far as they follow one another.
    async fn roll_back(
        &self,
        scope: &Scope,
        features_version: u32,
        at: Timestamp,
    ) -> Result<RollBack>;
    async fn activations(&self, of: ActivationQuery<'_>) -> Result<Vec<Activation>>;
}

impl dyn Store + '_ {
    /// [`Learning::put_to_use`] whatever is in use.
    pub async fn activate(&self, activation: &Activation) -> Result<()> {
        self.put_to_use(PutToUse { activation, only_after: None }).await.map(drop)
    }
}

/// A job whose candidates are described.
#[derive(Clone, Copy, Debug)]
pub enum DescribedJob<'a> {
    /// In hand: its trials bring their own features later.
    Running(&'a Fence),
    /// Ended, with the features of its tried candidates. Candidates that it has not tried are left alone.
    Ended { job: &'a JobId, own: &'a [(CandidateId, Vec<f32>)] },
}

/// Which changes of the models in use a list has.
#[derive(Clone, Copy, Debug)]
pub enum ActivationQuery<'a> {
    /// The newest of every scope that has any.
    InUse,
    /// The newest of a scope, newest first, and at most so many.
    OfScope(&'a Scope, u32),
}

/// What came of taking a change of the model in use back.
#[derive(Clone, Debug, PartialEq)]
pub enum RollBack {
    /// What was in use before that change is again.
    Done(Activation),
    /// The scope has no change that was not taken back before.
    Nothing,
}

/// A change of the model in use that looks at what it changes.
#[derive(Clone, Copy, Debug)]
pub struct PutToUse<'a> {
    pub activation: &'a Activation,
    /// Only where the newest activation of the scope is still this one (`Some(None)`: there is none yet); `None` whatever it
    /// is.
    pub only_after: Option<Option<&'a Activation>>,
}
