//! Retention: what goes by the rules, shown before it does; and pins, against which nothing goes.

use super::{Result, Service, ServiceError};
use crate::domain::retention::{Excess, Item, Rules, excess};
use crate::domain::{Caller, Digest, JobId, Namespace, PlanId, Timestamp};
use crate::store::{KeptJob, KeptMatrix, KeptPlan, Pin, Pins, Weigh};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::UNIX_EPOCH;

/// What goes of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part<T> {
    /// In the order in which they go.
    pub items: Vec<T>,
    pub bytes: u64,
}

/// What goes by the rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Going {
    /// With programs, arrays and bundles that no other plan names. Their files go to the trash first.
    pub plans: Part<PlanId>,
    /// With trials and events; the bytes are of the database, which uses them again.
    pub jobs: Part<JobId>,
    /// Jobs whose trials go.
    pub trials: Part<JobId>,
    pub trial_rows: u64,
    pub matrices: Part<Held>,
}

/// A matrix as one namespace has it; its file goes with the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Held {
    pub namespace: Namespace,
    pub digest: Digest,
    /// When it had last been used or uploaded, as it was looked at.
    #[serde(skip)]
    pub(super) used_at: Timestamp,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.digest, self.namespace)
    }
}

impl Going {
    pub fn is_empty(&self) -> bool {
        let Self { plans, jobs, trials, matrices, trial_rows: _ } = self;
        plans.items.is_empty()
            && jobs.items.is_empty()
            && trials.items.is_empty()
            && matrices.items.is_empty()
    }
}

/// How many went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gone {
    pub plans: u64,
    pub jobs: u64,
    pub trials: u64,
    pub matrices: u64,
}

/// Most items of one transaction, so that others need not wait for long.
const BATCH: usize = 50;

impl Service {
    /// Keeps a matrix or a plan, and the job that made the plan, from retention; a pinned matrix cannot be deleted either. Returns whether
    /// that has changed.
    ///
    /// # Errors
    /// `NotFound` if there is no such thing.
    pub async fn pin(&self, what: &Pin, pinned: bool) -> Result<bool> {
        self.store.pin(what, pinned).await?.ok_or_else(|| match what {
            Pin::Matrix(digest) => ServiceError::not_found("matrix", digest),
            Pin::Plan(id) => ServiceError::not_found("plan", id),
        })
    }

    pub async fn pins(&self) -> Result<Pins> {
        Ok(self.store.pins().await?)
    }

    /// What goes by these rules now. Changes nothing.
    pub async fn going(&self, rules: &Rules) -> Result<Going> {
        self.weighed(rules, true).await
    }

    /// [`Self::going`]; without the bytes of jobs and trials, which only reading all of them tells, unless a rule needs them.
    async fn weighed(&self, rules: &Rules, all_bytes: bool) -> Result<Going> {
        let now = Timestamp::now();
        let store = &self.store;
        let mut going = Going {
            plans: Part { items: Vec::new(), bytes: 0 },
            jobs: Part { items: Vec::new(), bytes: 0 },
            trials: Part { items: Vec::new(), bytes: 0 },
            trial_rows: 0,
            matrices: Part { items: Vec::new(), bytes: 0 },
        };
        if !rules.plans.is_empty() {
            let plans = store.kept_plans().await?;
            let items = self.plan_items(&plans).await?;
            going.plans = part(&excess(&items, &rules.plans, now), |at| plans[at].id.clone());
        }
        if !(rules.jobs.is_empty() && rules.trials.is_empty()) {
            let bytes = all_bytes || rules.jobs.bytes.or(rules.trials.bytes).is_some();
            let weigh = match (bytes, rules.trials.is_empty()) {
                (true, _) => Weigh::Bytes,
                (false, false) => Weigh::Trials,
                (false, true) => Weigh::Jobs,
            };
            let jobs = store.kept_jobs(weigh).await?;
            let items: Vec<Item> = jobs.iter().map(|job| job_item(job, now)).collect();
            going.jobs = part(&excess(&items, &rules.jobs, now), |at| jobs[at].id.clone());
            let gone: HashSet<&JobId> = going.jobs.items.iter().collect();
            let left = jobs.iter().filter(|job| job.trials > 0 && !gone.contains(&job.id));
            let left: Vec<&KeptJob> = left.collect();
            let items: Vec<Item> = left.iter().map(|job| trials_item(job)).collect();
            let trials = excess(&items, &rules.trials, now);
            going.trial_rows = trials.items.iter().map(|at| left[*at].trials).sum();
            going.trials = part(&trials, |at| left[at].id.clone());
        }
        if !rules.matrices.is_empty() {
            let matrices = store.kept_matrices().await?;
            let items = self.matrix_items(&matrices).await?;
            going.matrices = part(&excess(&items, &rules.matrices, now), |at| {
                let KeptMatrix { namespace, digest, .. } = &matrices[at];
                let used_at = Timestamp(items[at].at);
                Held { namespace: namespace.clone(), digest: *digest, used_at }
            });
        }
        Ok(going)
    }

