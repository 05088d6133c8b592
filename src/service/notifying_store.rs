//! The store as everybody above it sees it: each write also wakes who waits for it, and is counted.

mod learning;

use super::signals::Signals;
use crate::domain::plan::PlanKey;
use crate::domain::{
    Device, DeviceClass, DeviceId, Digest, Event, EventKind, Job, JobId, JobState, KernelFigures,
    L2Policy, Matrix, ModelQuality, Plan, PlanId, Problem, Timestamp, Trial, TrialCount,
    TrialFilter,
};
use crate::store::{
    Claim, Devices, Fence, Figures, Finish, JobFilter, Jobs, Matrices, NewJob, Page, PageRequest,
    Plans, Pruned, Quarantined, Renewal, Result, Retention, Store, Story, Submission, Trials,
    Upkeep,
};
use async_trait::async_trait;
use metrics::{counter, histogram};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

pub(super) struct NotifyingStore {
    pub(super) store: Arc<dyn Store>,
    pub(super) signals: Arc<Signals>,
    /// How often a job is taken up before it is given up.
    pub(super) max_attempts: u32,
}

impl NotifyingStore {
    /// After a write that may change answers. The write stands whether or not this succeeds.
    async fn look_at_revision(&self) {
        match self.store.revision().await {
            Ok(revision) => self.signals.saw_revision(revision),
            Err(error) => tracing::warn!(%error, "the store's revision could not be read"),
        }
    }

    fn job_ended(job: &Job) {
        counter!("sparsetune_jobs_ended_total", "state" => job.state.name()).increment(1);
        if let (Some(started), Some(finished)) = (job.started_at, job.finished_at) {
            let seconds = (finished.0 - started.0) as f64 / 1e3;
            histogram!("sparsetune_job_seconds", "state" => job.state.name()).record(seconds);
        }
    }
}

#[async_trait]
impl Matrices for NotifyingStore {
    async fn insert_matrix(&self, matrix: &Matrix) -> Result<bool> {
        let new = self.store.insert_matrix(matrix).await?;
        if new {
            // Lookups answer from the facts of matrices: a neighbour is sought by them.
            self.signals.changed_here();
        }
        Ok(new)
    }

    async fn matrix(&self, digest: &Digest) -> Result<Option<Matrix>> {
        self.store.matrix(digest).await
    }

    async fn matrices(&self, page: &PageRequest) -> Result<Page<Matrix>> {
        self.store.matrices(page).await
    }

    async fn matrix_names(&self, digests: &[Digest]) -> Result<HashMap<Digest, String>> {
        self.store.matrix_names(digests).await
    }

    async fn matrices_between(
        &self,
        first: &Digest,
        last: &Digest,
        limit: u32,
    ) -> Result<Vec<Digest>> {
        self.store.matrices_between(first, last, limit).await
    }

    async fn matrices_named(&self, part: &str, limit: u32) -> Result<Vec<Matrix>> {
        self.store.matrices_named(part, limit).await
    }

    async fn delete_matrix(&self, digest: &Digest) -> Result<bool> {
        let gone = self.store.delete_matrix(digest).await?;
        if gone {
            self.signals.changed_here();
        }
        Ok(gone)
    }
}

#[async_trait]
impl Jobs for NotifyingStore {
    async fn submit(&self, new: &NewJob) -> Result<Submission> {
        let submission = self.store.submit(new).await?;
        if let Submission::Created(_) = submission {
            self.signals.work_queued();
            counter!("sparsetune_jobs_submitted_total").increment(1);
        }
        Ok(submission)
    }

    async fn keyed(&self, key: &str, request: &Digest) -> Result<Option<Submission>> {
        self.store.keyed(key, request).await
    }

    async fn job(&self, id: &JobId) -> Result<Option<Job>> {
        self.store.job(id).await
    }

    async fn jobs(&self, filter: &JobFilter, page: &PageRequest) -> Result<Page<Job>> {
        self.store.jobs(filter, page).await
    }

    async fn request_cancel(&self, id: &JobId) -> Result<Option<Job>> {
        let asked = Timestamp::now();
        let job = self.store.request_cancel(id).await?;
        self.signals.job_changed(id);
        if let Some(job) = &job
            && job.finished_at.is_some_and(|at| at >= asked)
        {
            Self::job_ended(job);
        }
        Ok(job)
    }

    async fn claim(&self, device: &DeviceId, owner: &str, lease_ms: i64) -> Result<Option<Claim>> {
        self.give_up(device, self.max_attempts).await?;
        let claim = self.store.claim(device, owner, lease_ms).await?;
        if let Some(claim) = &claim {
            self.signals.job_changed(&claim.job.id);
        }
        Ok(claim)
    }

    async fn give_up(&self, device: &DeviceId, most: u32) -> Result<Vec<Job>> {
        let ended = self.store.give_up(device, most).await?;
        for job in &ended {
            tracing::warn!(job = %job.id, attempts = job.attempts, "job given up: it lost all its workers");
            self.signals.job_changed(&job.id);
            Self::job_ended(job);
        }
        Ok(ended)
    }

    async fn renew(&self, fence: &Fence, lease_ms: i64) -> Result<Renewal> {
        self.store.renew(fence, lease_ms).await
    }

    async fn update(&self, fence: &Fence, job: &Job) -> Result<()> {
        self.store.update(fence, job).await?;
        self.signals.job_changed(&fence.job);
        Ok(())
    }

    async fn finish(&self, fence: &Fence, finish: &Finish) -> Result<()> {
        self.store.finish(fence, finish).await?;
        if finish.plan.is_some() {
            self.look_at_revision().await;
        }
        self.signals.job_changed(&fence.job);
        Self::job_ended(&finish.job);
        Ok(())
    }

