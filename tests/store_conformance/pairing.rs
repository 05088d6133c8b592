//! A database and its blobs: which are opened together, and what a copied database file has.

use sparsetune::domain::{Digest, Timestamp};
use sparsetune::store::pairing::{self, OpenError, Opening};
use sparsetune::store::{Matrices as _, SqliteOptions, SqliteStore, StoreOptions, Upkeep as _};
use sqlx::{Connection, SqliteConnection};
use std::path::{Path, PathBuf};
use std::time::Duration;

struct Folder {
    _kept: tempfile::TempDir,
    store: PathBuf,
    blobs: PathBuf,
}

impl Folder {
    fn new() -> Self {
        let kept = tempfile::tempdir().unwrap();
        let (store, blobs) = (kept.path().join("store.db"), kept.path().join("blobs"));
        Self { _kept: kept, store, blobs }
    }

    /// With one matrix and its blob, and one blob that nothing names.
    async fn filled(&self) -> Digest {
        let (store, blobs) = pairing::open(&self.store, &self.blobs).await.unwrap();
        let named = blobs.put("a matrix, for all that is looked at here".into()).await.unwrap();
        blobs.put("named by nothing".into()).await.unwrap();
        let facts = crate::words::matrix("a", 5);
        let facts = sparsetune::domain::Matrix { digest: named, created_at: Timestamp(5), ..facts };
        assert!(store.insert_matrix(&facts).await.unwrap());
        store.close().await;
        named
    }

    async fn refused(&self) -> OpenError {
        match pairing::open(&self.store, &self.blobs).await {
            Ok(_) => panic!("they were opened together"),
            Err(error) => error,
        }
    }
}

fn remove_store(file: &Path) {
    for end in ["", "-wal", "-shm"] {
        let mut name = file.as_os_str().to_owned();
        name.push(end);
        drop(std::fs::remove_file(name));
    }
}

#[tokio::test]
async fn blobs_are_not_opened_with_a_database_that_is_not_theirs() {
    let here = Folder::new();
    here.filled().await;
    // Lost: a new one would know no blob.
    remove_store(&here.store);
    let error = here.refused().await;
    assert!(matches!(error, OpenError::NoDatabase { .. }), "{error}");
    assert!(error.to_string().contains("sparsetune restore"), "{error}");
    assert!(!here.store.exists(), "none was created");
    // Another store's.
    let other = Folder::new();
    other.filled().await;
    std::fs::copy(&other.store, &here.store).unwrap();
    let error = here.refused().await;
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    // Another store's, and the folder does not say whose it is; only then what is named decides.
    std::fs::remove_file(here.blobs.join("store-id")).unwrap();
    remove_store(&here.store);
    SqliteStore::open(&here.store).await.unwrap().close().await;
    let error = here.refused().await;
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    let (store, blobs) = pairing::adopt(&here.store, &here.blobs).await.unwrap();
    assert_eq!(blobs.owner().await.unwrap(), Some(store.id().await.unwrap()));
    assert_eq!(blobs.all().await.unwrap().len(), 2);
    drop((store, blobs));
    pairing::open(&here.store, &here.blobs).await.unwrap();
}

#[tokio::test]
async fn a_folder_of_an_earlier_version_is_recognised_by_what_is_named() {
    let here = Folder::new();
    let named = here.filled().await;
    std::fs::remove_file(here.blobs.join("store-id")).unwrap();
    let (store, blobs) = pairing::open(&here.store, &here.blobs).await.unwrap();
    assert_eq!(blobs.owner().await.unwrap(), Some(store.id().await.unwrap()));
    assert!(blobs.exists(&named).await.unwrap());
}

/// All that it knew was deleted before it had an id, and what is left of it nothing names.
#[tokio::test]
async fn an_earlier_version_that_left_blobs_which_nothing_names_is_taken_for_theirs() {
    let here = Folder::new();
    let named = here.filled().await;
    std::fs::remove_file(here.blobs.join("store-id")).unwrap();
    let store = SqliteStore::open(&here.store).await.unwrap();
    assert!(store.delete_matrix(&named).await.unwrap());
    store.close().await;
    // This version made it, so the blobs would have its id if they were its own.
    let error = here.refused().await;
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    raw(
        &here.store,
        "UPDATE _sqlx_migrations SET installed_on = '2026-01-01 10:00:00' WHERE version < 9",
    )
    .await;
    let (store, blobs) = pairing::open(&here.store, &here.blobs).await.unwrap();
    assert_eq!(blobs.owner().await.unwrap(), Some(store.id().await.unwrap()));
}

async fn connected(file: &Path) -> SqliteConnection {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file);
    SqliteConnection::connect_with(&options).await.unwrap()
}

async fn raw(file: &Path, statement: &'static str) {
    let mut connection = connected(file).await;
    sqlx::query(statement).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_locked_for_long_is_busy_and_one_that_is_locked_shortly_opens() {
    let here = Folder::new();
    here.filled().await;
    let mut other = connected(&here.store).await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let within = |busy_timeout| Opening {
        store: StoreOptions {
            sqlite: SqliteOptions { busy_timeout, ..SqliteOptions::default() },
            ..StoreOptions::default()
        },
        ..Opening::default()
    };
    let short = within(Duration::from_millis(100));
    let error = pairing::open_with(&here.store, &here.blobs, short).await.err().unwrap();
    assert!(matches!(error, OpenError::Busy { .. }), "{error}");
    let told = error.to_string();
    assert!(told.contains("is busy") && !told.contains("cannot be written"), "{told}");
    let long = pairing::open_with(&here.store, &here.blobs, within(Duration::from_secs(30)));
    let released = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    };
    let (opened, ()) = tokio::join!(long, released);
    opened.unwrap();
}

#[tokio::test]
async fn a_closed_database_file_alone_has_everything() {
    let here = Folder::new();
    let (store, blobs) = pairing::open(&here.store, &here.blobs).await.unwrap();
    // Another process has the file open, so that closing does not remove the log.
    let other = SqliteStore::open(&here.store).await.unwrap();
    let facts = crate::words::matrix("a", 5);
    assert!(store.insert_matrix(&facts).await.unwrap());
    store.close().await;
    let copied = tempfile::tempdir().unwrap();
    let file = copied.path().join("store.db");
    std::fs::copy(&here.store, &file).unwrap();
    let copy = SqliteStore::open(&file).await.unwrap();
    assert_eq!(copy.matrix(&facts.digest).await.unwrap(), Some(facts));
    drop((other, blobs));
}

#[tokio::test]
async fn what_cannot_be_written_is_named() {
    let here = Folder::new();
    here.filled().await;
    // A folder in which nobody may write, root included.
    let staging = here.blobs.join("staging");
    let writing = SqliteStore::open(&here.store).await.unwrap();
    writing.check_writable().await.unwrap();
    drop(writing);
    std::fs::remove_dir(&staging).unwrap();
    std::os::unix::fs::symlink("/proc/self/fdinfo", &staging).unwrap();
    let error = here.refused().await;
    assert!(matches!(&error, OpenError::ReadOnly { path, .. } if *path == here.blobs), "{error}");
    assert!(error.to_string().contains("cannot be written"), "{error}");
}
