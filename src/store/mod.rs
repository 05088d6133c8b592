//! All SQL, and the blobs. The traits here define what a store must do; `sql` implements them, in SQLite and in PostgreSQL.

mod audit;
pub mod blobs;
mod bundles;
mod changes;
mod drift;
mod learning;
pub mod order;
pub mod pairing;
mod place;
pub mod private;
pub mod process_name;
mod queue;
mod retaining;
pub mod sql;
mod stored;
mod tallies;
pub mod tls;
mod tokens;
mod transfer;
mod webhooks;

pub use audit::Audit;
pub use blobs::{
    BlobError, BlobFacts, BlobPlace, Blobs, BucketSettings, LocalBlobs, LocalFile, S3Blobs, Secret,
};
pub use bundles::{Bundles, StoredBundle};
pub use changes::{Change, Listener, Listeners};
pub use drift::{Drift, UsedPlan};
pub use learning::{
    ActivationQuery, DescribedJob, Learning, PutToUse, RollBack, TrainingGroup, TrainingRow,
    Undescribed,
};
pub use order::{Direction, JobColumn, JobOrder, MatrixColumn, MatrixOrder};
pub use place::{ServerUrl, StoreOptions, StorePlace};
pub use queue::{
    Claim, Fence, Finish, JobFilter, Jobs, Made, NewModel, NewWork, Queue, Renewal, Serves, Story,
    Submission, Whose,
};
pub use retaining::{KeptBundle, KeptJob, KeptMatrix, KeptPlan, Pin, Pins, Retaining, Weigh};
pub use sql::{PostgresOptions, SqlStore, SqliteOptions, Synchronous};
pub use stored::{RoomTaken, Stored, Taken};
pub use tallies::{PlanFigures, PlanTally};
pub use tokens::{MOST_REVOKED, NO_TOKENS_YET, StoredToken, Tokens};
pub use transfer::{JobTaken, Place, Transfer};
pub use webhooks::{
    AttemptEnd, Attempted, DueDelivery, LONGEST_PAUSE, MOST_WAITING, UNPAUSED, Webhooks,
};

use crate::domain::plan::PlanKey;
use crate::domain::{
    Caller, Candidate, Device, DeviceClass, Digest, JobId, KernelFigures, L2Policy, Matrix,
    ModelQuality, NameHolder, Plan, PlanId, Problem, Process, QuarantineId, QuarantineScope,
    QuotaExceeded, Serving, Timestamp, Trial, TrialCount, TrialFilter,
};
use async_trait::async_trait;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// A request for one page of a list, newest first. `after` is the opaque cursor that the previous page returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageRequest {
    pub after: Option<String>,
    /// Maximum number of items; 0 counts as 1.
    pub limit: u32,
}

impl PageRequest {
    /// The whole list, for callers that need every item. Not for lists that clients can grow without bound.
    pub const ALL: Self = Self::first(u32::MAX);

    /// The first page of a list.
    pub const fn first(limit: u32) -> Self {
        Self { after: None, limit }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Cursor of the next page; absent on the last one.
    pub next: Option<String>,
}

/// Selects the matrices of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatrixQuery {
    All,
    /// Those of the newest matrices whose name contains this text, ignoring the case of ASCII letters.
    Named(String),
    /// Matrices whose digest or pattern digest lies between two digests, both included.
    Between(Digest, Digest),
    /// The best match for a digest or a pattern digest, at most one: a stored matrix, or the facts that a plan kept of a
    /// deleted one.
    Known(Digest),
}

/// Selects the plans of a list.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanQuery {
    /// The measured plans of a key. The first is the answer for the key.
    Measured(PlanKey),
    /// The predicted plans of a key.
    Predicted(PlanKey),
    /// The newest measured plan of each key of this pattern.
    NewestOfPattern(Digest),
    /// The newest predicted plan of each key of this pattern that has no measured plan.
    UnmeasuredOfPattern(Digest),
}

/// Selects trials of a job, ordered by ordinal except in a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialQuery {
    All,
    Of(TrialFilter),
    /// The tried trials, without their raw samples.
    Summaries,
    /// Pruned trials of a family, in no particular order and on one page. If there are more than the limit, approximately
    /// that many, sampled evenly over the ordinals.
    PrunedSample {
        family: String,
    },
}

/// A candidate that hung or killed the device; searches that it counts for do not try it again with the same kernel text.
#[derive(Clone, Debug, PartialEq)]
pub struct Quarantined {
    pub class: DeviceClass,
    /// Digest of the family's kernel text.
    pub kernel_digest: Digest,
    pub candidate: Candidate,
    pub scope: QuarantineScope,
    pub reason: String,
    pub at: Timestamp,
}

