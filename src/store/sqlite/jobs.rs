//! Jobs: submission, lists and cancellation. What a worker does under a lease is in `leases`.

use super::codec::{self, Stored, decode, encode};
use super::{SqliteStore, endings, events, leases};
use crate::domain::{
    DeviceId, Digest, Event, EventKind, Job, JobId, JobRequest, JobState, PlanId, Timestamp,
    job::Progress,
};
use crate::store::{
    Claim, Fence, Finish, JobFilter, Jobs, NewJob, Page, PageRequest, Renewal, Result, StoreError,
    Story, Submission,
};
use async_trait::async_trait;
use sqlx::{QueryBuilder, Sqlite, SqliteConnection};

const LIST: &str = "jobs";

/// The columns of [`JobRow`], for the statements that return one.
macro_rules! job_columns {
    () => {
        "id, device, version, request, state, stage, done, total, best, plan, follow_up, stopped_by, error, attempts, \
         search_seconds, created_at, started_at, finished_at, epoch, last_seq"
    };
}
pub(super) use job_columns;

#[derive(sqlx::FromRow)]
pub(super) struct JobRow {
    id: String,
    device: String,
    version: i64,
    request: String,
    state: String,
    stage: String,
    done: i64,
    total: i64,
    best: Option<String>,
    plan: Option<String>,
    follow_up: Option<String>,
    stopped_by: Option<String>,
    error: Option<String>,
    attempts: i64,
    search_seconds: f64,
    created_at: i64,
    started_at: Option<i64>,
    finished_at: Option<i64>,
    pub(super) epoch: i64,
    last_seq: i64,
}

impl JobRow {
    pub(super) fn id(&self) -> JobId {
        JobId(self.id.clone())
    }

    pub(super) fn job(self) -> Result<Job> {
        let request: JobRequest = decode(self.version, &self.request)?;
        Ok(Job {
            id: JobId(self.id),
            request,
            device: DeviceId(self.device),
            state: codec::named("job state", self.state)?,
            stage: codec::named("job stage", self.stage)?,
            progress: Progress {
                done: codec::count("job progress", self.done)?,
                total: codec::count("job progress", self.total)?,
            },
            best: self.best.map(|text| codec::decode_part("job best", &text)).transpose()?,
            plan: self.plan.map(PlanId),
            follow_up: self.follow_up.map(JobId),
            stopped_by: self
                .stopped_by
                .map(|name| codec::named("job stopped_by", name))
                .transpose()?,
            error: self.error,
            attempts: codec::count("job attempts", self.attempts)?,
            search_seconds: self.search_seconds,
            created_at: Timestamp(self.created_at),
            started_at: self.started_at.map(Timestamp),
            finished_at: self.finished_at.map(Timestamp),
        })
    }

    /// Writes the job as it now stands as the event that `last_seq` has just been raised for.
    pub(super) async fn announce(self, tx: &mut SqliteConnection) -> Result<Job> {
        let seq = self.last_seq;
        let job = self.job()?;
        events::append(tx, &job.id, seq, &EventKind::Job(Box::new(job.clone()))).await?;
        Ok(job)
    }

