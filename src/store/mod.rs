//! The only SQL, and the blobs. The traits here say what a store must do; `sqlite` does it.

pub mod blobs;
mod changes;
mod learning;
mod queue;
pub mod sqlite;

pub use blobs::{BlobError, Blobs, LocalBlobs, LocalFile};
pub use changes::{Change, Listener, Listeners};
pub use learning::{
    ActivationQuery, DescribedJob, Learning, PutToUse, RollBack, TrainingGroup, TrainingRow,
    Undescribed,
};
pub use queue::{
    Claim, Fence, Finish, JobFilter, Jobs, Made, NewModel, NewWork, Queue, Renewal, Story,
    Submission,
};
pub use sqlite::{SqliteOptions, SqliteStore};

use crate::domain::plan::PlanKey;
use crate::domain::{
    Candidate, Device, DeviceClass, Digest, JobId, KernelFigures, L2Policy, Matrix, ModelQuality,
    Plan, PlanId, Problem, Timestamp, Trial, TrialCount, TrialFilter,
};
use async_trait::async_trait;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// One page of a list, newest first. `after` is the opaque cursor of the page before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRequest {
    pub after: Option<String>,
    /// At most so many items; 0 counts as 1.
    pub limit: u32,
}

impl PageRequest {
    /// The whole list, for readers that need every item: not for lists that clients let grow.
    pub const ALL: Self = Self::first(u32::MAX);

    /// The first items of a list.
    pub const fn first(limit: u32) -> Self {
        Self { after: None, limit }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Cursor of the next page; absent on the last.
    pub next: Option<String>,
}

/// Which matrices a list has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatrixQuery {
    All,
    /// Those of the newest with this part in their name, whatever the case of its Latin letters.
    Named(String),
    /// Matrices whose digest or pattern digest lies between two digests, both included.
    Between(Digest, Digest),
    /// The best match for a digest or a pattern digest, at most one: a stored matrix, or the facts that a plan kept of a
    /// deleted one.
    Known(Digest),
}

/// Which plans a list has.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanQuery {
    /// The measured plans of a key: the first is the key's answer.
    Measured(PlanKey),
    /// The predicted plans of a key.
    Predicted(PlanKey),
    /// The newest measured plan of each key of this pattern.
    NewestOfPattern(Digest),
    /// The newest predicted plan of each key of this pattern that has no measured one.
    UnmeasuredOfPattern(Digest),
}

/// Which trials of a job a list has; by ordinal, but for a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialQuery {
    All,
    Of(TrialFilter),
    /// Those that were tried, without their raw samples.
    Summaries,
    /// The pruned ones of a family, in no order and on one page: of more than its limit about as many, from all over their
    /// ordinals.
    PrunedSample {
        family: String,
    },
}

/// A candidate that hung or killed the device; not tried again with the same kernel text.
#[derive(Clone, Debug, PartialEq)]
pub struct Quarantined {
    pub class: DeviceClass,
    /// Digest of the family's kernel text.
    pub kernel_digest: Digest,
    pub candidate: Candidate,
    pub reason: String,
    pub at: Timestamp,
}

