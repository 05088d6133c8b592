//! The store in a database: SQLite in a file, or PostgreSQL. One set of statements serves both (`db`). Row types do not leave this
//! module.

mod audit;
mod batched;
mod bundles;
mod codec;
mod copy;
mod db;
mod devices;
mod drift;
mod endings;
mod errors;
mod events;
mod figures;
mod file_lock;
mod hints;
mod jobs;
mod learning;
mod leases;
mod matrices;
mod models;
mod moving;
mod plans;
mod postgres;
mod quality;
mod quotas;
mod retaining;
mod rows;
mod sorted;
mod sqlite;
mod stored;
mod tallies;
#[cfg(test)]
mod tests;
mod tokens;
mod transfer;
mod trials;
mod turns;
mod upkeep;
mod webhooks;

pub use db::for_postgres;
pub use moving::Moved;
pub use postgres::PostgresOptions;
pub use sqlite::{Closed, SqliteOptions, Synchronous};

use super::{Change, Listener, Listeners, Result};
use crate::domain::{Caller, Namespace, Timestamp, TokenName};
use batched::LookupBatches;
use db::{Connection, Pool};
use hints::Hints;
use postgres::Server;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use turns::{Taken, Turn};

/// Maximum time to wait for other processes that open the same database: a migration may have to read all of a large store.
const OPENING_PATIENCE: Duration = Duration::from_secs(600);
/// Maximum time to wait for others that store or delete a matrix; each takes a few milliseconds.
const PUBLISHING_PATIENCE: Duration = Duration::from_secs(20);

/// Cheap to clone: clones share their connections.
#[derive(Clone, Debug)]
pub struct SqlStore {
    writer: Pool,
    readers: Pool,
    listeners: Listeners,
    now: fn() -> Timestamp,
    place: Arc<Place>,
    lookup_batches: Arc<LookupBatches>,
    /// On whose behalf. What is of another namespace is not there for it.
    caller: Arc<Caller>,
}

/// Where the database is.
#[derive(Debug)]
enum Place {
    File(Box<Path>),
    Server(Server),
}

impl SqlStore {
    /// The time by which leases are given and expire in a file. On a server its own clock is read, in the statements themselves.
    fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Syncs what was committed, and moves it into the database file as far as others' reads permit.
    ///
    /// # Errors
    /// Either cannot be written.
    pub async fn checkpoint(&self) -> Result<()> {
        if let Place::File(_) = &*self.place {
            db::query("PRAGMA wal_checkpoint(PASSIVE)").execute(&self.writer).await?;
            return Ok(());
        }
        super::Upkeep::settle(self).await
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

    /// A transaction during which nothing is written that another such transaction, or one of [`Self::begin_within`], could have read:
    /// what was read and judged still holds when it is written.
    async fn begin(&self) -> Result<Write> {
        self.begin_in(Turn::Alone).await
    }

    /// [`Self::begin`], but on a server others may write to other namespaces: for quotas, equal jobs and the like, which are of one.
    async fn begin_within(&self) -> Result<Write> {
        self.begin_in(Turn::Namespace(self.namespace())).await
    }

    /// A transaction that on a server is beside all others: for statements that judge the rows that they write, and for those that have
    /// locked a row (`FOR UPDATE`) which all who judge it lock.
    async fn begin_beside(&self) -> Result<Write> {
        self.begin_in(Turn::Beside).await
    }

    async fn begin_in(&self, turn: Turn<'_>) -> Result<Write> {
        let ((tx, turn), hints) = match &*self.place {
            // Takes the write lock immediately: a transaction that begins with a read could fail at its first write.
            Place::File(_) => ((self.writer.begin("BEGIN IMMEDIATE").await?, None), None),
            Place::Server(server) => {
                (server.begin(&self.writer, turn).await?, Some(server.hints()))
            }
        };
        Ok(Write { tx, listeners: self.listeners.clone(), hints, revises: false, _turn: turn })
    }
}

impl super::Store for SqlStore {
    fn on_behalf_of(&self, caller: &Caller) -> Arc<dyn super::Store> {
        Arc::new(self.of(caller))
    }

    fn listen(&self, listener: &Arc<dyn Listener>) {
        self.listeners.add(listener);
    }
}

/// A write transaction that publishes its changes on commit. If it is dropped, nothing has changed.
struct Write {
    tx: Connection,
    listeners: Listeners,
    /// By which other servers are told.
    hints: Option<Hints>,
    /// Whether answers to lookups may differ once it is committed.
    revises: bool,
    /// Given back once the transaction has ended.
    _turn: Option<Taken>,
}

impl Write {
    /// This transaction may change answers to lookups: the revision is raised with it, which tells caches.
    fn revise(&mut self) {
        self.revises = true;
    }

    async fn commit(mut self, changes: impl IntoIterator<Item = Change>) -> Result<()> {
        // Its last statement: all that change answers wait for this one row, and so for nothing but the commit. Nor do two of them meet
        // that have locked something else first.
        let revised = match self.revises {
            true => Some(upkeep::raise_revision(&mut self.tx).await?),
            false => None,
        };
        self.tx.commit().await?;
        self.listeners.publish(revised.into_iter().chain(changes).inspect(|change| {
            if let Some(hints) = &self.hints {
                hints.of(change);
            }
        }));
        Ok(())
    }
}

impl Deref for Write {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.tx
    }
}

impl DerefMut for Write {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.tx
    }
}
