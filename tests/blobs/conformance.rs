//! The trait's promises, one by one.

use crate::{SECOND, World, contents, on_each};
use futures_util::TryStreamExt;
use sparsetune::domain::Digest;
use sparsetune::store::BlobError;
use std::time::{Duration, SystemTime};

/// More than one range of a bucket.
const LONG: usize = (20 << 20) + 12_345;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_comes_back_in_every_way() {
    on_each(async |world: &World| {
        for bytes in [0, 1, 70_000, LONG] {
            let whole = contents(bytes, 1);
            let file = world.staged(&whole).await;
            let digest = world.blobs.put_file(file, None).await.unwrap();
            assert_eq!(digest, Digest::of(&whole));
            let (elsewhere, _folder) = world.elsewhere().await;
            for blobs in [&world.blobs, &elsewhere] {
                assert_eq!(blobs.get(&digest).await.unwrap(), whole);
                let (length, stream) = blobs.stream(&digest).await.unwrap();
                assert_eq!(length, bytes as u64);
                let parts: Vec<bytes::Bytes> = stream.try_collect().await.unwrap();
                assert_eq!(parts.concat(), whole);
                let copy = blobs.local_copy(&digest).await.unwrap();
                assert_eq!(std::fs::read(&copy).unwrap(), whole);
                assert!(blobs.exists(&digest).await.unwrap());
            }
        }
        assert_eq!(world.blobs.all().await.unwrap().len(), 4);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_is_never_changed_and_no_file_is_left() {
    on_each(async |world: &World| {
        let blobs = &world.blobs;
        let digest = blobs.put("matrix".into()).await.unwrap();
        for again in ["matrix", "matrix"] {
            let file = world.staged(again.as_bytes()).await;
            let path = file.to_path_buf();
            assert_eq!(blobs.put_file(file, Some(digest)).await.unwrap(), digest);
            assert!(!path.exists());
        }
        assert_eq!(blobs.put("matrix".into()).await.unwrap(), digest);
        assert_eq!(blobs.get(&digest).await.unwrap(), "matrix");
        assert_eq!(blobs.all().await.unwrap(), [digest]);

        let folder = blobs.stage_folder().await.unwrap();
        let inside = folder.path().join("array");
        std::fs::write(&inside, "array").unwrap();
        let inside = tempfile::TempPath::try_from_path(inside).unwrap();
        let array = blobs.put_file(inside, None).await.unwrap();
        assert_eq!(blobs.get(&array).await.unwrap(), "array");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_said_so() {
    on_each(async |world: &World| {
        let (blobs, none) = (&world.blobs, Digest::of(b"none"));
        assert!(matches!(blobs.get(&none).await, Err(BlobError::NotFound(it)) if it == none));
        assert!(matches!(blobs.local_copy(&none).await, Err(BlobError::NotFound(_))));
        assert!(blobs.stream(&none).await.is_err());
        assert!(!blobs.exists(&none).await.unwrap() && !blobs.renew(&none).await.unwrap());
        assert!(!blobs.delete(&none).await.unwrap());
        assert_eq!(blobs.facts(vec![none]).await.unwrap(), [None]);
        let some = blobs.put("some".into()).await.unwrap();
        blobs.get(&some).await.unwrap();
        assert!(blobs.delete(&some).await.unwrap());
        assert!(!blobs.delete(&some).await.unwrap() && !blobs.exists(&some).await.unwrap());
        assert!(blobs.get(&some).await.is_err(), "no copy is left");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_are_known_of_few_and_of_many() {
    on_each(async |world: &World| {
        let blobs = &world.blobs;
        let before = SystemTime::now() - 2 * SECOND;
        let (a, b) = (blobs.put("12345".into()).await.unwrap(), Digest::of(b"none"));
        for more in [0, 600] {
            let asked =
                [a, b].into_iter().chain((0..more).map(|i: u32| Digest::of(&i.to_le_bytes())));
            let facts = blobs.facts(asked.collect()).await.unwrap();
            let known = facts[0].unwrap();
            assert_eq!((known.bytes, facts[1]), (5, None));
            assert!(known.put_at >= before && known.put_at < SystemTime::now() + 2 * SECOND);
        }
    })
    .await;
}

/// A process that opened it before upkeep of another discarded it, as well as a new one, has it back.
#[tokio::test(flavor = "multi_thread")]
async fn what_nothing_names_goes_in_two_steps_and_comes_back_when_needed() {
    on_each(async |world: &World| {
        let blobs = &world.blobs;
        let mut all = Vec::new();
        for name in ["read", "put", "named", "gone", "renewed"] {
            all.push(blobs.put(name.into()).await.unwrap());
        }
        let [read, put, named, gone, renewed] = all[..] else { panic!() };
        assert_eq!(blobs.older_than(Duration::from_secs(3600)).await.unwrap(), []);
        assert_eq!(blobs.discard_old(all.clone(), Duration::from_secs(3600)).await.unwrap(), 0);
        let mut old = blobs.older_than(Duration::ZERO).await.unwrap();
        old.sort_unstable();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(old, sorted);
        assert_eq!(blobs.discard_old(all.clone(), Duration::ZERO).await.unwrap(), 5);
        assert_eq!(blobs.all().await.unwrap(), []);
        assert_eq!(blobs.in_trash().await.unwrap().len(), 5);
        assert_eq!(blobs.facts(vec![gone]).await.unwrap(), [None]);

        let (elsewhere, _folder) = world.elsewhere().await;
        assert_eq!(elsewhere.get(&read).await.unwrap(), "read");
        assert_eq!(blobs.put("put".into()).await.unwrap(), put);
        assert!(elsewhere.renew(&renewed).await.unwrap());
        assert_eq!(blobs.empty_trash(vec![named], Duration::from_secs(3600)).await.unwrap(), 0);
        assert!(blobs.in_trash().await.unwrap().contains(&gone));
        assert_eq!(blobs.get(&named).await.unwrap(), "named");
        blobs.empty_trash(vec![], Duration::ZERO).await.unwrap();
        assert_eq!(blobs.in_trash().await.unwrap(), []);
        for digest in [read, put, named, renewed] {
            assert!(blobs.exists(&digest).await.unwrap());
        }
        assert!(!blobs.exists(&gone).await.unwrap());
    })
    .await;
}

/// The time of a bucket's object cannot be set, but by the server's own folder.
#[tokio::test(flavor = "multi_thread")]
async fn putting_again_makes_young() {
    on_each(async |world: &World| {
        let blobs = &world.blobs;
        let digest = blobs.put("old".into()).await.unwrap();
        let idle = blobs.put("idle".into()).await.unwrap();
        for blob in [&digest, &idle] {
            let file = std::fs::File::open(world.file(blob)).unwrap();
            file.set_modified(SystemTime::now() - 3600 * SECOND).unwrap();
        }
        let (elsewhere, _folder) = world.elsewhere().await;
        assert!(elsewhere.renew(&digest).await.unwrap());
        assert_eq!(blobs.older_than(600 * SECOND).await.unwrap(), [idle]);
        assert_eq!(blobs.discard_old(vec![digest, idle], 600 * SECOND).await.unwrap(), 1);
        assert_eq!(blobs.all().await.unwrap(), [digest]);
        let facts = blobs.facts(vec![digest]).await.unwrap()[0].unwrap();
        assert!(facts.put_at > SystemTime::now() - 600 * SECOND);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_blob_is_found_set_aside_and_healed_by_an_upload() {
    on_each(async |world: &World| {
        for long in [7, LONG] {
            let whole = contents(long, long as u64);
            let file = world.staged(&whole).await;
            let digest = world.blobs.put_file(file, None).await.unwrap();
            let mut wrong = whole.clone();
            wrong[long / 2] ^= 1;
            std::fs::write(world.file(&digest), &wrong).unwrap();

            let (elsewhere, _folder) = world.elsewhere().await;
            assert!(matches!(elsewhere.get(&digest).await, Err(BlobError::Damaged(_))));
            assert!(matches!(elsewhere.get(&digest).await, Err(BlobError::NotFound(_))));
            assert!(!elsewhere.exists(&digest).await.unwrap());
            assert!(elsewhere.set_aside().await.unwrap() >= 1);
            let mut file = elsewhere.stage().await.unwrap();
            std::io::Write::write_all(&mut file, &whole).unwrap();
            elsewhere.put_file(file.into_temp_path(), Some(digest)).await.unwrap();
            let (third, _folder) = world.elsewhere().await;
            for blobs in [&elsewhere, &third] {
                assert_eq!(blobs.get(&digest).await.unwrap(), whole);
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_know_whose_they_are() {
    on_each(async |world: &World| {
        let blobs = &world.blobs;
        assert_eq!(blobs.owner().await.unwrap(), None);
        for id in ["one", "another"] {
            blobs.give_to(id).await.unwrap();
            let (elsewhere, _folder) = world.elsewhere().await;
            assert_eq!(elsewhere.owner().await.unwrap().as_deref(), Some(id));
        }
        assert!(!blobs.is_being_filled().await.unwrap());
        blobs.begin_to_fill().await.unwrap();
        assert!(blobs.is_being_filled().await.unwrap());
        for _ in 0..2 {
            blobs.end_filling().await.unwrap();
        }
        assert!(!blobs.is_being_filled().await.unwrap());
        assert_eq!(blobs.all().await.unwrap(), [], "none of that is a blob");
    })
    .await;
}
