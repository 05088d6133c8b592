//! What retention weighs and removes, and pins.

use super::db::{self, Connection};
use super::{SqlStore, codec, upkeep};
use crate::domain::{Digest, JobId, PlanId, Timestamp};
use crate::store::{
    KeptBundle, KeptJob, KeptMatrix, KeptPlan, Pin, Pins, Result, Retaining, Weigh,
};
use async_trait::async_trait;
use std::collections::{BTreeSet, HashMap};

/// Of these jobs those that ended and whose plan is not pinned.
const REMOVABLE: &str =
    "SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each($1)) AND kind = 'tune'
     AND state NOT IN ('queued', 'running')
     AND NOT EXISTS (SELECT 1 FROM plans WHERE plans.id = jobs.plan AND pinned_at IS NOT NULL)";

/// The first parameter says whether bytes are asked for, which reads every row, and the second whether trials are counted.
const JOBS: &str = "SELECT id, finished_at,
         EXISTS (SELECT 1 FROM plans WHERE plans.id = jobs.plan AND pinned_at IS NOT NULL), token IS NOT NULL,
         coalesce(trials.number, 0), coalesce(trials.bytes, 0), coalesce(events.bytes, 0), jobs.namespace
     FROM jobs
     LEFT JOIN (
         SELECT job, count(*) AS number,
             CASE WHEN $1 = 1 THEN CAST(sum(octet_length(body) + coalesce(octet_length(features), 0)) AS BIGINT) END AS bytes
         FROM trials WHERE $2 = 1 GROUP BY job) trials ON trials.job = jobs.id
     LEFT JOIN (
         SELECT job, CAST(sum(coalesce(octet_length(body), 0)) AS BIGINT) AS bytes FROM events WHERE $1 = 1 GROUP BY job) events
         ON events.job = jobs.id
     WHERE kind = 'tune' AND state NOT IN ('queued', 'running')";

const MATRICES: &str = "SELECT namespace, digest,
         max(created_at, coalesce((SELECT max(jobs.created_at) FROM jobs
             WHERE jobs.namespace = holdings.namespace AND jobs.matrix = digest), 0)),
         pinned_at IS NOT NULL,
         EXISTS (SELECT 1 FROM jobs WHERE jobs.namespace = holdings.namespace AND jobs.matrix = digest
             AND state IN ('queued', 'running'))
     FROM holdings";

const PLANS: &str =
    "SELECT id, matrix, body ->> '$.provenance.job', created_at, pinned_at IS NOT NULL,
         EXISTS (SELECT 1 FROM plans newer WHERE newer.predicted = 0
             AND newer.namespace = plans.namespace AND newer.pattern_digest = plans.pattern_digest AND newer.problem = plans.problem
             AND newer.device_class = plans.device_class AND newer.l2_policy = plans.l2_policy
             AND (newer.created_at, newer.id) > (plans.created_at, plans.id)),
         CAST(octet_length(body) + octet_length(facts) AS BIGINT), namespace
     FROM plans";

type PlanRow = (String, Vec<u8>, Option<String>, i64, bool, bool, i64, String);

#[async_trait]
impl Retaining for SqlStore {
    async fn pin(&self, what: &Pin, pinned: bool) -> Result<Option<bool>> {
        let mut tx = self.begin().await?;
        let before = match what {
            Pin::Matrix(digest) => {
                let pinned_at = "SELECT pinned_at IS NOT NULL FROM holdings WHERE namespace = $1 AND digest = $2";
                db::query_scalar(pinned_at)
                    .bind(self.namespace())
                    .bind(&digest.as_bytes()[..])
                    .fetch_optional(&mut *tx)
                    .await?
            }
            Pin::Plan(id) => {
                let pinned_at =
                    "SELECT pinned_at IS NOT NULL FROM plans WHERE namespace = $1 AND id = $2";
                db::query_scalar(pinned_at)
                    .bind(self.namespace())
                    .bind(&id.0)
                    .fetch_optional(&mut *tx)
                    .await?
            }
        };
        let Some(before): Option<bool> = before else { return Ok(None) };
        // A pin keeps the time at which it was set, and what changes nothing writes nothing.
        if before == pinned {
            return Ok(Some(false));
        }
        let at = pinned.then(|| self.now().0);
        match what {
            Pin::Matrix(digest) => {
                db::query("UPDATE holdings SET pinned_at = $1 WHERE namespace = $2 AND digest = $3")
                    .bind(at)
                    .bind(self.namespace())
                    .bind(&digest.as_bytes()[..])
                    .execute(&mut *tx)
                    .await?
            }
            Pin::Plan(id) => {
                db::query("UPDATE plans SET pinned_at = $1 WHERE namespace = $2 AND id = $3")
                    .bind(at)
                    .bind(self.namespace())
                    .bind(&id.0)
                    .execute(&mut *tx)
                    .await?
            }
        };
        tx.commit(None).await?;
        Ok(Some(true))
    }

