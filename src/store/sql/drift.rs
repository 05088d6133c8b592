//! What is known of plans since they were made.

use super::{SqlStore, codec, db};
use crate::domain::drift::Check;
use crate::domain::{DeviceClass, Namespace, Plan, PlanId, Timestamp};
use crate::store::{Drift, Result, UsedPlan};
use async_trait::async_trait;

/// The time that uses are counted for together: half a month.
const PERIOD_MS: i64 = 15 * 24 * 3_600_000;
const DAY_MS: i64 = 24 * 3_600_000;

/// Only what jobs of this store measured: an imported plan may name any candidate and any time. Namespaces take turns, and those whose
/// plans were measured anew today come later.
const MOST_USED: &str = "SELECT namespace, version, body, renewed_for FROM (
         SELECT plans.namespace, plans.version, plans.body, drift.renewed_for, drift.plan,
             CASE drift.period WHEN $4 THEN drift.uses + drift.uses_before ELSE drift.uses END AS used,
             row_number() OVER (PARTITION BY plans.namespace
                 ORDER BY CASE drift.period WHEN $4 THEN drift.uses + drift.uses_before ELSE drift.uses END DESC, drift.plan)
             + (SELECT count(*) FROM drift AS today JOIN plans AS theirs ON theirs.id = today.plan
                WHERE today.renewed_at > $5 AND theirs.namespace = plans.namespace) AS turn
         FROM drift JOIN plans ON plans.id = drift.plan
         WHERE drift.uses > 0 AND drift.period >= $4 - 1 AND drift.used_at >= $1 AND plans.device_class = $2 AND plans.predicted = 0
             AND plans.body ->> '$.provenance.job' IS NOT NULL AND plans.body ->> '$.provenance.imported' IS NULL
             AND NOT EXISTS (SELECT 1 FROM bundles WHERE bundles.plan = plans.id AND bundles.imported = 1)
             AND EXISTS (SELECT 1 FROM holdings WHERE holdings.namespace = plans.namespace AND holdings.digest = plans.matrix)
             AND NOT EXISTS (SELECT 1 FROM plans newer WHERE newer.predicted = 0
                 AND newer.namespace = plans.namespace AND newer.pattern_digest = plans.pattern_digest AND newer.problem = plans.problem
                 AND newer.device_class = plans.device_class AND newer.l2_policy = plans.l2_policy
                 AND (newer.created_at, newer.id) > (plans.created_at, plans.id))) outdated
     ORDER BY turn, used DESC, plan LIMIT $3";

/// The plan of each namespace that was measured longest ago comes first, beginning with the namespace whose turn was longest ago.
const UNCHECKED: &str = "SELECT namespace, version, body FROM (
         SELECT plans.namespace, plans.version, plans.body, plans.id, coalesce(drift.checked_at, 0) AS checked,
             row_number() OVER (PARTITION BY plans.namespace ORDER BY coalesce(drift.checked_at, 0), plans.id) AS turn
         FROM plans LEFT JOIN drift ON drift.plan = plans.id
         WHERE plans.pinned_at IS NOT NULL AND plans.predicted = 0 AND plans.device_class = $1
             AND coalesce(drift.checked_at, 0) < $2
             AND plans.body ->> '$.provenance.job' IS NOT NULL AND plans.body ->> '$.provenance.imported' IS NULL
             AND NOT EXISTS (SELECT 1 FROM bundles WHERE bundles.plan = plans.id AND bundles.imported = 1)
             AND EXISTS (SELECT 1 FROM holdings WHERE holdings.namespace = plans.namespace AND holdings.digest = plans.matrix)) due
     LEFT JOIN (
         SELECT theirs.namespace AS whose, max(done.checked_at) AS latest FROM plans AS theirs JOIN drift AS done ON done.plan = theirs.id
         WHERE theirs.device_class = $1 AND theirs.pinned_at IS NOT NULL GROUP BY theirs.namespace) earlier ON earlier.whose = due.namespace
     ORDER BY turn, coalesce(earlier.latest, 0), checked, id LIMIT $3";

type CheckRow = (String, i64, String, String, Option<f64>, Option<f64>);

