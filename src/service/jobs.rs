//! Jobs of both kinds: submission, lists, cancellation, trials.

use super::devices::Target;
use super::{Result, Service, ServiceError, request};
use crate::domain::job::Progress;
use crate::domain::{
    DeviceKind, Digest, Job, JobId, JobRequest, JobState, Matrix, Problem, Stage, Timestamp,
    TokenLimits, Trial, TrialCount, TrialFilter, Work,
};
use crate::ops::admission;
use crate::store::{
    JobFilter, JobOrder, NewWork, Page, PageRequest, StoreError, Story, Submission, TrialQuery,
};
use std::sync::PoisonError;

#[derive(Clone, Debug, PartialEq)]
pub struct Submitted {
    pub job: Job,
    /// False if an equal job was already queued or running, or the idempotency key refers to an earlier one.
    pub created: bool,
}

impl Service {
    /// Queues a job. An equal request while one is queued or running gets the same job. A repeated idempotency key returns
    /// the earlier job, even if its matrix or device is gone: a retry must not fail for that.
    pub async fn submit(
        &self,
        asked: &JobRequest,
        idempotency_key: Option<String>,
    ) -> Result<Submitted> {
        self.submit_at(asked, idempotency_key, 0).await
    }

    /// [`Self::submit`] with a priority, within the bounds of the caller's token; a higher one comes first.
    pub async fn submit_at(
        &self,
        asked: &JobRequest,
        idempotency_key: Option<String>,
        priority: i32,
    ) -> Result<Submitted> {
        let limits = &self.caller.limits;
        let highest = limits.highest_priority().max(0);
        if priority > highest || !TokenLimits::PRIORITIES.contains(&priority) {
            let lowest = TokenLimits::PRIORITIES.start();
            let message = format!("must be {lowest} to {highest}, as the token permits");
            return Err(ServiceError::invalid("/priority", message));
        }
        self.queue(asked, idempotency_key, priority, false).await
    }

    /// The second part of a job that was admitted with the budget of both: whatever has become of its token since, it is queued with the
    /// priority of the first.
    pub(super) async fn submit_second(
        &self,
        asked: &JobRequest,
        key: String,
        priority: i32,
    ) -> Result<Submitted> {
        self.queue(asked, Some(key), priority, true).await
    }

    async fn queue(
        &self,
        asked: &JobRequest,
        idempotency_key: Option<String>,
        priority: i32,
        continues: bool,
    ) -> Result<Submitted> {
        let unlimited = TokenLimits::default();
        let limits = if continues { &unlimited } else { &self.caller.limits };
        let idempotency = match idempotency_key {
            // The digest of the client's request, before today's defaults are filled in.
            Some(key) => Some((key, digest_of(asked)?)),
            None => None,
        };
        if let Some((key, request)) = &idempotency
            && let Some(known) = self.store.keyed(key, request).await?
        {
            return submitted(known, asked);
        }
        let settings = &self.inner.settings;
        let target = self.resolve_device(&asked.device).await;
        let kind = target.as_ref().map_or(DeviceKind::Cpu, |target| target.device.kind);
        let matrix = self.store.matrix(&asked.matrix).await?;
        let nnz = matrix.as_ref().map_or(0, |matrix| matrix.nnz);
        let mut filled = request::fill(asked, settings, limits, kind, nnz)?;
        let matrix = matrix.ok_or_else(|| unknown_matrix(&asked.matrix))?;
        let target = target?;
        let device = &target.device;
        // Both triangles are two problems, and neither job is queued if the other cannot be.
        let parts = asked.problem.parts().map_or_else(|| vec![asked.problem], Vec::from);
        for problem in &parts {
            request::check(&matrix, problem, device, settings.max_host_bytes)?;
        }
        let families = &asked.search.families;
        filled.search.families = request::families(families, &asked.problem, device)?;
        filled.search.fixed = request::fixed(&asked.search.fixed, &asked.problem, device)?;
        for problem in &parts {
            self.check_values(&matrix, problem).await?;
        }
        let filled = request::first_part(filled)?;
        let new = NewWork {
            dedup_key: request::dedup_key(&filled, &target.queue(), settings.l2_policy),
            work: queued(filled, &target).into(),
            idempotency,
            // The bound may be below what nobody has asked for.
            priority: if continues { priority } else { priority.min(limits.highest_priority()) },
            continues,
        };
        match self.store.submit(&new).await {
            Ok(submission) => submitted(submission, asked),
            // The matrix was deleted after it was looked up.
            Err(StoreError::Missing(_)) => Err(unknown_matrix(&asked.matrix)),
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses a matrix whose values do not suit the problem, such as a solve with an incomplete diagonal. The matrix itself
    /// is read only if its facts do not decide this.
    async fn check_values(&self, matrix: &Matrix, problem: &Problem) -> Result<()> {
        if !admission::values_matter(matrix, problem) {
            return Ok(());
        }
        // One at a time, like drawings, because it holds the matrix in memory.
        let permit = self.inner.drawing.clone().acquire_owned().await?;
        let file = self.entries(&matrix.digest).await?;
        let (problem, memory) = (*problem, self.inner.settings.limits.memory.clone());
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            request::check_values(&file, &problem, &memory)
        })
        .await?
    }

