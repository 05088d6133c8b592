//! Ends that no worker reports: work that was cancelled without a worker, given up after too many attempts, or is
//! unreadable.

use super::db::{self, Connection};
use super::leases::expired;
use super::rows::{WorkRow, work_columns};
use crate::domain::{JobId, Timestamp};
use crate::store::{Change, Queue, Result};

/// Work that another worker or server ends, or renews the lease of, just now is left to it.
const CANCEL_ALL: &str = concat!(
    "UPDATE jobs SET state = 'cancelled', stage = 'done', finished_at = $1, owner = NULL, lease_until = NULL,
         stopped_by = CASE kind WHEN 'tune' THEN 'cancelled' END, last_seq = last_seq + 1
     WHERE id IN (
         SELECT id FROM jobs WHERE state = 'running' AND cancel_requested = 1 AND ",
    expired!(),
    " /*[*//*|FOR UPDATE SKIP LOCKED]*/)
     RETURNING ",
    work_columns!()
);

const CANCEL_ONE: &str = concat!(
    "UPDATE jobs SET state = 'cancelled', stage = 'done', finished_at = $1, owner = NULL, lease_until = NULL,
         stopped_by = CASE kind WHEN 'tune' THEN 'cancelled' END, last_seq = last_seq + 1
     WHERE id = $2 AND (state = 'queued' OR (state = 'running' AND cancel_requested = 1 AND ",
    expired!(),
    "))
     RETURNING ",
    work_columns!()
);

/// Ends work that was asked to stop and whose worker is gone: its lease has expired. With an id, ends only that work, even
/// if it is still queued.
pub(super) async fn cancelled(
    tx: &mut Connection,
    only: Option<&JobId>,
    now: Timestamp,
) -> Result<Vec<Change>> {
    let rows: Vec<WorkRow> = db::query_as(if only.is_some() { CANCEL_ONE } else { CANCEL_ALL })
        .bind(now.0)
        .bind(only.map(|id| id.0.as_str()))
        .bind(now.0)
        .fetch_all(&mut *tx)
        .await?;
    announce(tx, rows).await
}

/// Fails work of the queue that was claimed `max_attempts` times or more and whose last lease has expired as well.
pub(super) async fn given_up(
    tx: &mut Connection,
    queue: &Queue,
    max_attempts: u32,
    now: Timestamp,
) -> Result<Vec<Change>> {
    let [one, two, three] = queue.names();
    let rows: Vec<WorkRow> = db::query_as(concat!(
        "UPDATE jobs SET state = 'failed', stage = 'done', finished_at = $1, owner = NULL, lease_until = NULL,
             error = 'given up: it was claimed ' || attempts || ' times, and each time its worker was lost before it finished',
             last_seq = last_seq + 1
         WHERE id IN (
             SELECT id FROM jobs
             WHERE kind = $2 AND queue IN ($4, $6, $7) AND state = 'running' AND attempts >= $5 AND ",
        expired!(),
        " /*[*//*|FOR UPDATE SKIP LOCKED]*/)
         RETURNING ",
        work_columns!()
    ))
    .bind(now.0)
    .bind(queue.kind().name())
    .bind(now.0)
    .bind(one)
    .bind(max_attempts)
    .bind(two)
    .bind(three)
    .fetch_all(&mut *tx)
    .await?;
    let ended = announce(tx, rows).await?;
    for change in &ended {
        if let Change::Ended(work) = change {
            tracing::warn!(job = %work.id(), attempts = work.attempts(), "job given up: every worker that claimed it was lost");
        }
    }
    Ok(ended)
}

/// Fails work just claimed whose row cannot be read, under the event number of its claim. Everything that may be unreadable,
/// except the request, is cleared, so that the work can be shown again.
pub(super) async fn unreadable(tx: &mut Connection, id: &JobId, why: &str) -> Result<Vec<Change>> {
    tracing::error!(job = %id, why, "the job fails because its row cannot be read");
    let rows: Vec<WorkRow> = db::query_as(concat!(
        "UPDATE jobs SET state = 'failed', stage = 'done', error = $1, finished_at = $2, owner = NULL, lease_until = NULL,
             done = 0, total = 0, best = NULL, stopped_by = NULL, detail = NULL, attempts = MAX(attempts, 0)
         WHERE id = $3 RETURNING ",
        work_columns!()
    ))
    .bind(why)
    .bind(Timestamp::now().0)
    .bind(&id.0)
    .fetch_all(&mut *tx)
    .await?;
    announce(tx, rows).await
}

/// The changes for work that has just ended. For a row that cannot be read, a log event reports the end.
async fn announce(tx: &mut Connection, rows: Vec<WorkRow>) -> Result<Vec<Change>> {
    let mut ended = Vec::with_capacity(rows.len());
    for row in rows {
        let id = row.id();
        let work = row.announce_end(tx).await?;
        ended.push(work.map_or(Change::Job(id), Change::Ended));
    }
    Ok(ended)
}
