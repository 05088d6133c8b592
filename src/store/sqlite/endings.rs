//! Ends that no worker reports: work cancelled without one, given up after many, or unreadable.

use super::SqliteStore;
use super::rows::{WorkRow, work_columns};
use crate::domain::{JobId, Timestamp, Work};
use crate::store::{Change, Queue, Result};
use sqlx::SqliteConnection;

/// Ends work that was asked to stop and has no worker left to notice: its lease has expired. With an id, ends that work and no
/// other, also where it is queued.
pub(super) async fn cancelled(
    tx: &mut SqliteConnection,
    only: Option<&JobId>,
) -> Result<Vec<Change>> {
    let rows: Vec<WorkRow> = sqlx::query_as(concat!(
        "UPDATE jobs SET state = 'cancelled', stage = 'done', finished_at = ?1, owner = NULL, lease_until = NULL,
             stopped_by = CASE kind WHEN 'tune' THEN 'cancelled' END, last_seq = last_seq + 1
         WHERE state IN ('queued', 'running') AND (?2 IS NULL OR id = ?2)
             AND ((state = 'queued' AND id = ?2)
                 OR (state = 'running' AND cancel_requested = 1 AND lease_until <= ?1))
         RETURNING ",
        work_columns!()
    ))
    .bind(Timestamp::now().0)
    .bind(only.map(|id| id.0.as_str()))
    .fetch_all(&mut *tx)
    .await?;
    announce(tx, rows).await
}

/// Fails work of the queue that was claimed `most` times and whose last worker is gone as well.
pub(super) async fn given_up(store: &SqliteStore, queue: &Queue, most: u32) -> Result<Vec<Work>> {
    let now = Timestamp::now();
    // Asked before every claim, and almost always in vain: that must not cost the write lock.
    let found: Option<i64> = sqlx::query_scalar(
        "SELECT 1 FROM jobs WHERE kind = ? AND device IS ? AND state IN ('queued', 'running')
         AND state = 'running' AND lease_until <= ? AND attempts >= ? LIMIT 1",
    )
    .bind(queue.kind().name())
    .bind(queue.device())
    .bind(now.0)
    .bind(most)
    .fetch_optional(&store.readers)
    .await?;
    if found.is_none() {
        return Ok(Vec::new());
    }
    let mut tx = store.begin().await?;
    let mut changes = cancelled(&mut tx, None).await?;
    let rows: Vec<WorkRow> = sqlx::query_as(concat!(
        "UPDATE jobs SET state = 'failed', stage = 'done', finished_at = ?1, owner = NULL, lease_until = NULL,
             error = 'given up: it was taken up ' || attempts || ' times, and each time its worker was lost before an answer',
             last_seq = last_seq + 1
         WHERE kind = ?2 AND device IS ?3 AND state IN ('queued', 'running')
             AND state = 'running' AND lease_until <= ?1 AND attempts >= ?4
         RETURNING ",
        work_columns!()
    ))
    .bind(now.0)
    .bind(queue.kind().name())
    .bind(queue.device())
    .bind(most)
    .fetch_all(&mut *tx)
    .await?;
    let ended = announce(&mut tx, rows).await?;
    let works = ended.iter().filter_map(|change| match change {
        Change::Ended(work) => Some(work.clone()),
        _ => None,
    });
    let works: Vec<Work> = works.collect();
    for work in &works {
        tracing::warn!(job = %work.id(), attempts = work.attempts(), "job given up: it lost all its workers");
    }
    changes.extend(ended);
    tx.commit(changes).await?;
    Ok(works)
}

/// Fails work just claimed whose row cannot be read, under the event number that its claim has taken. What may be the
/// unreadable part, short of the request, is cleared: the work can be shown again then.
pub(super) async fn unreadable(
    tx: &mut SqliteConnection,
    id: &JobId,
    why: &str,
) -> Result<Vec<Change>> {
    tracing::error!(job = %id, why, "the job is failed: its row cannot be read");
    let rows: Vec<WorkRow> = sqlx::query_as(concat!(
        "UPDATE jobs SET state = 'failed', stage = 'done', error = ?1, finished_at = ?2, owner = NULL, lease_until = NULL,
             done = 0, total = 0, best = NULL, stopped_by = NULL, detail = NULL, attempts = MAX(attempts, 0)
         WHERE id = ?3 RETURNING ",
        work_columns!()
    ))
    .bind(why)
    .bind(Timestamp::now().0)
    .bind(&id.0)
    .fetch_all(&mut *tx)
    .await?;
    announce(tx, rows).await
}

/// The ends of work that can be read; a log event says of the others that they have ended.
async fn announce(tx: &mut SqliteConnection, rows: Vec<WorkRow>) -> Result<Vec<Change>> {
    let mut ended = Vec::with_capacity(rows.len());
    for row in rows {
        let id = row.id();
        let work = row.announce_end(tx).await?;
        ended.push(work.map_or(Change::Job(id), Change::Ended));
    }
    Ok(ended)
}
