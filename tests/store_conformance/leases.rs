//! Claims, fences, release and end.

use crate::Harness;
use crate::words::*;
use sparsetune::domain::{EventKind, JobState, Stage, Timestamp, Work, WorkKind};
use sparsetune::store::{Fence, Queue, SqliteOptions, SqliteStore, Store, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

pub async fn of_many_claims_one_wins(harness: &Harness) {
    // Two stores on one file stand for two processes.
    let stores = [harness.open().await, harness.open().await];
    let (_, job) = queued(&*stores[0]).await;
    let tasks: Vec<_> = (0..32)
        .map(|i| {
            let store = stores[i % 2].clone();
            tokio::spawn(async move { claim(&*store, &format!("w{i}"), LEASE).await })
        })
        .collect();
    let mut claims = Vec::new();
    for task in tasks {
        claims.extend(task.await.unwrap());
    }
    assert_eq!(claims.len(), 1);
    let stored = stores[1].job(&job.id).await.unwrap().unwrap();
    assert_eq!((stored.state, stored.attempts), (JobState::Running, 1));
    assert_eq!(stored, claims[0].job);
}

pub async fn jobs_are_claimed_oldest_first_and_by_device(harness: &Harness) {
    let store = harness.open().await;
    let matrix = matrix("m", 1);
    store.insert_matrix(&matrix).await.unwrap();
    for at in [30, 10, 20] {
        store.submit(&new_job(&matrix, &at.to_string(), at)).await.unwrap();
    }
    let mut other = new_job(&matrix, "gpu", 1);
    if let Work::Tune(job) = &mut other.work {
        job.device_class = Some(other_device().class());
    }
    store.submit(&other).await.unwrap();
    let mut order = Vec::new();
    while let Some(claim) = claim(&*store, "w", LEASE).await {
        order.push(claim.job.created_at.0);
    }
    assert_eq!(order, [10, 20, 30]);
}

async fn assert_fenced(store: &dyn Store, fence: &Fence, job: &sparsetune::domain::Job) {
    let log = EventKind::Log { message: "late".to_owned() };
    let trials = [trial(&job.id, 99, 1.0)];
    let plan = plan(&matrix("m", 1), &job.id, 1);
    let finish = ended(job, JobState::Succeeded, Some(plan.clone()));
    for refused in [
        store.renew(fence, LEASE).await.map(|_| ()),
        store.held(fence).await.map(drop),
        store.update(fence, &job.clone().into()).await,
        store.log(fence, &log).await,
        store.record_trials(fence, &trials).await,
        store.record_trials(fence, &[]).await,
        store.release(fence).await,
        store.finish(fence, &finish).await.map(drop),
    ] {
        assert!(matches!(refused, Err(StoreError::Fenced(ref id)) if *id == job.id));
    }
    assert_eq!(store.plan(&plan.id).await.unwrap(), None);
}

pub async fn a_lost_lease_fences_every_write(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let slow = claim(&*store, "w", 0).await.unwrap();
    // Run out, but nobody else came: the worker may still renew and lose it again.
    store.renew(&slow.fence, 0).await.unwrap();
    // The same owner comes back after a crash: its name alone is no proof.
    let next = claim(&*store, "w", LEASE).await.unwrap();
    assert_eq!((next.job.id.clone(), next.job.attempts), (job.id.clone(), 2));
    let before = store.events(&job.id, 0, 100).await.unwrap();
    assert_fenced(&*store, &slow.fence, &slow.job).await;
    assert_eq!(store.events(&job.id, 0, 100).await.unwrap(), before);
    assert_eq!(store.job(&job.id).await.unwrap().unwrap(), next.job);
    store.renew(&next.fence, LEASE).await.unwrap();
    let stranger = Fence { owner: "x".to_owned(), ..next.fence };
    assert_fenced(&*store, &stranger, &next.job).await;
}

pub async fn a_lapsed_job_asked_to_stop_is_not_claimed(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    claim(&*store, "w", 0).await.unwrap();
    let ended = store.request_cancel(&job.id).await.unwrap().unwrap();
    assert_eq!(ended.state(), JobState::Cancelled, "no worker is left to hear it");

    let second = created(store.submit(&new_job(&matrix("m", 1), "same", 2)).await.unwrap());
    let short = claim(&*store, "w", LEASE).await.unwrap();
    store.request_cancel(&second.id).await.unwrap();
    store.renew(&short.fence, 0).await.unwrap();
    assert_eq!(claim(&*store, "v", LEASE).await, None);
    assert_eq!(store.job(&second.id).await.unwrap().unwrap().state, JobState::Cancelled);
}

pub async fn a_released_job_is_queued_again(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let first = claim(&*store, "w", LEASE).await.unwrap();
    let mut measuring = first.job.clone();
    measuring.stage = Stage::Measuring;
    measuring.search_seconds = 1.25;
    store.update(&first.fence, &measuring.into()).await.unwrap();
    store.release(&first.fence).await.unwrap();
    let free = store.job(&job.id).await.unwrap().unwrap();
    assert_eq!((free.state, free.stage), (JobState::Queued, Stage::Waiting));
    assert_eq!(free.search_seconds, 1.25, "the next worker goes on counting from here");
    assert_eq!(free.attempts, 0, "a worker that shuts down is not the job's fault");
    assert_fenced(&*store, &first.fence, &first.job).await;
    let second = claim(&*store, "v", LEASE).await.unwrap();
    assert!(second.fence.epoch > first.fence.epoch);
    store.request_cancel(&job.id).await.unwrap();
    store.release(&second.fence).await.unwrap();
    assert_eq!(store.job(&job.id).await.unwrap().unwrap().state, JobState::Cancelled);
}

pub async fn a_job_ends_once(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let claim = claim(&*store, "w", LEASE).await.unwrap();
    let unfinished = ended(&claim.job, JobState::Running, None);
    assert!(matches!(store.finish(&claim.fence, &unfinished).await, Err(StoreError::Misuse(_))));
    store.finish(&claim.fence, &ended(&claim.job, JobState::Failed, None)).await.unwrap();
    assert_fenced(&*store, &claim.fence, &claim.job).await;
    assert_eq!(store.job(&job.id).await.unwrap().unwrap().state, JobState::Failed);
    assert_eq!(
        store.job_counts(sparsetune::store::Whose::Own).await.unwrap(),
        [(WorkKind::Tune, JobState::Failed, 1)]
    );
}

/// A job for both triangles that is cancelled after it has queued its second part, and before its end is stored.
pub async fn a_cancel_while_a_job_ends_reaches_its_second_part(harness: &Harness) {
    let store = harness.open().await;
    for (cancelled, runs) in [(false, false), (true, false), (true, true)] {
        let name = format!("{cancelled} {runs}");
        let matrix = matrix("m", 1);
        store.insert_matrix(&matrix).await.unwrap();
        let first = created(store.submit(&new_job(&matrix, &name, 1)).await.unwrap());
        let claimed = claim(&*store, "w", LEASE).await.unwrap();
        let second = new_job(&matrix, &format!("second of {name}"), 2);
        let second = created(store.submit(&second).await.unwrap());
        let other = match runs {
            true => claim(&*store, "v", LEASE).await,
            false => None,
        };
        if cancelled {
            store.request_cancel(&first.id).await.unwrap();
        }
        let mut finish = ended(&claimed.job, JobState::Failed, None);
        finish.queued = Some(second.id.clone());
        store.finish(&claimed.fence, &finish).await.unwrap();
        let state = store.job(&second.id).await.unwrap().unwrap().state;
        match (cancelled, other) {
            (false, _) => {
                assert_eq!(state, JobState::Queued);
                store.request_cancel(&second.id).await.unwrap();
            }
            (true, None) => assert_eq!(state, JobState::Cancelled),
            (true, Some(other)) => {
                assert!(store.held(&other.fence).await.unwrap().cancel_requested);
                store
                    .finish(&other.fence, &ended(&other.job, JobState::Cancelled, None))
                    .await
                    .unwrap();
            }
        }
    }
}

pub async fn a_job_that_loses_its_workers_is_given_up(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, job) = queued(&*store).await;
    claim(&*store, "u", 0).await.unwrap();
    let alive = claim(&*store, "v", LEASE).await.unwrap();
    assert_eq!(store.claim(&of_cpu(), "w", LEASE, 2).await.unwrap(), None, "its worker lives");
    store.renew(&alive.fence, 0).await.unwrap();
    let other = Queue::of(&other_device(), HOST);
    assert_eq!(store.claim(&other, "w", LEASE, 2).await.unwrap(), None, "another queue");
    assert_eq!(store.job(&job.id).await.unwrap().unwrap().state, JobState::Running);
    let again = store.claim(&of_cpu(), "w", 0, 3).await.unwrap().unwrap();
    assert_eq!((again.work.id(), again.work.attempts()), (&job.id, 3), "not yet");
    let waiting = created(store.submit(&new_job(&matrix, "next", 2)).await.unwrap());
    let taken = store.claim(&of_cpu(), "w", LEASE, 3).await.unwrap().unwrap();
    let stored = store.job(&job.id).await.unwrap().unwrap();
    assert_eq!((stored.state, stored.stage, stored.attempts), (JobState::Failed, Stage::Done, 3));
    assert!(stored.error.as_ref().unwrap().contains("claimed 3 times"), "{:?}", stored.error);
    let events = store.events(&job.id, 0, 100).await.unwrap();
    assert_eq!(events.last().unwrap().kind, Work::from(stored).into_event());
    assert_fenced(&*store, &alive.fence, &alive.job).await;
    assert_eq!(taken.work.id(), &waiting.id);
}

