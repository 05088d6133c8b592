//! What goes to and comes from other stores.

use super::codec::{self, Stored, decode, encode};
use super::rows::{WorkRow, first_part, work_columns};
use super::{SqlStore, db, learning, plans, quotas, trials};
use crate::domain::learned::Scope;
use crate::domain::transfer::{Selection, SentJob, SentPlan, SentTrial, SharedFeatures};
use crate::domain::{
    Device, DeviceClass, JobFeatures, JobId, JobRequest, JobState, Plan, PlanId, Timestamp, Trial,
};
use crate::store::{Change, JobTaken, Page, PageRequest, Place, Result, StoreError, Transfer};
use async_trait::async_trait;

/// Parameters: place of the last row shown, limit, device class, operation, digest, first and last time.
const PLANS: &str = "SELECT version, body, facts_version, facts, created_at, id, EXISTS (
         SELECT 1 FROM plans newer WHERE newer.predicted = 0 AND newer.namespace = plans.namespace
             AND newer.pattern_digest = plans.pattern_digest AND newer.problem = plans.problem
             AND newer.device_class = plans.device_class AND newer.l2_policy = plans.l2_policy
             AND (newer.created_at, newer.id) > (plans.created_at, plans.id))
     FROM plans
     WHERE (created_at, id) > ($1, $2) AND predicted = 0 AND namespace = $9
         AND ($4 IS NULL OR device_class = $4) AND ($5 IS NULL OR substr(problem, 1, length($5) + 1) = $5 || ';')
         AND ($6 IS NULL OR matrix = $6 OR pattern_digest = $6)
         AND ($7 IS NULL OR CAST(body ->> '$.created_at' AS BIGINT) >= $7) AND ($8 IS NULL OR CAST(body ->> '$.created_at' AS BIGINT) < $8)
     ORDER BY created_at, id LIMIT $3";

const JOBS: &str = "SELECT j.id, j.version, j.request, j.device, j.stopped_by, j.search_seconds, j.created_at, j.started_at,
         j.finished_at, j.imported_from, p.id AS plan, p.body ->> '$.provenance.environment' AS environment,
         coalesce(f.device_class, p.device_class) AS device_class,
         coalesce(f.pattern_digest, p.pattern_digest) AS pattern,
         coalesce(f.matrix_name, p.facts ->> '$.name') AS matrix_name,
         CAST(coalesce(m.facts, p.facts) ->> '$.rows' AS BIGINT) AS rows, CAST(coalesce(m.facts, p.facts) ->> '$.cols' AS BIGINT) AS cols,
         CAST(coalesce(m.facts, p.facts) ->> '$.nnz' AS BIGINT) AS nnz, f.features_version, f.shared, f.created_at AS described_at
     FROM jobs j /*[*/INDEXED BY jobs_newest_of/*|]*/
     LEFT JOIN job_features f ON f.job = j.id
     LEFT JOIN plans p ON p.id = j.plan
     LEFT JOIN matrices m ON m.digest = j.matrix
     WHERE j.namespace = $9 AND (j.created_at, j.id) > ($1, $2) AND j.kind = 'tune' AND j.state = 'succeeded'
         AND coalesce(f.device_class, p.device_class) IS NOT NULL
         AND ($4 IS NULL OR coalesce(f.device_class, p.device_class) = $4)
         AND ($5 IS NULL OR j.request ->> '$.problem.op' = $5)
         AND ($6 IS NULL OR j.matrix = $6 OR coalesce(f.pattern_digest, p.pattern_digest) = $6)
         AND ($7 IS NULL OR j.created_at >= $7) AND ($8 IS NULL OR j.created_at < $8)
         AND EXISTS (SELECT 1 FROM trials t /*[*/INDEXED BY trials_tried/*|]*/ WHERE t.job = j.id AND t.state <> 'pruned')
     ORDER BY j.created_at, j.id LIMIT $3";

const TRIALS: &str = "SELECT version, body, features FROM trials /*[*/INDEXED BY trials_tried/*|]*/
     WHERE job = $1 AND ordinal > $2 AND state <> 'pruned' ORDER BY ordinal LIMIT $3";

