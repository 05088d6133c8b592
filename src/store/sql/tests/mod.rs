//! Tests of the database as a whole: which queries use an index, that older schemas are upgraded, and what is left once it is closed.

mod closing;
mod deliveries;
mod indexes;
mod sorted;
mod synchronous;
mod upgrade;

use super::SqlStore;
use super::db::Pool;
use sqlx::SqlitePool;

/// The connection that writes to the file, for statements past the store.
fn raw(store: &SqlStore) -> &SqlitePool {
    match &store.writer {
        Pool::Sqlite(pool) => pool,
        Pool::Postgres(_) => panic!("these tests are of files"),
    }
}
