//! Rows used for learning: jobs that have no features yet, jobs that have, and their trials.

use super::ROWS;
use crate::domain::learned::Scope;
use crate::domain::{Candidate, Device, JobFeatures, JobId, Plan, Problem, Timestamp, Trial};
use crate::store::sql::codec::{self, Stored};
use crate::store::sql::db::{self, Connection};
use crate::store::{Result, TrainingGroup, TrainingRow, Undescribed};
use std::collections::HashMap;

#[derive(sqlx::FromRow)]
pub(super) struct UndescribedRow {
    pub id: String,
    namespace: String,
    matrix: Vec<u8>,
    pub created_at: i64,
    version: i64,
    body: String,
}

impl UndescribedRow {
    /// Reads only the required parts of the plan, not its arrays or funnel.
    pub fn undescribed(self) -> Result<Undescribed> {
        #[derive(serde::Deserialize)]
        struct Told {
            problem: Problem,
            device: Device,
        }
        let version = self.version;
        if !(Plan::OLDEST..=Plan::VERSION).contains(&version) {
            let why = format!("it has version {version}, but this program knows {}", Plan::VERSION);
            return Err(codec::corrupt(Plan::WHAT, why));
        }
        let Told { problem, device } = codec::decode_part(Plan::WHAT, &self.body)?;
        let matrix = codec::digest("job matrix", &self.matrix)?;
        let namespace = codec::namespace(self.namespace)?;
        Ok(Undescribed { job: JobId(self.id), namespace, problem, matrix, device })
    }
}

#[derive(sqlx::FromRow)]
pub(super) struct GroupRow {
    pub job: String,
    problem: String,
    matrix: Vec<u8>,
    pattern_digest: Vec<u8>,
    matrix_name: Option<String>,
    shared: Vec<u8>,
    pub created_at: i64,
}

impl GroupRow {
    pub fn group(self, scope: &Scope, features_version: u32) -> Result<TrainingGroup> {
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
    ordinal: i64,
    state: String,
    version: i64,
    features: Vec<u8>,
    /// JSON as stored; absent if the body has no such part.
    candidate: Option<String>,
    predicted: Option<String>,
    median: Option<String>,
    cut: Option<String>,
    out_of_time: Option<String>,
}

impl TriedRow {
    /// `None` if the job's time ended the trial: it has no time or one of few samples, which say nothing of the candidate.
    fn row(&self) -> Result<Option<TrainingRow>> {
        if self.version != Trial::VERSION {
            let why = format!(
                "it has version {}, but this program knows {}",
                self.version,
                Trial::VERSION
            );
            return Err(codec::corrupt(Trial::WHAT, why));
        }
        let candidate = self.candidate.as_deref().unwrap_or("null");
        let candidate: Candidate = codec::decode_part(Trial::WHAT, candidate)?;
        let number = |part: &Option<String>| -> Result<Option<f64>> {
            codec::decode_part(Trial::WHAT, part.as_deref().unwrap_or("null"))
        };
        let (us, predicted_us) = (number(&self.median)?, number(&self.predicted)?);
        if us.is_some() != (self.state == "measured") {
            let why = format!("it is {} and has a time: {}", self.state, us.is_some());
            return Err(codec::corrupt(Trial::WHAT, why));
        }
        let own = codec::read_floats("trial features", &self.features)?;
        let is = |part: &Option<String>| -> Result<bool> {
            let is: Option<bool> =
                codec::decode_part(Trial::WHAT, part.as_deref().unwrap_or("null"))?;
            Ok(is.unwrap_or_default())
        };
        let ended_early = is(&self.cut)? || is(&self.out_of_time)?;
        Ok((!ended_early).then_some(TrainingRow { candidate, own, us, predicted_us }))
    }
}

/// Reads the trials of all jobs of a page in one statement.
pub(super) async fn fill(tx: &mut Connection, groups: &mut [TrainingGroup]) -> Result<()> {
    let jobs: Vec<&str> = groups.iter().map(|group| group.job.0.as_str()).collect();
    let rows: Vec<TriedRow> =
        db::query_as(ROWS).bind(codec::encode_part("jobs", &jobs)?).fetch_all(tx).await?;
    let mut places: HashMap<String, usize> = HashMap::new();
    for (place, group) in groups.iter().enumerate() {
        places.insert(group.job.0.clone(), place);
    }
    for row in rows {
        if let Some(group) = places.get(&row.job).and_then(|place| groups.get_mut(*place)) {
            match row.row() {
                Ok(row) => group.rows.extend(row),
                Err(error) => {
                    let TriedRow { job, ordinal, .. } = row;
                    tracing::error!(job, ordinal, %error, "an unreadable trial is left out of the training data");
                }
            }
        }
    }
    Ok(())
}
