//! The work queue: jobs and trainings are submitted, claimed under a lease, reported by events, and ended once.

use super::{JobOrder, Page, PageRequest, Result, Store};
use crate::domain::learned::{Activation, Scope};
use crate::domain::{
    Caller, Device, DeviceClass, DeviceId, DeviceKey, Digest, Event, EventKind, FunnelStep, Job,
    JobId, JobState, LearnedModel, Op, Plan, Timestamp, Training, Work, WorkKind, work,
};
use async_trait::async_trait;

/// Proof of a claim. Writes with an outdated fence are refused, so a worker that lost its lease can do no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    pub job: JobId,
    pub owner: String,
    pub epoch: i64,
}

/// Work claimed by a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub work: Work,
    pub fence: Fence,
    /// On whose behalf it was submitted.
    pub by: Caller,
}

/// What a worker claims: the jobs that its device may run, or the trainings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queue {
    Device(Box<Serves>),
    Trainings,
}

/// The jobs that a device may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serves {
    /// Those for any device of its class,
    pub class: DeviceClass,
    /// those for it alone,
    pub key: DeviceKey,
    /// and those of earlier versions, which name a device as their host calls it.
    pub id: DeviceId,
    /// The format that its worker understands; what needs a later one is left to others.
    pub understands: u32,
}

impl Queue {
    /// Of a device of this host, and a worker of this version.
    pub fn of(device: &Device, host: &str) -> Self {
        Self::Device(Box::new(Serves {
            class: device.class(),
            key: device.key(host),
            id: device.id.clone(),
            understands: work::FORMAT,
        }))
    }

    pub const fn kind(&self) -> WorkKind {
        match self {
            Self::Device(_) => WorkKind::Tune,
            Self::Trainings => WorkKind::Train,
        }
    }

    /// What is claimed stands in one of these queues; that of trainings has an empty name.
    pub fn names(&self) -> [&str; 3] {
        match self {
            Self::Device(serves) => [&serves.class.0, &serves.key.0, &serves.id.0],
            Self::Trainings => [""; 3],
        }
    }

    pub fn understands(&self) -> u32 {
        match self {
            Self::Device(serves) => serves.understands,
            Self::Trainings => work::FORMAT,
        }
    }
}

/// What there is to say of a claim that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    pub cancel_requested: bool,
}

/// Work to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct NewWork {
    /// In state `queued`.
    pub work: Work,
    /// Identifies what the work is about: while work with this key is queued or running, a new submission returns that work.
    /// Work that was asked to stop does not count.
    pub dedup_key: String,
    /// The client's idempotency key, and the digest of the request it was sent with.
    pub idempotency: Option<(String, Digest)>,
    /// Work of a higher priority is claimed first.
    pub priority: i32,
    /// It is the second part of a job that was admitted with the budget of both: no quota is asked about it.
    pub continues: bool,
}

impl From<Training> for NewWork {
    /// At most one training per scope at a time.
    fn from(training: Training) -> Self {
        let Scope { op, device_class } = &training.request.scope;
        let dedup_key = format!("train;{op};{device_class}");
        Self { work: training.into(), dedup_key, idempotency: None, priority: 0, continues: false }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Submission {
    Created(Work),
    /// Equal work is already queued or running, or the idempotency key was used before with the same request.
    Existing(Work),
    /// The idempotency key was used before with another request.
    KeyReused,
}

/// The end of a piece of work. Its result is written in the same transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// The work with its final state.
    pub work: Work,
    pub made: Option<Made>,
    /// Bytes that a plan's program and arrays count for in a quota.
    pub charged: u64,
    /// Work that was queued for the same request, as its second part: it is cancelled if this work was asked to stop meanwhile.
    pub queued: Option<JobId>,
}

impl Finish {
    pub fn job(job: Job, plan: Option<Plan>) -> Self {
        let made = plan.map(|plan| Made::Plan(Box::new(plan)));
        Self { work: job.into(), made, charged: 0, queued: None }
    }

    pub fn training(training: Training, model: Option<NewModel>) -> Self {
        Self {
            work: training.into(),
            made: model.map(|model| Made::Model(Box::new(model))),
            charged: 0,
            queued: None,
        }
    }
}

/// The result of the work.
#[derive(Clone, Debug, PartialEq)]
pub enum Made {
    Plan(Box<Plan>),
    Model(Box<NewModel>),
}

/// A model to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct NewModel {
    pub card: LearnedModel,
    pub file: Vec<u8>,
    /// The activation of the model; absent if it is only stored.
    pub activation: Option<Activation>,
    /// If set, the model is activated only while this is still the newest activation of the scope (`Some(None)`: there is
    /// none yet). `None` activates it in any case.
    pub only_after: Option<Option<Activation>>,
}

