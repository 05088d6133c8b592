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
mod rows;
mod trials;
#[cfg(test)]
mod upgrade;
mod upkeep;

use super::{Cause, Change, Listener, Listeners, Result, StoreError, is_full};
use migration_lock::MigrationLock;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{Connection, Sqlite, Transaction};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// How long an opener waits for others that open the same file: a schema may be changed by reading all of a large store.
const MIGRATION_LOCK_PATIENCE: Duration = Duration::from_secs(600);
/// Read-only connections; each owns a thread, so a few.
const READERS: u32 = 8;

/// How a store is opened; the default is what the service runs with.
#[derive(Clone, Copy, Debug)]
pub struct SqliteOptions {
    /// How long a writer waits for the writer of another process before the store reports that it is busy.
    pub busy_timeout: Duration,
    /// The most pages (of 4 KiB) that the database file may have; beyond them the store reports that it is full.
    pub max_pages: Option<u32>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { busy_timeout: Duration::from_secs(10), max_pages: None }
    }
}

/// Cheap to clone: clones share their connections.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    /// A pool of one: waiting for it is a fair queue, where several writers would meet as lock errors.
    writer: SqlitePool,
    readers: SqlitePool,
    listeners: Listeners,
}

impl SqliteStore {
    /// Opens the file, makes it where there is none, and brings its schema up to date. Any number of threads and processes
    /// may open one file at once: they take turns.
    pub async fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, SqliteOptions::default()).await
    }

    /// [`Self::open`] with other options than the default.
    pub async fn open_with(path: &Path, limits: SqliteOptions) -> Result<Self> {
        // NORMAL: in WAL mode a commit is in the operating system's hands when it returns, so it survives SIGKILL of
        // this process; only a loss of power can take the last commits back, and never tears the file. FULL would pay
        // an fsync for every recorded trial against that.
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(limits.busy_timeout)
            .foreign_keys(true)
            .pragma("temp_store", "memory")
            .optimize_on_close(true, None);
        let lock = MigrationLock::wait(path, MIGRATION_LOCK_PATIENCE).await?;
        let mut writing = options.clone().create_if_missing(true);
        if let Some(pages) = limits.max_pages {
            writing = writing.pragma("max_page_count", pages.to_string());
        }
        // The writer never goes away while the store lives: read-only connections cannot make the WAL files anew.
        let writer = SqlitePoolOptions::new()
            .min_connections(1)
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .acquire_timeout(Duration::from_secs(30))
            .after_release(|connection, _| Box::pin(is_sound(connection)))
            .connect_with(writing)
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
        Ok(Self { writer, readers, listeners: Listeners::default() })
    }

    /// Closes all connections and folds the write-ahead log into the file. Dropping the store is as safe, only lazier.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }

    /// Takes the write lock at once: a transaction that begins by reading could fail when it comes to write.
    async fn begin(&self) -> Result<Write> {
        let tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        Ok(Write { tx, listeners: self.listeners.clone() })
    }
}

impl super::Store for SqliteStore {
    fn listen(&self, listener: &Arc<dyn Listener>) {
        self.listeners.add(listener);
    }
}

/// A transaction that writes, and says on its commit what it has changed. Dropped without that, it has changed nothing.
struct Write {
    tx: Transaction<'static, Sqlite>,
    listeners: Listeners,
}

impl Write {
    async fn commit(self, changes: impl IntoIterator<Item = Change>) -> Result<()> {
        self.tx.commit().await?;
        self.listeners.publish(changes);
        Ok(())
    }
}

impl Deref for Write {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.tx
    }
}

impl DerefMut for Write {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.tx
    }
}

/// Whether a connection can be used again. SQLite itself rolls a transaction back that met a full disk or an I/O error; the
/// driver's own ROLLBACK then fails, so that it counts a transaction as open for ever and refuses every later one. Such a
/// connection is replaced.
async fn is_sound(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    // Commands are carried out in order: the answer comes after the ROLLBACK of a transaction that was dropped.
    connection.ping().await?;
    Ok(!connection.is_in_transaction())
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let kind: fn(Cause) -> Self = match &error {
            sqlx::Error::PoolTimedOut => Self::Busy,
            sqlx::Error::Io(cause) if is_full(cause) => Self::Full,
            // SQLite's primary result code is the lowest byte of the extended one.
            sqlx::Error::Database(cause) => {
                match cause.code().and_then(|code| code.parse::<u32>().ok()).map(|code| code & 0xff)
                {
                    Some(SQLITE_BUSY | SQLITE_LOCKED) => Self::Busy,
                    Some(SQLITE_FULL) => Self::Full,
                    Some(SQLITE_CONSTRAINT | SQLITE_MISMATCH | SQLITE_MISUSE | SQLITE_RANGE) => {
                        Self::Misuse
                    }
                    _ => Self::Backend,
                }
            }
            _ => Self::Backend,
        };
        kind(error.into())
    }
}

// Primary result codes of SQLite, as https://sqlite.org/rescode.html lists them.
const SQLITE_BUSY: u32 = 5;
const SQLITE_LOCKED: u32 = 6;
const SQLITE_FULL: u32 = 13;
const SQLITE_CONSTRAINT: u32 = 19;
const SQLITE_MISMATCH: u32 = 20;
const SQLITE_MISUSE: u32 = 21;
const SQLITE_RANGE: u32 = 25;

impl From<MigrateError> for StoreError {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::VersionMissing(version) => Self::Backend(
                format!(
                    "the database was written by a newer sparsetune: it has migration {version}, which this one does not know"
                )
                .into(),
            ),
            // A full disk or a lock stays what it is.
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
            other => Self::Backend(other.into()),
        }
    }
}