    async fn release(&self, fence: &Fence) -> Result<()> {
        self.store.release(fence).await?;
        self.signals.job_changed(&fence.job);
        self.signals.work_queued();
        Ok(())
    }

    async fn events(&self, id: &JobId, after: u64, limit: u32) -> Result<Vec<Event>> {
        self.store.events(id, after, limit).await
    }

    async fn story(&self, id: &JobId) -> Result<Story> {
        self.store.story(id).await
    }

    async fn log(&self, fence: &Fence, kind: &EventKind) -> Result<()> {
        self.store.log(fence, kind).await?;
        self.signals.job_changed(&fence.job);
        Ok(())
    }

    async fn job_counts(&self) -> Result<Vec<(JobState, u64)>> {
        self.store.job_counts().await
    }
}

#[async_trait]
impl Trials for NotifyingStore {
    async fn record_trials(&self, fence: &Fence, trials: &[Trial]) -> Result<()> {
        self.store.record_trials(fence, trials).await?;
        self.signals.job_changed(&fence.job);
        for trial in trials {
            counter!("sparsetune_trials_total", "state" => trial.state.name().to_owned())
                .increment(1);
        }
        Ok(())
    }

    async fn trials(&self, id: &JobId) -> Result<Vec<Trial>> {
        self.store.trials(id).await
    }

    async fn trial_counts(&self, id: &JobId) -> Result<Vec<TrialCount>> {
        self.store.trial_counts(id).await
    }

    async fn tried(&self, id: &JobId, limit: u32) -> Result<Vec<Trial>> {
        self.store.tried(id, limit).await
    }

    async fn pruned_of(&self, id: &JobId, family: &str, most: u32) -> Result<Vec<Trial>> {
        self.store.pruned_of(id, family, most).await
    }

    async fn trials_page(
        &self,
        id: &JobId,
        filter: Option<TrialFilter>,
        page: &PageRequest,
    ) -> Result<Page<Trial>> {
        self.store.trials_page(id, filter, page).await
    }
}

#[async_trait]
impl Plans for NotifyingStore {
    async fn plan(&self, id: &PlanId) -> Result<Option<Plan>> {
        self.store.plan(id).await
    }

    async fn plan_by_key(&self, key: &PlanKey) -> Result<Option<Plan>> {
        self.store.plan_by_key(key).await
    }

    async fn predicted_plans(&self, key: &PlanKey, limit: u32) -> Result<Vec<Plan>> {
        self.store.predicted_plans(key, limit).await
    }

    async fn unmeasured(&self, pattern: &Digest, limit: u32) -> Result<Vec<Plan>> {
        self.store.unmeasured(pattern, limit).await
    }

    async fn insert_predicted(&self, plan: &Plan, most: u32) -> Result<bool> {
        self.store.insert_predicted(plan, most).await
    }

    async fn plans_of(&self, pattern: &Digest, page: &PageRequest) -> Result<Page<Plan>> {
        self.store.plans_of(pattern, page).await
    }

    async fn model_quality(&self) -> Result<Vec<ModelQuality>> {
        self.store.model_quality().await
    }

    async fn plan_keys(&self, pattern: &Digest) -> Result<Vec<PlanKey>> {
        self.store.plan_keys(pattern).await
    }

    async fn plans_for(
        &self,
        problem: &Problem,
        class: &DeviceClass,
        l2_policy: L2Policy,
        limit: u32,
    ) -> Result<Vec<(Matrix, PlanId)>> {
        self.store.plans_for(problem, class, l2_policy, limit).await
    }

    async fn facts(&self, digest: &Digest) -> Result<Option<Matrix>> {
        self.store.facts(digest).await
    }
}

#[async_trait]
impl Devices for NotifyingStore {
    async fn put_device(&self, owner: &str, device: &Device) -> Result<()> {
        self.store.put_device(owner, device).await?;
        self.look_at_revision().await;
        Ok(())
    }

    async fn devices(&self) -> Result<Vec<(String, Device, Timestamp)>> {
        self.store.devices().await
    }

    async fn quarantine(&self, entry: &Quarantined) -> Result<()> {
        self.store.quarantine(entry).await?;
        counter!("sparsetune_quarantined_total").increment(1);
        Ok(())
    }

    async fn quarantined(&self, class: &DeviceClass) -> Result<Vec<Quarantined>> {
        self.store.quarantined(class).await
    }

    async fn quarantine_page(
        &self,
        class: Option<&DeviceClass>,
        page: &PageRequest,
    ) -> Result<Page<Quarantined>> {
        self.store.quarantine_page(class, page).await
    }

    async fn quarantine_counts(&self) -> Result<HashMap<DeviceClass, u64>> {
        self.store.quarantine_counts().await
    }
}

#[async_trait]
impl Figures for NotifyingStore {
    async fn record_kernel_figures(
        &self,
        class: &DeviceClass,
        figures: &[(Digest, KernelFigures)],
    ) -> Result<()> {
        self.store.record_kernel_figures(class, figures).await
    }

    async fn kernel_figures(
        &self,
        class: &DeviceClass,
        before: Timestamp,
    ) -> Result<HashMap<Digest, KernelFigures>> {
        self.store.kernel_figures(class, before).await
    }
}

#[async_trait]
impl Upkeep for NotifyingStore {
    async fn prune(&self, retention: &Retention) -> Result<Pruned> {
        let pruned = self.store.prune(retention).await?;
        self.look_at_revision().await;
        Ok(pruned)
    }

    async fn named_blobs(&self) -> Result<HashSet<Digest>> {
        self.store.named_blobs().await
    }

    async fn revision(&self) -> Result<u64> {
        let revision = self.store.revision().await?;
        self.signals.saw_revision(revision);
        Ok(revision)
    }
}
