//! The store in a database of a PostgreSQL server, which any number of processes on any number of hosts share.

use super::db::{Connection, Pool, PostgresPool};
use super::hints::{self, Hints};
use super::{OPENING_PATIENCE, PUBLISHING_PATIENCE, Place, SqlStore};
use crate::domain::{Caller, Timestamp};
use crate::store::{Guard, Listeners, Result, StoreError};
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, SqlSafeStr as _, SqlStr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations/postgres");

/// The first version that has all that the schema uses.
const OLDEST_SERVER: u32 = 130_000;
/// A connection that was idle for longer is asked whether it is still one: its server may have been started again.
const TRUSTED: Duration = Duration::from_secs(1);
/// Longest time that a transaction may wait for its client, so that what one has locked whose host has vanished is free again; and one that
/// holds the lock for publishing, during which a blob is stored.
const LONGEST_IDLE: Duration = Duration::from_secs(120);
const LONGEST_PUBLISHING: Duration = Duration::from_secs(600);
/// The server notices within two minutes that a host is gone; through a socket file these say nothing.
const KEEPALIVES: &str =
    "SET tcp_keepalives_idle = 60; SET tcp_keepalives_interval = 15; SET tcp_keepalives_count = 4";

/// Options for opening a store on a server; the default is what the service uses.
#[derive(Clone, Copy, Debug)]
pub struct PostgresOptions {
    /// Most connections of this process, beside one that listens.
    pub connections: u32,
    /// Whether a pooler such as PgBouncer is in between that gives each transaction another connection: then nothing of a session is
    /// used, which are names of statements, settings and hints of other servers.
    pub pooled: bool,
    /// How long a statement may take before the server ends it, and the store reports that it is busy.
    pub statement_timeout: Duration,
    /// How long a statement, or a call for a connection, waits for others before the store reports that it is busy.
    pub lock_timeout: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            connections: 16,
            pooled: false,
            statement_timeout: Duration::from_secs(60),
            lock_timeout: Duration::from_secs(10),
        }
    }
}

/// Beside whom a transaction writes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn<'a> {
    /// Beside those alone that are beside all.
    Alone,
    /// Beside those of other namespaces, too.
    Namespace(&'a str),
    Beside,
}

/// What is known of the server.
#[derive(Debug)]
pub(super) struct Server {
    /// How transactions begin.
    begin: SqlStr,
    /// Names the locks of this store: a database may have several, each in its schema.
    schema: String,
    /// So that those of this process that wait do not each hold a connection.
    publishing: Arc<Mutex<()>>,
    hints: Hints,
    _end: DropGuard,
}

/// The number of an advisory lock.
fn lock(schema: &str, of: &str) -> i64 {
    let hash = blake3::hash(format!("sparsetune {schema}\n{of}").as_bytes());
    i64::from_le_bytes(hash.as_bytes().first_chunk().copied().unwrap_or_default())
}

fn locally(patience: Duration) -> String {
    format!("SET LOCAL lock_timeout = {}", patience.as_millis())
}

impl Server {
    pub(super) fn hints(&self) -> Hints {
        self.hints.clone()
    }

    /// A transaction that has its turn.
    pub(super) async fn begin(&self, pool: &Pool, turn: Turn<'_>) -> sqlx::Result<Connection> {
        let mut tx = pool.begin(self.begin.clone()).await?;
        let all = lock(&self.schema, "all");
        match turn {
            Turn::Beside => {}
            Turn::Alone => run(&mut tx, format!("SELECT pg_advisory_xact_lock({all})")).await?,
            Turn::Namespace(namespace) => {
                let own = lock(&self.schema, &format!("namespace {namespace}"));
                // In this order for everybody.
                let locks = format!(
                    "SELECT pg_advisory_xact_lock_shared({all}); SELECT pg_advisory_xact_lock({own})"
                );
                run(&mut tx, locks).await?;
            }
        }
        Ok(tx)
    }

