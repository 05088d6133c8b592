//! Leases: a claim is one statement, and every write of a worker is fenced by the owner and epoch of its claim.

use super::SqliteStore;
use super::codec;
use super::jobs::{JobRow, job_columns};
use super::{endings, plans, upkeep};
use crate::domain::{DeviceId, Job, Timestamp};
use crate::store::{Claim, Fence, Finish, Renewal, Result, StoreError};
use sqlx::SqliteConnection;

/// A lease that has run out still holds until somebody else claims the job: up to then nobody can be harmed.
pub(super) async fn claim(
    store: &SqliteStore,
    device: &DeviceId,
    owner: &str,
    lease_ms: i64,
) -> Result<Option<Claim>> {
    let now = Timestamp::now();
    // Workers ask often and mostly in vain: that must not cost the write lock. The states are said twice, here and
    // below, because a partial index is used only where its very condition is among the terms.
    let waiting: Option<i64> = sqlx::query_scalar(
        "SELECT 1 FROM jobs WHERE device = ? AND state IN ('queued', 'running')
         AND (state = 'queued' OR (state = 'running' AND lease_until <= ?)) LIMIT 1",
    )
    .bind(&device.0)
    .bind(now.0)
    .fetch_optional(&store.readers)
    .await?;
    if waiting.is_none() {
        return Ok(None);
    }
    let mut tx = store.begin().await?;
    endings::cancelled(&mut tx, None).await?;
    let claim = loop {
        let until = now.plus_millis(lease_ms);
        let Some(row) = take(&mut tx, device, owner, now, until).await? else { break None };
        let (id, epoch) = (row.id(), row.epoch);
        match row.announce(&mut tx).await {
            Ok(job) => {
                let fence = Fence { job: id, owner: owner.to_owned(), epoch };
                break Some(Claim { job, fence });
            }
            // Every claim would meet it again, and none come past it.
            Err(error @ StoreError::Corrupt { .. }) => {
                endings::unreadable(&mut tx, &id, &error.to_string()).await?;
            }
            Err(error) => return Err(error),
        }
    };
    tx.commit().await?;
    Ok(claim)
}

async fn take(
    tx: &mut SqliteConnection,
    device: &DeviceId,
    owner: &str,
    now: Timestamp,
    until: Timestamp,
) -> Result<Option<JobRow>> {
    let row = sqlx::query_as(concat!(
        "UPDATE jobs SET state = 'running', owner = ?1, epoch = epoch + 1, lease_until = ?2,
             attempts = attempts + 1, started_at = COALESCE(started_at, ?3), last_seq = last_seq + 1
         WHERE id = (
             SELECT id FROM jobs WHERE device = ?4 AND state IN ('queued', 'running')
             AND (state = 'queued' OR (state = 'running' AND lease_until <= ?3))
             ORDER BY created_at, id LIMIT 1)
         RETURNING ",
        job_columns!()
    ))
    .bind(owner)
    .bind(until.0)
    .bind(now.0)
    .bind(&device.0)
    .fetch_optional(tx)
    .await?;
    Ok(row)
}

pub(super) async fn renew(store: &SqliteStore, fence: &Fence, lease_ms: i64) -> Result<Renewal> {
    let cancel_requested: Option<bool> = sqlx::query_scalar(
        "UPDATE jobs SET lease_until = ?
         WHERE id = ? AND owner = ? AND epoch = ? AND state = 'running' RETURNING cancel_requested",
    )
    .bind(Timestamp::now().plus_millis(lease_ms).0)
    .bind(&fence.job.0)
    .bind(&fence.owner)
    .bind(fence.epoch)
    .fetch_optional(&store.writer)
    .await?;
    cancel_requested
        .map(|cancel_requested| Renewal { cancel_requested })
        .ok_or_else(|| StoreError::Fenced(fence.job.clone()))
}

