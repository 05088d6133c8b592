//! What errors of the databases mean to callers: busy, full, misused, or failed.

use super::db::is_code_of_spent;
use super::moving::MOVED;
use crate::store::{Cause, StoreError, is_full};
use sqlx::error::DatabaseError;
use sqlx::migrate::MigrateError;
use sqlx::postgres::PgDatabaseError;

type Kind = fn(Cause) -> StoreError;

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let kind: Kind = match &error {
            // A connection that was lost as it began.
            sqlx::Error::PoolTimedOut | sqlx::Error::BeginFailed => Self::Busy,
            sqlx::Error::Io(cause) if is_full(cause) => Self::Full,
            // A server that is started again, or another that takes its place.
            sqlx::Error::Io(cause) if is_of_network(cause) => Self::Busy,
            sqlx::Error::Database(cause) => of_database(&**cause),
            _ => Self::Backend,
        };
        kind(error.into())
    }
}

fn is_of_network(cause: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        cause.kind(),
        ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NotConnected
            // A socket file, which is gone while its server is.
            | ErrorKind::NotFound
            | ErrorKind::TimedOut
            | ErrorKind::UnexpectedEof
    )
}

fn of_database(cause: &(dyn DatabaseError + 'static)) -> Kind {
    if let Some(cause) = cause.try_downcast_ref::<PgDatabaseError>() {
        return of_postgres(cause.code(), cause.routine());
    }
    // SQLite's primary result code is the lowest byte of the extended one.
    let code = cause.code().and_then(|code| code.parse::<u32>().ok());
    if code == Some(SQLITE_CONSTRAINT_TRIGGER) && cause.message() == MOVED {
        return moved;
    }
    match code.map(|code| code & 0xff) {
        Some(SQLITE_BUSY | SQLITE_LOCKED) => StoreError::Busy,
        Some(SQLITE_FULL) => StoreError::Full,
        Some(SQLITE_CONSTRAINT | SQLITE_MISMATCH | SQLITE_MISUSE | SQLITE_RANGE) => {
            StoreError::Misuse
        }
        _ => StoreError::Backend,
    }
}

/// By SQLSTATE, as https://www.postgresql.org/docs/current/errcodes-appendix.html lists them, and the routine of the server that says it.
fn of_postgres(code: &str, routine: Option<&str>) -> Kind {
    match code {
        MOVED_AWAY => moved,
        // Disk full, and a limit of the configuration.
        "53100" | "53400" => StoreError::Full,
        // Serialisation failure, deadlock, lock timeout, statement timeout.
        "40001" | "40P01" | "55P03" | "57014" => StoreError::Busy,
        // No memory, too many connections.
        _ if code.starts_with("53") => StoreError::Busy,
        _ if is_code_of_spent(code, routine) => StoreError::Busy,
        // A right that is missing can be granted.
        "42501" => StoreError::Backend,
        _ if code.starts_with("23") || code.starts_with("42") => StoreError::Misuse,
        _ => StoreError::Backend,
    }
}

/// The code by which a server says that the store was moved (`moving.rs`).
pub(super) const MOVED_AWAY: &str = "SPMOV";

fn moved(cause: Cause) -> StoreError {
    StoreError::InUse(cause.to_string())
}

/// An extended result code, of `RAISE` in a trigger.
const SQLITE_CONSTRAINT_TRIGGER: u32 = 1811;

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
