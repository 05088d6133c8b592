//! The event stream: live, resumed, from another process, and its end.

use crate::world::*;
use futures_util::StreamExt;
use sparsetune::domain::*;
use std::time::{Duration, Instant};

async fn running() -> (World, crate::claimed::Claimed) {
    // So slow a poll that only wake-ups can make these tests pass in time.
    let world = World::with(|settings| settings.poll = Duration::from_secs(60)).await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    world.service.submit(&request(&matrix, 32), None).await.unwrap();
    let claim = world.claim().await;
    (world, claim)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_told_as_they_happen_and_the_stream_ends_with_the_job() {
    let (world, claim) = running().await;
    let listener = {
        let stream = world.service.events(&claim.job.id, 0).await.unwrap();
        tokio::spawn(stream.map(Result::unwrap).collect::<Vec<Event>>())
    };
    let store = world.service.store();
    for ordinal in 0..5 {
        store.record_trials(&claim.fence, &[trial(&claim.job.id, ordinal)]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    store.finish(&claim.fence, &ended(&claim.job, None)).await.unwrap();
    let heard = tokio::time::timeout(Duration::from_secs(10), listener).await.unwrap().unwrap();
    let numbers: Vec<u64> = heard.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=8).collect::<Vec<_>>());
    let last = world.service.job(&claim.job.id).await.unwrap();
    assert_eq!(heard[7].kind, Work::from(last).into_event());
}

#[tokio::test]
async fn a_client_goes_on_after_the_last_event_it_has() {
    let (world, claim) = running().await;
    let store = world.service.store();
    store.finish(&claim.fence, &ended(&claim.job, None)).await.unwrap();
    let after = async |seq: u64| {
        let stream = world.service.events(&claim.job.id, seq).await.unwrap();
        stream.map(|event| event.unwrap().seq).collect::<Vec<_>>().await
    };
    assert_eq!(after(0).await, [1, 2, 3]);
    assert_eq!(after(2).await, [3]);
    assert!(after(3).await.is_empty());
    assert!(after(u64::MAX).await.is_empty());
}

#[tokio::test]
async fn a_cancelled_job_ends_its_stream() {
    let world = World::with(|settings| settings.poll = Duration::from_secs(60)).await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    let job = world.service.submit(&request(&matrix, 32), None).await.unwrap().job;
    let mut stream = world.service.events(&job.id, 0).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().seq, 1);
    world.service.cancel(&job.id).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().seq, 2);
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn what_another_process_does_is_heard_a_little_later() {
    let world = World::new().await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    let job = world.service.submit(&request(&matrix, 32), None).await.unwrap().job;
    let mut stream = world.service.events(&job.id, 1).await.unwrap();
    let worker = world.elsewhere("there").await;
    let claiming = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        crate::claimed::claim_job(&**worker.store(), &device(), "w", 60_000).await.unwrap()
    };
    let started = Instant::now();
    let (event, _claim) = tokio::join!(stream.next(), claiming);
    assert_eq!(event.unwrap().unwrap().seq, 2);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_worker_hears_of_new_jobs_and_of_cancellation() {
    let (world, claim) = running().await;
    let mut queue = world.service.signals().queue();
    queue.mark_unchanged();
    let matrix = world.upload(&tridiagonal(21)).await.matrix;
    world.service.submit(&request(&matrix, 8), None).await.unwrap();
    assert!(queue.has_changed().unwrap());
    let mut signal = world.service.signals().job(&claim.job.id);
    signal.arm();
    world.service.cancel(&claim.job.id).await.unwrap();
    let started = Instant::now();
    signal.wait(Duration::from_secs(60)).await;
    assert!(started.elapsed() < Duration::from_secs(5));
    let renewal = world.service.store().renew(&claim.fence, 60_000).await.unwrap();
    assert!(renewal.cancel_requested);
}