#[async_trait]
impl Drift for SqlStore {
    async fn count_uses(&self, uses: &[(PlanId, u64)]) -> Result<()> {
        let mut tx = self.begin().await?;
        for (plan, uses) in uses {
            db::query(
                "INSERT INTO drift (plan, uses, used_at, period) SELECT id, $2, $3, $4 FROM plans WHERE id = $1
                 ON CONFLICT (plan) DO UPDATE SET used_at = excluded.used_at, period = excluded.period,
                     uses = CASE drift.period WHEN excluded.period THEN drift.uses + excluded.uses ELSE excluded.uses END,
                     uses_before = CASE drift.period WHEN excluded.period THEN drift.uses_before
                         WHEN excluded.period - 1 THEN drift.uses ELSE 0 END",
            )
            .bind(&plan.0)
            .bind(i64::try_from(*uses).unwrap_or(i64::MAX))
            .bind(self.now().0)
            .bind(self.now().0.div_euclid(PERIOD_MS))
            .execute(&mut *tx)
            .await?;
        }
        tx.commit(None).await
    }

    async fn most_used(
        &self,
        class: &DeviceClass,
        since: Timestamp,
        limit: u32,
    ) -> Result<Vec<UsedPlan>> {
        let rows: Vec<(String, i64, String, Option<String>)> = db::query_as(MOST_USED)
            .bind(since.0)
            .bind(&class.0)
            .bind(limit)
            .bind(self.now().0.div_euclid(PERIOD_MS))
            .bind(self.now().plus_millis(-DAY_MS).0)
            .fetch_all(&self.readers)
            .await?;
        rows.into_iter()
            .map(|(namespace, version, body, renewed_for)| {
                let plan = codec::decode(version, &body)?;
                Ok(UsedPlan { namespace: codec::namespace(namespace)?, plan, renewed_for })
            })
            .collect()
    }

    async fn renew_plan(
        &self,
        plan: &PlanId,
        why: &str,
        since: Timestamp,
        most: u32,
    ) -> Result<bool> {
        let done = db::query(
            "UPDATE drift SET renewed_at = $1, renewed_for = $2 WHERE plan = $3 AND renewed_for IS DISTINCT FROM $2
                 AND (SELECT count(*) FROM drift WHERE renewed_at > $4) < $5",
        )
        .bind(self.now().0)
        .bind(why)
        .bind(&plan.0)
        .bind(since.0)
        .bind(most)
        .execute(&self.writer)
        .await?;
        Ok(done.rows_affected() == 1)
    }

    async fn unchecked(
        &self,
        class: &DeviceClass,
        since: Timestamp,
        limit: u32,
    ) -> Result<Vec<(Namespace, Plan)>> {
        let rows: Vec<(String, i64, String)> = db::query_as(UNCHECKED)
            .bind(&class.0)
            .bind(since.0)
            .bind(limit)
            .fetch_all(&self.readers)
            .await?;
        rows.into_iter()
            .map(|(namespace, version, body)| {
                Ok((codec::namespace(namespace)?, codec::decode(version, &body)?))
            })
            .collect()
    }

    async fn record_check(&self, check: &Check) -> Result<bool> {
        let mut tx = self.begin().await?;
        let done = db::query(
            "INSERT INTO drift (plan, checked_at, verdict, why, median_us, vendor_us)
             SELECT id, $2, $3, $4, $5, $6 FROM plans WHERE id = $1
             ON CONFLICT (plan) DO UPDATE SET checked_at = excluded.checked_at, verdict = excluded.verdict,
                 why = excluded.why, median_us = excluded.median_us, vendor_us = excluded.vendor_us",
        )
        .bind(&check.plan.0)
        .bind(check.at.0)
        .bind(codec::name("verdict", &check.verdict)?)
        .bind(&check.why)
        .bind(check.median_us)
        .bind(check.vendor_us)
        .execute(&mut *tx)
        .await?;
        // Lookups say it.
        tx.revise();
        tx.commit(None).await?;
        Ok(done.rows_affected() == 1)
    }

    async fn checks(&self, limit: u32) -> Result<Vec<Check>> {
        let rows: Vec<CheckRow> = db::query_as(
            "SELECT plan, checked_at, verdict, why, median_us, vendor_us FROM drift
             WHERE checked_at IS NOT NULL ORDER BY checked_at DESC, plan LIMIT $1",
        )
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        rows.into_iter()
            .map(|(plan, at, verdict, why, median_us, vendor_us)| {
                let verdict = codec::named("verdict", verdict)?;
                Ok(Check {
                    plan: PlanId(plan),
                    at: Timestamp(at),
                    verdict,
                    why,
                    median_us,
                    vendor_us,
                })
            })
            .collect()
    }
}
