//! Submission and cancellation.

use crate::Harness;
use crate::words::*;
use sparsetune::domain::{Caller, Digest, JobState, Namespace, StoppedBy, Work};
use sparsetune::store::{NewWork, StoreError, Submission};

pub async fn an_equal_live_job_is_the_answer(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, job) = queued(&*store).await;
    let again = store.submit(&new_job(&matrix, "same", 2)).await.unwrap();
    assert_eq!(again, Submission::Existing(job.clone().into()));
    let claim = claim(&*store, "w", LEASE).await.unwrap();
    let again = store.submit(&new_job(&matrix, "same", 3)).await.unwrap();
    assert_eq!(again, Submission::Existing(claim.job.clone().into()));
    store.finish(&claim.fence, &ended(&claim.job, JobState::Failed, None)).await.unwrap();
    assert_ne!(created(store.submit(&new_job(&matrix, "same", 4)).await.unwrap()).id, job.id);
}

pub async fn a_job_asked_to_stop_no_longer_answers(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, job) = queued(&*store).await;
    claim(&*store, "w", LEASE).await.unwrap();
    store.request_cancel(&job.id).await.unwrap();
    let next = created(store.submit(&new_job(&matrix, "same", 2)).await.unwrap());
    assert_eq!(next.state, JobState::Queued);
}

pub async fn idempotency_keys_hold_their_request(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, _) = queued(&*store).await;
    let keyed = |dedup: &str, request: &[u8]| NewWork {
        idempotency: Some(("key".to_owned(), Digest::of(request))),
        ..new_job(&matrix, dedup, 2)
    };
    let first = created(store.submit(&keyed("a", b"request")).await.unwrap());
    let again = store.submit(&keyed("a", b"request")).await.unwrap();
    assert_eq!(again, Submission::Existing(first.clone().into()));
    let other = store.submit(&keyed("b", b"another")).await.unwrap();
    assert_eq!(other, Submission::KeyReused);
    let asked = async |request: &[u8]| store.keyed("key", &Digest::of(request)).await.unwrap();
    assert_eq!(asked(b"request").await, Some(Submission::Existing(first.clone().into())));
    assert_eq!(asked(b"another").await, Some(Submission::KeyReused));
    assert_eq!(store.keyed("new", &Digest::of(b"request")).await.unwrap(), None);
    // The key answers with its job also after that job's end, when an unkeyed request would make a new one.
    let cancelled = store.request_cancel(&first.id).await.unwrap().unwrap();
    let late = store.submit(&keyed("a", b"request")).await.unwrap();
    assert_eq!(late, Submission::Existing(cancelled));
}

/// What one token's client has chosen is no other's, and does not fill the store.
pub async fn idempotency_keys_are_their_tokens_own(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, _) = queued(&*store).await;
    let keyed = |key: &str, request: &[u8]| NewWork {
        idempotency: Some((key.to_owned(), Digest::of(request))),
        ..new_job(&matrix, &String::from_utf8_lossy(request), 2)
    };
    let of = |token: &str| {
        let token = Some(token.parse().unwrap());
        store.on_behalf_of(&Caller::owner(token, Namespace::default()))
    };
    let (one, other) = (of("one"), of("other"));
    let first = created(one.submit(&keyed("key", b"a")).await.unwrap());
    assert_eq!(other.keyed("key", &Digest::of(b"a")).await.unwrap(), None);
    let second = created(other.submit(&keyed("key", b"b")).await.unwrap());
    assert_ne!(first.id, second.id);
    let known = one.keyed("key", &Digest::of(b"a")).await.unwrap();
    assert_eq!(known, Some(Submission::Existing(first.clone().into())));
    // An equal job is shared as before.
    let twin = other.submit(&keyed("more", b"a")).await.unwrap();
    assert_eq!(twin, Submission::Existing(first.clone().into()));
    for number in 0..120 {
        one.submit(&keyed(&format!("key-{number}"), b"a")).await.unwrap();
    }
    // The newest hundred of a job are known.
    let oldest = one.keyed("key-20", &Digest::of(b"a")).await.unwrap();
    assert_eq!(oldest, Some(Submission::Existing(first.into())));
    assert_eq!(one.keyed("key-19", &Digest::of(b"a")).await.unwrap(), None);
}

