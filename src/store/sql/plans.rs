//! Plans: newest by key, each with a copy of its matrix's facts.

use super::codec::{self, Stored, decode, encode};
use super::db::{self, Connection};
use super::{SqlStore, matrices, quality, quotas, tallies};
use crate::domain::plan::PlanKey;
use crate::domain::{
    DeviceClass, Digest, JobId, L2Policy, Matrix, ModelQuality, Plan, PlanId, Problem, Timestamp,
};
use crate::store::{
    Page, PageRequest, PlanFigures, PlanQuery, PlanTally, Plans, Result, StoreError,
};
use async_trait::async_trait;
use std::collections::HashMap;

const LIST: &str = "plans";

/// To whom a plan belongs, and for how many bytes it counts in a quota.
pub(super) struct Of {
    namespace: String,
    token: Option<String>,
    charged: u64,
}

impl Of {
    /// Who submitted the job.
    pub(super) async fn job(tx: &mut Connection, job: &JobId, charged: u64) -> Result<Self> {
        let (namespace, token) = db::query_as("SELECT namespace, token FROM jobs WHERE id = $1")
            .bind(&job.0)
            .fetch_one(tx)
            .await?;
        Ok(Self { namespace, token, charged })
    }

    pub(super) fn caller(store: &SqlStore, charged: u64) -> Self {
        let token = store.token().map(str::to_owned);
        Self { namespace: store.namespace().to_owned(), token, charged }
    }
}

/// Stores a plan with a copy of its matrix's facts, as they are where it belongs.
pub(super) async fn insert(tx: &mut Connection, plan: &Plan, of: &Of) -> Result<()> {
    let facts = matrices::held(tx, &of.namespace, &plan.matrix).await?;
    let facts = facts.ok_or_else(|| StoreError::Missing(format!("matrix {}", plan.matrix)))?;
    match insert_with(tx, plan, &facts, (of, plan.created_at)).await? {
        true => Ok(()),
        false => Err(StoreError::Misuse(format!("plan {} is already stored", plan.id).into())),
    }
}

/// Stores a plan with the facts of its matrix, at this place among the plans of its key. False if there is one with its id.
pub(super) async fn insert_with(
    tx: &mut Connection,
    plan: &Plan,
    facts: &Matrix,
    (of, at): (&Of, Timestamp),
) -> Result<bool> {
    let done = db::query(
        "INSERT INTO plans (id, pattern_digest, problem, device_class, l2_policy, matrix, created_at, version, body,
             predicted, facts_version, facts, namespace, token, charged)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) ON CONFLICT (id) DO NOTHING",
    )
    .bind(&plan.id.0)
    .bind(&plan.pattern_digest.as_bytes()[..])
    .bind(plan.problem.to_string())
    .bind(plan.device.class().0)
    .bind(plan.l2_policy.to_string())
    .bind(&plan.matrix.as_bytes()[..])
    .bind(at.0)
    .bind(i64::from(plan.version))
    .bind(codec::encode(plan)?)
    .bind(plan.is_predicted())
    .bind(Matrix::VERSION)
    .bind(codec::encode(facts)?)
    .bind(&of.namespace)
    .bind(&of.token)
    .bind(i64::try_from(of.charged).unwrap_or(i64::MAX))
    .execute(tx)
    .await?;
    Ok(done.rows_affected() == 1)
}

// A plan that was only predicted answers no key: `predicted = 0` is the condition of the indexes used here.
//
// The lists take the sort key of the last row shown as their first two parameters, their limit as the third, and the namespace as the
// fourth.

pub(super) const MEASURED: &str = "SELECT version, body, created_at FROM plans
     WHERE namespace = $4 AND pattern_digest = $5 AND problem = $6 AND device_class = $7 AND l2_policy = $8 AND predicted = 0
         AND (created_at, id) < ($1, $2)
     ORDER BY created_at DESC, id DESC LIMIT $3";

