//! The limits of tokens: judged in the transaction that would exceed them.

use super::db::{self, Connection};
use super::{codec, tokens};
use crate::domain::{Caller, QuotaExceeded, Timestamp, Work};
use crate::store::{Result, StoreError};

const DAY_MS: i64 = 86_400_000;

/// Most jobs of a namespace that wait at once, whatever its tokens may: others' jobs are looked for among all.
pub(super) const MOST_QUEUED: u64 = 10_000;

/// Budgets of jobs that have not ended count in full, so that the sum cannot be exceeded later; of a job that another one continues, those
/// of both.
pub(super) const SPENT: &str = "SELECT COALESCE(SUM(CASE WHEN finished_at IS NULL
         THEN MAX(COALESCE(CAST(request ->> '$.search.seconds' AS DOUBLE PRECISION), 0.0)
             * CASE WHEN second_part IS NULL THEN 1.0 ELSE 2.0 END, search_seconds) ELSE search_seconds END), 0.0) FROM jobs
     WHERE turn = $1 || '/' || $2 AND kind = 'tune' AND (finished_at IS NULL OR finished_at > $3)";

fn within(
    quota: &'static str,
    limit: Option<f64>,
    used: f64,
    need: f64,
    passes: bool,
) -> Result<()> {
    match limit.filter(|limit| used + need > *limit) {
        Some(limit) => Err(StoreError::Quota(QuotaExceeded { quota, limit, used, need, passes })),
        None => Ok(()),
    }
}

fn float(count: u64) -> f64 {
    count as f64
}

/// Whether the caller may queue this job now. Work that was submitted before its token ended goes on, and queues nothing more.
pub(super) async fn may_queue(
    tx: &mut Connection,
    caller: &Caller,
    work: &Work,
    now: Timestamp,
) -> Result<()> {
    let Work::Tune(job) = work else { return Ok(()) };
    let waiting: i64 = db::query_scalar(
        "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE namespace = $1 AND state = 'queued' LIMIT $2) waiting",
    )
    .bind(caller.namespace.as_str())
    .bind(MOST_QUEUED as i64)
    .fetch_one(&mut *tx)
    .await?;
    let waiting = float(codec::count("queued jobs", waiting)?);
    within("queued_jobs", Some(float(MOST_QUEUED)), waiting, 1.0, true)?;
    let Some(token) = &caller.token else { return Ok(()) };
    let standing = tokens::standing(tx, &caller.namespace, token, now).await?;
    if standing.is_some_and(|standing| standing.ended) {
        let why = format!("the token {token} was revoked or has expired: it can queue no jobs");
        return Err(StoreError::InUse(why));
    }
    let limits = &caller.limits;
    if limits.queued_jobs.is_some() {
        let queued: i64 = db::query_scalar(
            "SELECT count(*) FROM jobs WHERE turn = $1 || '/' || $2 AND finished_at IS NULL AND state = 'queued'",
        )
        .bind(caller.namespace.as_str())
        .bind(token.as_str())
        .fetch_one(&mut *tx)
        .await?;
        let queued = float(codec::count("queued jobs", queued)?);
        within("queued_jobs", limits.queued_jobs.map(float), queued, 1.0, true)?;
    }
    if limits.search_seconds_per_day.is_some() {
        let used: f64 = db::query_scalar(SPENT)
            .bind(caller.namespace.as_str())
            .bind(token.as_str())
            .bind(now.plus_millis(-DAY_MS).0)
            .fetch_one(&mut *tx)
            .await?;
        let parts = if job.request.search.then.is_some() { 2.0 } else { 1.0 };
        let need = parts * job.request.search.seconds.unwrap_or(0.0);
        within("search_seconds_per_day", limits.search_seconds_per_day, used, need, true)?;
    }
    Ok(())
}

/// What a token has stored: matrices, and bytes of these, of what its plans name, and of the bundles that were built of them.
const STORED: &str = "SELECT (SELECT count(*) FROM holdings WHERE namespace = $1 AND token = $2),
         (SELECT CAST(COALESCE(SUM(charged), 0) AS BIGINT) FROM holdings WHERE namespace = $1 AND token = $2)
         + (SELECT CAST(COALESCE(SUM(charged), 0) AS BIGINT) FROM plans WHERE namespace = $1 AND token = $2)
         + (SELECT CAST(COALESCE(SUM(bundles.bytes), 0) AS BIGINT) FROM plans JOIN bundles ON bundles.plan = plans.id AND bundles.imported = 0
            WHERE plans.namespace = $1 AND plans.token = $2)";

/// Whether the caller may store so many bytes more, of so many matrices.
pub(super) async fn may_store(
    tx: &mut Connection,
    caller: &Caller,
    bytes: u64,
    matrices: u64,
) -> Result<()> {
    let Some(token) = &caller.token else { return Ok(()) };
    let limits = &caller.limits;
    if limits.matrices.is_none() && limits.stored_bytes.is_none() {
        return Ok(());
    }
    let (count, used): (i64, i64) = db::query_as(STORED)
        .bind(caller.namespace.as_str())
        .bind(token.as_str())
        .fetch_one(&mut *tx)
        .await?;
    if matrices > 0 {
        let count = float(codec::count("matrices", count)?);
        within("matrices", limits.matrices.map(float), count, float(matrices), false)?;
    }
    let used = float(codec::count("stored bytes", used)?);
    within("stored_bytes", limits.stored_bytes.map(float), used, float(bytes), false)
}