pub async fn a_job_needs_its_matrix_and_keeps_it(harness: &Harness) {
    let store = harness.open().await;
    let (stored, job) = queued(&*store).await;
    let stranger = new_job(&matrix("never uploaded", 1), "x", 1);
    assert!(matches!(store.submit(&stranger).await, Err(StoreError::Missing(_))));
    assert_eq!(store.work(stranger.work.id()).await.unwrap(), None);
    assert!(matches!(store.delete_matrix(&stored.digest).await, Err(StoreError::InUse(_))));
    store.request_cancel(&job.id).await.unwrap();
    assert!(store.delete_matrix(&stored.digest).await.unwrap());
    assert!(!store.delete_matrix(&stored.digest).await.unwrap());
    assert_eq!(store.job(&job.id).await.unwrap().unwrap().request.matrix, stored.digest);
}

pub async fn a_queued_job_is_cancelled_at_once(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let cancelled = store.request_cancel(&job.id).await.unwrap().unwrap().into_job().unwrap();
    assert_eq!(cancelled.state, JobState::Cancelled);
    assert_eq!(cancelled.stopped_by, Some(StoppedBy::Cancelled));
    assert!(cancelled.finished_at.is_some());
    assert_eq!(claim(&*store, "w", LEASE).await, None);
    let events = store.events(&job.id, 0, 10).await.unwrap();
    assert_eq!(events.last().unwrap().kind, Work::from(cancelled.clone()).into_event());
    // Once more changes nothing, and an unknown job is none.
    assert_eq!(store.request_cancel(&job.id).await.unwrap(), Some(cancelled.into()));
    assert_eq!(store.events(&job.id, 0, 10).await.unwrap().len(), events.len());
    let unknown = sparsetune::domain::JobId("nobody".to_owned());
    assert_eq!(store.request_cancel(&unknown).await.unwrap(), None);
}

pub async fn a_running_job_is_asked_to_stop(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let claim = claim(&*store, "w", LEASE).await.unwrap();
    assert!(!store.renew(&claim.fence, LEASE).await.unwrap().cancel_requested);
    let asked = store.request_cancel(&job.id).await.unwrap().unwrap();
    assert_eq!(asked.state(), JobState::Running);
    assert!(store.renew(&claim.fence, LEASE).await.unwrap().cancel_requested);
    store.finish(&claim.fence, &ended(&claim.job, JobState::Cancelled, None)).await.unwrap();
    assert_eq!(store.job(&job.id).await.unwrap().unwrap().state, JobState::Cancelled);
}

pub async fn concurrent_equal_submissions_make_one_job(harness: &Harness) {
    let stores = [harness.open().await, harness.open().await];
    let matrix = matrix("m", 1);
    stores[0].insert_matrix(&matrix).await.unwrap();
    let tasks: Vec<_> = (0..24)
        .map(|i| {
            let (store, new) = (stores[i % 2].clone(), new_job(&matrix, "same", i as i64));
            tokio::spawn(async move { store.submit(&new).await.unwrap() })
        })
        .collect();
    let mut made = 0;
    let mut ids = std::collections::HashSet::new();
    for task in tasks {
        match task.await.unwrap() {
            Submission::Created(work) => {
                made += 1;
                ids.insert(work.id().clone());
            }
            Submission::Existing(work) => {
                ids.insert(work.id().clone());
            }
            Submission::KeyReused => panic!("no key was given"),
        }
    }
    assert_eq!((made, ids.len()), (1, 1));
}
