//! What goes to and comes from other stores.

use super::{Page, PageRequest, Result};
use crate::domain::JobId;
use crate::domain::transfer::{Selection, SentJob, SentPlan, SentTrial};
use async_trait::async_trait;

/// Where a plan that comes in stands among the measured plans of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// By when it was measured: nothing else has its key, or it was only predicted.
    ByAge,
    /// It answers, before what is there now.
    First,
    /// It answers no lookup as long as one that is there now is kept.
    Last,
}

/// What became of a job that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobTaken {
    New,
    /// It came in before; trials of it that are missing may be added.
    Known,
    /// It was made by this store itself, or came to another namespace, and is left alone.
    Own,
}

/// All of the caller's namespace.
#[async_trait]
pub trait Transfer: Send + Sync {
    /// Measured plans with the facts of their matrix, the oldest first.
    async fn sent_plans(&self, of: &Selection, page: &PageRequest) -> Result<Page<SentPlan>>;
    /// Searches that succeeded, tried something, and whose device class is known, the oldest first.
    async fn sent_jobs(&self, of: &Selection, page: &PageRequest) -> Result<Page<SentJob>>;
    /// The tried candidates of a job after this ordinal (-1 for all), by ordinal.
    async fn sent_trials(&self, job: &JobId, after: i64, limit: u32) -> Result<Vec<SentTrial>>;
    /// Stores a plan with the facts of its matrix, which counts for as many bytes in a quota. False, and nothing changes, if its id is
    /// known, in whatever namespace. `Quota` if it would exceed a limit of the caller.
    async fn take_plan(&self, sent: &SentPlan, place: Place, charged: u64) -> Result<bool>;
    /// Stores an ended job. Its plan is named if it is there.
    async fn take_job(&self, sent: &SentJob, store: &str) -> Result<JobTaken>;
    /// Stores trials of a job that came in; returns how many are new.
    async fn take_trials(&self, job: &JobId, trials: &[SentTrial]) -> Result<u64>;
    /// What [`Self::take_job`] would answer.
    async fn would_take_job(&self, job: &JobId) -> Result<JobTaken>;
    /// How many of these trials of a job are there.
    async fn trials_there(&self, job: &JobId, trials: &[SentTrial]) -> Result<u64>;
}
