//! Removal of old rows, and the revision counter that tells caches when answers may have changed.

use super::db::{self, Connection, Query};
use super::file_lock::{FileLock, Serial};
use super::moving::MOVED;
use super::{Place, SqlStore, codec, endings, models, stored, webhooks};
use crate::domain::{Digest, Timestamp};
use crate::store::{Change, Guard, Pruned, Result, Retention, StoreError, Upkeep};
use async_trait::async_trait;
use serde::Deserialize;
use std::collections::HashSet;
use std::time::Duration;

/// Number of jobs whose events are removed in one transaction, so that the writer is never held for long.
const BATCH: i64 = 200;

/// Number of rows without others behind them that are removed in one.
const ROWS: i64 = 2_000;

/// How long sums of what turns have searched are kept; an hour of them is read.
const SEARCHED_MS: i64 = 2 * 3_600_000;

/// Rounds by rules that no process has had for so long are forgotten.
const OLD_ROUNDS_MS: i64 = 30 * 86_400_000;

/// Number of ended trainings kept per scope.
const MOST_TRAININGS: i64 = 100;

/// Ended trainings that are not among the newest of their scope. The dedup key names the scope.
const TRAININGS: &str = "DELETE FROM jobs WHERE id IN (
     SELECT id FROM (
         SELECT id, row_number() OVER (PARTITION BY dedup_key ORDER BY created_at DESC, id DESC) AS age
         FROM jobs WHERE kind = 'train' AND state NOT IN ('queued', 'running')) ended
     WHERE age > $1 LIMIT $2)";

/// Predicted plans that no job created or names, and that are old or superseded by a measured plan.
pub(super) const PREDICTED: &str = "DELETE FROM plans WHERE predicted = 1 AND id IN (SELECT value FROM json_each($2))
     AND body ->> '$.provenance.job' IS NULL
     AND (created_at < $1 OR EXISTS (
         SELECT 1 FROM plans measured WHERE measured.predicted = 0
             AND measured.namespace = plans.namespace AND measured.pattern_digest = plans.pattern_digest AND measured.problem = plans.problem
             AND measured.device_class = plans.device_class AND measured.l2_policy = plans.l2_policy))
     AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.plan = plans.id)";

/// The launches of plans, by their ids.
pub(super) const LAUNCHES: &str =
    "SELECT id, body -> '$.launch' FROM plans WHERE id > $1 ORDER BY id LIMIT $2";

/// Number of plans whose launches are read at a time.
const LAUNCHES_AT_ONCE: i64 = 200;

/// Predicted plans that may go, by their ids, so that each statement looks at as many as are removed at a time. On a server they are locked,
/// past those that an end of a job is just about to name.
const PREDICTED_PAGE: &str = "SELECT id FROM plans WHERE predicted = 1 AND id > $1 ORDER BY id LIMIT $2 /*[*//*|FOR UPDATE SKIP LOCKED]*/";