impl Quarantined {
    /// Names the entry: a hash of what it is keyed by.
    pub fn id(&self) -> QuarantineId {
        let Self { class, kernel_digest, candidate, .. } = self;
        let key = format!("{class}|{kernel_digest}|{}", candidate.id());
        QuarantineId(Digest::of(key.as_bytes()).to_string()[..16].to_owned())
    }
}

/// The underlying error of a database driver or the file system.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a call to the store failed. The last four variants keep their cause as `source`.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another worker has claimed the work, or the work has ended.
    #[error("the lease on job {0} is no longer held")]
    Fenced(JobId),
    #[error("a row refers to something that does not exist: {0}")]
    Missing(String),
    /// The state of something else does not permit it, as of what still refers to what is to be deleted.
    #[error("{0}")]
    InUse(String),
    #[error("the cursor does not belong to this list")]
    BadCursor,
    /// Stored JSON has a version or shape that this program does not know.
    #[error("stored {what} cannot be read: {why}")]
    Corrupt { what: String, why: String },
    /// It would exceed a limit of the caller.
    #[error("{0}")]
    Quota(#[source] QuotaExceeded),
    /// Another connection held the database for too long, no connection was free, or the server was gone for a moment: the same call may
    /// succeed later.
    #[error("the store is busy: {0}")]
    Busy(#[source] Cause),
    /// The disk, a quota or the database's own limit is reached: the same call may succeed once there is room.
    #[error("the store is full: {0}")]
    Full(#[source] Cause),
    /// An error of the calling code: it broke a rule of these traits or a constraint of the schema. Not worth a retry.
    #[error("the store was misused: {0}")]
    Misuse(#[source] Cause),
    /// The database failed in another way, for example with an I/O error.
    #[error("the store failed: {0}")]
    Backend(#[source] Cause),
}

impl StoreError {
    /// Whether the same call may succeed later, because it failed due to the state of the database or its disk.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::Full(_) | Self::Backend(_))
    }
}

/// Whether the file system refused a write because there is no space left.
pub(crate) fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

pub type Result<T> = std::result::Result<T, StoreError>;

/// Held while something is done that no two processes may do at a time; the next may once this is dropped.
#[must_use]
pub struct Guard(Box<dyn Held>);

/// What a guard holds.
#[async_trait]
pub trait Held: Send + Sync {
    /// Fails if it was lost since it was taken, as with the connection to a server that had it.
    async fn is_still(&self) -> Result<()> {
        Ok(())
    }
}

impl Guard {
    pub fn of(held: impl Held + 'static) -> Self {
        Self(Box::new(held))
    }

    /// Fails with `Busy` if another process may have it by now.
    pub async fn is_still_held(&self) -> Result<()> {
        self.0.is_still().await
    }
}

#[async_trait]
pub trait Matrices: Send + Sync {
    /// Held while a matrix's file and row are created or deleted together: by one task of all processes that use the store. `Busy`
    /// if others hold it for long.
    async fn publishing(&self) -> Result<Guard>;
    /// Stores the facts. Returns false, and changes nothing, if the digest was already known in this namespace; whether another has it
    /// makes no difference. `Quota` if it would exceed a limit of the caller.
    async fn insert_matrix(&self, matrix: &Matrix) -> Result<bool>;
    /// `Quota` if the caller's limits leave no room now for so many bytes, of so many matrices. What stores them asks again, in the
    /// same transaction.
    async fn may_store(&self, bytes: u64, matrices: u64) -> Result<()>;
    async fn matrix(&self, digest: &Digest) -> Result<Option<Matrix>>;
    /// Newest first.
    async fn matrices(&self, of: &MatrixQuery, page: &PageRequest) -> Result<Page<Matrix>>;
    /// All, or those of the newest whose name contains the text ([`MatrixQuery::Named`]), in the order that is asked for.
    async fn sorted_matrices(
        &self,
        named: Option<&str>,
        order: MatrixOrder,
        page: &PageRequest,
    ) -> Result<Page<Matrix>>;
    /// The names of matrices, including deleted ones if a plan has kept the name.
    async fn matrix_names(&self, digests: &[Digest]) -> Result<HashMap<Digest, String>>;
    /// False if the matrix did not exist. `InUse` while a queued or running job needs it, or it is pinned. Plans outlive their
    /// matrix. Other namespaces that have it keep it.
    async fn delete_matrix(&self, digest: &Digest) -> Result<bool>;
    /// Whether any namespace has the matrix: its file is for all of them.
    async fn is_held(&self, digest: &Digest) -> Result<bool>;
}

#[async_trait]
pub trait Trials: Send + Sync {
    /// Writes all trials in one transaction, with an event for each tried one. A trial that is already stored is kept.
    async fn record_trials(&self, fence: &Fence, trials: &[Trial]) -> Result<()>;
    async fn trials(&self, id: &JobId, of: &TrialQuery, page: &PageRequest) -> Result<Page<Trial>>;
    /// The number of trials per family and outcome, in no particular order.
    async fn trial_counts(&self, id: &JobId) -> Result<Vec<TrialCount>>;
}

#[async_trait]
pub trait Plans: Send + Sync {
    /// Also one that another namespace shares, without the job that made it.
    async fn plan(&self, id: &PlanId) -> Result<Option<Plan>>;
    /// Whether the plan is of this namespace, and not one that another shares.
    async fn has_plan(&self, id: &PlanId) -> Result<bool>;
    /// Newest first.
    async fn plans(&self, of: &PlanQuery, page: &PageRequest) -> Result<Page<Plan>>;
    /// Stores a predicted plan that was not created by a job; if the id is known, the stored plan is kept. Returns false if
    /// the pattern already has `most` predicted plans and this is not one of them.
    async fn insert_predicted(&self, plan: &Plan, most: u32) -> Result<bool>;
    /// The newest measured plan of a key whose pattern is that of the given matrix, as far as this store knows the matrix, or else
    /// is the given digest. The key's own pattern digest is not used. One read, for what lookups do most; where it finds nothing, the
    /// newest that another namespace shares (`Token.share_plans`), without the job that made it.
    async fn plan_for(&self, asked: &Digest, key: &PlanKey) -> Result<Option<Plan>>;
    /// The accuracy of each model on each device class, from the newest plans that report it; the model with the newest plan
    /// first.
    async fn model_quality(&self) -> Result<Vec<ModelQuality>>;
    /// The plans of each of these matrices that has any.
    async fn plan_tallies(&self, matrices: &[Digest]) -> Result<HashMap<Digest, PlanTally>>;
    /// The number of all measured plans, and figures of the newest, at most this many.
    async fn plan_figures(&self, most: u32) -> Result<(u64, Vec<PlanFigures>)>;
    /// The keys under which this pattern has plans, used to explain why a lookup found none.
    async fn plan_keys(&self, pattern: &Digest) -> Result<Vec<PlanKey>>;
    /// The newest plan of each pattern for this problem, class and policy, with the matrix's facts: candidates for
    /// neighbours.
    async fn plans_for(
        &self,
        problem: &Problem,
        class: &DeviceClass,
        l2_policy: L2Policy,
        limit: u32,
    ) -> Result<Vec<(Matrix, PlanId)>>;
}

/// A device with the worker that serves it.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenDevice {
    pub owner: String,
    pub device: Device,
    /// What the worker said last; of workers of earlier versions nothing is known.
    pub serving: Serving,
    /// When it was last heard of, by the store's clock,
    pub seen_at: Timestamp,
    /// and how many milliseconds ago that was, by the same.
    pub age_ms: i64,
}

#[async_trait]
pub trait Devices: Send + Sync {
    /// Stores the description of a worker's device, and what the worker says of it; `owner` names the worker.
    async fn put_device(&self, owner: &str, device: &Device, serving: &Serving) -> Result<()>;
    /// Removes the devices of a worker that will not return.
    async fn forget_devices(&self, owner: &str) -> Result<()>;
    /// The devices, by owner and id.
    async fn devices(&self) -> Result<Vec<SeenDevice>>;
    /// Gives the process its name, or keeps it for another while; `Some` if another process has it, which was seen within the last
    /// `silent_ms` milliseconds by the store's clock, and does not exclude this one by its place.
    async fn keep_name(&self, process: &Process, silent_ms: i64) -> Result<Option<NameHolder>>;
    /// Gives the name back, if the process has it.
    async fn leave_name(&self, process: &Process) -> Result<()>;
    /// Notes that a job of this namespace saw it on the pattern. Its scope is what all that have seen it say together.
    async fn quarantine(&self, entry: &Quarantined, pattern: &Digest) -> Result<()>;
    /// The entries of a class that count for this namespace's searches on the pattern.
    async fn barred(&self, class: &DeviceClass, pattern: &Digest) -> Result<Vec<Quarantined>>;
    /// Removes the entry with this id, so that its candidate is tried again; `None` if there is none.
    async fn lift_quarantine(&self, id: &QuarantineId) -> Result<Option<Quarantined>>;
    /// The number of entries of each class that has any.
    async fn quarantine_counts(&self) -> Result<HashMap<DeviceClass, u64>>;
    /// Entries of one class or of all classes, newest first.
    async fn quarantined(
        &self,
        class: Option<&DeviceClass>,
        page: &PageRequest,
    ) -> Result<Page<Quarantined>>;
}

/// Compiler figures of kernels, by kernel identity (`ops::TunableProblem::kernel_identity`).
#[async_trait]
pub trait Figures: Send + Sync {
    /// Stores the figures of kernels that have none yet. Beyond a bound set by the store, the least recently recorded
    /// kernels are removed.
    async fn record_kernel_figures(
        &self,
        class: &DeviceClass,
        figures: &[(Digest, KernelFigures)],
    ) -> Result<()>;
    /// All figures recorded before the given time.
    async fn kernel_figures(
        &self,
        class: &DeviceClass,
        before: Timestamp,
    ) -> Result<HashMap<Digest, KernelFigures>>;
}

/// The store in a file of SQLite.
pub type SqliteStore = SqlStore;

/// What upkeep removes: in each category, everything older than the given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub idempotency_keys: Timestamp,
    /// Events of jobs that ended before this time, except the last event of each job, and what webhooks were told before it.
    pub events: Timestamp,
    /// Devices that were last seen before this time.
    pub devices: Timestamp,
    /// Predicted plans that no job created or names. Those whose key has a measured plan are removed regardless of age.
    pub predicted: Timestamp,
    /// Bundles that were built here, and can be built again.
    pub bundles: Timestamp,
    /// What webhooks were to be told before this time, and have not been, is given up.
    pub deliveries: Timestamp,
}

/// How many items upkeep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub idempotency_keys: u64,
    pub events: u64,
    pub devices: u64,
    pub predicted: u64,
    pub bundles: u64,
}