    /// Waits until nobody else stores or deletes a matrix. The lock is of a transaction, which ends with the guard.
    pub(super) async fn publishing(&self, pool: &Pool) -> Result<Guard> {
        let wait = tokio::time::timeout(PUBLISHING_PATIENCE, self.publishing.clone().lock_owned());
        let here = wait.await.map_err(|_| {
            StoreError::Busy("others of this process store or delete matrices for too long".into())
        })?;
        let mut tx = pool.begin("BEGIN").await?;
        let take = format!(
            "{}; SET LOCAL idle_in_transaction_session_timeout = {}; SELECT pg_advisory_xact_lock({})",
            locally(PUBLISHING_PATIENCE),
            LONGEST_PUBLISHING.as_millis(),
            lock(&self.schema, "publishing")
        );
        run(&mut tx, take).await?;
        // Connections are not for several threads at once, as guards are.
        Ok(Guard::of(std::sync::Mutex::new((tx, here))))
    }
}

/// Runs statements of this program without parameters, in one message.
async fn run(tx: &mut Connection, statements: String) -> sqlx::Result<()> {
    if let Connection::Postgres { link, .. } = tx {
        (**link).execute(sqlx::raw_sql(AssertSqlSafe(statements))).await?;
    }
    Ok(())
}

impl SqlStore {
    /// Opens the database that the URL names, and migrates its schema. Everything is in the schema that comes first on the search path of
    /// the user. Any number of processes may do so at the same time; they wait for each other.
    ///
    /// # Errors
    /// The URL cannot be read, the server cannot be reached or is too old, or the schema cannot be made. No error names the password.
    pub async fn connect(url: &str, how: PostgresOptions) -> Result<Self> {
        let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| {
            StoreError::Misuse(format!("the URL of the store cannot be read: {error}").into())
        })?;
        // PgBouncer refuses what sqlx asks for by itself; numbers travel in binary.
        let options = options.extra_float_digits(None::<i8>);
        let options = match options.get_application_name() {
            Some(_) => options,
            None => options.application_name("sparsetune"),
        };
        let local = if how.pooled { "LOCAL " } else { "" };
        let limits = format!(
            "statement_timeout = {}; SET {local}lock_timeout = {}; SET {local}idle_in_transaction_session_timeout = {}",
            how.statement_timeout.as_millis(),
            how.lock_timeout.as_millis(),
            LONGEST_IDLE.as_millis()
        );
        let (session, begin) = match how.pooled {
            true => (None, AssertSqlSafe(format!("BEGIN; SET LOCAL {limits}")).into_sql_str()),
            false => (
                Some(Arc::<str>::from(format!("SET {limits}; {KEEPALIVES}"))),
                "BEGIN".into_sql_str(),
            ),
        };
        let pool = PgPoolOptions::new()
            .max_connections(how.connections.max(2))
            .acquire_timeout(how.lock_timeout)
            .test_before_acquire(false)
            .before_acquire(|connection, of| {
                Box::pin(async move {
                    if of.idle_for > TRUSTED {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .after_connect(move |connection, _| {
                let session = session.clone();
                Box::pin(async move {
                    if let Some(session) = session {
                        let set = sqlx::raw_sql(AssertSqlSafe(session.to_string()));
                        connection.execute(set).await?;
                    }
                    Ok(())
                })
            })
            .connect_with(options.clone())
            .await?;
        let schema = migrate(&pool).await?;
        let (hints, end) = (Hints::default(), CancellationToken::new());
        let server = Server {
            begin,
            schema: schema.clone(),
            publishing: Arc::default(),
            hints: hints.clone(),
            _end: end.clone().drop_guard(),
        };
        let shared = Pool::Postgres(PostgresPool { pool: pool.clone(), pooled: how.pooled });
        let store = Self {
            writer: shared.clone(),
            readers: shared,
            listeners: Listeners::default(),
            now: Timestamp::now,
            place: Arc::new(Place::Server(server)),
            caller: Arc::new(Caller::anyone()),
        };
        if !how.pooled {
            let channel = format!("sparsetune {schema}");
            let listening = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
            let here = (store.listening(), hints.clone());
            tokio::spawn(hints.tell(pool, channel.clone(), end.clone()));
            tokio::spawn(hints::hear(listening, channel, here, end));
        }
        Ok(store)
    }

    /// The same store for who listens as long as others have it: it does not keep it open.
    fn listening(&self) -> Self {
        let server = Server {
            begin: "BEGIN".into_sql_str(),
            schema: String::new(),
            publishing: Arc::default(),
            hints: Hints::default(),
            _end: CancellationToken::new().drop_guard(),
        };
        Self { place: Arc::new(Place::Server(server)), ..self.clone() }
    }
}

/// Makes or changes the schema, one process at a time, in one transaction; returns the name of the schema. Done here and not by sqlx, whose
/// lock is the session's and whose statements have names, neither of which a pooler lets through.
async fn migrate(pool: &PgPool) -> Result<String> {
    let mut tx = pool.begin().await?;
    let version = tx.server_version_num();
    if version.is_some_and(|version| version < OLDEST_SERVER) {
        let why = "the server is older than PostgreSQL 13, which the store needs";
        return Err(StoreError::Backend(why.into()));
    }
    let schema: Option<String> = sqlx::query_scalar("SELECT CAST(current_schema() AS TEXT)")
        .persistent(false)
        .fetch_one(&mut *tx)
        .await?;
    let Some(schema) = schema else {
        let why = "no schema on the search path exists: make one, or name it with ALTER ROLE ... SET search_path";
        return Err(StoreError::Backend(why.into()));
    };
    let alone = format!(
        "{}; SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock({})",
        locally(OPENING_PATIENCE),
        lock(&schema, "opening")
    );
    (&mut *tx).execute(sqlx::raw_sql(AssertSqlSafe(alone))).await?;
    apply(&mut tx).await?;
    tx.commit().await?;
    Ok(schema)
}

/// The table is that of sqlx's migrations.
async fn apply(tx: &mut PgConnection) -> Result<()> {
    let there: bool =
        sqlx::query_scalar(
            "SELECT EXISTS (
                 SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = current_schema() AND tablename = '_sqlx_migrations')",
        )
        .persistent(false)
        .fetch_one(&mut *tx)
        .await?;
    if !there {
        (&mut *tx).execute(sqlx::raw_sql(
            "CREATE TABLE _sqlx_migrations (
                 version BIGINT PRIMARY KEY, description TEXT NOT NULL, installed_on TIMESTAMPTZ NOT NULL DEFAULT now(),
                 success BOOLEAN NOT NULL, checksum BYTEA NOT NULL, execution_time BIGINT NOT NULL)",
        ))
        .await?;
    }
    let known: Vec<(i64, Vec<u8>)> =
        sqlx::query_as("SELECT version, checksum FROM _sqlx_migrations ORDER BY version")
            .persistent(false)
            .fetch_all(&mut *tx)
            .await?;
    if let Some((version, _)) = known.iter().find(|(one, _)| !MIGRATIONS.version_exists(*one)) {
        return Err(MigrateError::VersionMissing(*version).into());
    }
    for migration in MIGRATIONS.iter() {
        match known.iter().find(|(version, _)| *version == migration.version) {
            Some((_, checksum)) if *checksum == *migration.checksum => {}
            Some(_) => return Err(MigrateError::VersionMismatch(migration.version).into()),
            None => {
                (&mut *tx).execute(sqlx::raw_sql(migration.sql.clone())).await?;
                sqlx::query(
                    "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES ($1, $2, TRUE, $3, 0)",
                )
                .bind(migration.version)
                .bind(&*migration.description)
                .bind(&*migration.checksum)
                .persistent(false)
                .execute(&mut *tx)
                .await?;
            }
        }
    }
    Ok(())
}
