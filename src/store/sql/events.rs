//! Events of jobs: appended in the transaction of the change they report, and numbered without gaps.

use super::codec::{self, Stored, decode, encode};
use super::db::{self, Connection};
use super::{SqlStore, jobs, rows};
use crate::domain::{Event, EventKind, Job, JobId, Problem, Timestamp, Trial, Work};
use crate::store::{Result, StoreError, Story};

/// Writes an event under a number that the caller has just taken from the job's `last_seq`.
pub(super) async fn append(
    tx: &mut Connection,
    job: &JobId,
    seq: i64,
    kind: &EventKind,
) -> Result<()> {
    let body = match kind {
        // As the row of the job: earlier versions read events, too.
        EventKind::Job(work) => match &**work {
            Work::Tune(job) if job.request.search.then.is_some() => {
                let job = Job { request: rows::first_part(&job.request), ..(**job).clone() };
                encode(&Work::from(job).into_event())?
            }
            _ => encode(kind)?,
        },
        _ => encode(kind)?,
    };
    db::query("INSERT INTO events (job, seq, at, version, body) VALUES ($1, $2, $3, $4, $5)")
        .bind(&job.0)
        .bind(seq)
        .bind(Timestamp::now().0)
        .bind(EventKind::VERSION)
        .bind(body)
        .execute(tx)
        .await?;
    Ok(())
}

/// Events that point at trials just written: numbers `first`, `first + 1`, ... in the order of the ordinals.
pub(super) async fn append_trials(
    tx: &mut Connection,
    job: &JobId,
    first: i64,
    ordinals: &[i64],
) -> Result<()> {
    let ordinals = codec::encode_part("ordinals", &ordinals)?;
    db::query(
        "INSERT INTO events (job, seq, at, version, trial)
         SELECT $1, $2 + key, $3, $4, CAST(value AS BIGINT) FROM json_each($5)",
    )
    .bind(&job.0)
    .bind(first)
    .bind(Timestamp::now().0)
    .bind(Trial::VERSION)
    .bind(ordinals)
    .execute(tx)
    .await?;
    Ok(())
}

#[derive(sqlx::FromRow)]
struct EventRow {
    seq: i64,
    at: i64,
    version: i64,
    body: Option<String>,
    trial_version: Option<i64>,
    trial: Option<String>,
}

/// An event's kind; `None` for a kind that a later version introduced, which an older reader skips.
fn kind(version: i64, body: &str) -> Result<Option<EventKind>> {
    #[derive(serde::Deserialize)]
    struct Named {
        event: String,
    }
    match decode(version, body) {
        Ok(kind) => Ok(Some(kind)),
        Err(error) => match serde_json::from_str(body) {
            Ok(Named { event }) if !EventKind::NAMES.contains(&event.as_str()) => Ok(None),
            _ => Err(error),
        },
    }
}

impl EventRow {
    /// `None` for a kind that this version does not know.
    fn event(self, job: &JobId, then: Option<Problem>) -> Result<Option<Event>> {
        let mut kind = match (self.body, self.trial_version, self.trial) {
            (Some(body), _, _) => match kind(self.version, &body)? {
                Some(kind) => kind,
                None => return Ok(None),
            },
            (None, Some(version), Some(text)) => {
                EventKind::Trial(Box::new(decode::<Trial>(version, &text)?))
            }
            _ => return Err(codec::corrupt(EventKind::WHAT, "it has neither a body nor a trial")),
        };
        if let EventKind::Job(work) = &mut kind
            && let Work::Tune(job) = &mut **work
        {
            job.request.search.then = then;
        }
        let seq = codec::count("event number", self.seq)?;
        Ok(Some(Event { job: job.clone(), seq, at: Timestamp(self.at), kind }))
    }
}