    async fn pins(&self) -> Result<Pins> {
        let matrices: Vec<Vec<u8>> = db::query_scalar(
            "SELECT digest FROM holdings WHERE namespace = $1 AND pinned_at IS NOT NULL ORDER BY pinned_at DESC, digest",
        )
        .bind(self.namespace())
        .fetch_all(&self.readers)
        .await?;
        let plans: Vec<String> = db::query_scalar(
            "SELECT id FROM plans WHERE namespace = $1 AND pinned_at IS NOT NULL ORDER BY pinned_at DESC, id DESC",
        )
        .bind(self.namespace())
        .fetch_all(&self.readers)
        .await?;
        let matrices = matrices.iter().map(|digest| codec::digest("matrix digest", digest));
        Ok(Pins {
            matrices: matrices.collect::<Result<_>>()?,
            plans: plans.into_iter().map(PlanId).collect(),
        })
    }

    async fn kept_matrices(&self) -> Result<Vec<KeptMatrix>> {
        let mut tx = self.readers.study().await?;
        let rows: Vec<(String, Vec<u8>, i64, bool, bool)> =
            db::query_as(MATRICES).fetch_all(&mut tx).await?;
        rows.into_iter()
            .map(|(namespace, digest, used_at, pinned, needed)| {
                let digest = codec::digest("matrix digest", &digest)?;
                let namespace = codec::namespace(namespace)?;
                Ok(KeptMatrix { namespace, digest, used_at: Timestamp(used_at), pinned, needed })
            })
            .collect()
    }

    async fn kept_jobs(&self, weigh: Weigh) -> Result<Vec<KeptJob>> {
        let mut tx = self.readers.study().await?;
        let rows: Vec<(String, i64, bool, bool, i64, i64, i64, String)> = db::query_as(JOBS)
            .bind(weigh >= Weigh::Bytes)
            .bind(weigh >= Weigh::Trials)
            .fetch_all(&mut tx)
            .await?;
        rows.into_iter()
            .map(
                |(
                    id,
                    finished_at,
                    pinned,
                    of_token,
                    trials,
                    trial_bytes,
                    event_bytes,
                    namespace,
                )| {
                    Ok(KeptJob {
                        namespace: codec::namespace(namespace)?,
                        id: JobId(id),
                        finished_at: Timestamp(finished_at),
                        pinned,
                        of_token,
                        trials: codec::count("number of trials", trials)?,
                        trial_bytes: codec::count("length of trials", trial_bytes)?,
                        event_bytes: codec::count("length of events", event_bytes)?,
                    })
                },
            )
            .collect()
    }