#[async_trait]
impl Upkeep for SqlStore {
    async fn prune(&self, retention: &Retention) -> Result<Pruned> {
        let mut pruned = Pruned::default();
        let mut failed = None;
        // Each by itself: what one step meets must not keep the others from being done, round by round.
        let mut step = |done: Result<()>| {
            if let Err(error) = done {
                tracing::warn!(%error, "a step of pruning failed");
                failed.get_or_insert(error);
            }
        };
        step(self.prune_devices(retention).await.map(|gone| pruned.devices = gone));
        let keys = in_batches(self, |most| {
            db::query(
                "DELETE FROM idempotency_keys WHERE rowid IN (
                     SELECT rowid FROM idempotency_keys WHERE created_at < $1 LIMIT $2)",
            )
            .bind(retention.idempotency_keys.0)
            .bind(most)
        });
        step(keys.await.map(|keys| pruned.idempotency_keys = keys));
        step(self.prune_predicted(retention).await.map(|gone| pruned.predicted = gone));
        // Files that can be built again.
        let bundles = in_batches(self, |most| {
            db::query(
                "DELETE FROM bundles WHERE (plan, without_values) IN (
                     SELECT plan, without_values FROM bundles WHERE imported = 0 AND created_at < $1 LIMIT $2)",
            )
            .bind(retention.bundles.0)
            .bind(most)
        });
        step(bundles.await.map(|bundles| pruned.bundles = bundles));
        let trainings =
            in_batches(self, |most| db::query(TRAININGS).bind(MOST_TRAININGS).bind(most));
        step(trainings.await.map(drop));
        step(self.prune_counts().await);
        step(webhooks::prune(self, retention).await);
        step(self.prune_events(retention).await.map(|gone| pruned.events = gone));
        failed.map_or(Ok(pruned), Err)
    }

    async fn take_round(&self, rules: &str, within: Duration) -> Result<bool> {
        let within = i64::try_from(within.as_millis()).unwrap_or(i64::MAX / 2);
        let mut tx = self.begin_beside().await?;
        // A clock that was set back meanwhile holds up no round.
        let done = db::query(
            "INSERT INTO rounds (rules, begun_at) VALUES ($1, /*[*/$2/*|clock_ms() + 0 * $2]*/)
             ON CONFLICT (rules) DO UPDATE SET begun_at = excluded.begun_at
             WHERE rounds.begun_at <= excluded.begun_at - $3 OR rounds.begun_at > excluded.begun_at + $3",
        )
        .bind(rules)
        .bind(self.now().0)
        .bind(within)
        .execute(&mut *tx)
        .await?;
        tx.commit(None).await?;
        Ok(done.rows_affected() == 1)
    }

    async fn sweeping(&self) -> Result<Option<Guard>> {
        match &*self.place {
            Place::File(file) => {
                match FileLock::wait(file, Serial::Sweeping, Duration::ZERO).await {
                    Err(StoreError::Busy(_)) => Ok(None),
                    taken => Ok(Some(Guard::of(taken?))),
                }
            }
            Place::Server(server) => server.sweeping(&self.writer).await,
        }
    }

    async fn named_blobs(&self) -> Result<HashSet<Digest>> {
        // One state of the database, in as much time as it takes.
        let mut tx = self.readers.study().await?;
        let matrices: Vec<Vec<u8>> =
            db::query_scalar("SELECT digest FROM matrices").fetch_all(&mut tx).await?;
        let mut named = matrices
            .iter()
            .map(|digest| codec::digest("matrix digest", digest))
            .collect::<Result<HashSet<Digest>>>()?;
        let bundles: Vec<Vec<u8>> =
            db::query_scalar("SELECT blob FROM bundles").fetch_all(&mut tx).await?;
        for blob in &bundles {
            named.insert(codec::digest("bundle blob", blob)?);
        }
        each_launch(&mut tx, |_, blob| _ = named.insert(blob)).await?;
        Ok(named)
    }

    async fn revision(&self) -> Result<u64> {
        let value: i64 =
            db::query_scalar("SELECT value FROM revision").fetch_one(&self.readers).await?;
        let revision = codec::count("revision", value)?;
        // Another process may have raised it.
        self.listeners.publish([Change::Revision(revision)]);
        Ok(revision)
    }

    async fn check_writable(&self) -> Result<()> {
        let mut tx = self.begin_beside().await?;
        // Rolled back when it is dropped.
        let done = db::query("UPDATE store_id SET id = id WHERE moved_to IS NULL")
            .execute(&mut *tx)
            .await?;
        match done.rows_affected() {
            0 => Err(StoreError::InUse(MOVED.into())),
            _ => Ok(()),
        }
    }

    /// What is not in the write-ahead log any more was synced when it was moved into the database file.
    async fn settle(&self) -> Result<()> {
        let Place::File(file) = &*self.place else {
            // A server may have been told not to wait with each commit; what it syncs for this one has all those before it.
            let mut tx = self.begin_beside().await?;
            db::query("SET LOCAL synchronous_commit TO on").execute(&mut *tx).await?;
            db::query("UPDATE store_id SET id = id").execute(&mut *tx).await?;
            return tx.commit(None).await;
        };
        let mut log = file.as_os_str().to_owned();
        log.push("-wal");
        let sync = move || match std::fs::File::open(&log) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            opened => opened?.sync_data(),
        };
        let synced = tokio::task::spawn_blocking(sync).await.map_err(std::io::Error::other);
        synced.flatten().map_err(|error| {
            let what = format!("the write-ahead log could not be synced: {error}");
            StoreError::Backend(std::io::Error::new(error.kind(), what).into())
        })
    }

    async fn id(&self) -> Result<String> {
        Ok(db::query_scalar("SELECT id FROM store_id").fetch_one(&self.readers).await?)
    }

    /// The database file alone has everything afterwards: the last connection removes the write-ahead log, and where other processes
    /// have connections it is at least moved into the file.
    async fn close(&self) {
        if let Place::File(_) = &*self.place {
            let truncate = db::query("PRAGMA wal_checkpoint(TRUNCATE)");
            if let Err(error) = truncate.execute(&self.writer).await {
                tracing::warn!(%error, "the write-ahead log could not be moved into the database file");
            }
        }
        self.readers.close().await;
        self.writer.close().await;
    }
}