/// What a database driver or the file system reported.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a call to the store failed. The last four keep their cause as `source`.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another worker holds the work now, or it has ended.
    #[error("the lease on job {0} is no longer held")]
    Fenced(JobId),
    #[error("a row refers to something that is not there: {0}")]
    Missing(String),
    /// Deleting would break what still refers to it.
    #[error("{0}")]
    InUse(String),
    #[error("the cursor is not one of this list")]
    BadCursor,
    /// Stored JSON of a version or shape this binary does not know.
    #[error("stored {what} cannot be read: {why}")]
    Corrupt { what: String, why: String },
    /// Another connection held the database for too long, or no connection was free: the same call may succeed later.
    #[error("the store is busy: {0}")]
    Busy(#[source] Cause),
    /// The disk, a quota or the database's own limit is reached: the same call may succeed once there is room.
    #[error("the store is full: {0}")]
    Full(#[source] Cause),
    /// A fault of the calling code: it broke a rule of these traits or a constraint of the schema. Never worth a retry.
    #[error("the store was misused: {0}")]
    Misuse(#[source] Cause),
    /// The database failed otherwise, for example by an I/O error.
    #[error("the store failed: {0}")]
    Backend(#[source] Cause),
}

impl StoreError {
    /// Whether the same call may succeed later, since it failed for the state of the database or its disk.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::Full(_) | Self::Backend(_))
    }
}

/// Whether the file system refused a write for lack of room.
pub(crate) fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

pub type Result<T> = std::result::Result<T, StoreError>;

#[async_trait]
pub trait Matrices: Send + Sync {
    /// Stores the facts; false when the digest was already known (nothing changes then).
    async fn insert_matrix(&self, matrix: &Matrix) -> Result<bool>;
    async fn matrix(&self, digest: &Digest) -> Result<Option<Matrix>>;
    /// Newest first.
    async fn matrices(&self, of: &MatrixQuery, page: &PageRequest) -> Result<Page<Matrix>>;
    /// The names that matrices were given, those of matrices long gone too, as far as a plan kept them.
    async fn matrix_names(&self, digests: &[Digest]) -> Result<HashMap<Digest, String>>;
    /// False when there was none. `InUse` while a queued or running job needs it. Plans outlive their matrix.
    async fn delete_matrix(&self, digest: &Digest) -> Result<bool>;
}

#[async_trait]
pub trait Trials: Send + Sync {
    /// All in one transaction; tried ones also as events. A trial already stored stays as it is.
    async fn record_trials(&self, fence: &Fence, trials: &[Trial]) -> Result<()>;
    async fn trials(&self, id: &JobId, of: &TrialQuery, page: &PageRequest) -> Result<Page<Trial>>;
    /// How many there are of each family and end, in no order.
    async fn trial_counts(&self, id: &JobId) -> Result<Vec<TrialCount>>;
}

#[async_trait]
pub trait Plans: Send + Sync {
    async fn plan(&self, id: &PlanId) -> Result<Option<Plan>>;
    /// Newest first.
    async fn plans(&self, of: &PlanQuery, page: &PageRequest) -> Result<Page<Plan>>;
    /// Stores a predicted plan that no job made; one whose id is known stays as it is. False where the pattern has `most`
    /// predicted plans already, and this is none of them.
    async fn insert_predicted(&self, plan: &Plan, most: u32) -> Result<bool>;
    /// How well each model did on each class, by the newest plans that say so; the one with the newest plan first.
    async fn model_quality(&self) -> Result<Vec<ModelQuality>>;
    /// Keys under which this pattern has plans: what a `none` explains itself with.
    async fn plan_keys(&self, pattern: &Digest) -> Result<Vec<PlanKey>>;
    /// The newest plan of each pattern for this problem, class and policy, with the matrix's facts: neighbours.
    async fn plans_for(
        &self,
        problem: &Problem,
        class: &DeviceClass,
        l2_policy: L2Policy,
        limit: u32,
    ) -> Result<Vec<(Matrix, PlanId)>>;
}

#[async_trait]
pub trait Devices: Send + Sync {
    /// Stores what a worker's device is; `owner` names the worker.
    async fn put_device(&self, owner: &str, device: &Device) -> Result<()>;
    /// Devices with the owner and the time each was last seen.
    async fn devices(&self) -> Result<Vec<(String, Device, Timestamp)>>;
    async fn quarantine(&self, entry: &Quarantined) -> Result<()>;
    /// Of the class, or of all; newest first.
    async fn quarantined(
        &self,
        class: Option<&DeviceClass>,
        page: &PageRequest,
    ) -> Result<Page<Quarantined>>;
}

/// What compilers made of kernels, by a kernel's identity (`ops::TunableProblem::kernel_identity`).
#[async_trait]
pub trait Figures: Send + Sync {
    /// Keeps the figures of kernels that have none yet; beyond a bound of the store's own go those that were not told of for
    /// longest.
    async fn record_kernel_figures(
        &self,
        class: &DeviceClass,
        figures: &[(Digest, KernelFigures)],
    ) -> Result<()>;
    /// All that was learnt before a moment.
    async fn kernel_figures(
        &self,
        class: &DeviceClass,
        before: Timestamp,
    ) -> Result<HashMap<Digest, KernelFigures>>;
}

/// What upkeep may remove: everything of its kind that is older than the moment given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub idempotency_keys: Timestamp,
    /// Events of jobs that ended before then, but for each job's last.
    pub events: Timestamp,
    /// Devices that were last seen before then.
    pub devices: Timestamp,
    /// Predicted plans that no job made or names. Those whose key has a measured plan go whatever their age.
    pub predicted: Timestamp,
}

/// How much upkeep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub idempotency_keys: u64,
    pub events: u64,
    pub devices: u64,
    pub predicted: u64,
}

#[async_trait]
pub trait Upkeep: Send + Sync {
    /// Also ends running work that was asked to stop and whose worker is gone, and removes all but the newest 20 of a scope's
    /// models that were never put to use (those that were are kept for ever) and all but the newest 100 of its trainings
    /// that have ended.
    async fn prune(&self, retention: &Retention) -> Result<Pruned>;
    /// The blobs that matrices and plans name.
    async fn named_blobs(&self) -> Result<HashSet<Digest>>;
    /// Grows whenever a plan or a device's facts are stored, a matrix's come or go, or another model is put to use, by
    /// whichever process.
    async fn revision(&self) -> Result<u64>;
}

impl dyn Store + '_ {
    /// The facts known under a digest or a pattern digest ([`MatrixQuery::Known`]).
    pub async fn known_matrix(&self, digest: &Digest) -> Result<Option<Matrix>> {
        Ok(self.matrices(&MatrixQuery::Known(*digest), &PageRequest::first(1)).await?.items.pop())
    }
}

/// Everything a store can do.
pub trait Store: Matrices + Jobs + Trials + Plans + Devices + Figures + Learning + Upkeep {
    /// Has the listener told of what this store writes from now on, until it is dropped.
    fn listen(&self, listener: &Arc<dyn Listener>);
}
