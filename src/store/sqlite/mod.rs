//! The store in one SQLite file: one writer connection and several read-only readers. Row types do not leave this module.

mod audit;
mod bundles;
mod codec;
mod copy;
mod devices;
mod drift;
mod endings;
mod events;
mod figures;
mod file_lock;
mod jobs;
mod learning;
mod leases;
mod matrices;
mod models;
mod plans;
mod quality;
mod quotas;
mod retaining;
mod rows;
#[cfg(test)]
mod tests;
mod tokens;
mod transfer;
mod trials;
mod upkeep;
mod webhooks;

use super::{Cause, Change, Listener, Listeners, Result, StoreError, is_full, private};
use crate::domain::{Caller, Namespace, Timestamp, TokenName};
use file_lock::{FileLock, Serial};
use serde::Deserialize;
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

/// Maximum time to wait for other processes that open the same file: a migration may have to read all of a large store.
const OPENING_PATIENCE: Duration = Duration::from_secs(600);
/// Maximum time to wait for others that store or delete a matrix; each takes a few milliseconds.
const PUBLISHING_PATIENCE: Duration = Duration::from_secs(20);
/// Number of read-only connections. Each owns a thread.
const READERS: u32 = 8;

/// Options for opening a store; the default is what the service uses.
#[derive(Clone, Copy, Debug)]
pub struct SqliteOptions {
    /// How long a writer waits for a writer in another process before the store reports that it is busy.
    pub busy_timeout: Duration,
    /// Maximum number of pages (of 4 KiB) in the database file; beyond it the store reports that it is full.
    pub max_pages: Option<u32>,
    /// The clock that leases are given and expire by.
    pub now: fn() -> Timestamp,
    /// What a commit waits for.
    pub synchronous: Synchronous,
}

/// What a commit waits for. Neither loses anything with the process, nor leaves a damaged file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Synchronous {
    /// The operating system: a loss of power may undo the last commits. No commit syncs, but every checkpoint of the log does.
    #[default]
    Normal,
    /// The disk: a loss of power undoes nothing that was acknowledged. Each commit syncs.
    Full,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            busy_timeout: Duration::from_secs(10),
            max_pages: None,
            now: Timestamp::now,
            synchronous: Synchronous::Normal,
        }
    }
}

/// Cheap to clone: clones share their connections.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    /// A pool of one connection. Waiting for it is a fair queue; several writers would get lock errors instead.
    writer: SqlitePool,
    readers: SqlitePool,
    listeners: Listeners,
    now: fn() -> Timestamp,
    file: Arc<Path>,
    /// On whose behalf. What is of another namespace is not there for it.
    caller: Arc<Caller>,
}

/// Kept while nobody else is to open a database, or to create it.
#[derive(Debug)]
pub struct Closed(#[expect(dead_code, reason = "held, not read")] FileLock);

impl SqliteStore {
    /// Waits until nobody opens the database of this name, which need not exist, and lets nobody open it.
    ///
    /// # Errors
    /// Another process opens it for too long, or its folder cannot be written.
    pub async fn keep_closed(path: &Path) -> Result<Closed> {
        Ok(Closed(FileLock::wait(path, Serial::Opening, OPENING_PATIENCE).await?))
    }

    /// The time by which leases are given and expire.
    fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Opens the file, creates it if it is missing, and migrates its schema. Any number of threads and processes may open
    /// one file at the same time; they wait for each other.
    pub async fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, SqliteOptions::default()).await
    }

    /// [`Self::open`] with the given options.
    pub async fn open_with(path: &Path, limits: SqliteOptions) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(match limits.synchronous {
                Synchronous::Normal => SqliteSynchronous::Normal,
                Synchronous::Full => SqliteSynchronous::Full,
            })
            .busy_timeout(limits.busy_timeout)
            .foreign_keys(true)
            .pragma("temp_store", "memory")
            .optimize_on_close(true, None);
        let lock = FileLock::wait(path, Serial::Opening, OPENING_PATIENCE).await?;
        // If it cannot be made, SQLite says why.
        let _ = private::file(path);
        let mut writing = options.clone().create_if_missing(true);
        if let Some(pages) = limits.max_pages {
            writing = writing.pragma("max_page_count", pages.to_string());
        }
        // The writer stays connected while the store lives, because read-only connections cannot create the WAL files.
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
        let (listeners, file) = (Listeners::default(), path.into());
        let caller = Arc::new(Caller::anyone());
        Ok(Self { writer, readers, listeners, now: limits.now, file, caller })
    }

    /// Syncs the log and moves it into the database file, as far as others' reads permit.
    ///
    /// # Errors
    /// Either cannot be written.
    pub async fn checkpoint(&self) -> Result<()> {
        sqlx::query("PRAGMA wal_checkpoint(PASSIVE)").execute(&self.writer).await?;
        Ok(())
    }

    /// The name of the caller's token.
    fn token(&self) -> Option<&str> {
        self.caller.token.as_ref().map(TokenName::as_str)
    }

    /// The namespace that all reads and writes of matrices, jobs, plans and webhooks are in.
    fn namespace(&self) -> &str {
        self.caller.namespace.as_str()
    }

    /// The same store on behalf of who has all rights in a namespace.
    pub fn within(&self, namespace: &Namespace) -> Self {
        self.of(&Caller::owner(None, namespace.clone()))
    }

    fn of(&self, caller: &Caller) -> Self {
        Self { caller: Arc::new(caller.clone()), ..self.clone() }
    }

    /// Takes the write lock immediately: a transaction that begins with a read could fail at its first write.
    async fn begin(&self) -> Result<Write> {
        let tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        Ok(Write { tx, listeners: self.listeners.clone() })
    }
}

impl super::Store for SqliteStore {
    fn on_behalf_of(&self, caller: &Caller) -> Arc<dyn super::Store> {
        Arc::new(self.of(caller))
    }

    fn listen(&self, listener: &Arc<dyn Listener>) {
        self.listeners.add(listener);
    }
}

/// A write transaction that publishes its changes on commit. If it is dropped, nothing has changed.
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

/// Whether a connection can be used again. SQLite itself rolls back a transaction that met a full disk or an I/O error; the
/// driver's own ROLLBACK then fails, so the driver considers the transaction still open and refuses all later ones. Such a
/// connection is replaced.
async fn is_sound(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    // Commands are executed in order, so the reply follows the ROLLBACK of a dropped transaction.
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
                    "the database was written by a newer version of sparsetune: its migration {version} is unknown to this version"
                )
                .into(),
            ),
            // Keeps the error kind of a full disk or a lock.
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
            other => Self::Backend(other.into()),
        }
    }
}