pub async fn an_unreadable_job_does_not_hold_up_the_queue(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, spoilt) = queued(&*store).await;
    let shown = created(store.submit(&new_job(&matrix, "second", 2)).await.unwrap());
    let sound = created(store.submit(&new_job(&matrix, "third", 3)).await.unwrap());
    harness.spoil("UPDATE jobs SET request = '{}' WHERE created_at = 1").await;
    harness.spoil("UPDATE jobs SET stage = 'dreaming' WHERE created_at = 2").await;
    assert_eq!(claim(&*store, "w", LEASE).await.unwrap().job.id, sound.id);
    assert_eq!(claim(&*store, "w", LEASE).await, None);
    let shown = store.job(&shown.id).await.unwrap().unwrap();
    assert_eq!((shown.state, shown.stage), (JobState::Failed, Stage::Done));
    assert!(shown.error.as_ref().unwrap().contains("dreaming"), "{:?}", shown.error);
    let events = store.events(&shown.id, 0, 100).await.unwrap();
    let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!((numbers, &events[1].kind), (vec![1, 2], &Work::from(shown).into_event()));
    let events = store.events(&spoilt.id, 0, 100).await.unwrap();
    assert!(matches!(&events[1].kind, EventKind::Log { message } if message.contains("request")));
    let counts = [(JobState::Failed, 2), (JobState::Running, 1)];
    let counts = counts.map(|(state, n)| (WorkKind::Tune, state, n));
    assert_eq!(store.job_counts(sparsetune::store::Whose::Own).await.unwrap(), counts);

    // Nor does one that was asked to stop.
    store.request_cancel(&sound.id).await.unwrap();
    harness.spoil("UPDATE jobs SET request = '{}', lease_until = 0 WHERE state = 'running'").await;
    let last = created(store.submit(&new_job(&matrix, "fourth", 4)).await.unwrap());
    assert_eq!(claim(&*store, "w", LEASE).await.unwrap().job.id, last.id);
}

