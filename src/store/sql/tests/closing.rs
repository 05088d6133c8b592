//! Once a store is closed, its connections are: nothing is beside the file that a restoration would find in its way.

use crate::store::sql::db::Pool;
use crate::store::{SqlStore, Upkeep as _};

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_was_closed_has_no_connection_and_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    for round in 0..20 {
        let store = SqlStore::open(&file).await.unwrap();
        let Pool::Sqlite(readers) = &store.readers else { panic!("a file") };
        // All of them at once, so that each is a connection of its own; each has looked at the schema, as those have that were of use.
        let mut held = Vec::new();
        for _ in 0..8 {
            let mut reader = readers.acquire().await.unwrap();
            let jobs: i64 = sqlx::query_scalar("SELECT count(*) FROM jobs")
                .fetch_one(&mut *reader)
                .await
                .unwrap();
            assert_eq!(jobs, 0);
            held.push(reader);
        }
        drop(held);
        store.close().await;
        let open = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
            std::fs::read_link(entry.unwrap().path()).ok().filter(|to| to.starts_with(&file))
        });
        assert_eq!(open.count(), 0, "round {round}: a connection is open");
        for end in ["-wal", "-shm"] {
            let left = folder.path().join(format!("store{end}"));
            assert!(!left.exists(), "round {round}: {end} is left");
        }
    }
}
