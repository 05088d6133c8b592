//! What models learn from: features beside trials, read back by job.

use super::SqliteStore;
use super::codec::{self, Stored};
use super::{events, models};
use crate::domain::learned::{Activation, Op, Scope};
use crate::domain::{
    Candidate, CandidateId, Device, DeviceClass, JobFeatures, JobId, LearnedModel, ModelId, Plan,
    Problem, Timestamp, Trial,
};
use crate::store::{Fence, Learning, Result, StoreError, TrainingGroup, TrainingRow, Undescribed};
use async_trait::async_trait;
use sqlx::SqliteConnection;
use std::collections::HashMap;

/// Jobs in the order of their age; the problem's key text begins with the operation's name.
pub(super) const UNDESCRIBED: &str = "SELECT j.id, j.matrix, p.version, p.body FROM jobs j INDEXED BY jobs_newest
     JOIN plans p ON p.id = j.plan AND p.device_class = ?1 AND p.problem GLOB ?2 || ';*'
     WHERE j.finished_at IS NOT NULL
         AND EXISTS (SELECT 1 FROM matrices m WHERE m.digest = j.matrix)
         AND NOT EXISTS (SELECT 1 FROM job_features f WHERE f.job = j.id AND f.features_version = ?3)
     ORDER BY j.created_at, j.id LIMIT ?4";

pub(super) const GROUPS: &str =
    "SELECT job, problem, matrix, pattern_digest, matrix_name, shared, created_at
     FROM job_features
     WHERE op = ? AND device_class = ? AND features_version = ? AND (created_at, job) > (?, ?)
     ORDER BY created_at, job LIMIT ?";

/// The trials of all jobs of a page, job by job in the page's order. CROSS keeps SQLite to the order of the tables.
pub(super) const ROWS: &str =
    "SELECT t.job, t.state, t.version, t.body, t.features FROM json_each(?) page
     CROSS JOIN trials t INDEXED BY trials_tried ON t.job = page.value AND t.state <> 'pruned'
     WHERE t.features IS NOT NULL ORDER BY page.key, t.ordinal";

/// All of it is in the index `job_features_since`.
pub(super) const DESCRIBED: &str = "SELECT op, device_class, sum(described) FROM job_features
     WHERE features_version = ? AND created_at > ? GROUP BY op, device_class";

/// Reads every job once: for whoever asks by hand, not for what is looked at all day.
pub(super) const RECORDED: &str =
    "SELECT substr(p.problem, 1, instr(p.problem, ';') - 1), p.device_class, count(*)
     FROM jobs j JOIN plans p ON p.id = j.plan
     CROSS JOIN trials t INDEXED BY trials_tried ON t.job = j.id AND t.state <> 'pruned'
     GROUP BY 1, 2";