#[async_trait]
pub trait Upkeep: Send + Sync {
    /// Also ends running work that was asked to stop and whose worker is gone, and removes all but the newest 20 models of
    /// each scope that were never active (models that were active are kept permanently) and all but the newest 100 ended
    /// trainings of each scope.
    async fn prune(&self, retention: &Retention) -> Result<Pruned>;
    /// Whether this process is to do a round of upkeep by these rules: no process has begun one within this time, by the store's clock.
    /// Whoever is told so has the round, and if it dies the next one is done all the same.
    async fn take_round(&self, rules: &str, within: Duration) -> Result<bool>;
    /// Held by the one process of all that sweeps the blobs: `None` if another does.
    async fn sweeping(&self) -> Result<Option<Guard>>;
    /// The blobs that matrices, plans and bundles refer to.
    async fn named_blobs(&self) -> Result<HashSet<Digest>>;
    /// Grows whenever any process stores a plan or a device's facts, adds or deletes a matrix, or changes the active model.
    /// Reading it notifies the listeners, so that they learn of other processes' writes.
    async fn revision(&self) -> Result<u64>;
    /// Fails if nothing can be written, which SQLite tells only at a write. Changes nothing.
    async fn check_writable(&self) -> Result<()>;
    /// Returns when what was committed survives a loss of power, whatever the store does so with each commit. To be asked before a file
    /// is removed that the store named until then: otherwise the name might come back, and its file not.
    async fn settle(&self) -> Result<()>;
    /// The store's own id, which never changes.
    async fn id(&self) -> Result<String>;
    /// Ends the connections, and writes to the files what is still beside them; nothing may be asked of the store
    /// afterwards. A store that is only dropped loses nothing, but has its files open for a while.
    async fn close(&self);
}