/// Whether a plan's namespace lets others have it: a job of this store measured it, so that nobody made it up, in a search that nobody
/// narrowed to what is slow, and the token that it was
/// made with, which no later one of that name is, consents and is in force at the time `$1`.
macro_rules! is_shared {
    () => {
        "plans.predicted = 0 AND plans.token IS NOT NULL AND body ->> '$.provenance.job' IS NOT NULL
         AND body ->> '$.provenance.imported' IS NULL AND body ->> '$.provenance.narrowed' IS NULL
         AND NOT EXISTS (SELECT 1 FROM bundles WHERE bundles.plan = plans.id AND bundles.imported = 1)
         AND EXISTS (
             SELECT 1 FROM tokens WHERE tokens.namespace = plans.namespace AND tokens.name = plans.token
                 AND tokens.created_at <= plans.created_at AND revoked_at IS NULL AND share_plans = 1 AND (expires_at IS NULL OR expires_at > $1))"
    };
}

/// [`batched::OF_MATRICES`](super::batched) for one key among the plans that other namespaces share; `$6` is the one that asks.
pub(super) const SHARED: &str = concat!(
    "SELECT version, body FROM plans
     WHERE pattern_digest = coalesce(
             (SELECT pattern_digest FROM holdings WHERE namespace = $6 AND digest = $2),
             (SELECT pattern_digest FROM plans WHERE matrix = $2 AND ",
    is_shared!(),
    " LIMIT 1),
             $2)
         AND problem = $3 AND device_class = $4 AND l2_policy = $5 AND namespace <> $6 AND ",
    is_shared!(),
    " ORDER BY created_at DESC, id DESC LIMIT 1"
);

const ONE_SHARED: &str =
    concat!("SELECT version, body FROM plans WHERE id = $2 AND namespace <> $3 AND ", is_shared!());

/// A plan as another namespace is shown it: without its job, and without how it stands among others.
fn of_another((version, body): (i64, String)) -> Result<Plan> {
    let mut plan: Plan = decode(version, &body)?;
    plan.provenance.job = None;
    if let Some(imported) = &mut plan.provenance.imported {
        imported.standing = None;
    }
    Ok(plan)
}

pub(super) const PREDICTED: &str = "SELECT version, body, created_at FROM plans
     WHERE namespace = $4 AND pattern_digest = $5 AND problem = $6 AND device_class = $7 AND l2_policy = $8 AND predicted = 1
         AND (created_at, id) < ($1, $2)
     ORDER BY created_at DESC, id DESC LIMIT $3";

pub(super) const KEYS: &str = "SELECT max(body ->> '$.problem'), device_class, l2_policy FROM plans
     WHERE namespace = $1 AND pattern_digest = $2 AND predicted = 0 GROUP BY problem, device_class, l2_policy
     ORDER BY max(created_at) DESC, max(id) DESC";

pub(super) const OF_PROBLEM: &str = "SELECT id, facts_version, facts FROM (
         SELECT id, facts_version, facts, created_at, row_number() OVER (
             PARTITION BY pattern_digest ORDER BY created_at DESC, id DESC) AS age
         FROM plans WHERE namespace = $1 AND problem = $2 AND device_class = $3 AND l2_policy = $4 AND predicted = 0) newest
     WHERE age = 1 ORDER BY created_at DESC, id DESC LIMIT $5";

/// Keys and times are covered by an index; for a key that was tuned often, only the newest plan is read.
pub(super) const NEWEST_OF_EACH_KEY: &str =
    "SELECT plans.version, plans.body, plans.created_at FROM (
         SELECT id, created_at, row_number() OVER (
             PARTITION BY problem, device_class, l2_policy ORDER BY created_at DESC, id DESC) AS age
         FROM plans WHERE namespace = $4 AND pattern_digest = $5 AND predicted = 0) newest
     JOIN plans ON plans.id = newest.id
     WHERE newest.age = 1 AND (newest.created_at, newest.id) < ($1, $2)
     ORDER BY newest.created_at DESC, newest.id DESC LIMIT $3";