static CLOCK: AtomicI64 = AtomicI64::new(0);

fn set_clock() -> Timestamp {
    Timestamp::now().plus_millis(CLOCK.load(Ordering::Relaxed))
}

/// A host whose clock was ahead, and was set right while the server was down.
pub async fn a_clock_set_back_strands_no_job(harness: &Harness) {
    let options = SqliteOptions { now: set_clock, ..SqliteOptions::default() };
    let open = async || {
        let store = SqliteStore::open_with(&harness.file(), options).await.unwrap();
        Arc::new(store) as Arc<dyn Store>
    };
    let year = 365 * 86_400_000;
    CLOCK.store(year, Ordering::Relaxed);
    let store = open().await;
    let (_, job) = queued(&*store).await;
    let dead = claim(&*store, "dead", LEASE).await.unwrap();
    assert!(claim(&*store, "other", LEASE).await.is_none(), "its lease holds");
    drop(store);

    CLOCK.store(0, Ordering::Relaxed);
    let store = open().await;
    let next = claim(&*store, "next", LEASE).await.unwrap();
    assert_eq!((&next.job.id, next.job.attempts), (&job.id, 2));
    assert_fenced(&*store, &dead.fence, &dead.job).await;
    // A step of a few milliseconds, as clocks are adjusted, costs nobody the lease.
    CLOCK.store(-500, Ordering::Relaxed);
    assert!(claim(&*store, "thief", LEASE).await.is_none());
    // Whoever lives renews by the new clock.
    CLOCK.store(-year, Ordering::Relaxed);
    store.renew(&next.fence, LEASE).await.unwrap();
    assert!(claim(&*store, "thief", LEASE).await.is_none());
    // Work that was asked to stop ends, too, and work that lost too many workers fails.
    store.request_cancel(&next.job.id).await.unwrap();
    CLOCK.store(-2 * year, Ordering::Relaxed);
    assert!(claim(&*store, "late", LEASE).await.is_none());
    assert_eq!(store.job(&job.id).await.unwrap().unwrap().state, JobState::Cancelled);
}

