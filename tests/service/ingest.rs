//! Uploads: identity, bounds, failures, races.

use crate::world::*;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use sparsetune::domain::{Caller, TokenLimits};
use sparsetune::service::{PageRequest, ServiceError};
use sparsetune::sparse::canonical;
use sparsetune::store::{Blobs as _, LocalBlobs};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[tokio::test]
async fn the_same_matrix_is_the_same_whatever_its_text() {
    let world = World::new().await;
    let first = "%%MatrixMarket matrix coordinate real general\n2 3 2\n1 1 0.5\n2 3 2\n";
    let other = "%%MatrixMarket matrix coordinate real general\r\n% said so\r\n2 3 2\r\n2 3 2.0\r\n1 1 5e-1\r\n";
    let uploaded = world.service.upload(body(first), Some("mine".to_owned())).await.unwrap();
    assert!(uploaded.created);
    let matrix = &uploaded.matrix;
    assert_eq!((matrix.rows, matrix.cols, matrix.nnz), (2, 3, 2));
    assert_eq!(matrix.name.as_deref(), Some("mine"));
    let again = world.service.upload(body(other), Some("yours".to_owned())).await.unwrap();
    assert_eq!((again.created, &again.matrix), (false, matrix));
    let (csr, header) =
        canonical::open(&world.service.matrix_file(&matrix.digest).await.unwrap()).unwrap();
    assert_eq!((header.digest, header.pattern_digest), (matrix.digest, matrix.pattern_digest));
    assert_eq!(csr.values(), [0.5, 2.0]);
    let page = PageRequest { after: None, limit: 10 };
    assert_eq!(world.service.matrices(&page).await.unwrap().items, std::slice::from_ref(matrix));
    assert_eq!(world.litter(), 0);
}

#[tokio::test]
async fn an_endless_upload_is_cut_off_while_it_arrives() {
    let world = World::with(|settings| settings.max_upload_bytes = 10_000).await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let endless = stream::repeat_with(move || {
        count.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(Bytes::from_static(&[b' '; 1000]))
    });
    let refused = world.service.upload(endless, None).await;
    assert!(matches!(refused, Err(ServiceError::TooLarge { .. })));
    assert_eq!(asked.load(Ordering::Relaxed), 11);
    assert_eq!(world.litter(), 0);
}

