//! Removal of old rows, and the revision counter that tells caches when answers may have changed.

use super::db::{self, Connection};
use super::{Place, SqlStore, codec, endings, models, webhooks};
use crate::domain::Digest;
use crate::store::{Change, Pruned, Result, Retention, StoreError, Upkeep};
use async_trait::async_trait;
use std::collections::HashSet;

/// Number of jobs whose events are removed in one transaction, so that the writer is never held for long.
const BATCH: i64 = 200;

/// Number of ended trainings kept per scope.
const MOST_TRAININGS: i64 = 100;

/// Ended trainings that are not among the newest of their scope. The dedup key names the scope.
const TRAININGS: &str = "DELETE FROM jobs WHERE id IN (
     SELECT id FROM (
         SELECT id, row_number() OVER (PARTITION BY dedup_key ORDER BY created_at DESC, id DESC) AS age
         FROM jobs WHERE kind = 'train' AND state NOT IN ('queued', 'running')) ended
     WHERE age > $1)";

/// Predicted plans that no job created or names, and that are old or superseded by a measured plan.
pub(super) const PREDICTED: &str = "DELETE FROM plans WHERE predicted = 1 AND body ->> '$.provenance.job' IS NULL
     AND (created_at < $1 OR EXISTS (
         SELECT 1 FROM plans measured WHERE measured.predicted = 0
             AND measured.namespace = plans.namespace AND measured.pattern_digest = plans.pattern_digest AND measured.problem = plans.problem
             AND measured.device_class = plans.device_class AND measured.l2_policy = plans.l2_policy))
     AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.plan = plans.id)";

#[async_trait]
impl Upkeep for SqlStore {
    async fn prune(&self, retention: &Retention) -> Result<Pruned> {
        let mut tx = self.begin().await?;
        let mut changes = endings::cancelled(&mut tx, None, self.now()).await?;
        let devices = db::query("DELETE FROM devices WHERE seen_at < $1")
            .bind(retention.devices.0)
            .execute(&mut *tx)
            .await?;
        if devices.rows_affected() > 0 {
            changes.push(revise(&mut tx).await?);
        }
        db::query(TRAININGS).bind(MOST_TRAININGS).execute(&mut *tx).await?;
        models::prune(&mut tx).await?;
        tx.commit(changes).await?;
        let keys = db::query("DELETE FROM idempotency_keys WHERE created_at < $1")
            .bind(retention.idempotency_keys.0)
            .execute(&self.writer)
            .await?;
        let predicted =
            db::query(PREDICTED).bind(retention.predicted.0).execute(&self.writer).await?;
        // Files that can be built again.
        let bundles = db::query("DELETE FROM bundles WHERE imported = 0 AND created_at < $1")
            .bind(retention.bundles.0)
            .execute(&self.writer)
            .await?;
        webhooks::prune(self, retention).await?;
        let mut pruned = Pruned {
            idempotency_keys: keys.rows_affected(),
            devices: devices.rows_affected(),
            events: 0,
            predicted: predicted.rows_affected(),
            bundles: bundles.rows_affected(),
        };
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
                return Ok(pruned);
            }
            pruned.events += events.rows_affected();
        }
    }

    async fn named_blobs(&self) -> Result<HashSet<Digest>> {
        let matrices: Vec<Vec<u8>> =
            db::query_scalar("SELECT digest FROM matrices").fetch_all(&self.readers).await?;
        let mut named = matrices
            .iter()
            .map(|digest| codec::digest("matrix digest", digest))
            .collect::<Result<HashSet<Digest>>>()?;
        let bundles: Vec<Vec<u8>> =
            db::query_scalar("SELECT blob FROM bundles").fetch_all(&self.readers).await?;
        for blob in &bundles {
            named.insert(codec::digest("bundle blob", blob)?);
        }
        let plans: Vec<Option<String>> = db::query_scalar(
            "SELECT body ->> '$.launch.source' FROM plans
             UNION SELECT body ->> '$.launch.cubin' FROM plans
             UNION SELECT body ->> '$.launch.ptx' FROM plans
             UNION SELECT body ->> '$.launch.update.source' FROM plans
             UNION SELECT body ->> '$.launch.update.cubin' FROM plans
             UNION SELECT body ->> '$.launch.update.ptx' FROM plans
             UNION SELECT a.value ->> '$.blob' FROM plans, json_each(body, '$.launch.arrays') a",
        )
        .fetch_all(&self.readers)
        .await?;
        for text in plans.into_iter().flatten() {
            let digest = text.parse::<Digest>();
            named.insert(digest.map_err(|error| codec::corrupt("plan blob", error.to_string()))?);
        }
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
        db::query("UPDATE store_id SET id = id").execute(&mut *tx).await?;
        Ok(())
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

/// Raises the revision: this transaction may change answers to lookups.
pub(super) async fn revise(tx: &mut Connection) -> Result<Change> {
    let value: i64 = db::query_scalar("UPDATE revision SET value = value + 1 RETURNING value")
        .fetch_one(tx)
        .await?;
    Ok(Change::Revision(codec::count("revision", value)?))
}