static LATER: AtomicI64 = AtomicI64::new(0);

fn late_clock() -> Timestamp {
    Timestamp(LATER.load(Ordering::Relaxed))
}

/// Who waits for the write lock judges and gives leases by the time at which it has it.
pub async fn a_lease_that_was_given_while_another_waited_is_not_taken(harness: &Harness) {
    use sqlx::{Connection, SqliteConnection};
    let options = SqliteOptions { now: late_clock, ..SqliteOptions::default() };
    LATER.store(1_000_000, Ordering::Relaxed);
    let store: Arc<dyn Store> =
        Arc::new(SqliteStore::open_with(&harness.file(), options).await.unwrap());
    let (_, job) = queued(&*store).await;
    let raw = sqlx::sqlite::SqliteConnectOptions::new().filename(harness.file());
    let mut other = SqliteConnection::connect_with(&raw).await.unwrap();
    let hold = async |connection: &mut SqliteConnection| {
        sqlx::query("BEGIN IMMEDIATE").execute(connection).await.unwrap();
    };
    hold(&mut other).await;
    // It sees a job that is queued, and then waits for the lock.
    let waiting = store.clone();
    let slow = tokio::spawn(async move { claim(&*waiting, "slow", LEASE).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    LATER.store(1_005_000, Ordering::Relaxed);
    let given = "UPDATE jobs SET state = 'running', owner = 'fast', epoch = 1, lease_until = 1035000, lease_ms = 30000";
    sqlx::query(given).execute(&mut other).await.unwrap();
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    assert!(slow.await.unwrap().is_none(), "the lease of a living worker was taken");

    // Nor is a renewal shorter than it says.
    hold(&mut other).await;
    let fence = Fence { job: job.id.clone(), owner: "fast".to_owned(), epoch: 1 };
    let waiting = store.clone();
    let renewed = tokio::spawn(async move { waiting.renew(&fence, LEASE).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    LATER.store(1_040_000, Ordering::Relaxed);
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    renewed.await.unwrap().unwrap();
    LATER.store(1_039_999 + LEASE, Ordering::Relaxed);
    assert!(claim(&*store, "thief", LEASE).await.is_none());
    LATER.store(1_040_001 + LEASE, Ordering::Relaxed);
    assert_eq!(claim(&*store, "heir", LEASE).await.unwrap().job.id, job.id);
}
