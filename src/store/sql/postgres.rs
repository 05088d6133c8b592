//! The store in a database of a PostgreSQL server, which any number of processes on any number of hosts share.

use super::db::{Connection, Doubt, Pool, PostgresPool};
use super::hints::{self, Hints};
use super::turns::{Taken, Turn, Turns};
use super::{OPENING_PATIENCE, Place, SqlStore};
use crate::domain::{Caller, Timestamp};
use crate::store::{Guard, Listeners, Result, StoreError};
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations/postgres");

/// The first version that has all that the schema uses.
const OLDEST_SERVER: u32 = 130_000;
/// A connection that was idle for longer is asked whether it is still one: its server may have been started again.
const TRUSTED: Duration = Duration::from_secs(1);
/// Longest that the making or changing of a schema is waited for.
const LONGEST_OPENING: Duration = Duration::from_secs(6 * 3600);
/// The server notices within two minutes that a host is gone; through a socket file these say nothing.
const KEEPALIVES: &str =
    "SET tcp_keepalives_idle = 60; SET tcp_keepalives_interval = 15; SET tcp_keepalives_count = 4";

/// Options for opening a store on a server; the default is what the service uses.
#[derive(Clone, Copy, Debug)]
pub struct PostgresOptions {
    /// Most connections of this process for what it writes.
    pub connections: u32,
    /// Most connections beside these, for reads and for renewals of leases, which wait for nobody's turn. A process has one more, which
    /// listens.
    pub read_connections: u32,
    /// Whether a pooler such as PgBouncer is in between that gives each transaction another connection: then nothing of a session is
    /// used, which are names of statements, settings and hints of other servers.
    pub pooled: bool,
    /// How long a statement may take before the server ends it, and the store reports that it is busy.
    pub statement_timeout: Duration,
    /// How long a statement, or a call for a connection, waits for others before the store reports that it is busy.
    pub lock_timeout: Duration,
    /// Longest time that a transaction may wait for its client, so that what one has locked whose host has vanished is free again.
    pub idle_timeout: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            connections: 16,
            read_connections: 8,
            pooled: false,
            statement_timeout: Duration::from_secs(60),
            lock_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(120),
        }
    }
}

/// What is known of the server.
#[derive(Debug)]
pub(super) struct Server {
    turns: Turns,
    hints: Hints,
    _end: DropGuard,
}

/// A short name for something of this store: a database may have several, each in its schema, whose own name may be as long as names can be.
pub(super) fn name_of(schema: &str, of: &str) -> [u8; 8] {
    let hash = blake3::hash(format!("sparsetune {schema}\n{of}").as_bytes());
    hash.as_bytes().first_chunk().copied().unwrap_or_default()
}

impl Server {
    pub(super) fn hints(&self) -> Hints {
        self.hints.clone()
    }

    /// A transaction that has its turn, and what it keeps of this process's others until it has ended.
    pub(super) async fn begin(
        &self,
        pool: &Pool,
        turn: Turn<'_>,
    ) -> Result<(Connection, Option<Taken>)> {
        self.turns.begin(of_server(pool)?, turn).await
    }

    /// See [`Turns::publish`].
    pub(super) async fn publishing(&self, pool: &Pool) -> Result<Guard> {
        self.turns.publish(of_server(pool)?).await
    }

    /// See [`Turns::sweep`].
    pub(super) async fn sweeping(&self, pool: &Pool) -> Result<Option<Guard>> {
        self.turns.sweep(of_server(pool)?).await
    }

    /// See [`Turns::still_publishes`].
    pub(super) async fn still_publishes(&self, tx: &mut Connection) -> Result<()> {
        self.turns.still_publishes(tx).await
    }
}

fn of_server(pool: &Pool) -> Result<&PostgresPool> {
    match pool {
        Pool::Postgres(pool) => Ok(pool),
        Pool::Sqlite(_) => Err(StoreError::Misuse("a file has no turns".into())),
    }
}

/// How connections to a server are made and kept.
#[derive(Clone)]
struct Connecting {
    options: PgConnectOptions,
    how: PostgresOptions,
    /// What each begins with, where it is ours for as long as it lasts.
    session: Option<Arc<str>>,
    doubt: Doubt,
}