pub(super) async fn update(store: &SqliteStore, fence: &Fence, job: &Job) -> Result<()> {
    let mut tx = store.begin().await?;
    let row: Option<JobRow> = sqlx::query_as(concat!(
        "UPDATE jobs SET stage = ?, done = ?, total = ?, best = ?, search_seconds = ?, last_seq = last_seq + 1
         WHERE id = ? AND owner = ? AND epoch = ? AND state = 'running' RETURNING ",
        job_columns!()
    ))
    .bind(codec::name("job stage", &job.stage)?)
    .bind(job.progress.done)
    .bind(job.progress.total)
    .bind(best(job)?)
    .bind(job.search_seconds)
    .bind(&fence.job.0)
    .bind(&fence.owner)
    .bind(fence.epoch)
    .fetch_optional(&mut *tx)
    .await?;
    row.ok_or_else(|| StoreError::Fenced(fence.job.clone()))?.announce(&mut tx).await?;
    tx.commit().await?;
    Ok(())
}

/// Plan, end and last event in one transaction: a plan without its job's end, or the reverse, is never seen.
pub(super) async fn finish(store: &SqliteStore, fence: &Fence, finish: &Finish) -> Result<()> {
    if !finish.job.state.is_final() {
        let state = finish.job.state.name();
        return Err(StoreError::Misuse(format!("a job cannot end as {state}").into()));
    }
    let mut tx = store.begin().await?;
    if let Some(plan) = &finish.plan {
        plans::insert(&mut tx, plan).await?;
        upkeep::revise(&mut tx).await?;
    }
    let plan = finish.plan.as_ref().map(|plan| &plan.id);
    let row = end(&mut tx, fence, &finish.job, plan.or(finish.job.plan.as_ref()).map(|id| &*id.0));
    row.await?.announce(&mut tx).await?;
    tx.commit().await?;
    Ok(())
}

async fn end(
    tx: &mut SqliteConnection,
    fence: &Fence,
    job: &Job,
    plan: Option<&str>,
) -> Result<JobRow> {
    let stopped_by = job.stopped_by.map(|by| codec::name("job stopped_by", &by)).transpose()?;
    let row: Option<JobRow> = sqlx::query_as(concat!(
        "UPDATE jobs SET state = ?, stage = ?, done = ?, total = ?, best = ?, search_seconds = ?, plan = ?, follow_up = ?,
             stopped_by = ?, error = ?, finished_at = ?, owner = NULL, lease_until = NULL, last_seq = last_seq + 1
         WHERE id = ? AND owner = ? AND epoch = ? AND state = 'running' RETURNING ",
        job_columns!()
    ))
    .bind(job.state.name())
    .bind(codec::name("job stage", &job.stage)?)
    .bind(job.progress.done)
    .bind(job.progress.total)
    .bind(best(job)?)
    .bind(job.search_seconds)
    .bind(plan)
    .bind(job.follow_up.as_ref().map(|follow_up| &*follow_up.0))
    .bind(stopped_by)
    .bind(&job.error)
    .bind(job.finished_at.unwrap_or_else(Timestamp::now).0)
    .bind(&fence.job.0)
    .bind(&fence.owner)
    .bind(fence.epoch)
    .fetch_optional(tx)
    .await?;
    row.ok_or_else(|| StoreError::Fenced(fence.job.clone()))
}

pub(super) async fn release(store: &SqliteStore, fence: &Fence) -> Result<()> {
    let mut tx = store.begin().await?;
    // A job that was asked to stop is not given to another worker: its lease ends now, and it with it. An attempt that
    // ends so did the worker no harm and is not held against the job.
    let row: Option<JobRow> = sqlx::query_as(concat!(
        "UPDATE jobs SET
             lease_until = CASE cancel_requested WHEN 1 THEN 0 END,
             owner = CASE cancel_requested WHEN 1 THEN owner END,
             state = CASE cancel_requested WHEN 1 THEN state ELSE 'queued' END,
             stage = CASE cancel_requested WHEN 1 THEN stage ELSE 'waiting' END,
             attempts = MAX(attempts - 1, 0),
             last_seq = last_seq + 1
         WHERE id = ? AND owner = ? AND epoch = ? AND state = 'running' RETURNING ",
        job_columns!()
    ))
    .bind(&fence.job.0)
    .bind(&fence.owner)
    .bind(fence.epoch)
    .fetch_optional(&mut *tx)
    .await?;
    row.ok_or_else(|| StoreError::Fenced(fence.job.clone()))?.announce(&mut tx).await?;
    endings::cancelled(&mut tx, None).await?;
    tx.commit().await?;
    Ok(())
}

fn best(job: &Job) -> Result<Option<String>> {
    job.best.as_ref().map(|best| codec::encode_part("job best", best)).transpose()
}
