//! The two databases behind one set of statements: pools, connections and transactions of SQLite and PostgreSQL.
//!
//! Statements are written once (see `dialect` for what differs), take `$1`, `$2`, ... and are executed on either. What a row is decoded
//! into must be the same for both: `i64`, `f64`, `bool`, `String`, `Vec<u8>` and options of these.

mod cells;
mod dialect;
mod query;

pub(super) use cells::Cells;
pub use dialect::for_postgres;
pub(super) use query::{Text, query, query_as, query_scalar};

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{Postgres, SqlSafeStr, Sqlite, Transaction};
use std::ops::{Deref, DerefMut};

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
    /// are parsed and executed in two messages.
    pub pooled: bool,
}

/// A connection, or a transaction on one, which is rolled back if it is dropped.
pub(super) enum Connection {
    Sqlite(Link<Sqlite>),
    Postgres { link: Link<Postgres>, pooled: bool },
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
            Self::Postgres(PostgresPool { pool, pooled: false }) => {
                Connection::Postgres { link: Link::Free(pool.acquire().await?), pooled: false }
            }
            Self::Postgres(_) => self.begin("BEGIN READ ONLY").await?,
        })
    }

    /// A transaction that reads one state of the database.
    pub async fn snapshot(&self) -> sqlx::Result<Connection> {
        match self {
            Self::Sqlite(_) => self.begin("BEGIN").await,
            Self::Postgres(_) => {
                self.begin("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await
            }
        }
    }

    /// A transaction that begins with this statement.
    pub async fn begin(&self, statement: impl SqlSafeStr) -> sqlx::Result<Connection> {
        let statement = statement.into_sql_str();
        Ok(match self {
            Self::Sqlite(pool) => {
                let tx = pool.begin_with(statement).await?;
                Connection::Sqlite(Link::Transaction(tx))
            }
            Self::Postgres(PostgresPool { pool, pooled }) => {
                let own = pool.clone();
                // To its end, whoever waits for it: of a BEGIN that is given up halfway the driver knows nothing, and the connection would go
                // back to the pool within a transaction, in which later statements are answered and not kept.
                let begun = tokio::spawn(async move {
                    match own.begin_with(statement.clone()).await {
                        // Of a server that was started again: nothing was done yet, so another connection may do it.
                        Err(error) if is_cut(&error) => own.begin_with(statement).await,
                        begun => begun,
                    }
                });
                let begun = begun.await.map_err(|_| sqlx::Error::BeginFailed)??;
                Connection::Postgres { link: Link::Transaction(begun), pooled: *pooled }
            }
        })
    }

    pub async fn close(&self) {
        match self {
            Self::Sqlite(pool) => pool.close().await,
            Self::Postgres(PostgresPool { pool, .. }) => pool.close().await,
        }
    }
}

/// Whether the connection was lost, for which its server may have gone or ended it.
pub(super) fn is_cut(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::BeginFailed => true,
        // Administrator shutdown, crash shutdown, cannot connect now, and the class of connection exceptions.
        sqlx::Error::Database(cause) => cause.code().is_some_and(|code| {
            matches!(&*code, "57P01" | "57P02" | "57P03")
                || code.len() == 5 && code.starts_with("08")
        }),
        _ => false,
    }
}

impl Connection {
    pub async fn commit(self) -> sqlx::Result<()> {
        match self {
            Self::Sqlite(link) => link.commit().await,
            Self::Postgres { link, .. } => link.commit().await,
        }
    }
}

/// What a statement is executed on.
pub(super) enum Executor<'c> {
    Pool(&'c Pool),
    Sqlite(&'c mut SqliteConnection),
    Postgres { connection: &'c mut PgConnection, pooled: bool },
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
            Connection::Postgres { link, pooled } => {
                Self::Postgres { connection: link, pooled: *pooled }
            }
        }
    }
}
