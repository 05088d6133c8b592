//! Leases: a claim is one statement, and every write of a worker is fenced by the owner and epoch of its claim.

use super::db::{self, Connection};
use super::rows::{Columns, WorkRow, work_columns};
use super::{Place, SqlStore, Write, endings, models, plans};
use crate::domain::{JobId, JobState, PlanId, Timestamp, Training, Work};
use crate::store::{
    Change, Claim, Fence, Finish, Made, NewModel, PutToUse, Queue, Renewal, Result, StoreError,
};
use std::time::Duration;

/// Whether a running job's lease has expired by the time that is bound as `$3`, or by the clock of the server. A lease that begins later was given by a clock that has been set back
/// since; its worker, if it is alive, renews it within a fraction of a second. A second is left for the steps by which clocks are
/// adjusted. Leases of earlier versions, whose length is not known, were given for an hour at most.
macro_rules! expired {
    () => {
        "(lease_until <= /*[*/$3/*|clock_ms()]*/ OR lease_until - COALESCE(lease_ms, 3600000) > /*[*/$3/*|clock_ms()]*/ + 1000)"
    };
}
pub(super) use expired;

/// Whether anything of the queues is to be claimed by who understands this format.
pub(super) const WAITING: &str = concat!(
    "SELECT CAST(1 AS BIGINT) WHERE EXISTS (
         SELECT 1 FROM jobs WHERE kind = $1 AND queue IN ($2, $4, $5) AND state = 'queued' AND needs <= $6)
     OR EXISTS (
         SELECT 1 FROM jobs WHERE kind = $1 AND queue IN ($2, $4, $5) AND state = 'running' AND needs <= $6 AND ",
    expired!(),
    ")"
);

/// What a turn, or a namespace under its own name, has searched lately: less the longer ago it ended, and nothing after an hour.
macro_rules! lately {
    () => {
        "COALESCE(SUM(seconds * (3600000 - COALESCE(MAX(/*[*/$3/*|statement_ms()]*/ - since - 150000, 0), 0))), 0.0) / 3600000.0
             FROM searched WHERE since > /*[*/$3/*|statement_ms()]*/ - 3750000 AND searched.turn = "
    };
}