#[tokio::test]
async fn what_is_no_matrix_is_refused_with_its_place() {
    let world = World::new().await;
    let refuse = async |text: &str| world.service.upload(body(text), None).await.unwrap_err();
    match refuse("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 7 1.0\n").await {
        ServiceError::Unreadable { line, .. } => assert_eq!(line, Some(3)),
        other => panic!("{other:?}"),
    }
    let complex = "%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 1\n";
    assert!(matches!(refuse(complex).await, ServiceError::Unsupported { .. }));
    for text in ["", "hello", "%%MatrixMarket matrix coordinate real general\n2 2 9\n1 1 1\n"] {
        assert!(matches!(refuse(text).await, ServiceError::Unreadable { .. }), "{text}");
    }
    let broken = stream::iter([Ok(Bytes::from_static(b"%%Matrix")), Err("the line went dead")]);
    match world.service.upload(broken, None).await {
        Err(ServiceError::Unreadable { message, .. }) => assert!(message.contains("went dead")),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.litter(), 0);
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_nothing() {
    let world = World::new().await;
    let stalled = stream::iter([Ok::<_, Infallible>(Bytes::from(vec![b' '; 3 << 20]))])
        .chain(stream::pending());
    let upload = world.service.upload(stalled, None);
    tokio::time::timeout(Duration::from_millis(100), upload).await.unwrap_err();
    assert_eq!(world.litter(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_equal_uploads_at_once_one_creates() {
    let world = World::new().await;
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let service = world.service.clone();
            tokio::spawn(async move { service.upload(body(&tridiagonal(50)), None).await.unwrap() })
        })
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap());
    }
    assert_eq!(answers.iter().filter(|answer| answer.created).count(), 1);
    assert!(answers.iter().all(|answer| answer.matrix == answers[0].matrix));
    assert_eq!(world.litter(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_row_always_has_its_file() {
    let world = World::with(|settings| settings.parses_at_once = 4).await;
    let digest = world.upload(&tridiagonal(5)).await.matrix.digest;
    for round in 0..60 {
        let uploads: Vec<_> = (0..4)
            .map(|_| {
                let service = world.service.clone();
                tokio::spawn(async move { service.upload(body(&tridiagonal(5)), None).await })
            })
            .collect();
        let service = world.service.clone();
        let deletions = tokio::spawn(async move {
            for _ in 0..6 {
                match service.delete_matrix(&digest).await {
                    Ok(()) | Err(ServiceError::NotFound { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        for upload in uploads {
            upload.await.unwrap().unwrap();
        }
        deletions.await.unwrap();
        let row = world.service.matrix(&digest).await.is_ok();
        assert_eq!(row, world.service.blobs().exists(&digest).await.unwrap(), "round {round}");
    }
}

#[tokio::test]
async fn a_lost_file_comes_back_with_the_next_upload() {
    let world = World::new().await;
    let matrix = world.upload(&tridiagonal(5)).await.matrix;
    world.service.blobs().delete(&matrix.digest).await.unwrap();
    let again = world.upload(&tridiagonal(5)).await;
    assert_eq!((again.created, &again.matrix), (true, &matrix));
    canonical::open(&world.service.matrix_file(&matrix.digest).await.unwrap()).unwrap();
}

#[tokio::test]
async fn pictures_are_drawn_and_go_with_their_matrix() {
    let world = World::new().await;
    let digest = world.upload(&tridiagonal(30)).await.matrix.digest;
    let png = world.service.spy_png(&digest, 64).await.unwrap();
    assert!(png.starts_with(b"\x89PNG"));
    // From memory: the file is not needed again.
    let path = world.service.matrix_file(&digest).await.unwrap();
    let aside = path.with_extension("aside");
    std::fs::rename(&path, &aside).unwrap();
    assert_eq!(world.service.spy_png(&digest, 64).await.unwrap(), png);
    assert!(matches!(world.service.spy_png(&digest, 32).await, Err(ServiceError::Conflict { .. })));
    std::fs::rename(&aside, &path).unwrap();
    world.service.delete_matrix(&digest).await.unwrap();
    let gone = world.service.spy_png(&digest, 64).await;
    assert!(matches!(gone, Err(ServiceError::NotFound { .. })));
    let gone = world.service.delete_matrix(&digest).await;
    assert!(matches!(gone, Err(ServiceError::NotFound { .. })));
}

/// A quota bounds the disk, and not only the list: what is named by nothing would stay for days.
#[tokio::test]
async fn what_a_quota_refuses_takes_no_disk() {
    let world = World::new().await;
    let files = LocalBlobs::open(&world.folder.path().join("blobs")).unwrap();
    let limited = |stored_bytes: u64, namespace: &str| {
        let limits = TokenLimits { stored_bytes: Some(stored_bytes), ..TokenLimits::default() };
        let (token, namespace) = ("small".parse().unwrap(), namespace.parse().unwrap());
        let owner = Caller::owner(Some(token), namespace);
        world.service.on_behalf_of(&Caller { limits, ..owner })
    };
    let text = tridiagonal(100);
    let refused = |answer| matches!(answer, Err(ServiceError::Quota(_)));
    for _ in 0..3 {
        assert!(refused(limited(10, "default").upload(body(&text), None).await));
        assert_eq!((files.all().await.unwrap(), world.litter()), (vec![], 0));
    }
    let stored = world.upload(&text).await.matrix;
    // Another namespace's file is not its own to remove.
    assert!(refused(limited(10, "team").upload(body(&text), None).await));
    assert_eq!(files.all().await.unwrap(), [stored.digest]);
    // What is lost comes back, also where nothing more may be stored.
    let full = limited(stored.charged_bytes(), "team");
    assert!(full.upload(body(&text), None).await.unwrap().created);
    assert!(refused(full.upload(body(&tridiagonal(5)), None).await));
    assert!(world.service.blobs().delete(&stored.digest).await.unwrap());
    assert!(full.upload(body(&text), None).await.unwrap().created);
    assert_eq!(files.all().await.unwrap(), [stored.digest]);
}
