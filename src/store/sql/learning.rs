//! Training data of models: features stored beside trials, read by job.

mod rows;

use super::db::{self, Connection};
use super::{SqlStore, codec, events, models};
use crate::domain::learned::{Activation, Scope};
use crate::domain::{
    CandidateId, DeviceClass, JobFeatures, JobId, LearnedModel, ModelId, Op, Timestamp,
};
use crate::store::{
    ActivationQuery, DescribedJob, Learning, Page, PageRequest, PutToUse, Result, RollBack,
    StoreError, TrainingGroup, Undescribed,
};
use async_trait::async_trait;
use rows::{GroupRow, UndescribedRow, fill};

/// Jobs ordered by age. The problem's key text begins with the name of the operation.
pub(super) const UNDESCRIBED: &str =
    "SELECT j.id, j.namespace, j.matrix, j.created_at, p.version, p.body FROM jobs j /*[*/INDEXED BY jobs_newest/*|]*/
     JOIN plans p ON p.id = j.plan AND p.device_class = $1 AND substr(p.problem, 1, length($2) + 1) = $2 || ';'
     WHERE j.finished_at IS NOT NULL
         AND (j.created_at, j.id) > ($4, $5)
         AND NOT EXISTS (SELECT 1 FROM job_features f WHERE f.job = j.id AND f.features_version = $3)
     ORDER BY j.created_at, j.id LIMIT $6";

const UNDESCRIBED_LIST: &str = "undescribed";

pub(super) const GROUPS: &str =
    "SELECT job, problem, matrix, pattern_digest, matrix_name, shared, created_at
     FROM job_features
     WHERE op = $1 AND device_class = $2 AND features_version = $3 AND (created_at, job) > ($4, $5)
         AND EXISTS (SELECT 1 FROM jobs j WHERE j.id = job AND j.state = 'succeeded')
     ORDER BY created_at, job LIMIT $6";

/// The trials of all jobs of a page, in the order of the page. Only the required parts of their bodies are read, because raw
/// samples are most of a body. A body that is not JSON would fail the whole page. CROSS makes SQLite keep the order of the
/// tables.
pub(super) const ROWS: &str = "SELECT t.job, t.ordinal, t.state, t.version, t.features,
         CASE WHEN json_valid(t.body) THEN t.body -> '$.candidate' END AS candidate,
         CASE WHEN json_valid(t.body) THEN t.body -> '$.predicted_us' END AS predicted,
         CASE WHEN json_valid(t.body) THEN t.body -> '$.state.timing.median_us' END AS median,
         CASE WHEN json_valid(t.body) THEN t.body -> '$.state.timing.cut' END AS cut,
         CASE WHEN json_valid(t.body) THEN t.body -> '$.state.out_of_time' END AS out_of_time
     FROM json_each($1) page
     /*[*/CROSS JOIN/*|JOIN]*/ trials t /*[*/INDEXED BY trials_tried/*|]*/ ON t.job = page.value AND t.state <> 'pruned'
     WHERE t.features IS NOT NULL ORDER BY page.key, t.ordinal";

/// A job is described when it begins, but models learn from it only once it has ended, so the end decides whether it is new; of one that came
/// from another store, when it came.
pub(super) const DESCRIBED: &str = "SELECT CAST(coalesce(sum(f.described), 0) AS BIGINT) FROM job_features f
     WHERE f.op = $1 AND f.device_class = $2 AND f.features_version = $3 AND EXISTS (
         SELECT 1 FROM jobs j WHERE j.id = f.job AND j.state = 'succeeded' AND coalesce(j.imported_at, j.finished_at) > $4)";

/// Reads every job once: for occasional requests by hand, not for frequently shown pages.
pub(super) const RECORDED: &str =
    "SELECT substr(p.problem, 1, instr(p.problem, ';') - 1), p.device_class, count(*)
     FROM jobs j JOIN plans p ON p.id = j.plan
     /*[*/CROSS JOIN/*|JOIN]*/ trials t /*[*/INDEXED BY trials_tried/*|]*/ ON t.job = j.id AND t.state <> 'pruned'
     GROUP BY 1, 2";

#[async_trait]
impl Learning for SqlStore {
    async fn describe(&self, job: DescribedJob<'_>, features: &JobFeatures) -> Result<()> {
        let mut tx = match job {
            DescribedJob::Running(_) => self.begin_beside().await?,
            DescribedJob::Ended { .. } => self.begin().await?,
        };
        match job {
            DescribedJob::Running(fence) => {
                events::check(&mut tx, fence).await?;
                describe(&mut tx, &fence.job, features).await?;
            }
            DescribedJob::Ended { job, own } => describe_ended(&mut tx, job, features, own).await?,
        }
        tx.commit(None).await
    }