const PLANS_LIST: &str = "sent plans";
const JOBS_LIST: &str = "sent jobs";

#[derive(sqlx::FromRow)]
struct JobRow {
    id: String,
    version: i64,
    request: String,
    device: Option<String>,
    stopped_by: Option<String>,
    search_seconds: f64,
    created_at: i64,
    started_at: Option<i64>,
    finished_at: i64,
    imported_from: Option<String>,
    plan: Option<String>,
    environment: Option<String>,
    device_class: String,
    pattern: Vec<u8>,
    matrix_name: Option<String>,
    rows: Option<i64>,
    cols: Option<i64>,
    nnz: Option<i64>,
    features_version: Option<i64>,
    shared: Option<Vec<u8>>,
    described_at: Option<i64>,
}

impl JobRow {
    fn sent(self) -> Result<SentJob> {
        let request: JobRequest = decode(self.version, &self.request)?;
        let features = match (self.features_version, self.shared, self.described_at) {
            (Some(version), Some(shared), Some(at)) => Some(SharedFeatures {
                version: codec::count("features version", version)?,
                values: codec::read_floats("job features", &shared)?,
                created_at: Timestamp(at),
            }),
            _ => None,
        };
        let shape = match (self.rows, self.cols, self.nnz) {
            (Some(rows), Some(cols), Some(nnz)) => Some([
                codec::count("matrix rows", rows)?,
                codec::count("matrix columns", cols)?,
                codec::count("matrix entries", nnz)?,
            ]),
            _ => None,
        };
        let stopped_by = self.stopped_by.map(|name| codec::named("job stopped_by", name));
        Ok(SentJob {
            id: JobId(self.id),
            store: self.imported_from,
            request,
            device: self.device.unwrap_or_default(),
            device_class: DeviceClass(self.device_class),
            environment: self.environment,
            pattern: codec::digest("job pattern", &self.pattern)?,
            matrix_name: self.matrix_name,
            shape,
            plan: self.plan.map(PlanId),
            stopped_by: stopped_by.transpose()?,
            search_seconds: self.search_seconds,
            created_at: Timestamp(self.created_at),
            started_at: self.started_at.map(Timestamp),
            finished_at: Timestamp(self.finished_at),
            features,
        })
    }
}

/// The place of the last row shown, which begins before all.
fn after(list: &str, page: &PageRequest) -> Result<(i64, String)> {
    match &page.after {
        Some(text) => codec::read_cursor(list, text),
        None => Ok((i64::MIN, String::new())),
    }
}

/// A host's own matter, which no other host needs to know.
fn discreet(plan: Plan) -> Plan {
    let device = Device { vendor_file: None, place: None, uuid: None, ..plan.device };
    Plan { device, ..plan }
}

macro_rules! select {
    ($store:expr, $statement:expr, $after:expr, $limit:expr, $of:expr) => {
        db::query_as($statement)
            .bind($after.0)
            .bind(&$after.1)
            .bind($limit)
            .bind($of.device_class.as_ref().map(|class| &class.0))
            .bind($of.op.map(|op| op.name()))
            .bind($of.matrix.as_ref().map(|digest| digest.as_bytes().to_vec()))
            .bind($of.since.map(|at| at.0))
            .bind($of.until.map(|at| at.0))
            .bind($store.namespace())
    };
}

#[async_trait]
impl Transfer for SqlStore {
    async fn sent_plans(&self, of: &Selection, page: &PageRequest) -> Result<Page<SentPlan>> {
        let (after, limit) = (after(PLANS_LIST, page)?, codec::page_limit(page.limit));
        let rows: Vec<(i64, String, i64, String, i64, String, bool)> =
            select!(self, PLANS, after, limit + 1, of).fetch_all(&self.readers).await?;
        let rows = codec::cut(rows, limit, |row| codec::cursor(PLANS_LIST, row.4, &row.5));
        let items =
            rows.items.into_iter().map(|(version, body, facts_version, facts, .., superseded)| {
                let (plan, matrix) = (decode(version, &body)?, decode(facts_version, &facts)?);
                Ok(SentPlan { plan: discreet(plan), matrix, superseded })
            });
        Ok(Page { items: items.collect::<Result<_>>()?, next: rows.next })
    }