impl SqlStore {
    async fn prune_devices(&self, retention: &Retention) -> Result<u64> {
        let mut tx = self.begin().await?;
        let changes = endings::cancelled(&mut tx, None, self.now()).await?;
        // By the clock that says when they were seen.
        let silent_ms = Timestamp::now().0.saturating_sub(retention.devices.0);
        let some: Option<i64> = db::query_scalar(
            "SELECT CAST(1 AS BIGINT) FROM devices WHERE seen_at < /*[*/$1/*|clock_ms()]*/ - $2 LIMIT 1",
        )
        .bind(self.now().0)
        .bind(silent_ms)
        .fetch_optional(&mut *tx)
        .await?;
        if some.is_some() {
            tx.revise();
        }
        let devices = db::query("DELETE FROM devices WHERE seen_at < /*[*/$1/*|clock_ms()]*/ - $2")
            .bind(self.now().0)
            .bind(silent_ms)
            .execute(&mut *tx)
            .await?;
        db::query("DELETE FROM workers WHERE seen_at < /*[*/$1/*|clock_ms()]*/ - $2")
            .bind(self.now().0)
            .bind(silent_ms)
            .execute(&mut *tx)
            .await?;
        // Here, since none of them may be put to use meanwhile.
        models::unused(ROWS).execute(&mut *tx).await?;
        tx.commit(changes).await?;
        Ok(devices.rows_affected())
    }

    async fn prune_counts(&self) -> Result<()> {
        let now = self.now().0;
        in_batches(self, |most| {
            db::query(
                "DELETE FROM searched WHERE (turn, since, slot) IN (
                     SELECT turn, since, slot FROM searched WHERE since < /*[*/$1/*|clock_ms() + 0 * $1]*/ - $2 LIMIT $3)",
            )
            .bind(now)
            .bind(SEARCHED_MS)
            .bind(most)
        })
        .await?;
        db::query("DELETE FROM rounds WHERE begun_at < /*[*/$1/*|clock_ms() + 0 * $1]*/ - $2")
            .bind(now)
            .bind(OLD_ROUNDS_MS)
            .execute(&self.writer)
            .await?;
        db::query("DELETE FROM under_way WHERE at < /*[*/$1/*|clock_ms() + 0 * $1]*/ - $2")
            .bind(now)
            .bind(stored::LONGEST_MS)
            .execute(&self.writer)
            .await?;
        Ok(())
    }

    async fn prune_predicted(&self, retention: &Retention) -> Result<u64> {
        let (mut gone, mut after) = (0, String::new());
        loop {
            let mut tx = self.begin_beside().await?;
            let page: Vec<String> = db::query_scalar(PREDICTED_PAGE)
                .bind(&after)
                .bind(BATCH)
                .fetch_all(&mut *tx)
                .await?;
            let Some(last) = page.last() else { return Ok(gone) };
            let done = db::query(PREDICTED)
                .bind(retention.predicted.0)
                .bind(codec::encode_part("plans", &page)?)
                .execute(&mut *tx)
                .await?;
            tx.commit(None).await?;
            gone += done.rows_affected();
            after.clone_from(last);
        }
    }

    async fn prune_events(&self, retention: &Retention) -> Result<u64> {
        let mut gone = 0;
        loop {
            // The last event stays, because it tells a late listener how the job ended. A job with only that event left is
            // complete.
            let events = db::query(
                "DELETE FROM events WHERE (job, seq) IN (
                     SELECT e.job, e.seq FROM (
                         SELECT j.id, j.last_seq FROM jobs j
                         WHERE j.finished_at < $1
                             AND EXISTS (SELECT 1 FROM events x WHERE x.job = j.id AND x.seq < j.last_seq)
                         LIMIT $2) old
                     JOIN events e ON e.job = old.id AND e.seq < old.last_seq)",
            )
            .bind(retention.events.0)
            .bind(BATCH)
            .execute(&self.writer)
            .await?;
            if events.rows_affected() == 0 {
                return Ok(gone);
            }
            gone += events.rows_affected();
        }
    }
}