pub(super) async fn after(
    store: &SqlStore,
    job: &JobId,
    after: u64,
    limit: u32,
) -> Result<Vec<Event>> {
    // A client may send any number; there are no events beyond the largest.
    let Ok(mut after) = i64::try_from(after) else { return Ok(Vec::new()) };
    let mut reader = store.readers.acquire().await?;
    if !jobs::is_here(&mut reader, store, job).await? {
        return Ok(Vec::new());
    }
    let then = rows::second_part_of(&mut reader, job).await?;
    loop {
        let rows: Vec<EventRow> = db::query_as(
            "SELECT e.seq, e.at, e.version, e.body, t.version AS trial_version, t.body AS trial
             FROM events e LEFT JOIN trials t ON t.job = e.job AND t.ordinal = e.trial
             WHERE e.job = $1 AND e.seq > $2 ORDER BY e.seq LIMIT $3",
        )
        .bind(&job.0)
        .bind(after)
        .bind(limit)
        .fetch_all(&mut reader)
        .await?;
        let Some(last) = rows.last().map(|row| row.seq) else { return Ok(Vec::new()) };
        let events = rows.into_iter().filter_map(|row| row.event(job, then).transpose());
        let events: Vec<Event> = events.collect::<Result<_>>()?;
        // An empty answer means that nothing follows, so a page whose events were all skipped is not returned.
        if !events.is_empty() {
            return Ok(events);
        }
        after = last;
    }
}

/// The terms match the index, which is named, because the planner would otherwise scan the primary key and parse every
/// event.
pub(super) const STORY: &str =
    "SELECT at, version, body FROM events /*[*/INDEXED BY events_told/*|]*/
     WHERE job = $1 AND trial IS NULL AND body ->> '$.event' <> 'job' ORDER BY seq";

/// Log lines and the funnel, without decoding the job updates and trials in between.
pub(super) async fn story(store: &SqlStore, job: &JobId) -> Result<Story> {
    let mut tx = store.readers.snapshot().await?;
    let last_seq: Option<i64> =
        db::query_scalar("SELECT last_seq FROM jobs WHERE id = $1 AND namespace = $2")
            .bind(&job.0)
            .bind(store.namespace())
            .fetch_optional(&mut tx)
            .await?;
    let Some(last_seq) = last_seq else { return Ok(Story::default()) };
    let rows: Vec<(i64, i64, String)> = db::query_as(STORY).bind(&job.0).fetch_all(&mut tx).await?;
    let last_seq = codec::count("event number", last_seq)?;
    let mut story = Story { last_seq, ..Story::default() };
    for (at, version, body) in rows {
        match kind(version, &body)? {
            Some(EventKind::Log { message }) => story.log.push((Timestamp(at), message)),
            // Each attempt of a job writes its funnel; the last one counts.
            Some(EventKind::Funnel { steps }) => story.funnel = Some(steps),
            Some(EventKind::Job(_) | EventKind::Trial(_)) | None => {}
        }
    }
    Ok(story)
}

/// Checks the fence: `Fenced` if the claim is no longer valid. It stays valid until the end of the transaction.
pub(super) async fn check(tx: &mut Connection, fence: &crate::store::Fence) -> Result<()> {
    let held: Option<i64> = db::query_scalar(
        "SELECT epoch FROM jobs WHERE id = $1 AND owner = $2 AND epoch = $3 AND state = 'running' /*[*//*|FOR UPDATE]*/",
    )
    .bind(&fence.job.0)
    .bind(&fence.owner)
    .bind(fence.epoch)
    .fetch_optional(tx)
    .await?;
    held.map(drop).ok_or_else(|| StoreError::Fenced(fence.job.clone()))
}

/// Checks the fence and reserves `count` event numbers in one statement. Returns the first of them, or `Fenced`.
pub(super) async fn reserve(
    tx: &mut Connection,
    fence: &crate::store::Fence,
    count: i64,
) -> Result<i64> {
    let last: Option<i64> = db::query_scalar(
        "UPDATE jobs SET last_seq = last_seq + $1
         WHERE id = $2 AND owner = $3 AND epoch = $4 AND state = 'running' RETURNING last_seq",
    )
    .bind(count)
    .bind(&fence.job.0)
    .bind(&fence.owner)
    .bind(fence.epoch)
    .fetch_optional(tx)
    .await?;
    last.map(|last| last - count + 1).ok_or_else(|| StoreError::Fenced(fence.job.clone()))
}
