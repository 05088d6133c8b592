//! Which connections of a pool are of no use any more: those that were made before the server was seen to be gone, or to be another's
//! replica.

use sqlx::postgres::PgDatabaseError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When connections were last seen to be of no use. Those made before are replaced as they come from the pool: one that met the end of its
/// server has company.
#[derive(Clone, Debug, Default)]
pub(in crate::store::sql) struct Doubt(Arc<Mutex<Option<Instant>>>);

impl Doubt {
    /// Looks at how a statement went, and passes it on.
    pub fn heard<T>(&self, found: sqlx::Result<T>) -> sqlx::Result<T> {
        if found.as_ref().err().is_some_and(is_spent) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        found
    }

    /// Whether a connection of this age may be used.
    pub fn trusts(&self, age: Duration) -> bool {
        let doubted = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        doubted.is_none_or(|at| age < at.elapsed())
    }
}

/// Whether the connection is of no use: it was lost, for which its server may have gone or ended it; what it is connected to takes no writes
/// any more; it is within a transaction that failed; or it has plans of statements whose tables have changed. Nothing of the statement
/// was done.
pub(super) fn is_spent(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::BeginFailed => true,
        sqlx::Error::Database(cause) => match cause.try_downcast_ref::<PgDatabaseError>() {
            Some(cause) => is_code_of_spent(cause.code(), cause.routine()),
            None => false,
        },
        _ => false,
    }
}

/// By SQLSTATE and the routine of the server that says it.
pub(in crate::store::sql) fn is_code_of_spent(code: &str, routine: Option<&str>) -> bool {
    match code {
        // Administrator shutdown, crash shutdown, cannot connect now, idle session timeout; of a transaction: read-only, failed, idle for
        // too long.
        "57P01" | "57P02" | "57P03" | "57P05" | "25006" | "25P02" | "25P03" => true,
        // "cached plan must not change result type".
        "0A000" => routine == Some("RevalidateCachedQuery"),
        _ => code.starts_with("08"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_made_before_the_doubt_are_not_trusted() {
        let doubt = Doubt::default();
        assert!(doubt.trusts(Duration::from_secs(3600)));
        doubt.heard::<()>(Err(sqlx::Error::RowNotFound)).unwrap_err();
        assert!(doubt.trusts(Duration::from_secs(3600)));
        doubt.heard::<()>(Err(sqlx::Error::BeginFailed)).unwrap_err();
        assert!(!doubt.trusts(Duration::from_secs(3600)));
        std::thread::sleep(Duration::from_millis(5));
        assert!(doubt.trusts(Duration::ZERO));
        for (code, routine, spent) in [
            ("25006", None, true),
            ("08006", None, true),
            ("0A000", Some("RevalidateCachedQuery"), true),
            ("0A000", Some("transformInsertStmt"), false),
            ("57014", None, false),
            ("23505", None, false),
        ] {
            assert_eq!(is_code_of_spent(code, routine), spent, "{code}");
        }
    }
}
