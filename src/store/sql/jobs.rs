//! The queue for clients: submission, lists and cancellation. What a worker does under a lease is in `leases`.

use super::codec;
use super::db::{self, Connection, Text};
use super::rows::{Columns, WorkRow, work_columns};
use super::sorted::{self, List};
use super::{SqlStore, events, leases, quotas};
use crate::domain::{
    Digest, Event, EventKind, JobId, JobState, Namespace, Timestamp, Work, WorkKind,
};
use crate::store::{
    Change, Claim, Fence, Finish, JobColumn, JobFilter, JobOrder, Jobs, NewWork, Page, PageRequest,
    Queue, Renewal, Result, StoreError, Story, Submission, Whose,
};
use async_trait::async_trait;

/// Cursors of trainings had another name while trainings had their own table; a client with such a cursor starts again.
const LIST: &str = "jobs";

/// Most keys that name one job: each that meets an equal job adds one, which no limit of queued jobs bounds. The newest stay.
const KEYS_OF_A_JOB: i64 = 100;

#[async_trait]
impl Jobs for SqlStore {
    async fn submit(&self, new: &NewWork) -> Result<Submission> {
        if new.work.state() != JobState::Queued {
            let (kind, state) = (new.work.kind().name(), new.work.state().name());
            return Err(StoreError::Misuse(
                format!("a job of kind {kind} cannot begin as {state}").into(),
            ));
        }
        let mut tx = self.begin_within().await?;
        if let Some((key, request)) = &new.idempotency
            && let Some(known) = by_idempotency_key(&mut tx, self, key, request).await?
        {
            return Ok(known);
        }
        let submission = match live_twin(&mut tx, self, &new.dedup_key).await? {
            Some(work) => Submission::Existing(work),
            None => {
                // What continues a job was judged, and reserved, with that job.
                if !new.continues {
                    quotas::may_queue(&mut tx, &self.caller, &new.work, self.now()).await?;
                }
                Submission::Created(insert(&mut tx, self, new).await?)
            }
        };
        if let (Some((key, request)), Submission::Created(work) | Submission::Existing(work)) =
            (&new.idempotency, &submission)
        {
            db::query(
                "INSERT INTO idempotency_keys (key, request, job, created_at) VALUES ($1, $2, $3, $4)",
            )
            .bind(own_key(self, key))
            .bind(&request.as_bytes()[..])
            .bind(&work.id().0)
            .bind(Timestamp::now().0)
            .execute(&mut *tx)
            .await?;
            db::query(
                "DELETE FROM idempotency_keys WHERE rowid IN (
                     SELECT rowid FROM idempotency_keys WHERE job = $1 ORDER BY rowid DESC LIMIT 9223372036854775807 OFFSET $2)",
            )
            .bind(&work.id().0)
            .bind(KEYS_OF_A_JOB)
            .execute(&mut *tx)
            .await?;
        }
        let created = match &submission {
            Submission::Created(work) => Some(Change::Submitted(work.clone())),
            Submission::Existing(_) | Submission::KeyReused => None,
        };
        tx.commit(created).await?;
        Ok(submission)
    }

    async fn keyed(&self, key: &str, request: &Digest) -> Result<Option<Submission>> {
        let mut reader = self.readers.acquire().await?;
        by_idempotency_key(&mut reader, self, key, request).await
    }

    async fn work(&self, id: &JobId) -> Result<Option<Work>> {
        let mut reader = self.readers.acquire().await?;
        by_id(&mut reader, self.namespace(), id).await
    }

    async fn works(&self, filter: &JobFilter, page: &PageRequest) -> Result<Page<Work>> {
        let limit = codec::page_limit(page.limit);
        let after = page.after.as_deref().map(|text| codec::read_cursor(LIST, text)).transpose()?;
        let query = list_query(self.namespace(), filter, after, limit + 1);
        let rows: Vec<WorkRow> = query.query_as().fetch_all(&self.readers).await?;
        let rows = codec::cut(rows, limit, |row| codec::cursor(LIST, row.created_at, &row.id().0));
        readable(rows)
    }

    async fn sorted_works(
        &self,
        filter: &JobFilter,
        order: JobOrder,
        page: &PageRequest,
    ) -> Result<Page<Work>> {
        if order.is_default() {
            return self.works(filter, page).await;
        }
        let of = |query: &mut Text<'static>| source(query, self.namespace(), filter, order.by);
        let own = |id: &str| Ok(id.to_owned());
        let id = |row: &WorkRow| Ok(row.id().0);
        readable(match order.by {
            JobColumn::CreatedAt => {
                SORTED.page::<_, i64, _>(&self.readers, order, page, of, own, id).await?
            }
            _ => SORTED.page::<_, f64, _>(&self.readers, order, page, of, own, id).await?,
        })
    }

    async fn request_cancel(&self, id: &JobId) -> Result<Option<Work>> {
        let mut tx = self.begin_beside().await?;
        // A worker that claims it just now would not hear of it.
        let there: Option<i64> = db::query_scalar(
            "SELECT epoch FROM jobs WHERE id = $1 AND namespace = $2 /*[*//*|FOR UPDATE]*/",
        )
        .bind(&id.0)
        .bind(self.namespace())
        .fetch_optional(&mut *tx)
        .await?;
        if there.is_none() {
            return Ok(None);
        }
        let changes = leases::cancel(&mut tx, id, self.now()).await?;
        let work = by_id(&mut tx, self.namespace(), id).await?;
        tx.commit(changes).await?;
        Ok(work)
    }

    async fn claim(
        &self,
        queue: &Queue,
        owner: &str,
        lease_ms: i64,
        max_attempts: u32,
    ) -> Result<Option<Claim>> {
        leases::claim(self, queue, owner, lease_ms, max_attempts).await
    }

    async fn renew(&self, fence: &Fence, lease_ms: i64) -> Result<Renewal> {
        leases::renew(&self.apart(), fence, lease_ms).await
    }

    async fn held(&self, fence: &Fence) -> Result<Renewal> {
        leases::look(self, fence).await
    }

    async fn update(&self, fence: &Fence, work: &Work) -> Result<()> {
        leases::update(self, fence, work).await
    }

    async fn finish(&self, fence: &Fence, finish: &Finish) -> Result<Work> {
        leases::finish(self, fence, finish).await
    }

    async fn release(&self, fence: &Fence) -> Result<()> {
        leases::release(self, fence).await
    }

    async fn release_all(&self, owner: &str) -> Result<u64> {
        let held: Vec<(String, i64)> =
            db::query_as(HELD).bind(owner).fetch_all(&self.readers).await?;
        let mut released = 0;
        for (job, epoch) in held {
            let fence = Fence { job: JobId(job), owner: owner.to_owned(), epoch };
            match leases::release(self, &fence).await {
                Ok(()) => released += 1,
                // Another has claimed it since.
                Err(StoreError::Fenced(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(released)
    }

    async fn events(&self, id: &JobId, after: u64, limit: u32) -> Result<Vec<Event>> {
        events::after(self, id, after, limit).await
    }

    async fn story(&self, id: &JobId) -> Result<Story> {
        events::story(self, id).await
    }

    async fn log(&self, fence: &Fence, kind: &EventKind) -> Result<()> {
        let mut tx = self.begin_beside().await?;
        let seq = events::reserve(&mut tx, fence, 1).await?;
        events::append(&mut tx, &fence.job, seq, kind).await?;
        tx.commit([Change::Job(fence.job.clone())]).await
    }

    async fn job_counts(&self, of: Whose) -> Result<Vec<(WorkKind, JobState, u64)>> {
        let query = match of {
            Whose::Own => db::query_as(OWN_COUNTS).bind(self.namespace()),
            Whose::All => db::query_as(COUNTS),
        };
        let rows: Vec<(String, i64, i64)> = query.fetch_all(&self.readers).await?;
        let mut counts = Vec::with_capacity(rows.len());
        for (state, all, trainings) in rows {
            let state: JobState = codec::named("job state", state)?;
            for (kind, n) in [(WorkKind::Tune, all - trainings), (WorkKind::Train, trainings)] {
                if n != 0 {
                    counts.push((kind, state, codec::count("job count", n)?));
                }
            }
        }
        Ok(counts)
    }
}

/// The states appear twice, since a partial index is used only if its exact condition is one of the terms.
pub(super) const HELD: &str = "SELECT id, epoch FROM jobs WHERE state = 'running' AND owner = $1";

/// Counts both kinds in one pass over an index that is not ordered by kind.
pub(super) const COUNTS: &str =
    "SELECT state, count(*), count(*) FILTER (WHERE kind = 'train') FROM jobs GROUP BY state";

pub(super) const OWN_COUNTS: &str = "SELECT state, count(*), count(*) FILTER (WHERE kind = 'train') FROM jobs WHERE namespace = $1 GROUP BY state";

/// A page of a namespace's jobs, newest first, after the time and id of the last job shown.
pub(super) fn list_query(
    namespace: &str,
    filter: &JobFilter,
    after: Option<(i64, String)>,
    limit: i64,
) -> Text<'static> {
    let mut query = Text::new(concat!("SELECT ", work_columns!(), " FROM jobs WHERE TRUE"));
    narrow(&mut query, namespace, filter);
    if let Some((at, id)) = after {
        query.push(" AND (created_at, id) < (").push_bind(at);
        query.push(", ").push_bind(id).push(")");
    }
    query.push(" ORDER BY created_at DESC, id DESC LIMIT ").push_bind(limit);
    query
}

/// The terms of a filter.
fn narrow(query: &mut Text<'static>, namespace: &str, filter: &JobFilter) {
    narrow_by_index(query, namespace, filter);
    narrow_by_request(query, filter);
}

/// Those that have an index which is newest first.
fn narrow_by_index(query: &mut Text<'static>, namespace: &str, filter: &JobFilter) {
    query.push(" AND namespace = ").push_bind(namespace.to_owned());
    match filter.kind {
        // A literal as in the condition of the partial index, which a parameter would not match.
        Some(WorkKind::Train) => _ = query.push(" AND kind = 'train'"),
        Some(WorkKind::Tune) => _ = query.push(" AND kind = 'tune'"),
        None => {}
    }
    if let Some(state) = filter.state {
        query.push(" AND state = ").push_bind(state.name());
    }
    if let Some(matrix) = &filter.matrix {
        query.push(" AND matrix = ").push_bind(matrix.as_bytes().to_vec());
    }
    if let Some(device) = &filter.device {
        query.push(" AND device = ").push_bind(device.0.clone());
    }
}

/// Those that are looked up in each job.
fn narrow_by_request(query: &mut Text<'static>, filter: &JobFilter) {
    if let Some(op) = filter.op {
        query.push(" AND coalesce(request ->> '$.problem.op', request ->> '$.scope.op') = ");
        query.push_bind(op.name());
    }
}

/// Where the rows of a sorted list come from: all of the namespace, along the index of the order, or the newest 20,000 that are found by the
/// index of a filter. Along the order's, all would be read for the few that a filter leaves.
fn source(query: &mut Text<'static>, namespace: &str, filter: &JobFilter, by: JobColumn) {
    let JobFilter { kind, state, matrix, device, op } = filter;
    // Nearly all tune, and each index of a filter is ordered by time.
    let few = state.is_some() || matrix.is_some() || device.is_some() || op.is_some();
    if by == JobColumn::CreatedAt || !(few || *kind == Some(WorkKind::Train)) {
        query.push(" FROM jobs WHERE TRUE");
        return narrow(query, namespace, filter);
    }
    query.push(" FROM (SELECT id AS found FROM jobs WHERE TRUE");
    narrow_by_index(query, namespace, filter);
    query.push(
        " ORDER BY created_at DESC, id DESC LIMIT 20000) newest CROSS JOIN jobs WHERE jobs.id = newest.found",
    );
    narrow_by_request(query, filter);
}

/// The list in another order.
pub(super) const SORTED: List<JobColumn> = List {
    name: LIST,
    columns: work_columns!(),
    id: "id",
    key: sorted::job_key,
    floor: sorted::job_floor,
};

/// The statement of the first page in an order, or of a later one.
#[cfg(test)]
pub(super) fn sorted_query(
    namespace: &str,
    filter: &JobFilter,
    order: JobOrder,
    from: sorted::Start<f64, String>,
) -> Text<'static> {
    let of = |query: &mut Text<'static>| source(query, namespace, filter, order.by);
    SORTED.query(order, &of, from, 51)
}

/// The work of rows.
fn readable(rows: Page<WorkRow>) -> Result<Page<Work>> {
    let mut items = Vec::with_capacity(rows.items.len());
    for row in rows.items {
        let (id, is_training) = (row.id(), row.is_training());
        match row.work() {
            Ok(work) => items.push(work),
            // This list also decides whether the next training is due, which one unreadable row must not prevent.
            Err(error @ StoreError::Corrupt { .. }) if is_training => {
                tracing::error!(training = %id, %error, "a training is left out of the list");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Page { items, next: rows.next })
}

async fn by_id(connection: &mut Connection, namespace: &str, id: &JobId) -> Result<Option<Work>> {
    let row: Option<WorkRow> = db::query_as(concat!(
        "SELECT ",
        work_columns!(),
        " FROM jobs WHERE id = $1 AND namespace = $2"
    ))
    .bind(&id.0)
    .bind(namespace)
    .fetch_optional(connection)
    .await?;
    row.map(WorkRow::work).transpose()
}

/// Whether the job is one of the store's namespace: what belongs to another's is not read.
pub(super) async fn is_here(
    connection: &mut Connection,
    store: &SqlStore,
    id: &JobId,
) -> Result<bool> {
    let here: Option<i64> =
        db::query_scalar("SELECT CAST(1 AS BIGINT) FROM jobs WHERE id = $1 AND namespace = $2")
            .bind(&id.0)
            .bind(store.namespace())
            .fetch_optional(connection)
            .await?;
    Ok(here.is_some())
}

/// A key in one namespace. Those of the default one are as they were before there were others; no name has a line's end.
fn own(store: &SqlStore, key: &str) -> String {
    match store.caller.namespace == Namespace::default() {
        true => key.to_owned(),
        false => format!("{}\n{key}", store.namespace()),
    }
}

/// A key for idempotency, which is its token's own: what one client has chosen tells another nothing. A dedup key is shared.
fn own_key(store: &SqlStore, key: &str) -> String {
    match store.token() {
        None => own(store, key),
        Some(token) => format!("{}\n{token}\n{key}", store.namespace()),
    }
}

async fn by_idempotency_key(
    connection: &mut Connection,
    store: &SqlStore,
    key: &str,
    request: &Digest,
) -> Result<Option<Submission>> {
    let row: Option<(Vec<u8>, String)> =
        db::query_as("SELECT request, job FROM idempotency_keys WHERE key = $1")
            .bind(own_key(store, key))
            .fetch_optional(&mut *connection)
            .await?;
    let Some((stored, job)) = row else { return Ok(None) };
    if codec::digest("idempotency key", &stored)? != *request {
        return Ok(Some(Submission::KeyReused));
    }
    let work = by_id(connection, store.namespace(), &JobId(job)).await?;
    Ok(work.map(Submission::Existing))
}

/// The queued or running work with this dedup key.
async fn live_twin(tx: &mut Connection, store: &SqlStore, dedup_key: &str) -> Result<Option<Work>> {
    let row: Option<WorkRow> = db::query_as(concat!(
        "SELECT ",
        work_columns!(),
        " FROM jobs WHERE dedup_key = $1 AND state IN ('queued', 'running') AND cancel_requested = 0"
    ))
    .bind(own(store, dedup_key))
    .fetch_optional(tx)
    .await?;
    row.map(WorkRow::work).transpose()
}

async fn insert(tx: &mut Connection, store: &SqlStore, new: &NewWork) -> Result<Work> {
    let columns = Columns::of(&new.work)?;
    let row: Option<WorkRow> = db::query_as(concat!(
        "INSERT INTO jobs (id, kind, device, matrix, version, request, dedup_key, state, stage, total, detail, created_at,
             token, namespace, priority, device_class, only_on, needs, second_part, last_seq)
         SELECT $1, $2, $3, $4, $5, $6, $7, 'queued', $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, 1
         WHERE $4 IS NULL OR EXISTS (SELECT 1 FROM holdings WHERE namespace = $13 AND digest = $4)
         RETURNING ",
        work_columns!()
    ))
    .bind(&new.work.id().0)
    .bind(new.work.kind().name())
    .bind(columns.device)
    .bind(columns.matrix)
    .bind(columns.version)
    .bind(columns.request)
    .bind(own(store, &new.dedup_key))
    .bind(columns.stage)
    .bind(columns.total)
    .bind(columns.detail)
    .bind(new.work.created_at().0)
    .bind(store.token())
    .bind(store.namespace())
    .bind(new.priority)
    .bind(columns.device_class)
    .bind(columns.only_on)
    .bind(new.work.needs())
    .bind(columns.second_part)
    .fetch_optional(&mut *tx)
    .await?;
    // Only work that needs a matrix can be refused here.
    let row = row.ok_or_else(|| match &new.work {
        Work::Tune(job) => StoreError::Missing(format!("matrix {}", job.request.matrix)),
        Work::Train(training) => {
            StoreError::Misuse(format!("training {} was not stored", training.id).into())
        }
    })?;
    row.announce(tx).await
}
