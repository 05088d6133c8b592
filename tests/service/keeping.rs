//! Backups, made while a service writes, and checks of a store that is used.

use crate::world::*;
use sparsetune::domain::{Caller, Digest, Namespace};
use sparsetune::service::backup::{BackupError, Manifest, Target, backup, restore};
use sparsetune::service::checkup::checkup;
use sparsetune::service::{PageRequest, ServiceSettings};
use sparsetune::store::pairing::{self, OpenError};
use sparsetune::store::private;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn place(world: &World) -> (PathBuf, PathBuf) {
    (world.store_file(), world.folder.path().join("blobs"))
}

fn blob(blobs: &std::path::Path, digest: &Digest) -> PathBuf {
    let name = digest.to_string();
    blobs.join(&name[..2]).join(name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_load_is_whole_and_becomes_a_store() {
    let world = World::new().await;
    let (store, blobs) = place(&world);
    let before: Vec<Digest> = {
        let mut digests = Vec::new();
        for rows in 3..13 {
            digests.push(world.upload(&tridiagonal(rows)).await.matrix.digest);
        }
        digests
    };
    let stop = Arc::new(AtomicBool::new(false));
    let (service, enough) = (world.service.clone(), stop.clone());
    let writing = tokio::spawn(async move {
        let mut rows = 20;
        while !enough.load(Ordering::Relaxed) {
            service.upload(body(&tridiagonal(rows)), None).await.unwrap();
            rows += 1;
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let made = backup(&store, &blobs, &saved).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    writing.await.unwrap();
    assert_eq!(private::exposed(&saved.join("sparsetune.db")), None);
    assert!(made.blobs >= 10 && made.without.is_empty(), "{made:?}");
    assert!(matches!(backup(&store, &blobs, &saved).await, Err(BackupError::NotEmpty(_))));

    let (new_store, new_blobs) = (folder.path().join("new.db"), folder.path().join("new"));
    let back = restore(&saved, &new_store, &new_blobs, Target::Empty).await.unwrap();
    assert_ne!(back.store, made.store, "a copy that goes on by itself is another store");
    assert_eq!(Manifest { store: made.store.clone(), ..back }, made);
    let again = restore(&saved, &new_store, &new_blobs, Target::Empty).await;
    assert!(matches!(again, Err(BackupError::InTheWay(_))));
    drop(pairing::open(&store, &blobs).await.unwrap());
    // So its database does not take the origin's blobs for its own.
    let foreign = pairing::open(&new_store, &blobs).await;
    assert!(matches!(foreign, Err(OpenError::Foreign { .. })));
    let (opened, files) = pairing::open(&new_store, &new_blobs).await.unwrap();
    assert!(checkup(&opened, &*files, DAY, false).await.unwrap().is_whole());
    let settings =
        ServiceSettings { temp_dir: folder.path().to_owned(), ..ServiceSettings::default() };
    let restored = sparsetune::service::Service::new(Arc::new(opened), files, settings);
    for digest in &before {
        restored.spy_png(digest, 32).await.unwrap();
    }
}

#[tokio::test]
async fn an_incomplete_or_damaged_backup_is_not_restored_unsaid() {
    let world = World::new().await;
    let digest = world.upload(&tridiagonal(9)).await.matrix.digest;
    let (store, blobs) = place(&world);
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    backup(&store, &blobs, &saved).await.unwrap();
    let to = |name: &str| (folder.path().join(format!("{name}.db")), folder.path().join(name));
    // A blob that is damaged is left out, and said.
    let file = blob(&saved.join("blobs"), &digest);
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (db, files) = to("one");
    assert_eq!(restore(&saved, &db, &files, Target::Empty).await.unwrap().without, [digest]);
    assert!(!blob(&files, &digest).exists());
    // Without its manifest a backup is not complete.
    std::fs::remove_file(saved.join("backup.json")).unwrap();
    let (db, files) = to("two");
    let refused = restore(&saved, &db, &files, Target::Empty).await;
    assert!(matches!(refused, Err(BackupError::NoBackup { .. })), "{refused:?}");
    assert!(!db.exists());
}

#[tokio::test]
async fn a_check_finds_what_is_wrong_and_mends_what_it_can() {
    let world = World::new().await;
    let mut digests = Vec::new();
    for rows in [5, 6, 7] {
        digests.push(world.upload(&tridiagonal(rows)).await.matrix.digest);
    }
    let [sound, damaged, gone] = digests[..] else { panic!() };
    let lost = world.service.blobs().put("named by nothing".into()).await.unwrap();
    let (file, folder) = place(&world);
    let (store, blobs) = pairing::open(&file, &folder).await.unwrap();
    assert!(checkup(&store, &*blobs, DAY, false).await.unwrap().is_whole());

    std::fs::remove_file(blob(&folder, &gone)).unwrap();
    let mut bytes = std::fs::read(blob(&folder, &damaged)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(blob(&folder, &damaged), bytes).unwrap();
    let old = std::fs::File::open(blob(&folder, &lost)).unwrap();
    old.set_modified(SystemTime::now() - 2 * DAY).unwrap();
    for _ in 0..2 {
        let found = checkup(&store, &*blobs, DAY, false).await.unwrap();
        assert!(!found.is_whole());
        assert_eq!((found.compared, found.unnamed, &found.damaged), (3, 1, &vec![damaged]));
        let mut without = found.matrices_without_file.clone();
        without.sort();
        let mut expected = vec![damaged, gone];
        expected.sort();
        assert_eq!(without, expected);
        assert!(found.repaired.is_empty(), "nothing is changed unasked");
    }
    let found = checkup(&store, &*blobs, DAY, true).await.unwrap();
    assert!(found.is_whole(), "{found:?}");
    assert_eq!(found.repaired.len(), 4, "{found:?}");
    let found = checkup(&store, &*blobs, DAY, false).await.unwrap();
    assert_eq!((found.is_whole(), found.compared, found.set_aside), (true, 1, 1));
    // The service goes on, and takes them in again.
    assert!(world.service.spy_png(&gone, 32).await.is_err());
    assert!(world.upload(&tridiagonal(7)).await.created);
    world.service.spy_png(&gone, 32).await.unwrap();
    world.service.spy_png(&sound, 32).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repair_forgets_no_matrix_that_a_server_takes_in_meanwhile() {
    let world = World::new().await;
    let digest = world.upload(&tridiagonal(7)).await.matrix.digest;
    let (file, folder) = place(&world);
    let (lost, away) = (blob(&folder, &digest), folder.join("away"));
    std::fs::rename(&lost, &away).unwrap();
    let (store, blobs) = pairing::open(&file, &folder).await.unwrap();
    // A server is just about to give the matrix its file again, and to find that it has a row.
    let taking_in = world.service.store().publishing().await.unwrap();
    let repair = tokio::spawn(async move { checkup(&store, &*blobs, DAY, true).await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    std::fs::rename(&away, &lost).unwrap();
    drop(taking_in);
    let found = repair.await.unwrap();
    assert!(found.repaired.is_empty() && found.is_whole(), "{found:?}");
    world.service.matrix(&digest).await.unwrap();
    world.service.spy_png(&digest, 32).await.unwrap();
}

/// The deletion of a name that is not on the disk yet may be undone by a loss of power, and its file would be gone.
#[cfg(unix)]
#[tokio::test]
async fn a_matrix_keeps_its_file_until_its_deletion_is_on_the_disk() {
    let world = World::new().await;
    let matrix = world.upload(&tridiagonal(9)).await.matrix;
    let (store, blobs) = place(&world);
    let mut log = store.into_os_string();
    log.push("-wal");
    let log = PathBuf::from(log);
    let aside = log.with_extension("aside");
    // The database has it open; who opens it by name now fails.
    std::fs::rename(&log, &aside).unwrap();
    std::os::unix::fs::symlink(&log, &log).unwrap();
    let refused = world.service.delete_matrix(&matrix.digest).await.unwrap_err();
    assert!(format!("{refused:?}").contains("could not be synced"), "{refused:?}");
    assert!(blob(&blobs, &matrix.digest).exists());
    std::fs::remove_file(&log).unwrap();
    std::fs::rename(&aside, &log).unwrap();
    let other = world.upload(&tridiagonal(11)).await.matrix;
    world.service.delete_matrix(&other.digest).await.unwrap();
    assert!(!blob(&blobs, &other.digest).exists());
}

/// What one token does is bounded between two rounds of upkeep as well, and displaces no other's entries.
#[tokio::test]
async fn who_floods_the_audit_log_displaces_only_their_own() {
    let world = World::with(|settings| settings.keep.audit_entries = 20).await;
    let of = |name: &str| {
        let token = Some(name.parse().unwrap());
        world.service.on_behalf_of(&Caller::owner(token, Namespace::default()))
    };
    let (admin, noisy) = (of("admin"), of("noisy"));
    for number in 0..3 {
        admin.record_change(&admin.change(format!("change {number}"))).await.unwrap();
    }
    for _ in 0..997 {
        noisy.record_change(&noisy.change("noise")).await.unwrap();
    }
    let all = world.service.audit(None, &PageRequest::first(1000)).await.unwrap().items;
    assert_eq!(all.len(), 20);
    let kept = all.iter().filter(|entry| entry.token.as_deref() == Some("admin")).count();
    assert_eq!(kept, 3);
}