pub(super) const UNMEASURED: &str = "SELECT plans.version, plans.body, plans.created_at FROM (
         SELECT id, created_at, problem, device_class, l2_policy, row_number() OVER (
             PARTITION BY problem, device_class, l2_policy ORDER BY created_at DESC, id DESC) AS age
         FROM plans WHERE namespace = $4 AND pattern_digest = $5 AND predicted = 1) newest
     JOIN plans ON plans.id = newest.id
     WHERE newest.age = 1 AND (newest.created_at, newest.id) < ($1, $2) AND NOT EXISTS (
         SELECT 1 FROM plans measured WHERE measured.namespace = $4 AND measured.pattern_digest = $5 AND measured.predicted = 0
             AND measured.problem = newest.problem AND measured.device_class = newest.device_class
             AND measured.l2_policy = newest.l2_policy)
     ORDER BY newest.created_at DESC, newest.id DESC LIMIT $3";

async fn is_here(connection: &mut Connection, store: &SqlStore, id: &PlanId) -> Result<bool> {
    let known: Option<i64> =
        db::query_scalar("SELECT CAST(1 AS BIGINT) FROM plans WHERE id = $1 AND namespace = $2")
            .bind(&id.0)
            .bind(store.namespace())
            .fetch_optional(connection)
            .await?;
    Ok(known.is_some())
}

#[async_trait]
impl Plans for SqlStore {
    async fn plan(&self, id: &PlanId) -> Result<Option<Plan>> {
        let row: Option<(i64, String)> =
            db::query_as("SELECT version, body FROM plans WHERE id = $1 AND namespace = $2")
                .bind(&id.0)
                .bind(self.namespace())
                .fetch_optional(&self.readers)
                .await?;
        if let Some((version, body)) = row {
            return decode(version, &body).map(Some);
        }
        let shared: Option<(i64, String)> = db::query_as(ONE_SHARED)
            .bind(self.now().0)
            .bind(&id.0)
            .bind(self.namespace())
            .fetch_optional(&self.readers)
            .await?;
        shared.map(of_another).transpose()
    }

    async fn has_plan(&self, id: &PlanId) -> Result<bool> {
        let mut reader = self.readers.acquire().await?;
        is_here(&mut reader, self, id).await
    }

    async fn plan_for(&self, asked: &Digest, key: &PlanKey) -> Result<Option<Plan>> {
        if let Some((version, body)) = self.batched_lookup(asked, key).await? {
            return decode(version, &body).map(Some);
        }
        let shared: Option<(i64, String)> = db::query_as(SHARED)
            .bind(self.now().0)
            .bind(&asked.as_bytes()[..])
            .bind(key.problem.to_string())
            .bind(&key.device_class.0)
            .bind(key.l2_policy.to_string())
            .bind(self.namespace())
            .fetch_optional(&self.readers)
            .await?;
        shared.map(of_another).transpose()
    }

    async fn plans(&self, of: &PlanQuery, page: &PageRequest) -> Result<Page<Plan>> {
        let limit = codec::page_limit(page.limit);
        let (at, after) = match &page.after {
            Some(text) => codec::read_cursor(LIST, text)?,
            // Above every key: ids are UUIDs.
            None => (i64::MAX, "~".to_owned()),
        };
        let statement = match of {
            PlanQuery::Measured(_) => MEASURED,
            PlanQuery::Predicted(_) => PREDICTED,
            PlanQuery::NewestOfPattern(_) => NEWEST_OF_EACH_KEY,
            PlanQuery::UnmeasuredOfPattern(_) => UNMEASURED,
        };
        let query = db::query_as(statement).bind(at).bind(after).bind(limit + 1);
        let query = query.bind(self.namespace());
        let query = match of {
            PlanQuery::Measured(key) | PlanQuery::Predicted(key) => query
                .bind(&key.pattern_digest.as_bytes()[..])
                .bind(key.problem.to_string())
                .bind(&key.device_class.0)
                .bind(key.l2_policy.to_string()),
            PlanQuery::NewestOfPattern(pattern) | PlanQuery::UnmeasuredOfPattern(pattern) => {
                query.bind(&pattern.as_bytes()[..])
            }
        };
        let rows: Vec<(i64, String, i64)> = query.fetch_all(&self.readers).await?;
        let items = rows
            .into_iter()
            .map(|(version, body, at)| Ok((decode::<Plan>(version, &body)?, at)))
            .collect::<Result<Vec<_>>>()?;
        // The place of a plan from another store is not the time at which it was measured.
        let Page { items, next } =
            codec::cut(items, limit, |(plan, at)| codec::cursor(LIST, *at, &plan.id.0));
        Ok(Page { items: items.into_iter().map(|(plan, _)| plan).collect(), next })
    }