    /// [`Self::announce`] for a job that no worker ends. Where the row cannot be read, an event says so instead: one
    /// such row must not keep the others from their end.
    pub(super) async fn announce_end(self, tx: &mut SqliteConnection) -> Result<Option<Job>> {
        let (id, seq) = (self.id(), self.last_seq);
        match self.announce(tx).await {
            Ok(job) => Ok(Some(job)),
            Err(error @ StoreError::Corrupt { .. }) => {
                let message = format!("the job has ended: {error}");
                events::append(tx, &id, seq, &EventKind::Log { message }).await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Jobs for SqliteStore {
    async fn submit(&self, new: &NewJob) -> Result<Submission> {
        let mut tx = self.begin().await?;
        if let Some((key, request)) = &new.idempotency
            && let Some(known) = by_idempotency_key(&mut tx, key, request).await?
        {
            return Ok(known);
        }
        let submission = match live_twin(&mut tx, &new.dedup_key).await? {
            Some(job) => Submission::Existing(job),
            None => Submission::Created(insert(&mut tx, new).await?),
        };
        if let (Some((key, request)), Submission::Created(job) | Submission::Existing(job)) =
            (&new.idempotency, &submission)
        {
            sqlx::query(
                "INSERT INTO idempotency_keys (key, request, job, created_at) VALUES (?, ?, ?, ?)",
            )
            .bind(key)
            .bind(&request.as_bytes()[..])
            .bind(&job.id.0)
            .bind(Timestamp::now().0)
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        Ok(submission)
    }

    async fn keyed(&self, key: &str, request: &Digest) -> Result<Option<Submission>> {
        let mut reader = self.readers.acquire().await?;
        by_idempotency_key(&mut reader, key, request).await
    }

    async fn job(&self, id: &JobId) -> Result<Option<Job>> {
        let mut reader = self.readers.acquire().await?;
        by_id(&mut reader, id).await
    }

    async fn jobs(&self, filter: &JobFilter, page: &PageRequest) -> Result<Page<Job>> {
        let limit = codec::page_limit(page.limit);
        let after = page.after.as_deref().map(|text| codec::read_cursor(LIST, text)).transpose()?;
        let mut query = list_query(filter, after, limit + 1);
        let rows: Vec<JobRow> = query.build_query_as().fetch_all(&self.readers).await?;
        let items: Vec<Job> = rows.into_iter().map(JobRow::job).collect::<Result<_>>()?;
        Ok(codec::cut(items, limit, |job| codec::cursor(LIST, job.created_at.0, &job.id.0)))
    }

    async fn request_cancel(&self, id: &JobId) -> Result<Option<Job>> {
        let mut tx = self.begin().await?;
        sqlx::query("UPDATE jobs SET cancel_requested = 1 WHERE id = ? AND state = 'running'")
            .bind(&id.0)
            .execute(&mut *tx)
            .await?;
        let ended = endings::cancelled(&mut tx, Some(id)).await?.pop();
        let job = match ended {
            Some(job) => Some(job),
            None => by_id(&mut tx, id).await?,
        };
        tx.commit().await?;
        Ok(job)
    }

    async fn claim(&self, device: &DeviceId, owner: &str, lease_ms: i64) -> Result<Option<Claim>> {
        leases::claim(self, device, owner, lease_ms).await
    }

    async fn give_up(&self, device: &DeviceId, most: u32) -> Result<Vec<Job>> {
        endings::given_up(self, device, most).await
    }

    async fn renew(&self, fence: &Fence, lease_ms: i64) -> Result<Renewal> {
        leases::renew(self, fence, lease_ms).await
    }

    async fn update(&self, fence: &Fence, job: &Job) -> Result<()> {
        leases::update(self, fence, job).await
    }

    async fn finish(&self, fence: &Fence, finish: &Finish) -> Result<()> {
        leases::finish(self, fence, finish).await
    }

    async fn release(&self, fence: &Fence) -> Result<()> {
        leases::release(self, fence).await
    }

    async fn events(&self, id: &JobId, after: u64, limit: u32) -> Result<Vec<Event>> {
        events::after(self, id, after, limit).await
    }

    async fn story(&self, id: &JobId) -> Result<Story> {
        events::story(self, id).await
    }

    async fn log(&self, fence: &Fence, kind: &EventKind) -> Result<()> {
        let mut tx = self.begin().await?;
        let seq = events::reserve(&mut tx, fence, 1).await?;
        events::append(&mut tx, &fence.job, seq, kind).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn job_counts(&self) -> Result<Vec<(JobState, u64)>> {
        let rows: Vec<(String, i64)> = sqlx::query_as(COUNTS).fetch_all(&self.readers).await?;
        rows.into_iter()
            .map(|(state, n)| {
                Ok((codec::named("job state", state)?, codec::count("job count", n)?))
            })
            .collect()
    }
}

pub(super) const COUNTS: &str = "SELECT state, count(*) FROM jobs GROUP BY state";

/// A page of jobs, newest first, after the moment and id of the last one shown.
pub(super) fn list_query(
    filter: &JobFilter,
    after: Option<(i64, String)>,
    limit: u32,
) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(concat!("SELECT ", job_columns!(), " FROM jobs WHERE 1"));
    if let Some(state) = filter.state {
        query.push(" AND state = ").push_bind(state.name());
    }
    if let Some(matrix) = &filter.matrix {
        query.push(" AND matrix = ").push_bind(matrix.as_bytes().to_vec());
    }
    if let Some(device) = &filter.device {
        query.push(" AND device = ").push_bind(device.0.clone());
    }
    if let Some((at, id)) = after {
        query.push(" AND (created_at, id) < (").push_bind(at);
        query.push(", ").push_bind(id).push(")");
    }
    query.push(" ORDER BY created_at DESC, id DESC LIMIT ").push_bind(limit);
    query
}

async fn by_id(connection: &mut SqliteConnection, id: &JobId) -> Result<Option<Job>> {
    let row: Option<JobRow> =
        sqlx::query_as(concat!("SELECT ", job_columns!(), " FROM jobs WHERE id = ?"))
            .bind(&id.0)
            .fetch_optional(connection)
            .await?;
    row.map(JobRow::job).transpose()
}

async fn by_idempotency_key(
    connection: &mut SqliteConnection,
    key: &str,
    request: &Digest,
) -> Result<Option<Submission>> {
    let row: Option<(Vec<u8>, String)> =
        sqlx::query_as("SELECT request, job FROM idempotency_keys WHERE key = ?")
            .bind(key)
            .fetch_optional(&mut *connection)
            .await?;
    let Some((stored, job)) = row else { return Ok(None) };
    if codec::digest("idempotency key", &stored)? != *request {
        return Ok(Some(Submission::KeyReused));
    }
    let job = by_id(connection, &JobId(job)).await?;
    Ok(job.map(Submission::Existing))
}

/// The queued or running job that already answers this question.
async fn live_twin(tx: &mut SqliteConnection, dedup_key: &str) -> Result<Option<Job>> {
    let row: Option<JobRow> = sqlx::query_as(concat!(
        "SELECT ",
        job_columns!(),
        " FROM jobs WHERE dedup_key = ? AND state IN ('queued', 'running') AND cancel_requested = 0"
    ))
    .bind(dedup_key)
    .fetch_optional(tx)
    .await?;
    row.map(JobRow::job).transpose()
}

async fn insert(tx: &mut SqliteConnection, new: &NewJob) -> Result<Job> {
    let job = &new.job;
    let matrix = job.request.matrix;
    let row: Option<JobRow> = sqlx::query_as(concat!(
        "INSERT INTO jobs (id, matrix, device, version, request, dedup_key, state, stage, total, created_at, last_seq)
         SELECT ?, digest, ?, ?, ?, ?, 'queued', ?, ?, ?, 1 FROM matrices WHERE digest = ?
         RETURNING ",
        job_columns!()
    ))
    .bind(&job.id.0)
    .bind(&job.device.0)
    .bind(JobRequest::VERSION)
    .bind(encode(&job.request)?)
    .bind(&new.dedup_key)
    .bind(codec::name("job stage", &job.stage)?)
    .bind(job.progress.total)
    .bind(job.created_at.0)
    .bind(&matrix.as_bytes()[..])
    .fetch_optional(&mut *tx)
    .await?;
    let row = row.ok_or_else(|| StoreError::Missing(format!("matrix {matrix}")))?;
    row.announce(tx).await
}
