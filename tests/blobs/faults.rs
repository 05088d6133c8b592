//! What a bucket's store and the way there do wrong, and what becomes of the blobs.

use crate::proxy::{Fault, Proxy};
use crate::server::{BUCKET, S3Server, SECRET};
use crate::{contents, opened};
use sparsetune::domain::Digest;
use sparsetune::store::{BlobError, BlobPlace, Blobs, BucketSettings, Secret};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub struct Behind {
    pub server: S3Server,
    pub proxy: Proxy,
    pub settings: BucketSettings,
    pub folder: TempDir,
}

impl Behind {
    pub async fn new() -> Option<Self> {
        let server = S3Server::start()?;
        let proxy = Proxy::before(&server.address).await;
        let folder = tempfile::tempdir().unwrap();
        let mut settings = server.settings(&proxy.address, &folder.path().join("cache"));
        settings.retry = Duration::from_secs(3);
        settings.timeout = Duration::from_secs(10);
        Some(Self { server, proxy, settings, folder })
    }

    pub async fn open(&self) -> Arc<dyn Blobs> {
        opened(&BlobPlace::Bucket(Box::new(self.settings.clone()))).await
    }

    pub async fn open_refused(&self) -> String {
        let place = BlobPlace::Bucket(Box::new(self.settings.clone()));
        let refused = place.open().await.expect_err("it was opened").to_string();
        assert!(!refused.contains(SECRET), "{refused}");
        refused
    }
}