    async fn sent_jobs(&self, of: &Selection, page: &PageRequest) -> Result<Page<SentJob>> {
        let (after, limit) = (after(JOBS_LIST, page)?, codec::page_limit(page.limit));
        let rows: Vec<JobRow> =
            select!(self, JOBS, after, limit + 1, of).fetch_all(&self.readers).await?;
        let rows = codec::cut(rows, limit, |row| codec::cursor(JOBS_LIST, row.created_at, &row.id));
        let items = rows.items.into_iter().map(JobRow::sent).collect::<Result<_>>()?;
        Ok(Page { items, next: rows.next })
    }

    async fn sent_trials(&self, job: &JobId, after: i64, limit: u32) -> Result<Vec<SentTrial>> {
        let rows: Vec<(i64, String, Option<Vec<u8>>)> = db::query_as(TRIALS)
            .bind(&job.0)
            .bind(after)
            .bind(codec::page_limit(limit))
            .fetch_all(&self.readers)
            .await?;
        rows.into_iter()
            .map(|(version, body, features)| {
                let features = features
                    .map(|bytes| codec::read_floats("trial features", &bytes))
                    .transpose()?;
                Ok(SentTrial { trial: decode(version, &body)?, features })
            })
            .collect()
    }

    async fn take_plan(&self, sent: &SentPlan, place: Place, charged: u64) -> Result<bool> {
        let SentPlan { plan, matrix, .. } = sent;
        let mut tx = self.begin_within().await?;
        quotas::may_store(&mut tx, &self.caller, charged, 0).await?;
        let others: (Option<i64>, Option<i64>) = db::query_as(
            "SELECT max(created_at), min(created_at) FROM plans
             WHERE namespace = $1 AND pattern_digest = $2 AND problem = $3 AND device_class = $4 AND l2_policy = $5 AND predicted = 0",
        )
        .bind(self.namespace())
        .bind(&plan.pattern_digest.as_bytes()[..])
        .bind(plan.problem.to_string())
        .bind(plan.device.class().0)
        .bind(plan.l2_policy.to_string())
        .fetch_one(&mut *tx)
        .await?;
        // The column orders the plans of a key; when a plan was measured is in the plan.
        let at = match (place, others) {
            (Place::First, (Some(newest), _)) => plan.created_at.0.max(newest.saturating_add(1)),
            (Place::Last, (_, Some(oldest))) => plan.created_at.0.min(oldest.saturating_sub(1)),
            _ => plan.created_at.0,
        };
        let of = plans::Of::caller(self, charged);
        if !plans::insert_with(&mut tx, plan, matrix, (&of, Timestamp(at))).await? {
            return Ok(false);
        }
        tx.revise();
        tx.commit(None).await?;
        Ok(true)
    }

