//! What commits wait for is as configured, on the connection that writes.

use super::raw;
use crate::store::{SqlStore, SqliteOptions, Synchronous};

#[tokio::test]
async fn commits_wait_for_what_is_configured() {
    let folder = tempfile::tempdir().unwrap();
    // The numbers of SQLite's documentation.
    for (synchronous, number) in [(Synchronous::Normal, 1), (Synchronous::Full, 2)] {
        let options = SqliteOptions { synchronous, ..SqliteOptions::default() };
        let store = SqlStore::open_with(&folder.path().join("store"), options).await.unwrap();
        let told: i64 =
            sqlx::query_scalar("PRAGMA synchronous").fetch_one(raw(&store)).await.unwrap();
        assert_eq!(told, number, "{synchronous:?}");
    }
}
