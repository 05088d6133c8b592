//! What retention weighs and removes, and what is pinned against it.

use super::Result;
use crate::domain::{Digest, JobId, Namespace, PlanId, Timestamp};
use async_trait::async_trait;

/// What may be pinned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pin {
    Matrix(Digest),
    Plan(PlanId),
}

/// What is pinned, the newest pin first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    pub matrices: Vec<Digest>,
    pub plans: Vec<PlanId>,
}

/// A matrix as one namespace has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptMatrix {
    pub namespace: Namespace,
    pub digest: Digest,
    /// When it was stored, or its newest job was submitted.
    pub used_at: Timestamp,
    pub pinned: bool,
    /// Whether a queued or running job needs it.
    pub needed: bool,
}

/// A job that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptJob {
    pub namespace: Namespace,
    pub id: JobId,
    pub finished_at: Timestamp,
    /// Whether its plan is pinned.
    pub pinned: bool,
    /// Whether a token submitted it.
    pub of_token: bool,
    /// 0 unless asked for.
    pub trials: u64,
    /// Of its trials and its events; 0 unless asked for.
    pub trial_bytes: u64,
    pub event_bytes: u64,
}

/// What is asked of jobs, each with what is before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Weigh {
    Jobs,
    /// The number of their trials, which reads an index of all of them.
    Trials,
    /// Bytes of trials and events, which reads all of them.
    Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPlan {
    pub namespace: Namespace,
    pub id: PlanId,
    pub matrix: Digest,
    /// The job that made it, if one did.
    pub job: Option<JobId>,
    pub created_at: Timestamp,
    pub pinned: bool,
    /// Whether a newer measured plan is the answer of its key.
    pub superseded: bool,
    /// Bytes of the plan itself.
    pub bytes: u64,
    /// Program and arrays; empty for a plan without a program.
    pub files: Vec<Digest>,
    pub bundles: Vec<KeptBundle>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptBundle {
    pub blob: Digest,
    pub imported: bool,
}

/// Pins are those of the caller's namespace; the rest is for the whole service. Nothing here removes what is pinned, whenever the pin
/// was set.
#[async_trait]
pub trait Retaining: Send + Sync {
    /// Pins something, or lifts its pin, and returns whether that has changed; `None` if it does not exist.
    async fn pin(&self, what: &Pin, pinned: bool) -> Result<Option<bool>>;
    async fn pins(&self) -> Result<Pins>;
    /// Every matrix of every namespace, in no particular order.
    async fn kept_matrices(&self) -> Result<Vec<KeptMatrix>>;
    /// Every job of any namespace that ended, in no particular order; trainings are not among them.
    async fn kept_jobs(&self, weigh: Weigh) -> Result<Vec<KeptJob>>;
    /// Every plan of every namespace, in no particular order.
    async fn kept_plans(&self) -> Result<Vec<KeptPlan>>;
    /// Deletes jobs that ended, with trials, events and features, in one transaction; returns their number. Their plans are kept.
    async fn delete_jobs(&self, ids: &[JobId]) -> Result<u64>;
    /// Deletes the trials of jobs that ended, with their events and features, in one transaction; returns the number of trials. The
    /// jobs and the rest of their story are kept.
    async fn delete_trials(&self, of: &[JobId]) -> Result<u64>;
    /// Deletes plans with their bundles, in one transaction; returns their number. Their jobs are kept, without a plan.
    async fn delete_plans(&self, ids: &[PlanId]) -> Result<u64>;
    /// Forgets bundles whose file this is and that can be built again; returns their number.
    async fn forget_bundles(&self, blob: &Digest) -> Result<u64>;
}