/// Turns are fair among namespaces, and within one among its tokens: after the priority, the namespace that has searched least lately comes
/// first, however many tokens it has, and of a namespace the token that has. A job counts as a second at least, so that a row of failures
/// is no free ride.
///
/// Neither the jobs that wait nor those that have ended are read: from one priority and turn of a queue the next is found in
/// the index (`turns`), of each only the oldest jobs are looked at, and what a turn and its namespace have searched was added up as jobs
/// ended, by five minutes (`searched`, written by a trigger), so that of each some dozens of rows are read.
///
/// On a server some of those that come first are looked at, and the first is locked that nobody else is just claiming; its terms are
/// repeated there, since they hold for the row as it is once it is locked.
pub(super) const TAKE: &str = concat!(
    "WITH RECURSIVE asked (queue) AS (
         SELECT $5 /*[*//*|COLLATE \"C\"]*/ UNION SELECT $6 /*[*//*|COLLATE \"C\"]*/ UNION SELECT $7 /*[*//*|COLLATE \"C\"]*/),
     turns (queue, priority, turn) AS (
         SELECT asked.queue, next.priority, next.turn
         FROM asked CROSS JOIN /*[*/jobs next ON next.id = (SELECT id/*|LATERAL (SELECT priority, turn]*/
             FROM jobs WHERE kind = $4 AND jobs.queue = asked.queue AND state = 'queued' AND needs <= $8
             ORDER BY priority DESC, turn DESC LIMIT 1) /*[*//*|next]*/
         UNION ALL
         SELECT turns.queue, next.priority, next.turn
         FROM turns CROSS JOIN /*[*/jobs next ON next.id = coalesce((
             SELECT id FROM jobs WHERE kind = $4 AND jobs.queue = turns.queue AND state = 'queued' AND needs <= $8
                 AND jobs.priority = turns.priority AND jobs.turn < turns.turn
             ORDER BY turn DESC LIMIT 1), (
             SELECT id FROM jobs WHERE kind = $4 AND jobs.queue = turns.queue AND state = 'queued' AND needs <= $8
                 AND jobs.priority < turns.priority
             ORDER BY priority DESC, turn DESC LIMIT 1))/*|LATERAL (
             SELECT priority, turn FROM jobs WHERE kind = $4 AND jobs.queue = turns.queue AND state = 'queued' AND needs <= $8
                 AND (jobs.priority, jobs.turn) < (turns.priority, turns.turn)
             ORDER BY priority DESC, turn DESC LIMIT 1) next]*/),
     lapsed AS MATERIALIZED (
         SELECT id, priority, turn, created_at FROM jobs
         WHERE $9 = 1 AND kind = $4 AND queue IN ($5, $6, $7) AND state = 'running' AND needs <= $8 AND ",
    expired!(),
    "),
     shares AS MATERIALIZED (
         SELECT turn, substr(turn, 1, instr(turn, '/') - 1) AS namespace, (SELECT ",
    lately!(),
    "whose.turn)
         + (SELECT COALESCE(SUM(MAX(search_seconds, 1.0)), 0.0)
             FROM jobs used /*[*/INDEXED BY jobs_running_of/*|]*/ WHERE used.turn = whose.turn AND used.state = 'running') AS seconds
         FROM (SELECT turn FROM turns UNION SELECT turn FROM lapsed) whose),
     spaces AS MATERIALIZED (
         SELECT namespace, (SELECT ",
    lately!(),
    "whose.namespace)
         + (SELECT COALESCE(SUM(MAX(search_seconds, 1.0)), 0.0)
             FROM jobs used /*[*/INDEXED BY jobs_running_of/*|]*/
             WHERE used.turn >= whose.namespace || '/' AND used.turn < whose.namespace || '0' AND used.state = 'running') AS seconds
         FROM (SELECT DISTINCT namespace FROM shares) whose),
     heads AS (
         SELECT head.id, turns.priority, turns.turn, head.created_at
         FROM turns CROSS JOIN /*[*/jobs head ON head.id = (SELECT id/*|LATERAL (SELECT id, created_at]*/
             FROM jobs WHERE kind = $4 AND jobs.queue = turns.queue AND jobs.priority = turns.priority AND jobs.turn = turns.turn
                 AND state = 'queued' AND needs <= $8
             ORDER BY created_at, id LIMIT /*[*/1)/*|32) head]*/
         UNION ALL SELECT id, priority, turn, created_at FROM lapsed),
     best AS MATERIALIZED (
         SELECT heads.id, heads.priority, spaces.seconds AS together, shares.seconds, heads.created_at
         FROM heads JOIN shares ON shares.turn = heads.turn JOIN spaces ON spaces.namespace = shares.namespace
         ORDER BY heads.priority DESC, spaces.seconds, shares.seconds, heads.created_at, heads.id LIMIT 32)
     UPDATE jobs SET state = 'running', owner = $1, epoch = epoch + 1, lease_until = /*[*/$3/*|clock_ms()]*/ + $2, lease_ms = $2,
         attempts = attempts + 1, started_at = COALESCE(started_at, /*[*/$3/*|clock_ms()]*/), last_seq = last_seq + 1
     WHERE id = (
         /*[*/SELECT id FROM best ORDER BY priority DESC, together, seconds, created_at, id LIMIT 1/*|
         SELECT next.id FROM best JOIN jobs next ON next.id = best.id
         WHERE next.state = 'queued' OR (next.state = 'running'
             AND (next.lease_until <= clock_ms() OR next.lease_until - COALESCE(next.lease_ms, 3600000) > clock_ms() + 1000))
         ORDER BY best.priority DESC, best.together, best.seconds, best.created_at, best.id LIMIT 1 FOR UPDATE OF next SKIP LOCKED]*/)
     RETURNING ",
    work_columns!()
);

/// An expired lease remains valid until another worker claims the work; until then it can do no harm.
///
/// Leases expire all at once where the server was away for longer than they last. Then each worker gives its work back as soon as it is heard
/// again, which is no attempt. Until there was time for that, nobody takes it away: an expired lease says nothing while the server has not
/// answered this process all that time.
pub(super) async fn claim(
    store: &SqlStore,
    queue: &Queue,
    owner: &str,
    lease_ms: i64,
    max_attempts: u32,
) -> Result<Option<Claim>> {
    // Workers ask often, and usually nothing is waiting, so this check must not take the write lock.
    let (kind, [one, two, three]) = (queue.kind().name(), queue.names());
    let lease = Duration::from_millis(lease_ms.max(0).unsigned_abs());
    let waiting: Option<i64> = db::query_scalar(WAITING)
        .bind(kind)
        .bind(one)
        .bind(store.now().0)
        .bind(two)
        .bind(three)
        .bind(queue.understands())
        .fetch_optional(&store.readers)
        .await?;
    if waiting.is_none() {
        return Ok(None);
    }
    let mut tx = store.begin_beside().await?;
    let takes_over = store.readers.has_answered_for(lease);
    // The lock may have been waited for: by an earlier time, a lease that was given meanwhile would lie in the future, and be taken.
    let now = store.now();
    let mut changes = endings::cancelled(&mut tx, None, now).await?;
    if takes_over {
        changes.extend(endings::given_up(&mut tx, queue, max_attempts, now).await?);
    }
    let claim = loop {
        let row: Option<WorkRow> = db::query_as(TAKE)
            .bind(owner)
            .bind(lease_ms)
            .bind(now.0)
            .bind(kind)
            .bind(one)
            .bind(two)
            .bind(three)
            .bind(queue.understands())
            .bind(takes_over)
            .fetch_optional(&mut *tx)
            .await?;
        let Some(row) = row else { break None };
        let (id, epoch) = (row.id(), row.epoch);
        let by = row.by(&mut tx, now).await;
        match row.announce(&mut tx).await.and_then(|work| Ok((work, by?))) {
            Ok((work, by)) => {
                changes.push(Change::Job(id.clone()));
                let fence = Fence { job: id, owner: owner.to_owned(), epoch };
                break Some(Claim { work, fence, by });
            }
            // Otherwise every claim would fail at this row, and the queue would be stuck.
            Err(error @ StoreError::Corrupt { .. }) => {
                changes.extend(endings::unreadable(&mut tx, &id, &error.to_string()).await?);
            }
            Err(error) => return Err(error),
        }
    };
    // It may have been away just before it said so. Nothing is kept, and who asks again is told better.
    if takes_over && !store.readers.has_answered_for(lease) {
        return Ok(None);
    }
    tx.commit(changes).await?;
    Ok(claim)
}

pub(super) async fn renew(store: &SqlStore, fence: &Fence, lease_ms: i64) -> Result<Renewal> {
    let renewal = |now: Timestamp| {
        db::query_scalar(
            "UPDATE jobs SET lease_until = /*[*/$2/*|clock_ms()]*/ + $1, lease_ms = $1
             WHERE id = $3 AND owner = $4 AND epoch = $5 AND state = 'running' RETURNING cancel_requested = 1",
        )
        .bind(lease_ms)
        .bind(now.0)
        .bind(&fence.job.0)
        .bind(&fence.owner)
        .bind(fence.epoch)
    };
    let cancel_requested = match &*store.place {
        // One message there and back.
        Place::Server(_) => renewal(store.now()).fetch_optional(&store.writer).await?,
        Place::File(_) => {
            // With the lock, so that the lease is as long as it is said to be, however long the lock was waited for.
            let mut tx = store.begin_beside().await?;
            let found = renewal(store.now()).fetch_optional(&mut *tx).await?;
            tx.commit(None).await?;
            found
        }
    };
    answer(cancel_requested, fence)
}

pub(super) async fn look(store: &SqlStore, fence: &Fence) -> Result<Renewal> {
    let cancel_requested = db::query_scalar(
        "SELECT cancel_requested = 1 FROM jobs WHERE id = $1 AND owner = $2 AND epoch = $3 AND state = 'running'",
    )
    .bind(&fence.job.0)
    .bind(&fence.owner)
    .bind(fence.epoch)
    .fetch_optional(&store.readers)
    .await?;
    answer(cancel_requested, fence)
}

fn answer(cancel_requested: Option<bool>, fence: &Fence) -> Result<Renewal> {
    cancel_requested
        .map(|cancel_requested| Renewal { cancel_requested })
        .ok_or_else(|| StoreError::Fenced(fence.job.clone()))
}

pub(super) async fn update(store: &SqlStore, fence: &Fence, work: &Work) -> Result<()> {
    is_of(fence, work)?;
    let columns = Columns::of(work)?;
    let mut tx = store.begin_beside().await?;
    let row: Option<WorkRow> = db::query_as(concat!(
        "UPDATE jobs SET stage = $1, done = $2, total = $3, best = $4, search_seconds = $5, detail = $6, device = $10, ran_on = $11,
             last_seq = last_seq + 1
         WHERE id = $7 AND owner = $8 AND epoch = $9 AND state = 'running' RETURNING ",
        work_columns!()
    ))
    .bind(columns.stage)
    .bind(columns.done)
    .bind(columns.total)
    .bind(columns.best)
    .bind(columns.search_seconds)
    .bind(columns.detail)
    .bind(&fence.job.0)
    .bind(&fence.owner)
    .bind(fence.epoch)
    .bind(columns.device)
    .bind(columns.ran_on)
    .fetch_optional(&mut *tx)
    .await?;
    row.ok_or_else(|| StoreError::Fenced(fence.job.clone()))?.announce(&mut tx).await?;
    tx.commit([Change::Job(fence.job.clone())]).await
}

/// Result, end and last event are written in one transaction: a plan without the end of its job, or the reverse, is never
/// visible.
pub(super) async fn finish(store: &SqlStore, fence: &Fence, finish: &Finish) -> Result<Work> {
    is_of(fence, &finish.work)?;
    if !finish.work.state().is_final() {
        let (kind, state) = (finish.work.kind().name(), finish.work.state().name());
        return Err(StoreError::Misuse(
            format!("a job of kind {kind} cannot end as {state}").into(),
        ));
    }
    // A training may put its model to use, which others must not do meanwhile.
    let mut tx = match &finish.work {
        Work::Tune(_) => store.begin_beside().await?,
        Work::Train(_) => store.begin().await?,
    };
    let cancel_requested = held(&mut tx, fence).await?;
    let mut work = finish.work.clone();
    let mut plan: Option<&PlanId> = None;
    match (&mut work, &finish.made) {
        (Work::Train(training), _) if cancel_requested => cancel_late(training),
        (Work::Train(training), Some(Made::Model(model))) => {
            keep_model(&mut tx, training, model).await?;
        }
        (Work::Tune(_), Some(Made::Plan(made))) => {
            let of = plans::Of::job(&mut tx, &fence.job, finish.charged).await?;
            plans::insert(&mut tx, made, &of).await?;
            tx.revise();
            plan = Some(&made.id);
        }
        (_, None) => {}
        (work, Some(_)) => {
            let why = format!(
                "job {} of kind {} has a result of another kind",
                work.id(),
                work.kind().name()
            );
            return Err(StoreError::Misuse(why.into()));
        }
    }
    let ended = end(&mut tx, &work, plan).await?.announce(&mut tx).await?;
    let mut changes = vec![Change::Ended(ended.clone())];
    if let Some(second) = finish.queued.as_ref().filter(|_| cancel_requested) {
        changes.extend(cancel(&mut tx, second, store.now()).await?);
    }
    tx.commit(changes).await?;
    Ok(ended)
}

/// Cancels work that is queued, and asks work that runs to stop.
pub(super) async fn cancel(tx: &mut Connection, id: &JobId, now: Timestamp) -> Result<Vec<Change>> {
    db::query("UPDATE jobs SET cancel_requested = 1 WHERE id = $1 AND state = 'running'")
        .bind(&id.0)
        .execute(&mut *tx)
        .await?;
    let mut changes = endings::cancelled(tx, Some(id), now).await?;
    // Wakes up its worker, which is asked to stop.
    changes.push(Change::Job(id.clone()));
    Ok(changes)
}

/// A training that was asked to stop while it was ending has no model.
fn cancel_late(training: &mut Training) {
    if training.state == JobState::Succeeded {
        training.message = Some("cancelled while it was ending".to_owned());
    }
    training.state = JobState::Cancelled;
    (training.model, training.activated, training.error) = (None, false, None);
}

/// Stores the model, and activates it unless another activation has happened since the decision.
async fn keep_model(tx: &mut Write, training: &mut Training, model: &NewModel) -> Result<()> {
    models::insert(tx, &model.card, &model.file).await?;
    let Some(activation) = &model.activation else { return Ok(()) };
    let only_after = model.only_after.as_ref().map(Option::as_ref);
    if !models::put_to_use(tx, &PutToUse { activation, only_after }).await? {
        training.activated = false;
        training.message =
            Some("not put to use: the model in use was changed during the training".to_owned());
    }
    Ok(())
}

/// Whether the work was asked to stop; `Fenced` if the claim is no longer valid.
async fn held(tx: &mut Connection, fence: &Fence) -> Result<bool> {
    let cancel_requested: Option<bool> = db::query_scalar(
        "SELECT cancel_requested = 1 FROM jobs WHERE id = $1 AND owner = $2 AND epoch = $3 AND state = 'running'
         /*[*//*|FOR UPDATE]*/",
    )
    .bind(&fence.job.0)
    .bind(&fence.owner)
    .bind(fence.epoch)
    .fetch_optional(tx)
    .await?;
    cancel_requested.ok_or_else(|| StoreError::Fenced(fence.job.clone()))
}

async fn end(tx: &mut Connection, work: &Work, plan: Option<&PlanId>) -> Result<WorkRow> {
    let columns = Columns::of(work)?;
    let row = db::query_as(concat!(
        "UPDATE jobs SET state = $1, stage = $2, done = $3, total = $4, best = $5, search_seconds = $6, plan = $7, follow_up = $8,
             stopped_by = $9, error = $10, detail = $11, finished_at = $12, owner = NULL, lease_until = NULL,
             last_seq = last_seq + 1
         WHERE id = $13 RETURNING ",
        work_columns!()
    ))
    .bind(work.state().name())
    .bind(columns.stage)
    .bind(columns.done)
    .bind(columns.total)
    .bind(columns.best)
    .bind(columns.search_seconds)
    .bind(plan.map(|plan| plan.0.clone()).or(columns.plan))
    .bind(columns.follow_up)
    .bind(columns.stopped_by)
    .bind(columns.error)
    .bind(columns.detail)
    .bind(work.finished_at().unwrap_or_else(Timestamp::now).0)
    .bind(&work.id().0)
    .fetch_one(tx)
    .await?;
    Ok(row)
}

pub(super) async fn release(store: &SqlStore, fence: &Fence) -> Result<()> {
    let mut tx = store.begin_beside().await?;
    // Work that was asked to stop is not given to another worker: its lease expires now, which ends it. A released attempt
    // did not harm the worker and is not counted. A training keeps no intermediate results and starts from the beginning.
    let row: Option<WorkRow> = db::query_as(concat!(
        "UPDATE jobs SET
             lease_until = CASE cancel_requested WHEN 1 THEN CAST(0 AS BIGINT) END,
             owner = CASE cancel_requested WHEN 1 THEN owner END,
             state = CASE cancel_requested WHEN 1 THEN state ELSE 'queued' END,
             stage = CASE cancel_requested WHEN 1 THEN stage ELSE 'waiting' END,
             started_at = CASE WHEN cancel_requested = 1 OR kind = 'tune' THEN started_at END,
             detail = CASE WHEN cancel_requested = 1 THEN detail END,
             attempts = MAX(attempts - 1, 0),
             last_seq = last_seq + 1
         WHERE id = $1 AND owner = $2 AND epoch = $3 AND state = 'running' RETURNING ",
        work_columns!()
    ))
    .bind(&fence.job.0)
    .bind(&fence.owner)
    .bind(fence.epoch)
    .fetch_optional(&mut *tx)
    .await?;
    row.ok_or_else(|| StoreError::Fenced(fence.job.clone()))?.announce(&mut tx).await?;
    let mut changes = vec![Change::Job(fence.job.clone()), Change::Released];
    changes.extend(endings::cancelled(&mut tx, None, store.now()).await?);
    tx.commit(changes).await
}

/// Checks that the work written under a fence is the claimed work.
fn is_of(fence: &Fence, work: &Work) -> Result<()> {
    if *work.id() == fence.job {
        return Ok(());
    }
    let why = format!("the lease is on job {}, not on {}", fence.job, work.id());
    Err(StoreError::Misuse(why.into()))
}