/// What happens to the first requests of a kind.
pub fn first(times: usize, part: &'static str, fault: Fault) -> impl FnMut(&str) -> Option<Fault> {
    let mut left = times;
    move |line| {
        let hit = line.contains(part) && left > 0;
        left -= usize::from(hit);
        hit.then(|| fault.clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_overwrites_without_a_word_is_refused() {
    let Some(behind) = Behind::new().await else { return };
    behind.proxy.rule(|line| line.starts_with("PUT").then_some(Fault::Overwrite));
    let refused = behind.open_refused().await;
    assert!(
        refused.contains("overwrites an object") && refused.contains("If-None-Match"),
        "{refused}"
    );
    assert_eq!(behind.server.names("probe"), [""; 0], "what was tried is gone");
    behind.proxy.as_it_is();
    behind.open().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_a_start_from_succeeding_is_said_without_secrets() {
    let Some(mut behind) = Behind::new().await else { return };
    let good = behind.settings.clone();
    behind.settings.options.push(("aws_secret_access_key".into(), Secret("wrong".into())));
    let refused = behind.open_refused().await;
    assert!(refused.contains("the secret access key is not the right one"), "{refused}");
    behind.settings = good.clone();
    behind.proxy.rule(|_| Some(Fault::Answer(404, "NoSuchBucket")));
    let refused = behind.open_refused().await;
    assert!(refused.contains("there is no such bucket"), "{refused}");
    behind.proxy.as_it_is();
    behind.settings = BucketSettings { allow_http: false, ..good.clone() };
    behind.open_refused().await;
    // Nobody listens there.
    behind.settings = good;
    behind.settings.options.push(("aws_endpoint_url".into(), Secret("http://127.0.0.1:9".into())));
    let refused = behind.open_refused().await;
    assert!(refused.contains("cannot be reached"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn conflicts_throttling_and_lost_answers_pass() {
    let Some(behind) = Behind::new().await else { return };
    let blobs = behind.open().await;
    let faults = [
        Fault::Answer(409, "ConditionalRequestConflict"),
        Fault::Answer(503, "SlowDown"),
        Fault::Answer(500, "InternalError"),
        Fault::LoseAnswer,
    ];
    for (i, fault) in faults.into_iter().enumerate() {
        for method in ["PUT", "GET", "HEAD"] {
            // A conflict is of those who write.
            if matches!(fault, Fault::Answer(409, _)) && method != "PUT" {
                continue;
            }
            let whole = contents(100, (10 * i + method.len()) as u64);
            behind.proxy.rule(first(2, method, fault.clone()));
            let digest = blobs.put(whole.clone().into()).await.unwrap();
            let fresh = tempfile::tempdir_in(behind.folder.path()).unwrap();
            let mut settings = behind.settings.clone();
            settings.cache = fresh.path().to_owned();
            let reader = opened(&BlobPlace::Bucket(Box::new(settings))).await;
            assert_eq!(reader.get(&digest).await.unwrap(), whole, "{fault:?} of {method}");
            behind.proxy.as_it_is();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_pass_in_time_is_said_to_pass_later() {
    let Some(behind) = Behind::new().await else { return };
    let blobs = behind.open().await;
    let there = blobs.put("there".into()).await.unwrap();
    for status in [503, 403] {
        behind.proxy.rule(move |_| Some(Fault::Answer(status, "SlowDown")));
        let began = Instant::now();
        let file = blobs.stage().await.unwrap();
        for failed in [
            blobs.put("new".into()).await.err(),
            blobs.put_file(file.into_temp_path(), None).await.err(),
            blobs.get(&there).await.err(),
            blobs.exists(&there).await.err(),
        ] {
            let error = failed.expect("it succeeded");
            assert!(matches!(error, BlobError::Unavailable(_)), "{error}");
            assert!(error.to_string().contains(&format!("({status}")), "{error}");
        }
        assert!(began.elapsed() < Duration::from_secs(40));
    }
    behind.proxy.as_it_is();
    assert_eq!(blobs.get(&there).await.unwrap(), "there");
    let new = blobs.put("new".into()).await.unwrap();
    assert_eq!(blobs.get(&new).await.unwrap(), "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_and_cut_bodies_are_asked_for_again() {
    let Some(behind) = Behind::new().await else { return };
    let whole = contents(1 << 20, 3);
    let digest = behind.open().await.put(whole.clone().into()).await.unwrap();
    let of_blob: &'static str = Box::leak(format!("GET /{BUCKET}/some/prefix/blobs/").into());
    for fault in [Fault::Trickle, Fault::Cut, Fault::Spoil] {
        let mut settings = behind.settings.clone();
        let fresh = tempfile::tempdir_in(behind.folder.path()).unwrap();
        settings.cache = fresh.path().to_owned();
        settings.timeout = Duration::from_secs(3);
        settings.retry = Duration::from_secs(20);
        let blobs = opened(&BlobPlace::Bucket(Box::new(settings))).await;
        behind.proxy.rule(first(1, of_blob, fault.clone()));
        assert_eq!(blobs.get(&digest).await.unwrap(), whole, "{fault:?}");
        assert_eq!(blobs.set_aside().await.unwrap(), 0);
    }
    // One that goes on, and does not end.
    let mut settings = behind.settings.clone();
    settings.cache = behind.folder.path().join("another");
    settings.timeout = Duration::from_secs(1);
    let blobs = opened(&BlobPlace::Bucket(Box::new(settings))).await;
    behind.proxy.rule(move |line| line.starts_with(of_blob).then_some(Fault::Trickle));
    assert!(matches!(blobs.get(&digest).await, Err(BlobError::Unavailable(_))));
}

/// A store that fails in the middle of an upload in parts keeps nothing under the name.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_in_parts_is_there_whole_or_not_at_all() {
    let Some(behind) = Behind::new().await else { return };
    let blobs = behind.open().await;
    let whole = contents((17 << 20) + 1, 4);
    let staged = async |contents: &[u8]| {
        let mut staged = blobs.stage().await.unwrap();
        std::io::Write::write_all(&mut staged, contents).unwrap();
        staged.into_temp_path()
    };
    let digest = Digest::of(&whole);
    behind
        .proxy
        .rule(|line| line.contains("partNumber=2").then_some(Fault::Answer(503, "SlowDown")));
    let failed = blobs.put_file(staged(&whole).await, None).await;
    assert!(matches!(failed, Err(BlobError::Unavailable(_))), "{failed:?}");
    assert!(!blobs.exists(&digest).await.unwrap());
    behind.proxy.rule(first(2, "partNumber=2", Fault::Answer(503, "SlowDown")));
    blobs.put_file(staged(&whole).await, None).await.unwrap();
    assert_eq!(blobs.get(&digest).await.unwrap(), whole);
    behind.proxy.as_it_is();
    assert!(blobs.send_ahead(&staged(b"ahead").await, &Digest::of(b"ahead")).await.unwrap());
    assert!(!blobs.send_ahead(&staged(b"ahead").await, &Digest::of(b"ahead")).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_gives_the_blob_to_who_has_nothing_else() {
    let Some(behind) = Behind::new().await else { return };
    let blobs = behind.open().await;
    let digest = blobs.put("a bundle".into()).await.unwrap();
    let link = blobs.link(&digest, "application/zip", Some("plan.stplan")).await.unwrap().unwrap();
    assert!(!link.contains(SECRET), "{link}");
    let answer = reqwest::get(&link).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/zip");
    assert_eq!(answer.headers()["content-disposition"], "attachment; filename=\"plan.stplan\"");
    assert_eq!(answer.text().await.unwrap(), "a bundle");
    let other = link.replace(&digest.to_string(), &Digest::of(b"other").to_string());
    assert!(reqwest::get(other).await.unwrap().status().is_client_error());
    let none = blobs.link(&Digest::of(b"none"), "application/zip", None).await;
    assert!(matches!(none, Err(BlobError::NotFound(_))));
    let mut settings = behind.settings.clone();
    settings.presign = false;
    let without = opened(&BlobPlace::Bucket(Box::new(settings))).await;
    assert_eq!(without.link(&digest, "application/zip", None).await.unwrap(), None);
}
