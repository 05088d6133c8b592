//! The two databases behind one set of statements: pools, connections and transactions of SQLite and PostgreSQL.
//!
//! Statements are written once (see `dialect` for what differs), take `$1`, `$2`, ... and are executed on either. What a row is decoded
//! into must be the same for both: `i64`, `f64`, `bool`, `String`, `Vec<u8>` and options of these.

mod cells;
mod dialect;
mod doubt;
mod query;

pub(super) use cells::Cells;
pub use dialect::for_postgres;
pub(super) use doubt::{Doubt, is_code_of_spent};
pub(super) use query::{Bind, Query, Row, Text, query, query_as, query_scalar};

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _, Postgres, SqlSafeStr, Sqlite, Transaction,
};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Connections to one database.
#[derive(Clone, Debug)]
pub(super) enum Pool {
    Sqlite(SqlitePool),
    Postgres(PostgresPool),
}

#[derive(Clone, Debug)]
pub(super) struct PostgresPool {
    pub pool: PgPool,
    /// Behind a pooler that gives each transaction another connection: statements have no names, and each is a transaction, since they
    /// are parsed and executed in two messages. Then these are the settings with which each begins.
    pub pooled: Option<Arc<str>>,
    pub doubt: Doubt,
}

/// A connection, or a transaction on one, which is rolled back if it is dropped.
pub(super) enum Connection {
    Sqlite(Link<Sqlite>),
    Postgres {
        link: Link<Postgres>,
        pooled: bool,
        doubt: Doubt,
        /// A statement failed, and with it the transaction: the server would answer a COMMIT with a ROLLBACK, and no error.
        failed: bool,
    },
}

pub(super) enum Link<D: sqlx::Database> {
    Free(PoolConnection<D>),
    Transaction(Transaction<'static, D>),
}

impl<D: sqlx::Database> Link<D> {
    async fn commit(self) -> sqlx::Result<()> {
        match self {
            Self::Free(_) => Ok(()),
            Self::Transaction(tx) => tx.commit().await,
        }
    }
}

impl<D: sqlx::Database> Deref for Link<D> {
    type Target = D::Connection;

    fn deref(&self) -> &D::Connection {
        match self {
            Self::Free(connection) => connection,
            Self::Transaction(tx) => tx,
        }
    }
}

impl<D: sqlx::Database> DerefMut for Link<D> {
    fn deref_mut(&mut self) -> &mut D::Connection {
        match self {
            Self::Free(connection) => connection,
            Self::Transaction(tx) => tx,
        }
    }
}

impl Pool {
    pub async fn acquire(&self) -> sqlx::Result<Connection> {
        Ok(match self {
            Self::Sqlite(pool) => Connection::Sqlite(Link::Free(pool.acquire().await?)),
            Self::Postgres(pool) if pool.pooled.is_none() => {
                let link = Link::Free(pool.connection().await?);
                Connection::Postgres {
                    link,
                    pooled: false,
                    doubt: pool.doubt.clone(),
                    failed: false,
                }
            }
            Self::Postgres(pool) => pool.transaction("BEGIN READ ONLY").await?,
        })
    }

    /// A transaction that reads one state of the database.
    pub async fn snapshot(&self) -> sqlx::Result<Connection> {
        match self {
            Self::Sqlite(_) => self.begin("BEGIN").await,
            Self::Postgres(pool) => pool.transaction(SNAPSHOT).await,
        }
    }

    /// [`Self::snapshot`], whose statements may take as long as they do: for upkeep, which reads whole tables and is waited for by nobody.
    pub async fn study(&self) -> sqlx::Result<Connection> {
        let mut tx = self.snapshot().await?;
        tx.take_time().await?;
        Ok(tx)
    }

    /// A transaction that begins with this statement.
    pub async fn begin(&self, statement: &'static str) -> sqlx::Result<Connection> {
        Ok(match self {
            Self::Sqlite(pool) => {
                let tx = pool.begin_with(statement).await?;
                Connection::Sqlite(Link::Transaction(tx))
            }
            Self::Postgres(pool) => pool.transaction(statement).await?,
        })
    }

    /// Whether the server has answered this process all this time, as far as it was asked.
    pub fn has_answered_for(&self, time: Duration) -> bool {
        match self {
            Self::Sqlite(_) => true,
            Self::Postgres(pool) => pool.doubt.has_answered_for(time),
        }
    }