    async fn insert_predicted(&self, plan: &Plan, most: u32) -> Result<bool> {
        if !plan.is_predicted() {
            let why = format!("plan {} was measured, so it is stored when its job ends", plan.id);
            return Err(StoreError::Misuse(why.into()));
        }
        let mut tx = self.begin_within().await?;
        if is_here(&mut tx, self, &plan.id).await? {
            return Ok(true);
        }
        let there: i64 = db::query_scalar(
            "SELECT count(*) FROM plans WHERE namespace = $1 AND pattern_digest = $2 AND predicted = 1",
        )
        .bind(self.namespace())
        .bind(&plan.pattern_digest.as_bytes()[..])
        .fetch_one(&mut *tx)
        .await?;
        if there >= i64::from(most) {
            return Ok(false);
        }
        let bytes = encode(plan)?.len() as u64;
        quotas::may_store(&mut tx, &self.caller, bytes, 0).await?;
        insert(&mut tx, plan, &Of::caller(self, bytes)).await?;
        tx.commit(None).await?;
        Ok(true)
    }

    async fn plan_tallies(&self, matrices: &[Digest]) -> Result<HashMap<Digest, PlanTally>> {
        tallies::by_matrix(self, matrices).await
    }

    async fn plan_figures(&self, most: u32) -> Result<(u64, Vec<PlanFigures>)> {
        tallies::newest(self, most).await
    }

    async fn model_quality(&self) -> Result<Vec<ModelQuality>> {
        quality::of_models(self).await
    }

    async fn plan_keys(&self, pattern: &Digest) -> Result<Vec<PlanKey>> {
        // The text of the key cannot be parsed back into a problem, so the problem is read from the plan's body.
        let rows: Vec<(String, String, String)> = db::query_as(KEYS)
            .bind(self.namespace())
            .bind(&pattern.as_bytes()[..])
            .fetch_all(&self.readers)
            .await?;
        rows.into_iter()
            .map(|(problem, class, l2_policy)| {
                Ok(PlanKey {
                    pattern_digest: *pattern,
                    problem: codec::decode_part("plan problem", &problem)?,
                    device_class: DeviceClass(class),
                    l2_policy: codec::named("plan l2_policy", l2_policy)?,
                })
            })
            .collect()
    }

    async fn plans_for(
        &self,
        problem: &Problem,
        class: &DeviceClass,
        l2_policy: L2Policy,
        limit: u32,
    ) -> Result<Vec<(Matrix, PlanId)>> {
        let rows: Vec<(String, i64, String)> = db::query_as(OF_PROBLEM)
            .bind(self.namespace())
            .bind(problem.to_string())
            .bind(&class.0)
            .bind(l2_policy.to_string())
            .bind(limit)
            .fetch_all(&self.readers)
            .await?;
        rows.into_iter()
            .map(|(id, version, facts)| Ok((decode(version, &facts)?, PlanId(id))))
            .collect()
    }
}

/// Plans carry their own version number; the column and the constant must agree.
const _: () = assert!(<Plan as Stored>::VERSION == crate::domain::plan::PLAN_VERSION as i64);