/// Selects the work of a list. An absent condition matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    pub kind: Option<WorkKind>,
    pub state: Option<JobState>,
    pub matrix: Option<Digest>,
    pub device: Option<DeviceId>,
    /// Of a tuning job's problem, or of a training's models.
    pub op: Option<Op>,
}

/// Whose jobs are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Those of the caller's namespace.
    Own,
    /// Those of all, for the service's own figures.
    All,
}

/// A job's log lines and funnel at one point in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Story {
    /// Number of the newest event of any kind: an event stream resumes after it.
    pub last_seq: u64,
    /// Oldest first.
    pub log: Vec<(Timestamp, String)>,
    pub funnel: Option<Vec<FunnelStep>>,
}

#[async_trait]
pub trait Jobs: Send + Sync {
    /// `Missing` if a job's matrix is not stored; `Quota` if the job would exceed a limit of the caller, `InUse` if the
    /// caller's token has ended.
    async fn submit(&self, new: &NewWork) -> Result<Submission>;
    /// The answer that [`Self::submit`] would give for this idempotency key and request digest: `Existing`, `KeyReused`, or
    /// `None` if the key is new.
    async fn keyed(&self, key: &str, request: &Digest) -> Result<Option<Submission>>;
    async fn work(&self, id: &JobId) -> Result<Option<Work>>;
    /// Newest first. Trainings that cannot be read are left out.
    async fn works(&self, filter: &JobFilter, page: &PageRequest) -> Result<Page<Work>>;
    /// The same in the order that is asked for.
    async fn sorted_works(
        &self,
        filter: &JobFilter,
        order: JobOrder,
        page: &PageRequest,
    ) -> Result<Page<Work>>;
    /// Queued work ends at once; running work is asked to stop. `None` if the id is unknown.
    async fn request_cancel(&self, id: &JobId) -> Result<Option<Work>>;
    /// Claims work of the queue that is understood and queued, or running with an expired lease, and counts the attempt: first by priority, then
    /// that of the namespace which has searched least in the last hour (recent seconds count more, each job at least as one), of a
    /// namespace that of the token which has, then the oldest. Work whose lease has expired after `max_attempts` claims or more fails instead, because it would probably kill the next
    /// worker too; so does work that cannot be read. Listeners learn of both.
    async fn claim(
        &self,
        queue: &Queue,
        owner: &str,
        lease_ms: i64,
        max_attempts: u32,
    ) -> Result<Option<Claim>>;
    async fn renew(&self, fence: &Fence, lease_ms: i64) -> Result<Renewal>;
    /// The answer that [`Self::renew`] would give, without writing.
    async fn held(&self, fence: &Fence) -> Result<Renewal>;
    /// Stores the current stage, progress and best result, and writes them as an event.
    async fn update(&self, fence: &Fence, work: &Work) -> Result<()>;
    /// Stores the end of the work and returns the work as it ended. A training that was asked to stop in the meantime ends
    /// cancelled, without a model. If [`NewModel::only_after`] no longer holds, the model is stored but not activated, and
    /// the training's message says so.
    async fn finish(&self, fence: &Fence, finish: &Finish) -> Result<Work>;
    /// Returns the work to the queue (the worker is shutting down) and does not count the attempt. Work that was asked to
    /// stop ends cancelled instead. A training is reset to its state before its first claim and starts from the beginning.
    async fn release(&self, fence: &Fence) -> Result<()>;
    /// [`Self::release`] for all that is claimed by this owner, who works on nothing: what it could not end because the store failed, and
    /// claims whose answer it has not heard. Returns their number.
    async fn release_all(&self, owner: &str) -> Result<u64>;
    /// Events after `after`, oldest first.
    async fn events(&self, id: &JobId, after: u64, limit: u32) -> Result<Vec<Event>>;
    /// The log and the funnel of a job, without its trials and state changes.
    async fn story(&self, id: &JobId) -> Result<Story>;
    /// Appends an event that is neither a job update nor a trial.
    async fn log(&self, fence: &Fence, kind: &EventKind) -> Result<()>;
    /// The number of jobs and trainings in each state; states without any are left out.
    async fn job_counts(&self, of: Whose) -> Result<Vec<(WorkKind, JobState, u64)>>;
}

/// Typed access to the queue, for callers that know the kind of work.
impl dyn Store + '_ {
    /// `None` also for the id of a training.
    pub async fn job(&self, id: &JobId) -> Result<Option<Job>> {
        Ok(self.work(id).await?.and_then(Work::into_job))
    }

    /// `None` also for the id of a job.
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
