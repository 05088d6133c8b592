//! Ends that no worker reports: jobs cancelled without one, given up after many, or unreadable.

use super::SqliteStore;
use super::jobs::{JobRow, job_columns};
use crate::domain::{DeviceId, Job, JobId, Timestamp};
use crate::store::Result;
use sqlx::SqliteConnection;

/// Ends jobs that were asked to stop and have no worker to hear it: their lease has run out. With an id, ends that job
/// and no other, also where it is queued.
pub(super) async fn cancelled(tx: &mut SqliteConnection, only: Option<&JobId>) -> Result<Vec<Job>> {
    let rows: Vec<JobRow> = sqlx::query_as(concat!(
        "UPDATE jobs SET state = 'cancelled', stage = 'done', stopped_by = 'cancelled', finished_at = ?1,
             owner = NULL, lease_until = NULL, last_seq = last_seq + 1
         WHERE state IN ('queued', 'running') AND (?2 IS NULL OR id = ?2)
             AND ((state = 'queued' AND id = ?2)
                 OR (state = 'running' AND cancel_requested = 1 AND lease_until <= ?1))
         RETURNING ",
        job_columns!()
    ))
    .bind(Timestamp::now().0)
    .bind(only.map(|id| id.0.as_str()))
    .fetch_all(&mut *tx)
    .await?;
    announce(tx, rows).await
}

/// Fails jobs of the device that were taken up `most` times and whose last worker is gone as well.
pub(super) async fn given_up(
    store: &SqliteStore,
    device: &DeviceId,
    most: u32,
) -> Result<Vec<Job>> {
    let now = Timestamp::now();
    // Asked before every claim, and almost always in vain: that must not cost the write lock.
    let found: Option<i64> = sqlx::query_scalar(
        "SELECT 1 FROM jobs WHERE device = ? AND state IN ('queued', 'running')
         AND state = 'running' AND lease_until <= ? AND attempts >= ? LIMIT 1",
    )
    .bind(&device.0)
    .bind(now.0)
    .bind(most)
    .fetch_optional(&store.readers)
    .await?;
    if found.is_none() {
        return Ok(Vec::new());
    }
    let mut tx = store.begin().await?;
    cancelled(&mut tx, None).await?;
    let rows: Vec<JobRow> = sqlx::query_as(concat!(
        "UPDATE jobs SET state = 'failed', stage = 'done', finished_at = ?1, owner = NULL, lease_until = NULL,
             error = 'given up: it was taken up ' || attempts || ' times, and each time its worker was lost before an answer',
             last_seq = last_seq + 1
         WHERE device = ?2 AND state IN ('queued', 'running')
             AND state = 'running' AND lease_until <= ?1 AND attempts >= ?3
         RETURNING ",
        job_columns!()
    ))
    .bind(now.0)
    .bind(&device.0)
    .bind(most)
    .fetch_all(&mut *tx)
    .await?;
    let ended = announce(&mut tx, rows).await?;
    tx.commit().await?;
    Ok(ended)
}

/// Fails a job just claimed whose row cannot be read, under the event number that its claim has taken. What may be the
/// unreadable part, short of the request, is cleared: the job can be shown again then.
pub(super) async fn unreadable(tx: &mut SqliteConnection, id: &JobId, why: &str) -> Result<()> {
    tracing::error!(job = %id, why, "the job is failed: its row cannot be read");
    let rows: Vec<JobRow> = sqlx::query_as(concat!(
        "UPDATE jobs SET state = 'failed', stage = 'done', error = ?1, finished_at = ?2, owner = NULL,
             lease_until = NULL, done = 0, total = 0, best = NULL, stopped_by = NULL, attempts = MAX(attempts, 0)
         WHERE id = ?3 RETURNING ",
        job_columns!()
    ))
    .bind(why)
    .bind(Timestamp::now().0)
    .bind(&id.0)
    .fetch_all(&mut *tx)
    .await?;
    announce(tx, rows).await.map(drop)
}

/// The jobs that can be read; the others have their end told by a log event.
async fn announce(tx: &mut SqliteConnection, rows: Vec<JobRow>) -> Result<Vec<Job>> {
    let mut ended = Vec::with_capacity(rows.len());
    for row in rows {
        ended.extend(row.announce_end(tx).await?);
    }
    Ok(ended)
}