    pub async fn close(&self) {
        match self {
            Self::Sqlite(pool) => pool.close().await,
            // Who was to give a connection back may be waiting for a server that is gone.
            Self::Postgres(PostgresPool { pool, .. }) => {
                _ = timeout(CLOSING, pool.close()).await;
            }
        }
    }
}

/// How long the end of a pool waits for its connections.
const CLOSING: Duration = Duration::from_secs(5);

const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";

impl PostgresPool {
    /// A connection that answers: one that was used a moment ago is not asked by the pool.
    async fn connection(&self) -> sqlx::Result<PoolConnection<Postgres>> {
        let mut connection = self.doubt.of_pool(self.pool.acquire()).await?;
        match self.doubt.of(connection.ping()).await {
            Ok(()) => Ok(connection),
            // Those that are as old are replaced from here on.
            Err(_) => {
                connection.close_on_drop();
                self.doubt.of_pool(self.pool.acquire()).await
            }
        }
    }

    /// A transaction that begins with this statement and, behind a pooler, with the limits of all.
    pub async fn transaction(&self, begin: &'static str) -> sqlx::Result<Connection> {
        let statement = match &self.pooled {
            Some(limits) => AssertSqlSafe(format!("{begin}; {limits}")).into_sql_str(),
            None => begin.into_sql_str(),
        };
        let own = self.clone();
        // To its end, whoever waits for it: of a BEGIN that is given up halfway the driver knows nothing, and the connection would go
        // back to the pool within a transaction, in which later statements are answered and not kept.
        let begun = tokio::spawn(async move {
            match own.doubt.of(own.pool.begin_with(statement.clone())).await {
                // Of a server that was started again: nothing was done yet, so another connection may do it.
                Err(error) if doubt::is_spent(&error) => {
                    own.doubt.of(own.pool.begin_with(statement)).await
                }
                begun => begun,
            }
        });
        let begun = begun.await.map_err(|_| sqlx::Error::BeginFailed)??;
        let (pooled, doubt) = (self.pooled.is_some(), self.doubt.clone());
        Ok(Connection::Postgres { link: Link::Transaction(begun), pooled, doubt, failed: false })
    }
}

impl Connection {
    pub async fn commit(self) -> sqlx::Result<()> {
        match self {
            Self::Sqlite(link) => link.commit().await,
            Self::Postgres { failed: true, .. } => Err(sqlx::Error::Protocol(
                "a statement of the transaction has failed, so nothing of it is kept".into(),
            )),
            Self::Postgres { link, doubt, .. } => doubt.of(link.commit()).await,
        }
    }

    /// Runs statements of this program without parameters, in one message; on a server alone.
    pub async fn run(&mut self, statements: String) -> sqlx::Result<()> {
        if let Self::Postgres { link, doubt, failed, .. } = self {
            let call = (**link).execute(sqlx::raw_sql(AssertSqlSafe(statements)));
            noted(failed, doubt.of(call).await)?;
        }
        Ok(())
    }

    /// Lets the statements of this transaction take as long as they do.
    pub async fn take_time(&mut self) -> sqlx::Result<()> {
        self.run("SET LOCAL statement_timeout = 0".to_owned()).await?;
        if let Self::Postgres { doubt, .. } = self {
            *doubt = doubt.patient();
        }
        Ok(())
    }

    /// Lets this transaction wait for its client as long as it does, so that others than this one are worked on meanwhile.
    pub async fn stay(&mut self) -> sqlx::Result<()> {
        self.run("SET LOCAL idle_in_transaction_session_timeout = 0".to_owned()).await
    }
}

/// Notes whether a statement has failed with its transaction, and passes on how it went.
fn noted<T>(failed: &mut bool, found: sqlx::Result<T>) -> sqlx::Result<T> {
    *failed |= matches!(found, Err(sqlx::Error::Database(_)));
    found
}

/// What a statement is executed on.
pub(super) enum Executor<'c> {
    Pool(&'c Pool),
    Sqlite(&'c mut SqliteConnection),
    Postgres {
        connection: &'c mut PgConnection,
        pooled: bool,
        doubt: &'c Doubt,
        failed: &'c mut bool,
    },
}

impl<'c> From<&'c Pool> for Executor<'c> {
    fn from(pool: &'c Pool) -> Self {
        Self::Pool(pool)
    }
}

impl<'c> From<&'c mut Connection> for Executor<'c> {
    fn from(connection: &'c mut Connection) -> Self {
        match connection {
            Connection::Sqlite(link) => Self::Sqlite(link),
            Connection::Postgres { link, pooled, doubt, failed } => {
                Self::Postgres { connection: link, pooled: *pooled, doubt, failed }
            }
        }
    }
}
