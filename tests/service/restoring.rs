//! Restorations that were interrupted, and what a lost store leaves behind.

use crate::world::*;
use sparsetune::domain::Digest;
use sparsetune::service::backup::{BackupError, Target, backup, restore};
use sparsetune::service::checkup::checkup;
use sparsetune::store::pairing::OpenError;
use sparsetune::store::{
    Blobs as _, LocalBlobs, Matrices as _, SqliteStore, Upkeep as _, pairing, private,
};
use sqlx::{Connection, SqliteConnection};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// A store with one matrix and its backup, in a folder.
async fn saved() -> (World, Digest, TempDir, PathBuf) {
    let world = World::new().await;
    let digest = world.upload(&tridiagonal(9)).await.matrix.digest;
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    backup(&world.store_file(), &world.folder.path().join("blobs"), &saved).await.unwrap();
    (world, digest, folder, saved)
}

/// The log of another database that was never moved into it: SQLite replays it into whatever database it lies beside.
async fn log_of_another(to: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("other.db");
    drop(SqliteStore::open(&file).await.unwrap());
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
    let mut raw = SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("CREATE TABLE of_another (x)").execute(&mut raw).await.unwrap();
    std::fs::copy(with_end(&file, "-wal"), to).unwrap();
    assert!(std::fs::metadata(to).unwrap().len() > 0);
    raw.close().await.unwrap();
}

#[tokio::test]
async fn an_interrupted_restoration_is_done_again() {
    let (_world, digest, folder, saved) = saved().await;
    let (store, blobs) = (folder.path().join("new.db"), folder.path().join("new"));
    // Interrupted by a blob that cannot be written, after the database was copied.
    std::fs::create_dir(&blobs).unwrap();
    let place = blobs.join(&digest.to_string()[..2]);
    std::fs::write(&place, "in the way of a folder").unwrap();
    restore(&saved, &store, &blobs, Target::Empty).await.unwrap_err();
    assert!(!store.exists(), "what is interrupted is no store");
    let staged = with_end(&store, ".restoring");
    assert!(staged.exists());
    std::fs::remove_file(&place).unwrap();
    // Some blobs were there already, and the log was not moved into the copy.
    let name = digest.to_string();
    std::fs::create_dir(&place).unwrap();
    std::fs::copy(saved.join("blobs").join(&name[..2]).join(&name), place.join(&name)).unwrap();
    log_of_another(&with_end(&staged, "-wal")).await;
    let file = std::fs::File::open(saved.join("sparsetune.db")).unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o644)).unwrap();
    let made = restore(&saved, &store, &blobs, Target::Empty).await.unwrap();
    assert!(made.without.is_empty());
    assert_eq!(private::exposed(&store), None, "whatever the backup's permissions are");
    let (opened, files) = pairing::open(&store, &blobs).await.unwrap();
    assert!(checkup(&opened, &*files, DAY, false).await.unwrap().is_whole());
    assert!(opened.matrix(&digest).await.unwrap().is_some());
    opened.close().await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&store);
    let mut raw = SqliteConnection::connect_with(&options).await.unwrap();
    let strange: i64 =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = 'of_another'")
            .fetch_one(&mut raw)
            .await
            .unwrap();
    assert_eq!(strange, 0, "nothing of another database came in");
    raw.close().await.unwrap();
    for end in ["", "-wal", "-shm", "-journal", ".lock"] {
        assert!(!with_end(&staged, end).exists(), "{end}");
    }
    // A folder with blobs that no restoration brought is left alone.
    std::fs::rename(&store, folder.path().join("away")).unwrap();
    let refused = restore(&saved, &store, &blobs, Target::Empty).await;
    assert!(matches!(refused, Err(BackupError::InTheWay(path)) if path == blobs));
}

/// A server that is started meanwhile makes no store of its own there, whose uploads would be lost.
#[tokio::test]
async fn what_is_being_restored_is_no_store_yet() {
    let (_world, _, folder, saved) = saved().await;
    let (store, blobs) = (folder.path().join("new.db"), folder.path().join("new"));
    let files = LocalBlobs::open(&blobs).unwrap();
    files.begin_to_fill().await.unwrap();
    let refused = pairing::open(&store, &blobs).await.err().unwrap();
    assert!(matches!(&refused, OpenError::Restoring { .. }), "{refused}");
    assert!(refused.to_string().contains("sparsetune restore"), "{refused}");
    assert!(!store.exists());
    restore(&saved, &store, &blobs, Target::Empty).await.unwrap();
    assert!(!files.is_being_filled().await.unwrap());
    // Interrupted after its last step but one: everything is there.
    files.begin_to_fill().await.unwrap();
    let (opened, _) = pairing::open(&store, &blobs).await.unwrap();
    opened.close().await;
    assert!(!files.is_being_filled().await.unwrap());
    // Another's database beside blobs that are being restored.
    std::fs::remove_file(&store).unwrap();
    files.begin_to_fill().await.unwrap();
    SqliteStore::open(&store).await.unwrap().close().await;
    let refused = pairing::open(&store, &blobs).await.err().unwrap();
    assert!(matches!(refused, OpenError::Restoring { .. }), "{refused}");
}