    async fn take_job(&self, sent: &SentJob, store: &str) -> Result<JobTaken> {
        let mut tx = self.begin().await?;
        let known: Option<bool> = db::query_scalar(
            "SELECT imported_at IS NOT NULL AND namespace = $1 FROM jobs WHERE id = $2",
        )
        .bind(self.namespace())
        .bind(&sent.id.0)
        .fetch_optional(&mut *tx)
        .await?;
        if let Some(known) = standing_of(known) {
            return Ok(known);
        }
        let stopped_by =
            sent.stopped_by.map(|by| codec::name("job stopped_by", &by)).transpose()?;
        let row: WorkRow = db::query_as(concat!(
            "INSERT INTO jobs (id, kind, device, matrix, version, request, dedup_key, state, stage, plan, stopped_by,
                 search_seconds, created_at, started_at, finished_at, namespace, imported_from, imported_at, device_class, last_seq)
             VALUES ($1, 'tune', $2, $3, $4, $5, 'imported;' || $1, $6, 'done', (SELECT id FROM plans WHERE id = $7), $8,
                 $9, $10, $11, $12, $13, $14, $15, $16, 1)
             RETURNING ",
            work_columns!()
        ))
        .bind(&sent.id.0)
        .bind(&sent.device)
        .bind(&sent.request.matrix.as_bytes()[..])
        .bind(JobRequest::VERSION)
        .bind(encode(&first_part(&sent.request))?)
        .bind(JobState::Succeeded.name())
        .bind(sent.plan.as_ref().map(|plan| &plan.0))
        .bind(stopped_by)
        .bind(sent.search_seconds)
        .bind(sent.created_at.0)
        .bind(sent.started_at.map(|at| at.0))
        .bind(sent.finished_at.0)
        .bind(self.namespace())
        .bind(store)
        .bind(self.now().0)
        .bind(&sent.device_class.0)
        .fetch_one(&mut *tx)
        .await?;
        row.announce(&mut tx).await?;
        if let Some(features) = &sent.features {
            let described = JobFeatures {
                scope: Scope {
                    op: sent.request.problem.op(),
                    device_class: sent.device_class.clone(),
                },
                problem: sent.request.problem,
                matrix: sent.request.matrix,
                pattern: sent.pattern,
                name: sent.matrix_name.clone(),
                features_version: features.version,
                shared: features.values.clone(),
                created_at: features.created_at,
            };
            learning::describe(&mut tx, &sent.id, &described).await?;
        }
        tx.commit([Change::Job(sent.id.clone())]).await?;
        Ok(JobTaken::New)
    }

    async fn take_trials(&self, job: &JobId, sent: &[SentTrial]) -> Result<u64> {
        let mut tx = self.begin().await?;
        let known: Option<bool> = db::query_scalar(
            "SELECT imported_at IS NOT NULL AND namespace = $1 FROM jobs WHERE id = $2",
        )
        .bind(self.namespace())
        .bind(&job.0)
        .fetch_optional(&mut *tx)
        .await?;
        if standing_of(known) != Some(JobTaken::Known) {
            return Err(StoreError::Missing(format!("job {job}, taken in from another store")));
        }
        let rows: Vec<Trial> = sent
            .iter()
            .map(|sent| Trial { features: sent.features.clone(), ..sent.trial.clone() })
            .collect();
        let inserted = trials::insert(&mut tx, job, &rows).await?;
        let described = rows.iter().filter(|trial| {
            trial.features.is_some() && inserted.contains(&i64::from(trial.ordinal))
        });
        let described = described.count();
        learning::count_described(&mut tx, job, described as i64).await?;
        tx.commit(None).await?;
        Ok(inserted.len() as u64)
    }

    async fn would_take_job(&self, job: &JobId) -> Result<JobTaken> {
        let known: Option<bool> = db::query_scalar(
            "SELECT imported_at IS NOT NULL AND namespace = $1 FROM jobs WHERE id = $2",
        )
        .bind(self.namespace())
        .bind(&job.0)
        .fetch_optional(&self.readers)
        .await?;
        Ok(standing_of(known).unwrap_or(JobTaken::New))
    }

    async fn trials_there(&self, job: &JobId, sent: &[SentTrial]) -> Result<u64> {
        let ordinals: Vec<u32> = sent.iter().map(|sent| sent.trial.ordinal).collect();
        let there: i64 = db::query_scalar(
            "SELECT count(*) FROM trials WHERE job = $1 AND ordinal IN (SELECT CAST(value AS BIGINT) FROM json_each($2))",
        )
        .bind(&job.0)
        .bind(codec::encode_part("ordinals", &ordinals)?)
        .fetch_one(&self.readers)
        .await?;
        codec::count("trials", there)
    }
}

/// Of a job that is there: whether it came in, to this namespace.
fn standing_of(imported: Option<bool>) -> Option<JobTaken> {
    imported.map(|imported| if imported { JobTaken::Known } else { JobTaken::Own })
}