    /// Removes it. What was pinned, is needed, or was uploaded again since it was looked at stays.
    pub async fn remove_going(&self, going: &Going) -> Result<Gone> {
        let store = &self.store;
        let mut gone = Gone::default();
        for some in going.plans.items.chunks(BATCH) {
            gone.plans += store.delete_plans(some).await?;
        }
        for some in going.trials.items.chunks(BATCH) {
            gone.trials += store.delete_trials(some).await?;
        }
        for some in going.jobs.items.chunks(BATCH) {
            gone.jobs += store.delete_jobs(some).await?;
        }
        for held in &going.matrices.items {
            let there = self.on_behalf_of(&Caller::owner(None, held.namespace.clone()));
            match there.delete_unused(held).await {
                Ok(()) => gone.matrices += 1,
                Err(ServiceError::Conflict { .. } | ServiceError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(gone)
    }

    /// [`Self::delete_matrix`], unless it was uploaded again since it was looked at: who did was told that it is here.
    async fn delete_unused(&self, held: &Held) -> Result<()> {
        let Held { digest, used_at, .. } = held;
        let (_here, alone) = self.publishing().await?;
        let put_at = self.lengths(vec![*digest]).await?.get(digest).map(|(_, put_at)| *put_at);
        if put_at.is_some_and(|put_at| put_at > used_at.0) {
            let message = format!("matrix {digest} was uploaded again");
            return Err(ServiceError::Conflict { message });
        }
        self.delete_published(digest, &alone).await
    }

    /// One round by the rules of this service.
    pub(super) async fn retain(&self) -> Result<Gone> {
        let rules = &self.inner.settings.retention;
        if rules.is_empty() {
            return Ok(Gone::default());
        }
        let going = self.weighed(rules, false).await?;
        self.remove_going(&going).await
    }

    async fn plan_items(&self, plans: &[KeptPlan]) -> Result<Vec<Item>> {
        let names = |plan: &KeptPlan| -> Vec<Digest> {
            let bundles = plan.bundles.iter().map(|bundle| bundle.blob);
            plan.files.iter().copied().chain(bundles).collect()
        };
        let all: HashSet<Digest> = plans.iter().flat_map(names).collect();
        let lengths = self.lengths(all.into_iter().collect()).await?;
        let of = |file: Digest| (file, lengths.get(&file).map_or(0, |(bytes, _)| *bytes));
        let item = |plan: &KeptPlan| Item {
            of: plan.namespace.clone(),
            at: plan.created_at.0,
            count: 1,
            bytes: plan.bytes,
            files: names(plan).into_iter().map(of).collect(),
            superseded: plan.superseded,
            stays: plan.pinned,
        };
        Ok(plans.iter().map(item).collect())
    }

    async fn matrix_items(&self, matrices: &[KeptMatrix]) -> Result<Vec<Item>> {
        let digests = matrices.iter().map(|matrix| matrix.digest).collect();
        let lengths = self.lengths(digests).await?;
        let item = |matrix: &KeptMatrix| {
            // Who uploads it again uses it.
            let (bytes, put_at) = lengths.get(&matrix.digest).copied().unwrap_or_default();
            Item {
                of: matrix.namespace.clone(),
                at: matrix.used_at.0.max(put_at),
                count: 1,
                files: vec![(matrix.digest, bytes)],
                stays: matrix.pinned || matrix.needed,
                ..Item::default()
            }
        };
        Ok(matrices.iter().map(item).collect())
    }

    /// Bytes of the blobs that are there, and when each was last put, in milliseconds.
    async fn lengths(&self, digests: Vec<Digest>) -> Result<HashMap<Digest, (u64, i64)>> {
        let facts = self.inner.blobs.facts(digests.clone()).await?;
        let known = digests.into_iter().zip(facts).filter_map(|(digest, facts)| {
            let facts = facts?;
            let put = facts.put_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
            Some((digest, (facts.bytes, i64::try_from(put).unwrap_or(i64::MAX))))
        });
        Ok(known.collect())
    }
}

fn part<T>(excess: &Excess, name: impl Fn(usize) -> T) -> Part<T> {
    Part { items: excess.items.iter().map(|at| name(*at)).collect(), bytes: excess.bytes }
}

/// What a token has searched in a day, and in an hour, is counted from its jobs.
const COUNTED_MS: i64 = 86_400_000;

fn job_item(job: &KeptJob, now: Timestamp) -> Item {
    let counts = job.of_token && job.finished_at > now.plus_millis(-COUNTED_MS);
    Item {
        of: job.namespace.clone(),
        at: job.finished_at.0,
        count: 1,
        bytes: job.trial_bytes + job.event_bytes,
        stays: job.pinned || counts,
        ..Item::default()
    }
}

fn trials_item(job: &KeptJob) -> Item {
    let (at, bytes) = (job.finished_at.0, job.trial_bytes);
    let of = job.namespace.clone();
    Item { of, at, count: job.trials, bytes, stays: job.pinned, ..Item::default() }
}