/// Executes a statement, which is given the number of rows that it may concern, until it concerns none; returns their number. Each is a
/// transaction of its own: however much there is to be removed, no statement takes long, and nobody waits for all of them.
pub(super) async fn in_batches<'q>(
    store: &SqlStore,
    statement: impl Fn(i64) -> Query<'q, ()>,
) -> Result<u64> {
    let mut all = 0;
    loop {
        let done = statement(ROWS).execute(&store.writer).await?.rows_affected();
        all += done;
        if done == 0 {
            return Ok(all);
        }
    }
}

/// The blobs that each plan names, with the plan's id. Bodies are long and parsed by the database, so each is parsed once, for the one part that
/// names blobs, and a page of them at a time is read here.
pub(super) async fn each_launch(
    on: &mut Connection,
    mut told: impl FnMut(&str, Digest),
) -> Result<()> {
    let mut after = String::new();
    loop {
        let page: Vec<(String, Option<String>)> =
            db::query_as(LAUNCHES).bind(&after).bind(LAUNCHES_AT_ONCE).fetch_all(&mut *on).await?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = last.clone();
        for (plan, text) in &page {
            let Some(text) = text else { continue };
            let launch: Option<Launch> = serde_json::from_str(text)
                .map_err(|error| codec::corrupt("plan blob", error.to_string()))?;
            for blob in launch.iter().flat_map(Launch::blobs) {
                let digest = blob.parse::<Digest>();
                let digest =
                    digest.map_err(|error| codec::corrupt("plan blob", error.to_string()))?;
                told(plan, digest);
            }
        }
    }
}

/// The part of a plan's body that names blobs.
#[derive(Deserialize)]
struct Launch {
    #[serde(flatten)]
    own: Texts,
    update: Option<Texts>,
    #[serde(default)]
    arrays: Vec<Array>,
}

#[derive(Deserialize)]
struct Texts {
    source: Option<String>,
    cubin: Option<String>,
    ptx: Option<String>,
}

#[derive(Deserialize)]
struct Array {
    blob: String,
}

impl Launch {
    fn blobs(&self) -> impl Iterator<Item = &String> {
        let texts = [Some(&self.own), self.update.as_ref()].into_iter().flatten();
        let texts = texts.flat_map(|Texts { source, cubin, ptx }| [source, cubin, ptx]).flatten();
        texts.chain(self.arrays.iter().map(|array| &array.blob))
    }
}

/// Raises the count of what may have changed answers to lookups.
pub(super) async fn raise_revision(tx: &mut Connection) -> Result<Change> {
    let value: i64 = db::query_scalar("UPDATE revision SET value = value + 1 RETURNING value")
        .fetch_one(tx)
        .await?;
    Ok(Change::Revision(codec::count("revision", value)?))
}