/// One that was started before, and made its store since, keeps it.
#[tokio::test]
async fn a_restoration_replaces_no_store_that_came_between() {
    let (_world, _, folder, saved) = saved().await;
    let (store, blobs) = (folder.path().join("new.db"), folder.path().join("new"));
    let closed = SqliteStore::keep_closed(&store).await.unwrap();
    let restoring = {
        let (saved, store, blobs) = (saved.clone(), store.clone(), blobs.clone());
        tokio::spawn(async move { restore(&saved, &store, &blobs, Target::Empty).await })
    };
    let staged = with_end(&store, ".restoring");
    while !staged.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let between = folder.path().join("between.db");
    SqliteStore::open(&between).await.unwrap().close().await;
    std::fs::rename(&between, &store).unwrap();
    let bytes = std::fs::read(&store).unwrap();
    drop(closed);
    let refused = restoring.await.unwrap();
    assert!(matches!(&refused, Err(BackupError::InTheWay(path)) if *path == store), "{refused:?}");
    assert_eq!(std::fs::read(&store).unwrap(), bytes);
    assert_eq!(LocalBlobs::open(&blobs).unwrap().owner().await.unwrap(), None);
}

#[tokio::test]
async fn a_log_that_was_left_behind_is_in_the_way() {
    let (_world, _, folder, saved) = saved().await;
    let (store, blobs) = (folder.path().join("new.db"), folder.path().join("new"));
    for end in ["-wal", "-shm", "-journal"] {
        let left = with_end(&store, end);
        std::fs::write(&left, "").unwrap();
        let refused = restore(&saved, &store, &blobs, Target::Empty).await;
        assert!(matches!(refused, Err(BackupError::InTheWay(path)) if path == left), "{end}");
        assert!(!store.exists() && left.exists(), "{end}");
        std::fs::remove_file(&left).unwrap();
    }
    restore(&saved, &store, &blobs, Target::Empty).await.unwrap();
}

/// What the message says of a database that was lost.
#[tokio::test]
async fn a_lost_database_is_put_back_beside_its_blobs() {
    let (world, digest, folder, saved) = saved().await;
    let (store, blobs) = (world.store_file(), world.folder.path().join("blobs"));
    let later = world.upload(&tridiagonal(10)).await.matrix.digest;
    let id = world.service.store().id().await.unwrap();
    world.service.close().await;
    std::fs::remove_file(&store).unwrap();
    let error = pairing::open(&store, &blobs).await.err().unwrap().to_string();
    assert!(error.contains("sparsetune restore --keep-blobs"), "{error}");
    // Without its blobs it would be another store, which these are not of.
    let refused = restore(&saved, &store, &blobs, Target::Empty).await.unwrap_err();
    assert!(refused.to_string().contains("--keep-blobs"), "{refused}");
    let name = digest.to_string();
    let file = blobs.join(&name[..2]).join(&name);
    std::fs::remove_file(&file).unwrap();
    let made = restore(&saved, &store, &blobs, Target::ItsBlobs).await.unwrap();
    assert_eq!((made.store, made.without), (id, vec![]));
    assert!(file.exists(), "what was missing is there again");
    let (opened, files) = pairing::open(&store, &blobs).await.unwrap();
    assert!(checkup(&opened, &*files, DAY, false).await.unwrap().is_whole());
    // What came after the backup is not known any more; it is removed like everything that nothing names.
    assert!(opened.matrix(&later).await.unwrap().is_none());
    assert_eq!(files.all().await.unwrap().len(), 2);
    opened.close().await;

    // Blobs of another store are not taken.
    let (other, beside) = (folder.path().join("other.db"), folder.path().join("other"));
    restore(&saved, &other, &beside, Target::Empty).await.unwrap();
    std::fs::remove_file(&other).unwrap();
    let refused = restore(&saved, &other, &beside, Target::ItsBlobs).await;
    assert!(matches!(refused, Err(BackupError::OfAnother { .. })));
}

/// The database of a backup, put back over a newer one, names what upkeep has since moved to the trash.
#[tokio::test]
async fn what_a_database_names_that_was_put_back_leaves_the_trash() {
    let (world, digest, _folder, saved) = saved().await;
    let (store, blobs) = (world.store_file(), world.folder.path().join("blobs"));
    world.upload(&tridiagonal(10)).await;
    let name = digest.to_string();
    let (file, trash) = (blobs.join(&name[..2]).join(&name), blobs.join("trash").join(&name));
    let age = |file: &Path| {
        let file = std::fs::File::open(file).unwrap();
        file.set_modified(std::time::SystemTime::now() - 2 * DAY).unwrap();
    };
    // Deleted, but for its file.
    assert!(world.service.store().delete_matrix(&digest).await.unwrap());
    age(&file);
    assert_eq!(world.service.remove_old().await.unwrap().blobs, 1);
    age(&trash);
    world.service.close().await;
    std::fs::copy(saved.join("sparsetune.db"), &store).unwrap();
    let later = world.elsewhere("later").await;
    assert_eq!(later.remove_old().await.unwrap().trash, 0);
    assert!(file.exists() && !trash.exists(), "the database names it");
    // A database that names nothing is more likely the wrong one than one that lost all names.
    let matrix = later.store().matrix(&digest).await.unwrap().unwrap();
    age(&file);
    std::fs::rename(&file, &trash).unwrap();
    assert!(later.store().delete_matrix(&matrix.digest).await.unwrap());
    assert_eq!(later.remove_old().await.unwrap().trash, 0);
    assert!(trash.exists());
}