    async fn undescribed(
        &self,
        scope: &Scope,
        features_version: u32,
        page: &PageRequest,
    ) -> Result<Page<Undescribed>> {
        let limit = codec::page_limit(page.limit);
        let (at, after) = match &page.after {
            Some(text) => codec::read_cursor(UNDESCRIBED_LIST, text)?,
            None => (i64::MIN, String::new()),
        };
        let rows: Vec<UndescribedRow> = db::query_as(UNDESCRIBED)
            .bind(&scope.device_class.0)
            .bind(scope.op.name())
            .bind(features_version)
            .bind(at)
            .bind(after)
            .bind(limit + 1)
            .fetch_all(&self.readers)
            .await?;
        let rows =
            codec::cut(rows, limit, |row| codec::cursor(UNDESCRIBED_LIST, row.created_at, &row.id));
        let mut items = Vec::with_capacity(rows.items.len());
        for row in rows.items {
            let id = row.id.clone();
            match row.undescribed() {
                Ok(job) => items.push(job),
                Err(error) => {
                    tracing::error!(job = id, %error, "an unreadable job is left out of the jobs to describe")
                }
            }
        }
        Ok(Page { items, next: rows.next })
    }

    async fn training_groups(
        &self,
        scope: &Scope,
        features_version: u32,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<TrainingGroup>> {
        // Reads jobs and trials in one transaction, for a consistent view.
        let mut tx = self.readers.snapshot().await?;
        let mut after = match after {
            Some(job) => (described_at(&mut tx, job).await?, job.0.clone()),
            None => (i64::MIN, String::new()),
        };
        loop {
            let rows: Vec<GroupRow> = db::query_as(GROUPS)
                .bind(scope.op.name())
                .bind(&scope.device_class.0)
                .bind(features_version)
                .bind(after.0)
                .bind(after.1)
                .bind(codec::page_limit(limit))
                .fetch_all(&mut tx)
                .await?;
            let Some(last) = rows.last() else { return Ok(Vec::new()) };
            after = (last.created_at, last.job.clone());
            let mut groups = Vec::with_capacity(rows.len());
            for row in rows {
                let job = row.job.clone();
                match row.group(scope, features_version) {
                    Ok(group) => groups.push(group),
                    Err(error) => {
                        tracing::error!(job, %error, "an unreadable job is left out of the training data")
                    }
                }
            }
            // A page with only unreadable jobs is not the end of the list.
            if !groups.is_empty() {
                fill(&mut tx, &mut groups).await?;
                return Ok(groups);
            }
        }
    }

    async fn recorded(&self) -> Result<Vec<(Scope, u64)>> {
        let rows: Vec<(String, String, i64)> =
            db::query_as(RECORDED).fetch_all(&self.readers).await?;
        rows.into_iter()
            .map(|(op, class, count)| {
                Ok((read_scope(op, class)?, codec::count("recorded trials", count)?))
            })
            .collect()
    }

    async fn described_since(
        &self,
        scope: &Scope,
        features_version: u32,
        since: Timestamp,
    ) -> Result<u64> {
        let count: i64 = db::query_scalar(DESCRIBED)
            .bind(scope.op.name())
            .bind(&scope.device_class.0)
            .bind(features_version)
            .bind(since.0)
            .fetch_one(&self.readers)
            .await?;
        codec::count("described trials", count)
    }

    async fn insert_model(&self, model: &LearnedModel, file: &[u8]) -> Result<bool> {
        let mut tx = self.begin().await?;
        let new = models::insert(&mut tx, model, file).await?;
        tx.commit(None).await?;
        Ok(new)
    }

    async fn learned_models(&self, scope: Option<&Scope>) -> Result<Vec<LearnedModel>> {
        models::list(self, scope).await
    }

    async fn learned_model(&self, id: &ModelId) -> Result<Option<LearnedModel>> {
        models::card(self, id).await
    }

    async fn model_file(&self, id: &ModelId) -> Result<Option<Vec<u8>>> {
        models::file(self, id).await
    }

    async fn put_to_use(&self, change: PutToUse<'_>) -> Result<bool> {
        let mut tx = self.begin().await?;
        let done = models::put_to_use(&mut tx, &change).await?;
        tx.commit(None).await?;
        Ok(done)
    }

    async fn roll_back(
        &self,
        scope: &Scope,
        features_version: u32,
        at: Timestamp,
    ) -> Result<RollBack> {
        let mut tx = self.begin().await?;
        let back = models::roll_back(&mut tx, scope, features_version, at).await?;
        tx.commit(None).await?;
        Ok(back)
    }

    async fn activations(&self, of: ActivationQuery<'_>) -> Result<Vec<Activation>> {
        models::activations(self, of).await
    }
}

pub(super) fn read_scope(op: String, device_class: String) -> Result<Scope> {
    let op: Op = codec::named("operation", op)?;
    Ok(Scope { op, device_class: DeviceClass(device_class) })
}

/// Stores the shared features. The first description of a version is kept. A description of another version is replaced, and
/// the trials' features, which were of that version too, are removed.
pub(super) async fn describe(
    tx: &mut Connection,
    job: &JobId,
    features: &JobFeatures,
) -> Result<()> {
    let known: Option<i64> =
        db::query_scalar("SELECT features_version FROM job_features WHERE job = $1")
            .bind(&job.0)
            .fetch_optional(&mut *tx)
            .await?;
    match known {
        Some(version) if version == i64::from(features.features_version) => return Ok(()),
        Some(_) => {
            db::query("DELETE FROM job_features WHERE job = $1")
                .bind(&job.0)
                .execute(&mut *tx)
                .await?;
            db::query(
                "UPDATE trials SET features = NULL
                 WHERE job = $1 AND state <> 'pruned' AND features IS NOT NULL",
            )
            .bind(&job.0)
            .execute(&mut *tx)
            .await?;
        }
        None => {}
    }
    db::query(
        "INSERT INTO job_features (job, op, device_class, features_version, problem, matrix, pattern_digest, matrix_name,
             shared, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(&job.0)
    .bind(features.scope.op.name())
    .bind(&features.scope.device_class.0)
    .bind(features.features_version)
    .bind(codec::encode_part("problem", &features.problem)?)
    .bind(&features.matrix.as_bytes()[..])
    .bind(&features.pattern.as_bytes()[..])
    .bind(&features.name)
    .bind(codec::floats(&features.shared))
    .bind(features.created_at.0)
    .execute(&mut *tx)
    .await?;
    recount(tx, job).await
}

async fn describe_ended(
    tx: &mut Connection,
    job: &JobId,
    features: &JobFeatures,
    own: &[(CandidateId, Vec<f32>)],
) -> Result<()> {
    let ended: Option<bool> =
        db::query_scalar("SELECT finished_at IS NOT NULL FROM jobs WHERE id = $1")
            .bind(&job.0)
            .fetch_optional(&mut *tx)
            .await?;
    match ended {
        None => return Err(StoreError::Missing(format!("job {job}"))),
        Some(false) => return Err(StoreError::InUse(format!("job {job} has not ended"))),
        Some(true) => {}
    }
    describe(tx, job, features).await?;
    let rows: Vec<(&str, String)> =
        own.iter().map(|(id, own)| (id.0.as_str(), codec::floats_hex(own))).collect();
    db::query(
        "UPDATE trials SET features = unhex(own.value ->> 1) FROM json_each($2) own
         WHERE job = $1 AND candidate_id = own.value ->> 0 AND state <> 'pruned'",
    )
    .bind(&job.0)
    .bind(codec::encode_part("features", &rows)?)
    .execute(&mut *tx)
    .await?;
    recount(tx, job).await
}

/// Recounts the job's tried candidates that have features.
async fn recount(tx: &mut Connection, job: &JobId) -> Result<()> {
    db::query(
        "UPDATE job_features SET described = (
             SELECT count(*) FROM trials /*[*/INDEXED BY trials_tried/*|]*/
             WHERE job = $1 AND state <> 'pruned' AND features IS NOT NULL)
         WHERE job = $1",
    )
    .bind(&job.0)
    .execute(tx)
    .await?;
    Ok(())
}

/// Adds newly stored trials with features to the job's count. A job that is not described yet counts them when it is.
pub(super) async fn count_described(tx: &mut Connection, job: &JobId, more: i64) -> Result<()> {
    db::query("UPDATE job_features SET described = described + $1 WHERE job = $2")
        .bind(more)
        .bind(&job.0)
        .execute(tx)
        .await?;
    Ok(())
}

/// The job's position in the order of the training data.
async fn described_at(tx: &mut Connection, job: &JobId) -> Result<i64> {
    let at: Option<i64> = db::query_scalar("SELECT created_at FROM job_features WHERE job = $1")
        .bind(&job.0)
        .fetch_optional(tx)
        .await?;
    at.ok_or_else(|| StoreError::Missing(format!("features of job {job}")))
}
