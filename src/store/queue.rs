//! The queue: work of either kind is submitted, claimed under a lease, told of by events, and ended once.

use super::{Page, PageRequest, Result, Store};
use crate::domain::learned::{Activation, Scope};
use crate::domain::{
    DeviceId, Digest, Event, EventKind, FunnelStep, Job, JobId, JobState, LearnedModel, Plan,
    Timestamp, Training, Work, WorkKind,
};
use async_trait::async_trait;

/// Proof of a claim: writes with an outdated fence are refused, so a worker that lost its lease cannot do harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    pub job: JobId,
    pub owner: String,
    pub epoch: i64,
}

/// Work taken by a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub work: Work,
    pub fence: Fence,
}

/// What a worker claims from: the jobs of its device, or the trainings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queue {
    Device(DeviceId),
    Trainings,
}

impl Queue {
    pub const fn kind(&self) -> WorkKind {
        match self {
            Self::Device(_) => WorkKind::Tune,
            Self::Trainings => WorkKind::Train,
        }
    }

    /// Trainings are for no device in particular.
    pub fn device(&self) -> Option<&str> {
        match self {
            Self::Device(device) => Some(&device.0),
            Self::Trainings => None,
        }
    }
}

/// The answer to a lease renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    pub cancel_requested: bool,
}

/// Work about to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct NewWork {
    /// In state `queued`.
    pub work: Work,
    /// What it is about: while work with this key is queued or running, that is the answer. One that was asked to stop makes way.
    pub dedup_key: String,
    /// The client's key, and the digest of the request it came with.
    pub idempotency: Option<(String, Digest)>,
}

impl From<Training> for NewWork {
    /// One training per scope at a time.
    fn from(training: Training) -> Self {
        let Scope { op, device_class } = &training.request.scope;
        let dedup_key = format!("train;{op};{device_class}");
        Self { work: training.into(), dedup_key, idempotency: None }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Submission {
    Created(Work),
    /// Equal work is already queued or running, or the idempotency key was used before with this very request.
    Existing(Work),
    /// The idempotency key was used before with another request.
    KeyReused,
}

/// How work ends. What it produced is written in the same transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// The work as it shall stand; its state is final.
    pub work: Work,
    pub made: Option<Made>,
}

impl Finish {
    pub fn job(job: Job, plan: Option<Plan>) -> Self {
        Self { work: job.into(), made: plan.map(|plan| Made::Plan(Box::new(plan))) }
    }

    pub fn training(training: Training, model: Option<NewModel>) -> Self {
        Self { work: training.into(), made: model.map(Made::Model) }
    }
}

/// What work produced.
#[derive(Clone, Debug, PartialEq)]
pub enum Made {
    Plan(Box<Plan>),
    Model(NewModel),
}

/// A model about to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct NewModel {
    pub card: LearnedModel,
    pub file: Vec<u8>,
    /// The change that puts it to use; absent where it is only stored.
    pub activation: Option<Activation>,
    /// Only where the newest activation of the scope is still this one (`Some(None)`: there is none yet); `None` whatever it
    /// is.
    pub only_after: Option<Option<Activation>>,
}

/// Which work a list shows; each condition that is absent holds for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    pub kind: Option<WorkKind>,
    pub state: Option<JobState>,
    pub matrix: Option<Digest>,
    pub device: Option<DeviceId>,
}

/// A job's log lines and funnel, as of one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Story {
    /// Number of the newest event, of whatever kind: an event stream resumes after it.
    pub last_seq: u64,
    /// Oldest first.
    pub log: Vec<(Timestamp, String)>,
    pub funnel: Option<Vec<FunnelStep>>,
}

#[async_trait]
pub trait Jobs: Send + Sync {
    /// `Missing` where a job's matrix is not stored.
    async fn submit(&self, new: &NewWork) -> Result<Submission>;
    /// What [`Self::submit`] would answer for this idempotency key and digest of a request: `Existing`, `KeyReused`, or
    /// `None` where the key is new.
    async fn keyed(&self, key: &str, request: &Digest) -> Result<Option<Submission>>;
    async fn work(&self, id: &JobId) -> Result<Option<Work>>;
    /// Newest first. A training that cannot be read is left out.
    async fn works(&self, filter: &JobFilter, page: &PageRequest) -> Result<Page<Work>>;
    /// Queued work ends at once; running work is asked to. `None` when there is none of this id.
    async fn request_cancel(&self, id: &JobId) -> Result<Option<Work>>;
    /// Claims the oldest work of the queue that is queued, or running with an expired lease, and counts the attempt. Work
    /// whose lease has expired after `max_attempts` claims or more fails instead, because it would probably kill the next
    /// worker too; so does work that cannot be read. Listeners learn of both.
    async fn claim(
        &self,
        queue: &Queue,
        owner: &str,
        lease_ms: i64,
        max_attempts: u32,
    ) -> Result<Option<Claim>>;
    async fn renew(&self, fence: &Fence, lease_ms: i64) -> Result<Renewal>;
    /// Stage, progress and best as they now stand; also written as an event.
    async fn update(&self, fence: &Fence, work: &Work) -> Result<()>;
    /// Gives the work as it ended. A training that was asked to stop meanwhile ends cancelled, without a model; where another
    /// model was put to use meanwhile, or none, against [`NewModel::only_after`], the model is stored alone, and the
    /// training's message says so.
    async fn finish(&self, fence: &Fence, finish: &Finish) -> Result<Work>;
    /// Gives the work back to the queue (a worker that shuts down), and the attempt with it. Work that was asked to stop ends
    /// cancelled instead. A training is then as it was before it was ever claimed: it begins anew.
    async fn release(&self, fence: &Fence) -> Result<()>;
    /// Events after `after`, oldest first.
    async fn events(&self, id: &JobId, after: u64, limit: u32) -> Result<Vec<Event>>;
    /// The log and the funnel of a job, without its trials and states.
    async fn story(&self, id: &JobId) -> Result<Story>;
    /// Appends an event that is neither a job update nor a trial.
    async fn log(&self, fence: &Fence, kind: &EventKind) -> Result<()>;
    /// How much work there is of each kind and state that has any.
    async fn job_counts(&self) -> Result<Vec<(WorkKind, JobState, u64)>>;
}

/// The queue by kind, for who knows which is meant.
impl dyn Store + '_ {
    /// `None` also for a training's id.
    pub async fn job(&self, id: &JobId) -> Result<Option<Job>> {
        Ok(self.work(id).await?.and_then(Work::into_job))
    }

    /// `None` also for a job's id.
    pub async fn training(&self, id: &JobId) -> Result<Option<Training>> {
        Ok(self.work(id).await?.and_then(Work::into_training))
    }

    pub async fn jobs(&self, filter: &JobFilter, page: &PageRequest) -> Result<Page<Job>> {
        let filter = JobFilter { kind: Some(WorkKind::Tune), ..filter.clone() };
        let Page { items, next } = self.works(&filter, page).await?;
        Ok(Page { items: items.into_iter().filter_map(Work::into_job).collect(), next })
    }

    pub async fn trainings(&self, page: &PageRequest) -> Result<Page<Training>> {
        let filter = JobFilter { kind: Some(WorkKind::Train), ..JobFilter::default() };
        let Page { items, next } = self.works(&filter, page).await?;
        Ok(Page { items: items.into_iter().filter_map(Work::into_training).collect(), next })
    }
}
