//! The one row that counts the bytes of the blobs for all servers. Each statement is one step, so that two servers never take the same room.

use super::{SqlStore, codec, db};
use crate::store::{Result, RoomTaken, Stored};
use async_trait::async_trait;
use std::time::Duration;

/// As a number of the database.
fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[async_trait]
impl Stored for SqlStore {
    async fn take_bytes(&self, bytes: u64, most: u64, within: Duration) -> Result<RoomTaken> {
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

    async fn give_bytes(&self, bytes: u64) -> Result<()> {
        let mut tx = self.begin_beside().await?;
        db::query("UPDATE stored SET bytes = max(bytes - $1, 0), taken = taken - $1")
            .bind(number(bytes))
            .execute(&mut *tx)
            .await?;
        tx.commit(None).await
    }

    async fn taken_bytes(&self) -> Result<i64> {
        Ok(db::query_scalar("SELECT taken FROM stored").fetch_one(&self.readers).await?)
    }

    async fn bytes_counted(&self, found: u64, before: i64) -> Result<()> {
        let mut tx = self.begin_beside().await?;
        db::query(
            "UPDATE stored SET bytes = $1 + max(taken - $2, 0), counted_at = /*[*/$3/*|clock_ms() + 0 * $3]*/",
        )
        .bind(number(found))
        .bind(before)
        .bind(self.now().0)
        .execute(&mut *tx)
        .await?;
        tx.commit(None).await
    }
}
