//! Many who read and write at the same time: one fetch for all, copies within their bound, and none lost to a sweep.

use crate::proxy::Proxy;
use crate::server::{BUCKET, S3Server};
use crate::{World, contents, opened};
use sparsetune::domain::Digest;
use sparsetune::store::{BlobError, BlobPlace, Blobs};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_is_fetched_once_for_all_who_read_it_here() {
    let Some(server) = S3Server::start() else { return };
    let proxy = Proxy::before(&server.address).await;
    let folder = tempfile::tempdir().unwrap();
    let whole = contents(3 << 20, 5);
    let writer = server.settings(&server.address, &folder.path().join("writer"));
    let digest =
        opened(&BlobPlace::Bucket(Box::new(writer))).await.put(whole.clone().into()).await.unwrap();

    // Two processes with the same copies.
    let settings = server.settings(&proxy.address, &folder.path().join("shared"));
    let place = BlobPlace::Bucket(Box::new(settings));
    let readers: Vec<Arc<dyn Blobs>> = vec![opened(&place).await, opened(&place).await];
    let line = format!("GET /{BUCKET}/some/prefix/blobs/{digest}");
    let tasks: Vec<_> = (0..16)
        .map(|i| {
            let blobs = Arc::clone(&readers[i % 2]);
            tokio::spawn(async move { blobs.get(&digest).await.unwrap() })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), whole);
    }
    assert_eq!(proxy.seen(&line), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_stay_within_their_bound_and_those_in_use_stay() {
    let Some(world) = World::bucket().await else { return };
    let mut digests = Vec::new();
    for i in 0..6 {
        digests.push(world.blobs.put(contents(1 << 20, i).into()).await.unwrap());
    }
    let long = contents(5 << 20, 9);
    let file = world.staged(&long).await;
    let long = world.blobs.put_file(file, None).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let BlobPlace::Bucket(settings) = &world.place else { panic!() };
    let mut settings = settings.clone();
    settings.cache = folder.path().to_owned();
    settings.cache_most = 4 << 20;
    let blobs = opened(&BlobPlace::Bucket(settings)).await;
    let held = blobs.local_copy(&digests[0]).await.unwrap();
    for digest in digests.iter().cycle().take(15) {
        blobs.get(digest).await.unwrap();
        assert!(held.is_file());
        assert!(taken(folder.path()) <= 4 << 20, "{}", taken(folder.path()));
    }
    let refused = blobs.local_copy(&long).await;
    let Err(BlobError::Full(why)) = refused else { panic!("{refused:?}") };
    assert!(why.to_string().contains("data.blob_cache_max"), "{why}");
}

fn taken(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(facts) if facts.is_dir() => taken(&entry.path()),
            Ok(facts) => facts.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Upkeep of one process discards with no grace what others put all the time, and that of another looks after the trash: what was put is
/// there afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_while_others_sweep_is_not_lost() {
    let Some(world) = World::bucket().await else { return };
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let sweeper = {
        let ((blobs, folder), stop) = (world.elsewhere().await, Arc::clone(&stop));
        tokio::spawn(async move {
            let mut moved = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let old = blobs.older_than(Duration::ZERO).await.unwrap();
                moved += blobs.discard_old(old, Duration::ZERO).await.unwrap();
            }
            drop(folder);
            moved
        })
    };
    let emptier = {
        let ((blobs, folder), stop) = (world.elsewhere().await, Arc::clone(&stop));
        let named: Vec<Digest> = (0..4u32).map(|at| Digest::of(&at.to_le_bytes())).collect();
        tokio::spawn(async move {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                blobs.empty_trash(named.clone(), Duration::from_secs(3600)).await.unwrap();
            }
            drop(folder);
        })
    };
    for round in 0..40u32 {
        let digest = Digest::of(&(round % 4).to_le_bytes());
        let (blobs, _folder) = world.elsewhere().await;
        assert_eq!(blobs.put((round % 4).to_le_bytes().to_vec().into()).await.unwrap(), digest);
        assert!(blobs.exists(&digest).await.unwrap(), "round {round}");
        assert_eq!(blobs.get(&digest).await.unwrap(), (round % 4).to_le_bytes()[..]);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(sweeper.await.unwrap() > 0);
    emptier.await.unwrap();
}