#[async_trait]
impl Learning for SqliteStore {
    async fn describe_job(&self, fence: &Fence, features: &JobFeatures) -> Result<()> {
        let mut tx = self.begin().await?;
        events::reserve(&mut tx, fence, 0).await?;
        describe(&mut tx, &fence.job, features).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn describe_ended(
        &self,
        job: &JobId,
        features: &JobFeatures,
        own: &[(CandidateId, Vec<f32>)],
    ) -> Result<()> {
        let mut tx = self.begin().await?;
        let ended: Option<bool> =
            sqlx::query_scalar("SELECT finished_at IS NOT NULL FROM jobs WHERE id = ?")
                .bind(&job.0)
                .fetch_optional(&mut *tx)
                .await?;
        match ended {
            None => return Err(StoreError::Missing(format!("job {job}"))),
            Some(false) => return Err(StoreError::InUse(format!("job {job} has not ended"))),
            Some(true) => {}
        }
        describe(&mut tx, job, features).await?;
        let rows: Vec<(&str, String)> =
            own.iter().map(|(id, own)| (id.0.as_str(), codec::floats_hex(own))).collect();
        sqlx::query(
            "UPDATE trials SET features = unhex(own.value ->> 1) FROM json_each(?2) own
             WHERE job = ?1 AND candidate_id = own.value ->> 0 AND state <> 'pruned'",
        )
        .bind(&job.0)
        .bind(codec::encode_part("features", &rows)?)
        .execute(&mut *tx)
        .await?;
        recount(&mut tx, job).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn undescribed(
        &self,
        scope: &Scope,
        features_version: u32,
        limit: u32,
    ) -> Result<Vec<Undescribed>> {
        let rows: Vec<(String, Vec<u8>, i64, String)> = sqlx::query_as(UNDESCRIBED)
            .bind(&scope.device_class.0)
            .bind(scope.op.name())
            .bind(features_version)
            .bind(limit)
            .fetch_all(&self.readers)
            .await?;
        rows.into_iter()
            .map(|(job, matrix, version, body)| undescribed(job, &matrix, version, &body))
            .collect()
    }

    async fn training_groups(
        &self,
        scope: &Scope,
        features_version: u32,
        after: Option<&JobId>,
        limit: u32,
    ) -> Result<Vec<TrainingGroup>> {
        // Jobs and trials as of one moment.
        let mut tx = self.readers.begin().await?;
        let after = match after {
            Some(job) => (described_at(&mut tx, job).await?, job.0.as_str()),
            None => (i64::MIN, ""),
        };
        let rows: Vec<GroupRow> = sqlx::query_as(GROUPS)
            .bind(scope.op.name())
            .bind(&scope.device_class.0)
            .bind(features_version)
            .bind(after.0)
            .bind(after.1)
            .bind(codec::page_limit(limit))
            .fetch_all(&mut *tx)
            .await?;
        let mut groups: Vec<TrainingGroup> = rows
            .into_iter()
            .map(|row| row.group(scope, features_version))
            .collect::<Result<_>>()?;
        fill(&mut tx, &mut groups).await?;
        Ok(groups)
    }

    async fn recorded(&self) -> Result<Vec<(Scope, u64)>> {
        let rows: Vec<(String, String, i64)> =
            sqlx::query_as(RECORDED).fetch_all(&self.readers).await?;
        rows.into_iter()
            .map(|(op, class, count)| {
                Ok((read_scope(op, class)?, codec::count("recorded trials", count)?))
            })
            .collect()
    }

    async fn described_since(
        &self,
        features_version: u32,
        since: Timestamp,
    ) -> Result<Vec<(Scope, u64)>> {
        let rows: Vec<(String, String, i64)> = sqlx::query_as(DESCRIBED)
            .bind(features_version)
            .bind(since.0)
            .fetch_all(&self.readers)
            .await?;
        rows.into_iter()
            .map(|(op, class, count)| {
                Ok((read_scope(op, class)?, codec::count("described trials", count)?))
            })
            .collect()
    }

    async fn insert_model(&self, model: &LearnedModel, file: &[u8]) -> Result<bool> {
        let mut writer = self.writer.acquire().await?;
        models::insert(&mut writer, model, file).await
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

    async fn activate(&self, activation: &Activation) -> Result<()> {
        let mut tx = self.begin().await?;
        models::activate(&mut tx, activation).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn active(&self) -> Result<Vec<Activation>> {
        models::active(self).await
    }

    async fn activations(&self, scope: &Scope, limit: u32) -> Result<Vec<Activation>> {
        models::activations(self, scope, limit).await
    }
}

pub(super) fn read_scope(op: String, device_class: String) -> Result<Scope> {
    let op: Op = codec::named("operation", op)?;
    Ok(Scope { op, device_class: DeviceClass(device_class) })
}

/// Stores what the candidates have in common. The first description of a version stays; one of another version takes its
/// place, and the trials' features, which were of that version too, go with it.
async fn describe(tx: &mut SqliteConnection, job: &JobId, features: &JobFeatures) -> Result<()> {
    let known: Option<i64> =
        sqlx::query_scalar("SELECT features_version FROM job_features WHERE job = ?")
            .bind(&job.0)
            .fetch_optional(&mut *tx)
            .await?;
    match known {
        Some(version) if version == i64::from(features.features_version) => return Ok(()),
        Some(_) => {
            sqlx::query("DELETE FROM job_features WHERE job = ?")
                .bind(&job.0)
                .execute(&mut *tx)
                .await?;
            sqlx::query(
                "UPDATE trials SET features = NULL
                 WHERE job = ? AND state <> 'pruned' AND features IS NOT NULL",
            )
            .bind(&job.0)
            .execute(&mut *tx)
            .await?;
        }
        None => {}
    }
    sqlx::query(
        "INSERT INTO job_features (job, op, device_class, features_version, problem, matrix, pattern_digest, matrix_name,
             shared, created_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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

/// Counts the job's tried candidates with features anew.
async fn recount(tx: &mut SqliteConnection, job: &JobId) -> Result<()> {
    sqlx::query(
        "UPDATE job_features SET described = (
             SELECT count(*) FROM trials INDEXED BY trials_tried
             WHERE job = ?1 AND state <> 'pruned' AND features IS NOT NULL)
         WHERE job = ?1",
    )
    .bind(&job.0)
    .execute(tx)
    .await?;
    Ok(())
}

/// Adds trials just stored with features to the job's count; a job not yet described counts them when it is.
pub(super) async fn count_described(
    tx: &mut SqliteConnection,
    job: &JobId,
    more: i64,
) -> Result<()> {
    sqlx::query("UPDATE job_features SET described = described + ? WHERE job = ?")
        .bind(more)
        .bind(&job.0)
        .execute(tx)
        .await?;
    Ok(())
}

/// Only what is asked for is read of the plan: arrays and funnel are left alone.
fn undescribed(job: String, matrix: &[u8], version: i64, body: &str) -> Result<Undescribed> {
    #[derive(serde::Deserialize)]
    struct Told {
        problem: Problem,
        device: Device,
    }
    if !(Plan::OLDEST..=Plan::VERSION).contains(&version) {
        let why = format!("it has version {version}, this program knows {}", Plan::VERSION);
        return Err(codec::corrupt(Plan::WHAT, why));
    }
    let Told { problem, device } = codec::decode_part(Plan::WHAT, body)?;
    let matrix = codec::digest("job matrix", matrix)?;
    Ok(Undescribed { job: JobId(job), problem, matrix, device })
}

/// The place of a job in the order of training.
async fn described_at(tx: &mut SqliteConnection, job: &JobId) -> Result<i64> {
    let at: Option<i64> = sqlx::query_scalar("SELECT created_at FROM job_features WHERE job = ?")
        .bind(&job.0)
        .fetch_optional(tx)
        .await?;
    at.ok_or_else(|| StoreError::Missing(format!("features of job {job}")))
}

#[derive(sqlx::FromRow)]
struct GroupRow {
    job: String,
    problem: String,
    matrix: Vec<u8>,
    pattern_digest: Vec<u8>,
    matrix_name: Option<String>,
    shared: Vec<u8>,
    created_at: i64,
}

impl GroupRow {
    fn group(self, scope: &Scope, features_version: u32) -> Result<TrainingGroup> {
        let what = "job features";
        let features = JobFeatures {
            scope: scope.clone(),
            problem: codec::decode_part(what, &self.problem)?,
            matrix: codec::digest(what, &self.matrix)?,
            pattern: codec::digest(what, &self.pattern_digest)?,
            name: self.matrix_name,
            features_version,
            shared: codec::read_floats(what, &self.shared)?,
            created_at: Timestamp(self.created_at),
        };
        Ok(TrainingGroup { job: JobId(self.job), features, rows: Vec::new() })
    }
}

#[derive(sqlx::FromRow)]
struct TriedRow {
    job: String,
    state: String,
    version: i64,
    body: String,
    features: Vec<u8>,
}

impl TriedRow {
    /// Raw samples are most of a trial and are skipped over.
    fn row(&self) -> Result<TrainingRow> {
        #[derive(serde::Deserialize)]
        struct Told {
            candidate: Candidate,
            predicted_us: Option<f64>,
            state: State,
        }
        #[derive(serde::Deserialize)]
        struct State {
            timing: Option<Median>,
        }
        #[derive(serde::Deserialize)]
        struct Median {
            median_us: f64,
        }
        if self.version != Trial::VERSION {
            let why =
                format!("it has version {}, this program knows {}", self.version, Trial::VERSION);
            return Err(codec::corrupt(Trial::WHAT, why));
        }
        let told: Told = codec::decode_part(Trial::WHAT, &self.body)?;
        let us = told.state.timing.map(|timing| timing.median_us);
        if us.is_some() != (self.state == "measured") {
            let why = format!("it is {} and has a time: {}", self.state, us.is_some());
            return Err(codec::corrupt(Trial::WHAT, why));
        }
        let own = codec::read_floats("trial features", &self.features)?;
        Ok(TrainingRow { candidate: told.candidate, own, us, predicted_us: told.predicted_us })
    }
}

/// Reads the trials of all jobs of a page in one statement.
async fn fill(tx: &mut SqliteConnection, groups: &mut [TrainingGroup]) -> Result<()> {
    let jobs: Vec<&str> = groups.iter().map(|group| group.job.0.as_str()).collect();
    let rows: Vec<TriedRow> =
        sqlx::query_as(ROWS).bind(codec::encode_part("jobs", &jobs)?).fetch_all(tx).await?;
    let mut places: HashMap<String, usize> = HashMap::new();
    for (place, group) in groups.iter().enumerate() {
        places.insert(group.job.0.clone(), place);
    }
    for row in rows {
        if let Some(group) = places.get(&row.job).and_then(|place| groups.get_mut(*place)) {
            group.rows.push(row.row()?);
        }
    }
    Ok(())
}
