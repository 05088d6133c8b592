//! The store in one SQLite file: one writer connection, many read-only readers. Row types never leave this module.

mod codec;
mod devices;
mod endings;
mod events;
mod figures;
#[cfg(test)]
mod indexes;
mod jobs;
mod learning;
mod leases;
mod matrices;
mod migration_lock;
mod models;
mod plans;
mod quality;
mod trainings;
mod trials;
#[cfg(test)]
mod upgrade;
mod upkeep;

use super::{Result, StoreError};
use migration_lock::MigrationLock;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Sqlite, Transaction};
use std::path::Path;
use std::time::Duration;

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// How long a writer waits for the writer of another process before the store reports itself busy.
const BUSY: Duration = Duration::from_secs(10);
/// How long an opener waits for others that open the same file: a schema may be changed by reading all of a large store.
const MIGRATION_LOCK_PATIENCE: Duration = Duration::from_secs(600);
/// Read-only connections; each owns a thread, so a few.
const READERS: u32 = 8;

/// Cheap to clone: clones share their connections.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    /// A pool of one: waiting for it is a fair queue, where several writers would meet as lock errors.
    writer: SqlitePool,
    readers: SqlitePool,
}

impl SqliteStore {
    /// Opens the file, makes it where there is none, and brings its schema up to date. Any number of threads and processes
    /// may open one file at once: they take turns.
    pub async fn open(path: &Path) -> Result<Self> {
        // NORMAL: in WAL mode a commit is in the operating system's hands when it returns, so it survives SIGKILL of
        // this process; only a loss of power can take the last commits back, and never tears the file. FULL would pay
        // an fsync for every recorded trial against that.
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(BUSY)
            .foreign_keys(true)
            .pragma("temp_store", "memory")
            .optimize_on_close(true, None);
        let lock = MigrationLock::wait(path, MIGRATION_LOCK_PATIENCE).await?;
        // The writer never goes away while the store lives: read-only connections cannot make the WAL files anew.
        let writer = SqlitePoolOptions::new()
            .min_connections(1)
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .acquire_timeout(Duration::from_secs(30))
            .connect_with(options.clone().create_if_missing(true))
            .await?;
        MIGRATIONS.run(&writer).await?;
        drop(lock);
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_with(options.read_only(true))
            .await?;
        Ok(Self { writer, readers })
    }

    /// Closes all connections and folds the write-ahead log into the file. Dropping the store is as safe, only lazier.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    /// Takes the write lock at once: a transaction that begins by reading could fail when it comes to write.
    async fn begin(&self) -> Result<Transaction<'static, Sqlite>> {
        Ok(self.writer.begin_with("BEGIN IMMEDIATE").await?)
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        Self::Backend(error.to_string())
    }
}

impl From<MigrateError> for StoreError {
    fn from(error: MigrateError) -> Self {
        Self::Backend(match error {
            MigrateError::VersionMissing(version) => format!(
                "the database was written by a newer sparsetune: it has migration {version}, which this one does not know"
            ),
            other => format!("the schema cannot be brought up to date: {other}"),
        })
    }
}
