//! The store in one SQLite file: one writer connection and several read-only readers.

use super::db::Pool;
use super::file_lock::{FileLock, Serial};
use super::{OPENING_PATIENCE, Place, SqlStore};
use crate::domain::{Caller, Timestamp};
use crate::store::{Listeners, Result, private};
use serde::Deserialize;
use sqlx::Connection;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// Number of read-only connections. Each owns a thread.
const READERS: u32 = 8;

/// Options for opening a store in a file; the default is what the service uses.
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

/// Kept while nobody else is to open a database, or to create it.
#[derive(Debug)]
pub struct Closed(#[expect(dead_code, reason = "held, not read")] FileLock);

impl SqlStore {
    /// Waits until nobody opens the database of this name, which need not exist, and lets nobody open it.
    ///
    /// # Errors
    /// Another process opens it for too long, or its folder cannot be written.
    pub async fn keep_closed(path: &Path) -> Result<Closed> {
        Ok(Closed(FileLock::wait(path, Serial::Opening, OPENING_PATIENCE).await?))
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
        // The writer stays connected while the store lives, because read-only connections cannot create the WAL files. Waiting for it is a
        // fair queue; several writers would get lock errors instead.
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
        // Statistics are the writer's to renew. One that only reads fails at it when it is closed, and the driver then drops the connection
        // instead of waiting for its end: if that came after the writer's, the log stayed beside the file.
        let options = options.optimize_on_close(false, None);
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_with(options.read_only(true))
            .await?;
        Ok(Self {
            writer: Pool::Sqlite(writer),
            readers: Pool::Sqlite(readers),
            listeners: Listeners::default(),
            now: limits.now,
            place: Arc::new(Place::File(path.into())),
            lookup_batches: Arc::default(),
            caller: Arc::new(Caller::anyone()),
        })
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
