//! Who writes beside whom on a server: advisory locks of transactions, and before them locks of this process, so that those who wait for
//! their turn do not each hold a connection.

use super::PUBLISHING_PATIENCE;
use super::db::{self, Connection, PostgresPool};
use crate::store::{Guard, Held, Result, StoreError};
use async_trait::async_trait;
use std::collections::HashMap;
use std::sync::{Arc, Mutex as Short, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{
    Mutex, OwnedMutexGuard, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, OwnedSemaphorePermit,
    RwLock, Semaphore,
};
use tokio::time::timeout;

/// Longest time that one who holds the lock for publishing may be silent: a blob is stored meanwhile.
const LONGEST_PUBLISHING: Duration = Duration::from_secs(600);
/// The same for one who sweeps the blobs, which may be many.
const LONGEST_SWEEP: Duration = Duration::from_secs(3600);
/// So many namespaces are remembered before those that nobody waits for are forgotten.
const NAMESPACES: usize = 256;

/// Beside whom a transaction writes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn<'a> {
    /// Beside those alone that are beside all.
    Alone,
    /// Beside those of other namespaces, too.
    Namespace(&'a str),
    Beside,
}

/// The turns of one store.
#[derive(Debug)]
pub(super) struct Turns {
    /// Names the locks: a database may have several stores, each in its schema.
    schema: String,
    /// How long one waits for its turn, within this process and again on the server.
    patience: Duration,
    all: Arc<RwLock<()>>,
    namespaces: Short<HashMap<String, Weak<Mutex<()>>>>,
    /// Those who have their turn in this process, and wait for it on the server with a connection each: the others are for those who
    /// write beside all.
    connected: Arc<Semaphore>,
    publishing: Arc<Mutex<()>>,
    /// Who holds the lock for publishing on behalf of this process.
    publisher: Arc<Short<Option<Holder>>>,
}

/// A turn in this process. Kept until the transaction has ended.
#[derive(Debug)]
pub(super) struct Taken {
    _all: OfAll,
    _namespace: Option<OwnedMutexGuard<()>>,
    _connected: OwnedSemaphorePermit,
}

#[derive(Debug)]
#[expect(dead_code, reason = "held, not read")]
enum OfAll {
    Alone(OwnedRwLockWriteGuard<()>),
    Beside(OwnedRwLockReadGuard<()>),
}

/// A transaction that holds a lock, as the server names it. Processes' numbers come again, these do not.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder(String);

const HOLDER: &str = "SELECT pid || ' ' || virtualtransaction FROM pg_locks
     WHERE locktype = 'advisory' AND granted AND objsubid = 1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
         AND CAST(classid AS BIGINT) = ($1 >> 32) & 4294967295 AND CAST(objid AS BIGINT) = $1 & 4294967295";

/// The number of an advisory lock.
fn lock(schema: &str, of: &str) -> i64 {
    i64::from_le_bytes(super::postgres::name_of(schema, of))
}

impl Turns {
    /// For so many connections.
    pub(super) fn new(schema: String, patience: Duration, connections: u32) -> Self {
        Self {
            schema,
            patience,
            all: Arc::default(),
            namespaces: Short::default(),
            connected: Arc::new(Semaphore::new((connections as usize / 2).max(1))),
            publishing: Arc::default(),
            publisher: Arc::default(),
        }
    }

    fn namespace(&self, name: &str) -> Arc<Mutex<()>> {
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = namespaces.get(name).and_then(Weak::upgrade) {
            return known;
        }
        if namespaces.len() >= NAMESPACES {
            namespaces.retain(|_, one| one.strong_count() > 0);
        }
        let own = Arc::<Mutex<()>>::default();
        namespaces.insert(name.to_owned(), Arc::downgrade(&own));
        own
    }

    /// A turn in this process; none is needed beside all. In the same order as on the server.
    async fn take(&self, turn: Turn<'_>) -> Option<Taken> {
        let (all, namespace) = match turn {
            Turn::Beside => return None,
            Turn::Alone => (OfAll::Alone(self.all.clone().write_owned().await), None),
            Turn::Namespace(name) => {
                let all = OfAll::Beside(self.all.clone().read_owned().await);
                (all, Some(self.namespace(name).lock_owned().await))
            }
        };
        // The semaphore is never closed.
        let connected = self.connected.clone().acquire_owned().await.ok()?;
        Some(Taken { _all: all, _namespace: namespace, _connected: connected })
    }

    /// A transaction that has its turn, and what others of this process wait for.
    pub(super) async fn begin(
        &self,
        pool: &PostgresPool,
        turn: Turn<'_>,
    ) -> Result<(Connection, Option<Taken>)> {
        let taken = timeout(self.patience, self.take(turn)).await.map_err(|_| {
            StoreError::Busy("others of this process have kept the turn for too long".into())
        })?;
        let all = lock(&self.schema, "all");
        let locks = match turn {
            Turn::Beside => return Ok((pool.transaction("BEGIN").await?, taken)),
            Turn::Alone => format!("SELECT pg_advisory_xact_lock({all})"),
            Turn::Namespace(namespace) => {
                let own = lock(&self.schema, &format!("namespace {namespace}"));
                // In this order for everybody.
                format!(
                    "SELECT pg_advisory_xact_lock_shared({all}); SELECT pg_advisory_xact_lock({own})"
                )
            }
        };
        // To its end, whoever waits for it: who gives up would leave a connection that waits, and let the next one wait with another.
        let pool = pool.clone();
        let begun = tokio::spawn(async move {
            let mut tx = pool.transaction("BEGIN").await?;
            tx.run(locks).await?;
            Ok::<_, sqlx::Error>((tx, taken))
        });
        let begun = begun.await.map_err(|_| sqlx::Error::BeginFailed)?;
        Ok(begun?)
    }

    /// Waits until nobody else stores or deletes a matrix. The lock is of a transaction, which ends with the guard.
    pub(super) async fn publish(&self, pool: &PostgresPool) -> Result<Guard> {
        let wait = timeout(PUBLISHING_PATIENCE, self.publishing.clone().lock_owned());
        let here = wait.await.map_err(|_| {
            StoreError::Busy("others of this process store or delete matrices for too long".into())
        })?;
        let lock = lock(&self.schema, "publishing");
        let take = format!(
            "SET LOCAL lock_timeout = {}; SET LOCAL idle_in_transaction_session_timeout = {}; SELECT pg_advisory_xact_lock({lock})",
            PUBLISHING_PATIENCE.as_millis(),
            LONGEST_PUBLISHING.as_millis(),
        );
        let (pool, publisher) = (pool.clone(), self.publisher.clone());
        let taken = tokio::spawn(async move {
            let mut tx = pool.transaction("BEGIN").await?;
            tx.run(take).await?;
            let holder: String = db::query_scalar(HOLDER).bind(lock).fetch_one(&mut tx).await?;
            *publisher.lock().unwrap_or_else(PoisonError::into_inner) = Some(Holder(holder));
            let lock = Locked(Mutex::new(tx));
            let publishing = Publishing { lock, publisher, _here: here };
            Ok::<_, StoreError>(Guard::of(publishing))
        });
        taken.await.map_err(|_| sqlx::Error::BeginFailed)?
    }

    /// The lock of who sweeps the blobs, unless another process has it. Of a transaction, too.
    pub(super) async fn sweep(&self, pool: &PostgresPool) -> Result<Option<Guard>> {
        let lock = lock(&self.schema, "sweeping");
        let pool = pool.clone();
        let taken = tokio::spawn(async move {
            let mut tx = pool.transaction("BEGIN").await?;
            tx.run(format!(
                "SET LOCAL idle_in_transaction_session_timeout = {}",
                LONGEST_SWEEP.as_millis()
            ))
            .await?;
            let got: bool = db::query_scalar("SELECT pg_try_advisory_xact_lock($1)")
                .bind(lock)
                .fetch_one(&mut tx)
                .await?;
            Ok::<_, StoreError>(got.then(|| Guard::of(Locked(Mutex::new(tx)))))
        });
        taken.await.map_err(|_| sqlx::Error::BeginFailed)?
    }

    /// Fails if this process has begun to publish and its lock was lost since, with the connection that had it: then another process may
    /// be deleting what this one has just stored. Asked within the transaction that writes the row, which who deletes it waits for.
    pub(super) async fn still_publishes(&self, tx: &mut Connection) -> Result<()> {
        let holder = self.publisher.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(Holder(holder)) = holder else { return Ok(()) };
        let found: Option<String> = db::query_scalar(HOLDER)
            .bind(lock(&self.schema, "publishing"))
            .fetch_optional(tx)
            .await?;
        if found.as_ref() == Some(&holder) { Ok(()) } else { Err(lost()) }
    }
}

fn lost() -> StoreError {
    StoreError::Busy("a lock was lost with its connection, and another process may have it".into())
}

/// A transaction that has a lock.
struct Locked(Mutex<Connection>);

#[async_trait]
impl Held for Locked {
    async fn is_still(&self) -> Result<()> {
        let mut tx = self.0.lock().await;
        tx.run("SELECT 1".to_owned()).await.map_err(|_| lost())
    }
}

/// The lock for publishing.
struct Publishing {
    /// Ends first.
    lock: Locked,
    publisher: Arc<Short<Option<Holder>>>,
    _here: OwnedMutexGuard<()>,
}

#[async_trait]
impl Held for Publishing {
    async fn is_still(&self) -> Result<()> {
        self.lock.is_still().await
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        *self.publisher.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
