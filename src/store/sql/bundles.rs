//! Bundles: one file for each plan, with or without values.

use super::codec;
use super::db::{self, Connection};
use super::{SqlStore, plans, quotas};
use crate::domain::{Matrix, Plan, PlanId, Timestamp};
use crate::store::{Bundles, Result, StoredBundle};
use async_trait::async_trait;

type Row = (String, bool, Vec<u8>, i64, Vec<u8>, bool, i64);

fn stored(
    (plan, without_values, blob, bytes, sha256, imported, created_at): Row,
) -> Result<StoredBundle> {
    let hash = <[u8; 32]>::try_from(sha256);
    Ok(StoredBundle {
        plan: PlanId(plan),
        without_values,
        blob: codec::digest("bundle blob", &blob)?,
        bytes: codec::count("bundle length", bytes)?,
        sha256: hash.map_err(|_| codec::corrupt("bundle hash", "it is not 32 bytes"))?,
        imported,
        created_at: Timestamp(created_at),
    })
}

async fn insert(tx: &mut Connection, bundle: &StoredBundle) -> Result<()> {
    db::query(
        "INSERT INTO bundles (plan, without_values, blob, bytes, sha256, imported, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (plan, without_values) DO UPDATE SET
             blob = excluded.blob, bytes = excluded.bytes, sha256 = excluded.sha256, created_at = excluded.created_at
         WHERE bundles.imported = 0",
    )
    .bind(&bundle.plan.0)
    .bind(bundle.without_values)
    .bind(&bundle.blob.as_bytes()[..])
    .bind(i64::try_from(bundle.bytes).unwrap_or(i64::MAX))
    .bind(&bundle.sha256[..])
    .bind(bundle.imported)
    .bind(bundle.created_at.0)
    .execute(tx)
    .await?;
    Ok(())
}

#[async_trait]
impl Bundles for SqlStore {
    async fn bundle(&self, plan: &PlanId, without_values: bool) -> Result<Option<StoredBundle>> {
        let row: Option<Row> = db::query_as(
            "SELECT plan, without_values = 1, blob, bytes, sha256, imported = 1, created_at FROM bundles
             WHERE plan = $1 AND without_values = $2
                 AND EXISTS (SELECT 1 FROM plans WHERE plans.id = bundles.plan AND namespace = $3)",
        )
        .bind(&plan.0)
        .bind(without_values)
        .bind(self.namespace())
        .fetch_optional(&self.readers)
        .await?;
        row.map(stored).transpose()
    }

    async fn brought_by(&self, plan: &PlanId) -> Result<Option<StoredBundle>> {
        let row: Option<Row> = db::query_as(
            "SELECT plan, without_values = 1, blob, bytes, sha256, imported = 1, created_at FROM bundles
             WHERE plan = $1 AND imported = 1",
        )
        .bind(&plan.0)
        .fetch_optional(&self.readers)
        .await?;
        row.map(stored).transpose()
    }

    async fn put_bundle(&self, bundle: &StoredBundle) -> Result<()> {
        let mut tx = self.begin().await?;
        quotas::may_store(&mut tx, &self.caller, bundle.bytes, 0).await?;
        insert(&mut tx, bundle).await?;
        tx.commit(None).await
    }

    async fn import_plan(
        &self,
        plan: &Plan,
        facts: &Matrix,
        bundle: &StoredBundle,
    ) -> Result<bool> {
        let mut tx = self.begin_within().await?;
        quotas::may_store(&mut tx, &self.caller, bundle.bytes, 0).await?;
        let of = plans::Of::caller(self, bundle.bytes);
        if !plans::insert_with(&mut tx, plan, facts, (&of, plan.created_at)).await? {
            return Ok(false);
        }
        insert(&mut tx, bundle).await?;
        tx.revise();
        tx.commit(None).await?;
        Ok(true)
    }
}
