//! Compiler figures of kernels by device class: a bounded record of what was compiled before.

use super::{SqliteStore, codec};
use crate::domain::{DeviceClass, Digest, KernelFigures, Timestamp};
use crate::store::{Figures, Result};
use async_trait::async_trait;
use std::collections::HashMap;

/// Maximum number of kernels kept per class, several times the number in all families. Beyond it, the least recently
/// compiled kernels are removed.
const MOST: i64 = 16_384;

#[async_trait]
impl Figures for SqliteStore {
    async fn record_kernel_figures(
        &self,
        class: &DeviceClass,
        figures: &[(Digest, KernelFigures)],
    ) -> Result<()> {
        let rows: Vec<(String, u32, u32)> =
            figures.iter().map(|(k, f)| (k.to_string(), f.registers, f.local_bytes)).collect();
        let mut tx = self.begin().await?;
        let seen = sqlx::query(
            "INSERT INTO kernel_figures (device_class, kernel, registers, local_bytes, learnt_at, seen_at)
             SELECT ?1, unhex(value ->> 0), value ->> 1, value ->> 2, ?2, ?2 FROM json_each(?3) WHERE true
             ON CONFLICT DO UPDATE SET seen_at = max(seen_at, excluded.seen_at)",
        )
        .bind(&class.0)
        .bind(Timestamp::now().0)
        .bind(codec::encode_part("kernel figures", &rows)?)
        .execute(&mut *tx)
        .await?;
        if seen.rows_affected() > 0 {
            sqlx::query(
                "DELETE FROM kernel_figures WHERE device_class = ?1 AND kernel IN (
                     SELECT kernel FROM kernel_figures WHERE device_class = ?1
                     ORDER BY seen_at DESC, kernel LIMIT -1 OFFSET ?2)",
            )
            .bind(&class.0)
            .bind(MOST)
            .execute(&mut *tx)
            .await?;
        }
        tx.commit(None).await
    }

    async fn kernel_figures(
        &self,
        class: &DeviceClass,
        before: Timestamp,
    ) -> Result<HashMap<Digest, KernelFigures>> {
        let rows: Vec<(Vec<u8>, i64, i64)> = sqlx::query_as(
            "SELECT kernel, registers, local_bytes FROM kernel_figures
             WHERE device_class = ? AND learnt_at < ?",
        )
        .bind(&class.0)
        .bind(before.0)
        .fetch_all(&self.readers)
        .await?;
        rows.into_iter()
            .map(|(kernel, registers, local_bytes)| {
                let what = "kernel figures";
                let figures = KernelFigures {
                    registers: codec::count(what, registers)?,
                    local_bytes: codec::count(what, local_bytes)?,
                };
                Ok((codec::digest(what, &kernel)?, figures))
            })
            .collect()
    }
}
