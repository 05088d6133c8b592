//! The one row that counts the bytes of the blobs for all servers. Each statement is one step, so that two servers never take the same room.

use super::{SqlStore, codec, db};
use crate::store::{Result, RoomTaken, Stored, Taken};
use async_trait::async_trait;
use std::time::Duration;

/// The longest that something is under way; its process has ended since, without a word.
pub(super) const LONGEST_MS: i64 = 86_400_000;

/// As a number of the database.
fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[async_trait]
impl Stored for SqlStore {
    async fn take_bytes(
        &self,
        id: &str,
        bytes: u64,
        most: u64,
        within: Duration,
    ) -> Result<RoomTaken> {
        let within = i64::try_from(within.as_millis()).unwrap_or(i64::MAX);
        let now = self.now().0;
        let mut tx = self.begin_beside().await?;
        let done = db::query(
            "UPDATE stored SET bytes = bytes + $1, taken = taken + $1
             WHERE bytes <= $2 AND counted_at > /*[*/$4/*|clock_ms() + 0 * $4]*/ - $3",
        )
        .bind(number(bytes))
        .bind(number(most).saturating_sub(number(bytes)))
        .bind(within)
        .bind(now)
        .execute(&mut *tx)
        .await?;
        if done.rows_affected() == 1 {
            db::query(
                "INSERT INTO under_way (id, bytes, at) VALUES ($1, $2, /*[*/$3/*|clock_ms() + 0 * $3]*/)",
            )
            .bind(id)
            .bind(number(bytes))
            .bind(now)
            .execute(&mut *tx)
            .await?;
            tx.commit(None).await?;
            return Ok(RoomTaken::Yes);
        }
        let (stored, fresh): (i64, i64) = db::query_as(
            "SELECT bytes, CASE WHEN counted_at > /*[*/$2/*|clock_ms() + 0 * $2]*/ - $1 THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END
             FROM stored",
        )
        .bind(within)
        .bind(now)
        .fetch_one(&mut *tx)
        .await?;
        Ok(match fresh {
            0 => RoomTaken::Uncounted,
            _ => RoomTaken::Full(codec::count("stored bytes", stored)?),
        })
    }

    async fn settle_bytes(&self, id: &str) -> Result<()> {
        let mut tx = self.begin_beside().await?;
        db::query("DELETE FROM under_way WHERE id = $1").bind(id).execute(&mut *tx).await?;
        tx.commit(None).await
    }

    async fn give_bytes(&self, id: &str, bytes: u64) -> Result<()> {
        let mut tx = self.begin_beside().await?;
        db::query("UPDATE stored SET bytes = max(bytes - $1, 0), taken = taken - $1")
            .bind(number(bytes))
            .execute(&mut *tx)
            .await?;
        db::query("DELETE FROM under_way WHERE id = $1").bind(id).execute(&mut *tx).await?;
        tx.commit(None).await
    }

    async fn taken_bytes(&self) -> Result<Taken> {
        let (so_far, under_way): (i64, i64) = db::query_as(
            "SELECT taken, (
                 SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) FROM under_way WHERE at > /*[*/$1/*|clock_ms() + 0 * $1]*/ - $2)
             FROM stored",
        )
        .bind(self.now().0)
        .bind(LONGEST_MS)
        .fetch_one(&self.readers)
        .await?;
        Ok(Taken { so_far, under_way })
    }

    async fn bytes_counted(&self, found: u64, before: Taken) -> Result<()> {
        let mut tx = self.begin_beside().await?;
        db::query(
            "UPDATE stored SET bytes = $1 + max(taken - $2, 0), counted_at = /*[*/$3/*|clock_ms() + 0 * $3]*/",
        )
        .bind(number(found).saturating_add(before.under_way))
        .bind(before.so_far)
        .bind(self.now().0)
        .execute(&mut *tx)
        .await?;
        tx.commit(None).await
    }
}
