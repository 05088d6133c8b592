//! What a bucket may lose, or seem to have lost: buckets that are gone, copies that are spoilt, uploads and removals that meet.

use crate::faults::{Behind, first};
use crate::proxy::Fault;
use crate::server::BUCKET;
use crate::{World, contents, opened};
use sparsetune::domain::Digest;
use sparsetune::service::{Service, ServiceSettings};
use sparsetune::store::pairing::{self, OpenError};
use sparsetune::store::{BlobError, BlobPlace, Secret, Upkeep as _};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_fetched_again_is_compared_again() {
    let Some(behind) = Behind::new().await else { return };
    let whole = contents(1000, 1);
    let digest = behind.open().await.put(whole.clone().into()).await.unwrap();
    let mut settings = behind.settings.clone();
    settings.cache = behind.folder.path().join("another");
    let blobs = opened(&BlobPlace::Bucket(Box::new(settings))).await;
    for _ in 0..5 {
        assert_eq!(blobs.get(&digest).await.unwrap(), whole);
        // The file system may give the next copy the number that this one had.
        assert!(blobs.forget_copy(&digest).await.unwrap());
    }
    assert_eq!(blobs.get(&digest).await.unwrap(), whole);
    let name = digest.to_string();
    let copy = behind.folder.path().join("another").join(&name[..2]).join(&name);
    let mut wrong = whole.clone();
    wrong[500] ^= 1;
    std::fs::write(behind.server.object("blobs", &name), &wrong).unwrap();
    std::fs::remove_file(copy).unwrap();
    assert!(matches!(blobs.get(&digest).await, Err(BlobError::Damaged(_))));
    // Nor does an address lead there.
    let link = blobs.link(&digest, "application/zip", None).await;
    assert!(matches!(link, Err(BlobError::NotFound(_))), "{link:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_is_gone_or_another_s_is_no_missing_blob() {
    let Some(behind) = Behind::new().await else { return };
    let blobs = behind.open().await;
    blobs.give_to("our store").await.unwrap();
    let (there, none) = (blobs.put("there".into()).await.unwrap(), Digest::of(b"none"));
    blobs.forget_copy(&there).await.unwrap();
    assert!(matches!(blobs.get(&none).await, Err(BlobError::NotFound(_))));
    let (bucket, away) =
        (behind.server.folder.path().join(BUCKET), behind.server.folder.path().join("away"));
    std::fs::rename(&bucket, &away).unwrap();
    // What was seen a moment ago counts for a moment.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    for _ in 0..2 {
        for failed in [blobs.get(&there).await.err(), blobs.exists(&none).await.err()] {
            assert!(matches!(failed, Some(BlobError::Unavailable(_))), "{failed:?}");
        }
        // An empty one is in its place.
        std::fs::create_dir_all(&bucket).unwrap();
    }
    std::fs::remove_dir_all(&bucket).unwrap();
    std::fs::rename(&away, &bucket).unwrap();
    assert_eq!(blobs.get(&there).await.unwrap(), "there");
    assert!(matches!(blobs.get(&none).await, Err(BlobError::NotFound(_))));
    std::fs::write(behind.server.object("", "store-id"), "another store\n").unwrap();
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let failed = blobs.get(&none).await;
    assert!(matches!(failed, Err(BlobError::Unavailable(_))), "{failed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_within_the_store_may_take_longer_than_other_requests() {
    let Some(mut behind) = Behind::new().await else { return };
    behind.settings.timeout = Duration::from_secs(1);
    let blobs = behind.open().await;
    let digest = blobs.put("unnamed".into()).await.unwrap();
    behind.proxy.rule(first(1, "/trash/", Fault::Late(Duration::from_secs(3))));
    assert_eq!(blobs.discard_old(vec![digest], Duration::ZERO).await.unwrap(), 1);
    behind.proxy.as_it_is();
    assert_eq!(blobs.get(&digest).await.unwrap(), "unnamed", "it comes back");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_in_parts_whose_end_was_not_heard_is_there() {
    let Some(behind) = Behind::new().await else { return };
    let blobs = behind.open().await;
    let whole = contents(17 << 20, 4);
    let mut staged = blobs.stage().await.unwrap();
    std::io::Write::write_all(&mut staged, &whole).unwrap();
    // As an upload that was completed, and is completed once more.
    let mut posts = 0;
    behind.proxy.rule(move |line| {
        let completes = line.starts_with("POST") && line.contains("uploadId=");
        posts += usize::from(completes);
        match (completes, posts) {
            (true, 1) => Some(Fault::LoseAnswer),
            (true, _) => Some(Fault::Answer(404, "NoSuchUpload")),
            _ => None,
        }
    });
    let digest = blobs.put_file(staged.into_temp_path(), None).await.unwrap();
    behind.proxy.as_it_is();
    blobs.forget_copy(&digest).await.unwrap();
    assert_eq!(blobs.get(&digest).await.unwrap(), whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_not_repeated() {
    let Some(mut behind) = Behind::new().await else { return };
    behind.settings.retry = Duration::from_secs(60);
    behind.proxy.rule(|_| Some(Fault::Answer(403, "AccessDenied")));
    let began = Instant::now();
    let place = BlobPlace::Bucket(Box::new(behind.settings.clone()));
    let refused = place.open().await.expect_err("it was opened").to_string();
    assert!(refused.contains("refuses access (403 AccessDenied)"), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_read_here_is_not_taken() {
    let Some(world) = World::bucket().await else { return };
    let BlobPlace::Bucket(settings) = &world.place else { panic!() };
    let mut settings = settings.clone();
    settings.cache_most = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    settings.cache = folder.path().join("small");
    let small = opened(&BlobPlace::Bucket(settings)).await;
    let long = contents(2 << 20, 8);
    let mut staged = small.stage().await.unwrap();
    std::io::Write::write_all(&mut staged, &long).unwrap();
    let refused = small.put_file(staged.into_temp_path(), None).await;
    assert!(matches!(refused, Err(BlobError::Full(_))), "{refused:?}");
    // Of another host's it is known that it is there.
    let digest = world.blobs.put(long.into()).await.unwrap();
    assert!(small.exists(&digest).await.unwrap());
    assert!(matches!(small.get(&digest).await, Err(BlobError::Full(_))));
}

/// A host's service for credentials, which has no TLS, beside a store that has to have it.
#[tokio::test(flavor = "multi_thread")]
async fn roles_are_asked_for_without_tls_and_nothing_else() {
    let Some(mut behind) = Behind::new().await else { return };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap();
    let asked = tokio::spawn(async move {
        let mut asked = Vec::new();
        while asked.len() < 3 {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut read = vec![0; 4096];
            let bytes = client.read(&mut read).await.unwrap();
            let line = String::from_utf8_lossy(&read[..bytes]).lines().next().unwrap().to_owned();
            let body = match () {
                () if line.starts_with("PUT") => "token".to_owned(),
                () if line.contains("/security-credentials/role") => {
                    r#"{"AccessKeyId":"A","SecretAccessKey":"B","Token":"C","Expiration":"2099-01-01T00:00:00Z"}"#
                        .to_owned()
                }
                () => "role".to_owned(),
            };
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            client.write_all(answer.as_bytes()).await.unwrap();
            asked.push(line);
        }
        asked
    });
    let settings = &mut behind.settings;
    settings.allow_http = false;
    settings.options.retain(|(name, _)| !name.contains("key"));
    let named = ("aws_metadata_endpoint".to_owned(), Secret(format!("http://{place}")));
    settings.options.push(named);
    // The store itself is asked with TLS alone.
    let refused = behind.open_refused().await;
    assert!(refused.contains("without TLS"), "{refused}");
    let asked = tokio::time::timeout(Duration::from_secs(20), asked).await.unwrap().unwrap();
    assert!(asked[0].starts_with("PUT /latest/api/token"), "{asked:?}");
    assert_eq!(behind.proxy.seen(BUCKET), 0);
}

/// Two stores that are given one prefix on their first day, when neither has a blob.
#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_of_another_store_is_refused_though_it_is_empty() {
    let Some(world) = World::bucket().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let (first, blobs) = pairing::open(&file("one"), &world.place).await.unwrap();
    let other = pairing::open(&file("two"), &world.place).await;
    assert!(matches!(other, Err(OpenError::Foreign { .. })));
    // Adopted, it is no place for the first one's upkeep any more.
    let (second, _) = pairing::adopt(&file("two"), &world.place).await.unwrap();
    let named = blobs.put("named by the second".into()).await.unwrap();
    let mut settings =
        ServiceSettings { temp_dir: folder.path().to_owned(), ..ServiceSettings::default() };
    settings.keep.blobs = Duration::ZERO;
    let service = Service::new(Arc::new(first), blobs.clone(), settings);
    assert!(service.remove_old().await.is_err());
    assert!(blobs.exists(&named).await.unwrap());
    assert_eq!(blobs.in_trash().await.unwrap(), []);
    second.close().await;
}
