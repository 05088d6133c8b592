//! Compiler figures of kernels by device class: a bounded record of what was compiled before.

use super::{SqlStore, codec, db};
use crate::domain::{DeviceClass, Digest, KernelFigures, Timestamp};
use crate::store::{Figures, Result};
use async_trait::async_trait;
use std::collections::{HashMap, HashSet};

/// Maximum number of kernels kept per class, several times the number in all families. Beyond it, the least recently
/// compiled kernels are removed.
const MOST: i64 = 16_384;

#[async_trait]
impl Figures for SqlStore {
    async fn record_kernel_figures(
        &self,
        class: &DeviceClass,
        figures: &[(Digest, KernelFigures)],
    ) -> Result<()> {
        // A statement of PostgreSQL changes no row twice.
        let mut kernels = HashSet::new();
        let rows: Vec<(String, u32, u32)> = figures
            .iter()
            .filter(|(kernel, _)| kernels.insert(kernel))
            .map(|(kernel, of)| (kernel.to_string(), of.registers, of.local_bytes))
            .collect();
        let mut tx = self.begin().await?;
        let seen = db::query(
            "INSERT INTO kernel_figures (device_class, kernel, registers, local_bytes, learnt_at, seen_at)
             SELECT $1, unhex(value ->> 0), CAST(value ->> 1 AS BIGINT), CAST(value ->> 2 AS BIGINT), $2, $2 FROM json_each($3) WHERE true
             ON CONFLICT (device_class, kernel) DO UPDATE SET seen_at = max(kernel_figures.seen_at, excluded.seen_at)",
        )
        .bind(&class.0)
        .bind(Timestamp::now().0)
        .bind(codec::encode_part("kernel figures", &rows)?)
        .execute(&mut *tx)
        .await?;
        if seen.rows_affected() > 0 {
            db::query(
                "DELETE FROM kernel_figures WHERE device_class = $1 AND kernel IN (
                     SELECT kernel FROM kernel_figures WHERE device_class = $1
                     ORDER BY seen_at DESC, kernel LIMIT 9223372036854775807 OFFSET $2)",
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
        let rows: Vec<(Vec<u8>, i64, i64)> = db::query_as(
            "SELECT kernel, registers, local_bytes FROM kernel_figures
             WHERE device_class = $1 AND learnt_at < $2",
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