impl dyn Store + '_ {
    /// The facts known under a digest or a pattern digest ([`MatrixQuery::Known`]).
    pub async fn known_matrix(&self, digest: &Digest) -> Result<Option<Matrix>> {
        Ok(self.matrices(&MatrixQuery::Known(*digest), &PageRequest::first(1)).await?.items.pop())
    }
}

/// Everything that a store can do.
pub trait Store:
    Matrices
    + Jobs
    + Trials
    + Plans
    + Bundles
    + Devices
    + Figures
    + Learning
    + Tokens
    + Webhooks
    + Audit
    + Upkeep
    + Retaining
    + Transfer
    + Drift
    + Stored
{
    /// Sends the changes of all later writes of this store to the listener, until the listener is dropped.
    fn listen(&self, listener: &Arc<dyn Listener>);
    /// The same store on behalf of a caller: what is submitted and stored through it is the caller's, within the caller's limits, and
    /// matrices, jobs with their events and trials, plans with their bundles, pins and webhooks of other namespaces are not there for
    /// it. A store that was just opened is in the namespace `default`. Devices, the quarantine, kernel figures, models and what they
    /// learn from are of the whole service, and so is what upkeep, retention and workers ask for, which says so.
    fn on_behalf_of(&self, caller: &Caller) -> Arc<dyn Store>;
}
