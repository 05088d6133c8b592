//! Devices with the worker that serves them, and the quarantine of candidates that hung or killed one.

use super::codec::{self, Stored, decode, encode};
use super::{SqliteStore, upkeep};
use crate::domain::{Candidate, Device, DeviceClass, Timestamp};
use crate::store::{Devices, Quarantined, Result};
use async_trait::async_trait;
use sqlx::{QueryBuilder, Sqlite};
use std::collections::HashMap;

pub(super) const QUARANTINE_COUNTS: &str =
    "SELECT device_class, count(*) FROM quarantine GROUP BY device_class";

#[async_trait]
impl Devices for SqliteStore {
    async fn put_device(&self, owner: &str, device: &Device) -> Result<()> {
        let body = encode(device)?;
        let mut tx = self.begin().await?;
        let known: Option<String> =
            sqlx::query_scalar("SELECT body FROM devices WHERE owner = ? AND id = ?")
                .bind(owner)
                .bind(&device.id.0)
                .fetch_optional(&mut *tx)
                .await?;
        // A worker that only says it is alive changes no answer.
        if known.as_deref() != Some(&body) {
            upkeep::revise(&mut tx).await?;
        }
        sqlx::query(
            "INSERT INTO devices (owner, id, seen_at, version, body) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (owner, id) DO UPDATE
             SET seen_at = excluded.seen_at, version = excluded.version, body = excluded.body",
        )
        .bind(owner)
        .bind(&device.id.0)
        .bind(Timestamp::now().0)
        .bind(Device::VERSION)
        .bind(body)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    async fn devices(&self) -> Result<Vec<(String, Device, Timestamp)>> {
        let rows: Vec<(String, i64, String, i64)> =
            sqlx::query_as("SELECT owner, version, body, seen_at FROM devices ORDER BY owner, id")
                .fetch_all(&self.readers)
                .await?;
        rows.into_iter()
            .map(|(owner, version, body, seen)| {
                Ok((owner, decode(version, &body)?, Timestamp(seen)))
            })
            .collect()
    }

    async fn quarantine(&self, entry: &Quarantined) -> Result<()> {
        // The first reason stays: it is the one that was seen on a sound device.
        sqlx::query(
            "INSERT INTO quarantine (device_class, kernel_digest, candidate_id, version, candidate, reason, at)
             VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        )
        .bind(&entry.class.0)
        .bind(&entry.kernel_digest.as_bytes()[..])
        .bind(entry.candidate.id().0)
        .bind(Candidate::VERSION)
        .bind(encode(&entry.candidate)?)
        .bind(&entry.reason)
        .bind(entry.at.0)
        .execute(&self.writer)
        .await?;
        Ok(())
    }

    async fn quarantined(&self, class: Option<&DeviceClass>) -> Result<Vec<Quarantined>> {
        let mut query = QueryBuilder::<Sqlite>::new(
            "SELECT device_class, kernel_digest, version, candidate, reason, at FROM quarantine",
        );
        if let Some(class) = class {
            query.push(" WHERE device_class = ").push_bind(class.0.clone());
        }
        query.push(" ORDER BY at DESC, device_class, candidate_id");
        let rows: Vec<(String, Vec<u8>, i64, String, String, i64)> =
            query.build_query_as().fetch_all(&self.readers).await?;
        rows.into_iter()
            .map(|(class, kernel, version, candidate, reason, at)| {
                Ok(Quarantined {
                    class: DeviceClass(class),
                    kernel_digest: codec::digest("quarantine", &kernel)?,
                    candidate: decode(version, &candidate)?,
                    reason,
                    at: Timestamp(at),
                })
            })
            .collect()
    }

    async fn quarantine_counts(&self) -> Result<HashMap<DeviceClass, u64>> {
        let rows: Vec<(String, i64)> =
            sqlx::query_as(QUARANTINE_COUNTS).fetch_all(&self.readers).await?;
        rows.into_iter()
            .map(|(class, count)| Ok((DeviceClass(class), codec::count("quarantine", count)?)))
            .collect()
    }
}