    /// A job or a training.
    pub async fn work(&self, id: &JobId) -> Result<Work> {
        let work = self.store.work(id).await?;
        work.ok_or_else(|| ServiceError::not_found("job", id))
    }

    /// Jobs and trainings, newest first.
    pub async fn works(&self, filter: &JobFilter, page: &PageRequest) -> Result<Page<Work>> {
        Ok(self.store.works(filter, page).await?)
    }

    /// The same in another order.
    pub async fn sorted_works(
        &self,
        filter: &JobFilter,
        order: JobOrder,
        page: &PageRequest,
    ) -> Result<Page<Work>> {
        Ok(self.store.sorted_works(filter, order, page).await?)
    }

    /// `NotFound` also for the id of a training.
    pub async fn job(&self, id: &JobId) -> Result<Job> {
        let job = self.work(id).await?.into_job();
        job.ok_or_else(|| ServiceError::not_found("job", id))
    }

    pub async fn jobs(&self, filter: &JobFilter, page: &PageRequest) -> Result<Page<Job>> {
        Ok(self.store.jobs(filter, page).await?)
    }

    /// The job's log lines and funnel so far, and the number after which its event stream continues.
    pub async fn story(&self, id: &JobId) -> Result<Story> {
        self.work(id).await?;
        Ok(self.store.story(id).await?)
    }

    /// Cancels the work and returns its new state: queued work is cancelled, running work will be, and ended work stays as
    /// it is.
    pub async fn cancel(&self, id: &JobId) -> Result<Work> {
        let work = self.store.request_cancel(id).await?;
        work.ok_or_else(|| ServiceError::not_found("job", id))
    }

    /// Has a job that a worker of this process runs try no further candidate: the finals decide among those that it has, and it ends
    /// with their plan. A job without a measurement goes on until it has one.
    pub fn conclude(&self, id: &JobId) {
        let mut concluding = self.inner.concluding.lock().unwrap_or_else(PoisonError::into_inner);
        concluding.insert(id.clone());
    }

    /// Whether it was asked to by [`Self::conclude`].
    pub(super) fn concludes(&self, id: &JobId) -> bool {
        self.inner.concluding.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    pub async fn trials(
        &self,
        id: &JobId,
        filter: Option<TrialFilter>,
        page: &PageRequest,
    ) -> Result<Page<Trial>> {
        self.job(id).await?;
        let of = filter.map_or(TrialQuery::All, TrialQuery::Of);
        Ok(self.store.trials(id, &of, page).await?)
    }

    /// The number of trials of the job per family and outcome; empty for an unknown job.
    pub async fn trial_counts(&self, id: &JobId) -> Result<Vec<TrialCount>> {
        Ok(self.store.trial_counts(id).await?)
    }

    /// The first tried trials of the job, by ordinal, without their raw samples.
    pub async fn tried(&self, id: &JobId, limit: u32) -> Result<Vec<Trial>> {
        let page = PageRequest::first(limit);
        Ok(self.store.trials(id, &TrialQuery::Summaries, &page).await?.items)
    }

    /// The pruned candidates of a family; if there are more than `most`, a sample of about that size.
    pub async fn pruned_of(&self, id: &JobId, family: &str, most: u32) -> Result<Vec<Trial>> {
        let sample = TrialQuery::PrunedSample { family: family.to_owned() };
        Ok(self.store.trials(id, &sample, &PageRequest::first(most)).await?.items)
    }
}

fn submitted(submission: Submission, asked: &JobRequest) -> Result<Submitted> {
    let (job, created) = match submission {
        Submission::Created(work) => (work, true),
        Submission::Existing(work) => (work, false),
        Submission::KeyReused => return Err(ServiceError::KeyReused),
    };
    let Work::Tune(job) = job else {
        return Err(ServiceError::internal(format!("job {} is a training", job.id())));
    };
    // The span of the request, which contains the request's id: this line and this field link a job and its request.
    tracing::Span::current().record("job", tracing::field::display(&job.id));
    let what = if created { "job submitted" } else { "job known" };
    tracing::info!(job = %job.id, matrix = %asked.matrix, device = %job.device, "{what}");
    Ok(Submitted { job: *job, created })
}

fn unknown_matrix(digest: &Digest) -> ServiceError {
    let message = format!("matrix {digest} is not stored here; upload it first");
    ServiceError::invalid("/matrix", message)
}

pub(super) fn digest_of(request: &JobRequest) -> Result<Digest> {
    let json = serde_json::to_vec(request).map_err(ServiceError::internal)?;
    Ok(Digest::of(&json))
}

pub(super) fn queued(request: JobRequest, target: &Target) -> Job {
    Job {
        id: JobId::fresh(),
        request,
        device: target.device.id.clone(),
        device_class: Some(target.device.class()),
        only_on: target.only.clone(),
        ran_on: None,
        state: JobState::Queued,
        stage: Stage::Waiting,
        progress: Progress::default(),
        best: None,
        plan: None,
        outlook: None,
        follow_up: None,
        priority: 0,
        stopped_by: None,
        error: None,
        attempts: 0,
        search_seconds: 0.0,
        created_at: Timestamp::now(),
        started_at: None,
        finished_at: None,
    }
}