impl Connecting {
    fn pool(&self, connections: u32) -> PgPool {
        let (session, doubt, released) =
            (self.session.clone(), self.doubt.clone(), self.doubt.clone());
        // One that does not answer leaves time to connect anew.
        let patience = self.how.lock_timeout / 2;
        PgPoolOptions::new()
            .max_connections(connections.max(2))
            .acquire_timeout(self.how.lock_timeout)
            .test_before_acquire(false)
            .before_acquire(move |connection, of| {
                let doubt = doubt.clone();
                Box::pin(async move {
                    let trusted = doubt.trusts(of.age);
                    if trusted && of.idle_for > TRUSTED {
                        doubt.within(patience, connection.ping()).await?;
                    }
                    Ok(trusted)
                })
            })
            // The pool asks each that comes back whether it is still one, for as long as that takes: one whose server has vanished would keep
            // its place. What the last statement has left to be done, such as a ROLLBACK, is waited for.
            .after_release(move |connection, of| {
                let doubt = released.clone();
                Box::pin(async move {
                    if doubt.trusts(of.age) {
                        doubt.of(connection.ping()).await?;
                    }
                    Ok(doubt.trusts(of.age))
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
            .connect_lazy_with(self.options.clone())
    }
}

impl SqlStore {
    /// Opens the database that the URL names, and migrates its schema. Everything is in the schema that comes first on the search path of
    /// the user. Any number of processes may do so at the same time; they wait for each other.
    ///
    /// # Errors
    /// The URL cannot be read, the server cannot be reached or is too old, or the schema cannot be made. No error names the password.
    pub async fn connect(url: &str, how: PostgresOptions) -> Result<Self> {
        known_parameters(url)?;
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
        let limits: Arc<str> = format!(
            // Statements take milliseconds, and compiling one takes hundreds, which the server does where it guesses too many rows.
            "SET {local}statement_timeout = {}; SET {local}jit = off; SET {local}lock_timeout = {}; SET {local}idle_in_transaction_session_timeout = {}",
            how.statement_timeout.as_millis(),
            how.lock_timeout.as_millis(),
            how.idle_timeout.as_millis()
        )
        .into();
        let session = (!how.pooled).then(|| format!("{limits}; {KEEPALIVES}").into());
        let pooled = how.pooled.then_some(limits);
        let doubt = Doubt::new(how.statement_timeout.saturating_add(how.lock_timeout));
        let connecting = Connecting { options, how, session, doubt };
        let pool = |connections| PostgresPool {
            pool: connecting.pool(connections),
            pooled: pooled.clone(),
            doubt: connecting.doubt.clone(),
        };
        let (writer, readers) = (pool(how.connections), pool(how.read_connections));
        let schema = tokio::time::timeout(LONGEST_OPENING, migrate(&writer.pool));
        let schema = schema.await.map_err(|_| {
            StoreError::Busy("the schema could not be made or changed in time".into())
        })??;
        let (hints, end) = (Hints::default(), CancellationToken::new());
        let server = Server {
            turns: Turns::new(schema.clone(), how.lock_timeout, how.connections),
            hints: hints.clone(),
            _end: end.clone().drop_guard(),
        };
        let told = readers.clone();
        let store = Self {
            writer: Pool::Postgres(writer),
            readers: Pool::Postgres(readers),
            listeners: Listeners::default(),
            now: Timestamp::now,
            place: Arc::new(Place::Server(server)),
            lookup_batches: Arc::default(),
            caller: Arc::new(Caller::anyone()),
        };
        if !how.pooled {
            let channel =
                format!("sparsetune_{:016x}", u64::from_be_bytes(name_of(&schema, "hints")));
            let here = (store.listening(), hints.clone());
            tokio::spawn(hints.tell(told, channel.clone(), end.clone()));
            tokio::spawn(hints::hear(connecting.options, channel, here, end));
        }
        Ok(store)
    }

    /// The same store for who listens as long as others have it: it does not keep it open.
    fn listening(&self) -> Self {
        let server = Server {
            turns: Turns::new(String::new(), Duration::ZERO, 0),
            hints: Hints::default(),
            _end: CancellationToken::new().drop_guard(),
        };
        Self { place: Arc::new(Place::Server(server)), ..self.clone() }
    }

    /// The same store, which on a server writes by the connections for reads: for what must not wait behind those who wait for each other.
    pub(super) fn apart(&self) -> Self {
        match &*self.place {
            Place::File(_) => self.clone(),
            Place::Server(_) => Self { writer: self.readers.clone(), ..self.clone() },
        }
    }
}

/// The parameters of a URL that are understood. The driver would write others to the log with their values, which may be passwords.
const PARAMETERS: [&str; 17] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
];

fn known_parameters(url: &str) -> Result<()> {
    let parameters = url.split_once('?').map_or("", |(_, parameters)| parameters);
    let parameters = parameters.split('#').next().unwrap_or_default();
    for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        let name = parameter.split('=').next().unwrap_or_default();
        let known = PARAMETERS.contains(&name) || name.starts_with("options");
        if !known {
            // Nor is a name told that may be a part of a password.
            let why =
                "the URL of the store has a parameter that is not understood (docs/postgres.md)";
            return Err(StoreError::Misuse(why.into()));
        }
    }
    Ok(())
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
        "SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = 0; SELECT pg_advisory_xact_lock({})",
        OPENING_PATIENCE.as_millis(),
        i64::from_le_bytes(name_of(&schema, "opening"))
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
