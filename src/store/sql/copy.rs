//! What only a database in a file has: copies while others are writing, and whether it is sound.

use super::{Place, SqlStore, db};
use crate::store::{Result, StoreError};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use std::path::Path;

/// Most faults of each kind that are told.
const MOST: usize = 20;

impl SqlStore {
    /// Writes the database as it stands, in one consistent state, to a file that is empty or does not exist. Others may write meanwhile. The
    /// database is not migrated.
    pub async fn copy(from: &Path, to: &Path) -> Result<()> {
        let target = to
            .to_str()
            .ok_or_else(|| StoreError::Misuse("the name of the copy is not UTF-8".into()))?;
        let options = SqliteConnectOptions::new().filename(from);
        let mut connection = SqliteConnection::connect_with(&options).await?;
        sqlx::query("VACUUM INTO ?").bind(target).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// Gives the store another id, which it returns: a copy that goes on by itself is another store than its origin, and the blobs of
    /// the one are not the other's.
    pub async fn renew_id(&self) -> Result<String> {
        if let Place::Server(_) = &*self.place {
            return Err(StoreError::Misuse("a store on a server keeps its id".into()));
        }
        let mut tx = self.begin().await?;
        let id = db::query_scalar(
            "UPDATE store_id SET id = lower(hex(randomblob(16))) WHERE only = 1 RETURNING id",
        )
        .fetch_one(&mut *tx)
        .await?;
        tx.commit(None).await?;
        Ok(id)
    }

    /// Whether the database was used by a version in which stores had no id: its first migration is at least a minute older than the
    /// one that gave it one.
    pub(in crate::store) async fn is_of_earlier_version(&self) -> Result<bool> {
        if let Place::Server(_) = &*self.place {
            return Ok(false);
        }
        Ok(db::query_scalar(
            "SELECT unixepoch(named.installed_on) - unixepoch(first.installed_on) >= 60
             FROM _sqlx_migrations first, _sqlx_migrations named WHERE first.version = 1 AND named.version = 9",
        )
        .fetch_one(&self.readers)
        .await?)
    }

    /// What SQLite finds wrong with the file and with references between rows; empty if all is well. Reads everything. Of a server's
    /// database nothing is told: its own tools (`pg_amcheck`) look at its files.
    pub async fn faults(&self) -> Result<Vec<String>> {
        if let Place::Server(_) = &*self.place {
            return Ok(Vec::new());
        }
        let integrity: Vec<String> =
            db::query_scalar("PRAGMA integrity_check").fetch_all(&self.readers).await?;
        let broken = integrity.into_iter().filter(|line| line != "ok").take(MOST);
        let mut faults: Vec<String> = broken.map(|line| format!("integrity: {line}")).collect();
        let references: Vec<(String, Option<i64>, String, i64)> =
            db::query_as("PRAGMA foreign_key_check").fetch_all(&self.readers).await?;
        faults.extend(references.into_iter().take(MOST).map(|(table, row, parent, _)| match row {
            Some(row) => {
                format!("row {row} of {table} refers to a row of {parent} that is missing")
            }
            None => format!("a row of {table} refers to a row of {parent} that is missing"),
        }));
        Ok(faults)
    }
}