    async fn kept_plans(&self) -> Result<Vec<KeptPlan>> {
        // One state of the database, so that no plan is without its files.
        let mut tx = self.readers.study().await?;
        let rows: Vec<PlanRow> = db::query_as(PLANS).fetch_all(&mut tx).await?;
        let mut files: HashMap<String, BTreeSet<Digest>> = HashMap::new();
        upkeep::each_launch(&mut tx, |plan, blob| {
            files.entry(plan.to_owned()).or_default().insert(blob);
        })
        .await?;
        let bundled: Vec<(String, Vec<u8>, bool)> =
            db::query_as("SELECT plan, blob, imported = 1 FROM bundles").fetch_all(&mut tx).await?;
        drop(tx);
        let mut bundles: HashMap<String, Vec<KeptBundle>> = HashMap::new();
        for (plan, blob, imported) in bundled {
            let blob = codec::digest("bundle blob", &blob)?;
            bundles.entry(plan).or_default().push(KeptBundle { blob, imported });
        }
        rows.into_iter()
            .map(|(id, matrix, job, created_at, pinned, superseded, bytes, namespace)| {
                Ok(KeptPlan {
                    namespace: codec::namespace(namespace)?,
                    matrix: codec::digest("plan matrix", &matrix)?,
                    job: job.map(JobId),
                    created_at: Timestamp(created_at),
                    pinned,
                    superseded,
                    bytes: codec::count("length of a plan", bytes)?,
                    files: files.remove(&id).unwrap_or_default().into_iter().collect(),
                    bundles: bundles.remove(&id).unwrap_or_default(),
                    id: PlanId(id),
                })
            })
            .collect()
    }

    async fn delete_jobs(&self, ids: &[JobId]) -> Result<u64> {
        let mut tx = self.begin().await?;
        let ids = removable(&mut tx, ids).await?;
        // First what refers to trials, and then these: deleted with their job they would be sought for each other.
        clear(&mut tx, &ids, "DELETE FROM events WHERE job = $1").await?;
        clear(&mut tx, &ids, "DELETE FROM trials WHERE job = $1").await?;
        let gone = clear(&mut tx, &ids, "DELETE FROM jobs WHERE id = $1").await?;
        tx.commit(None).await?;
        Ok(gone)
    }

    async fn delete_trials(&self, of: &[JobId]) -> Result<u64> {
        let mut tx = self.begin().await?;
        let ids = removable(&mut tx, of).await?;
        clear(&mut tx, &ids, "DELETE FROM events WHERE job = $1 AND trial IS NOT NULL").await?;
        clear(&mut tx, &ids, "DELETE FROM job_features WHERE job = $1").await?;
        let gone = clear(&mut tx, &ids, "DELETE FROM trials WHERE job = $1").await?;
        tx.commit(None).await?;
        Ok(gone)
    }

    async fn delete_plans(&self, ids: &[PlanId]) -> Result<u64> {
        let ids: Vec<&str> = ids.iter().map(|id| id.0.as_str()).collect();
        let ids = codec::encode_part("plans", &ids)?;
        let mut tx = self.begin().await?;
        db::query(
            "UPDATE jobs SET plan = NULL WHERE plan IN (
                 SELECT id FROM plans WHERE id IN (SELECT value FROM json_each($1)) AND pinned_at IS NULL)",
        )
        .bind(&ids)
        .execute(&mut *tx)
        .await?;
        let done = db::query(
            "DELETE FROM plans WHERE id IN (SELECT value FROM json_each($1)) AND pinned_at IS NULL",
        )
        .bind(&ids)
        .execute(&mut *tx)
        .await?;
        let gone = done.rows_affected();
        if gone > 0 {
            tx.revise();
        }
        tx.commit(None).await?;
        Ok(gone)
    }

    async fn forget_bundles(&self, blob: &Digest) -> Result<u64> {
        let mut tx = self.begin().await?;
        let done = db::query("DELETE FROM bundles WHERE blob = $1 AND imported = 0")
            .bind(&blob.as_bytes()[..])
            .execute(&mut *tx)
            .await?;
        tx.commit(None).await?;
        Ok(done.rows_affected())
    }
}

async fn removable(tx: &mut Connection, ids: &[JobId]) -> Result<Vec<String>> {
    let ids: Vec<&str> = ids.iter().map(|id| id.0.as_str()).collect();
    let ids = codec::encode_part("jobs", &ids)?;
    Ok(db::query_scalar(REMOVABLE).bind(ids).fetch_all(tx).await?)
}

/// Runs the statement for each job; returns the number of rows.
async fn clear(tx: &mut Connection, jobs: &[String], statement: &'static str) -> Result<u64> {
    let mut rows = 0;
    for job in jobs {
        rows += db::query(statement).bind(job).execute(&mut *tx).await?.rows_affected();
    }
    Ok(rows)
}
