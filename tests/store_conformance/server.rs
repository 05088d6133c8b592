//! What only a server has: its clock, locks of rows, hints, limits of time.

use crate::words::*;
use crate::{Harness, postgres};
use sparsetune::domain::Serving;
use sparsetune::domain::{JobState, Namespace};
use sparsetune::store::{
    Change, Devices as _, Jobs as _, Listener, Matrices as _, Plans as _, PostgresOptions,
    SqlStore, SqliteOptions, StoreError, Trials as _, Upkeep as _,
};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A lease that a server gave whose clock was ahead, before another took its place.
pub async fn a_lease_far_ahead_strands_no_job(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    let dead = claim(&*store, "dead", LEASE).await.unwrap();
    assert!(claim(&*store, "other", LEASE).await.is_none(), "its lease holds");
    harness.spoil("UPDATE jobs SET lease_until = lease_until + 900").await;
    assert!(claim(&*store, "thief", LEASE).await.is_none(), "clocks are adjusted by so much");
    harness.spoil("UPDATE jobs SET lease_until = lease_until + 31536000000").await;
    let next = claim(&*store, "next", LEASE).await.unwrap();
    assert_eq!((&next.job.id, next.job.attempts), (&job.id, 2));
    assert!(matches!(store.renew(&dead.fence, LEASE).await, Err(StoreError::Fenced(_))));
    store.renew(&next.fence, LEASE).await.unwrap();
    // Work that was asked to stop ends, too.
    store.request_cancel(&job.id).await.unwrap();
    harness.spoil("UPDATE jobs SET lease_until = lease_until + 31536000000").await;
    assert!(claim(&*store, "late", LEASE).await.is_none());
    assert_eq!(store.job(&job.id).await.unwrap().unwrap().state, JobState::Cancelled);
}

/// Nobody waits for a job that another is just claiming, and a cancellation waits for the claim.
pub async fn a_job_that_another_has_locked_is_passed_over(harness: &Harness) {
    use sqlx::Connection as _;
    let store = harness.open().await;
    let (matrix, first) = queued(&*store).await;
    let second = created(store.submit(&new_job(&matrix, "second", 9)).await.unwrap());
    let mut raw = sqlx::PgConnection::connect(&harness.url().0).await.unwrap();
    let mut other = raw.begin().await.unwrap();
    let take = "UPDATE jobs SET state = 'running', owner = 'fast', epoch = 1, lease_ms = 60000,
        lease_until = clock_ms() + 60000, attempts = 1 WHERE id = $1";
    sqlx::query(take).bind(&first.id.0).execute(&mut *other).await.unwrap();
    let begun = Instant::now();
    assert_eq!(claim(&*store, "w", LEASE).await.unwrap().job.id, second.id);
    assert!(claim(&*store, "w", LEASE).await.is_none());
    assert!(begun.elapsed() < Duration::from_secs(5), "it waited");
    let cancel = {
        let (store, id) = (store.clone(), first.id.clone());
        tokio::spawn(async move { store.request_cancel(&id).await.unwrap().unwrap() })
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!cancel.is_finished());
    other.commit().await.unwrap();
    // It sees that the job runs, and asks its worker to stop.
    assert_eq!(cancel.await.unwrap().state(), JobState::Running);
    let fence = sparsetune::store::Fence { job: first.id, owner: "fast".to_owned(), epoch: 1 };
    assert!(store.renew(&fence, LEASE).await.unwrap().cancel_requested);
}

#[derive(Default)]
struct Heard(Mutex<Vec<Change>>);

impl Listener for Heard {
    fn changed(&self, change: &Change) {
        self.0.lock().unwrap().push(change.clone());
    }
}

impl Heard {
    async fn until(&self, wanted: impl Fn(&Change) -> bool) {
        let begun = Instant::now();
        while !self.0.lock().unwrap().iter().any(&wanted) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", self.0.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub async fn hints_reach_other_servers(harness: &Harness) {
    let (here, there) = (harness.open().await, harness.open().await);
    let heard = Arc::new(Heard::default());
    let listener: Arc<dyn Listener> = heard.clone();
    there.listen(&listener);
    let (matrix, job) = queued(&*here).await;
    // It may take a moment until it listens.
    let begun = Instant::now();
    let is_released = |change: &Change| *change == Change::Released;
    for at in 0.. {
        here.submit(&new_job(&matrix, &at.to_string(), 2)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        if heard.0.lock().unwrap().iter().any(is_released) {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "nothing was heard");
    }
    here.insert_matrix(&crate::words::matrix("another", 3)).await.unwrap();
    let revision = here.revision().await.unwrap();
    heard.until(|change| *change == Change::Revision(revision)).await;
    // Of what a job does nobody is told.
    tokio::time::sleep(Duration::from_millis(500)).await;
    heard.0.lock().unwrap().clear();
    let claim = claim(&*here, "w", LEASE).await.unwrap();
    for ordinal in 0..20 {
        here.record_trials(&claim.fence, &[trial(&job.id, ordinal, 1.0)]).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(*heard.0.lock().unwrap(), []);
}

pub async fn what_takes_too_long_is_busy(harness: &Harness) {
    use sqlx::Connection as _;
    let (url, options) = harness.url();
    let soon = Duration::from_millis(300);
    let options = PostgresOptions { connections: 2, lock_timeout: soon, ..options };
    let store = Arc::new(SqlStore::connect(&url, options).await.unwrap());
    let (_, job) = queued(&*store).await;
    let held = claim(&*store, "w", LEASE).await.unwrap();
    let mut raw = sqlx::PgConnection::connect(&url).await.unwrap();
    let mut other = raw.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM jobs FOR UPDATE").fetch_all(&mut *other).await.unwrap();
    let late = store.renew(&held.fence, LEASE).await;
    assert!(matches!(late, Err(StoreError::Busy(_))), "{late:?}");
    // Nor is there a connection for everybody.
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (store, id) = (store.clone(), job.id.clone());
            tokio::spawn(async move { store.request_cancel(&id).await })
        })
        .collect();
    for task in tasks {
        let late = task.await.unwrap();
        assert!(matches!(late, Err(StoreError::Busy(_))), "{late:?}");
    }
    drop(other);
    drop(raw);
    store.renew(&held.fence, LEASE).await.unwrap();
}

/// Those that share a statement share what becomes of it, and so do those that wait for the next: nobody asks a second time.
pub async fn lookups_of_a_table_that_is_held_are_busy_together(harness: &Harness) {
    use sqlx::Connection as _;
    let (url, options) = harness.url();
    let held_up = Duration::from_millis(500);
    let options = PostgresOptions { lock_timeout: held_up, ..options };
    let store = Arc::new(SqlStore::connect(&url, options).await.unwrap());
    let m = matrix("m", 1);
    let plan = crate::plans::tune(&*store, &m, 1).await;
    let key = crate::plans::key(&plan);
    let mut raw = sqlx::PgConnection::connect(&url).await.unwrap();
    let mut other = raw.begin().await.unwrap();
    sqlx::query("LOCK TABLE plans IN ACCESS EXCLUSIVE MODE").execute(&mut *other).await.unwrap();
    let began = Instant::now();
    let tasks: Vec<_> = (0..300)
        .map(|_| {
            let (store, key, digest) = (store.clone(), key.clone(), m.digest);
            tokio::spawn(async move { store.plan_for(&digest, &key).await })
        })
        .collect();
    for task in tasks {
        let late = task.await.unwrap();
        assert!(matches!(late, Err(StoreError::Busy(_))), "{late:?}");
    }
    // Each alone, by eight connections, they would take 38 times as long.
    assert!(began.elapsed() < 12 * held_up, "{:?}", began.elapsed());
    drop(other);
    drop(raw);
    assert_eq!(store.plan_for(&m.digest, &key).await.unwrap(), Some(plan));
}

/// Sixteen workers of four processes, on a queue of two namespaces.
pub async fn many_workers_take_each_job_once(harness: &Harness) {
    const JOBS: i64 = 120;
    let store = harness.open().await;
    let matrix = matrix("m", 1);
    let other: Namespace = "other".parse().unwrap();
    let elsewhere = store.on_behalf_of(&sparsetune::domain::Caller::owner(None, other));
    store.insert_matrix(&matrix).await.unwrap();
    elsewhere.insert_matrix(&matrix).await.unwrap();
    for at in 0..JOBS {
        let of = if at % 3 == 0 { &elsewhere } else { &store };
        of.submit(&new_job(&matrix, &at.to_string(), at)).await.unwrap();
    }
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let process = harness.open().await;
        for worker in 0..4 {
            let store = process.clone();
            tasks.push(tokio::spawn(async move {
                let mut ids = Vec::new();
                let mut idle = 0;
                while idle < 3 {
                    let Some(claim) = claim(&*store, &format!("w{worker}"), LEASE).await else {
                        idle += 1;
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    };
                    let finish = ended(&claim.job, JobState::Failed, None);
                    store
                        .record_trials(&claim.fence, &[trial(&claim.job.id, 0, 1.0)])
                        .await
                        .unwrap();
                    store.finish(&claim.fence, &finish).await.unwrap();
                    ids.push(claim.job.id);
                }
                ids
            }));
        }
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    assert_eq!(all.len(), JOBS as usize);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), JOBS as usize);
}

pub async fn no_error_names_the_password(harness: &Harness) {
    let (url, options) = harness.url();
    let server = postgres::shared();
    for url in [
        url.replace("/test", "/nothing"),
        url.replace("host=", "host=/nowhere"),
        url.replace("postgres://", "postgres//"),
        url.replace("sparsetune:", "nobody:"),
        format!("{url}&port=x"),
        format!("{url}&sslpassword=secret-of-tests"),
        server.url("postgres", false).replace("localhost", "[localhost"),
    ] {
        let error = SqlStore::connect(&url, options).await.unwrap_err();
        for told in [format!("{error}"), format!("{error:?}")] {
            assert!(!told.contains("secret-of-tests"), "{told}");
        }
    }
}

/// From a file to a server and on to another file: the same rows in all three, and both go on.
pub async fn a_store_is_moved_and_moved_back(harness: &Harness) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let first = SqlStore::open(&file("first")).await.unwrap();
    let (matrix, _) = queued(&first).await;
    let held = claim(&first, "w", LEASE).await.unwrap();
    let trials = [trial(&held.job.id, 0, 0.1), pruned(&held.job.id, 1)];
    first.record_trials(&held.fence, &trials).await.unwrap();
    first.put_device("w", &device(), &Serving::default()).await.unwrap();
    let plan = plan(&matrix, &held.job.id, 1);
    let finish = ended(&held.job, JobState::Succeeded, Some(plan.clone()));
    first.finish(&held.fence, &finish).await.unwrap();
    for at in 0..700 {
        first.submit(&new_job(&matrix, &at.to_string(), at)).await.unwrap();
    }
    let (url, options) = harness.url();
    // Shorter than a table takes: what is read from a server must not end while the other is written.
    let idle_timeout = Duration::from_millis(400);
    let options = PostgresOptions { idle_timeout, ..options };
    let server = SqlStore::connect(&url, options).await.unwrap();
    // Not while somebody is at work.
    let busy = claim(&first, "w", LEASE).await.unwrap();
    let refused = first.move_to(&server, "there", |_| ()).await;
    assert!(matches!(refused, Err(StoreError::InUse(_))), "{refused:?}");
    first.release(&busy.fence).await.unwrap();
    // Interrupted, with a part of the jobs there.
    let interrupted = {
        let (first, server) = (first.clone(), server.clone());
        tokio::spawn(async move { first.move_to(&server, "there", stop_at(6)).await })
    };
    assert!(interrupted.await.unwrap_err().is_panic());
    // Not a store yet, and the other one still is.
    assert!(server.is_arriving().await.unwrap() && first.moved_to().await.unwrap().is_none());
    // Nor does anybody write meanwhile.
    let forgotten = {
        let options =
            SqliteOptions { busy_timeout: Duration::from_millis(100), ..SqliteOptions::default() };
        SqlStore::open_with(&file("first"), options).await.unwrap()
    };
    let writes = |told: &sparsetune::store::sql::Moved| {
        if told.table == "jobs" {
            let late = tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current()
                    .block_on(forgotten.submit(&new_job(&matrix, "late", 1)))
            });
            assert!(matches!(late, Err(StoreError::Busy(_))), "{late:?}");
        }
    };
    let moved = first.move_to(&server, "there", writes).await.unwrap();
    assert!(!server.is_arriving().await.unwrap());
    // Who has had it open all the time writes to it no more, nor is it moved elsewhere.
    for store in [&first, &forgotten] {
        let late = store.submit(&new_job(&matrix, "late", 1)).await;
        assert!(matches!(late, Err(StoreError::InUse(_))), "{late:?}");
        assert!(matches!(store.check_writable().await, Err(StoreError::InUse(_))));
        assert!(store.plan(&plan.id).await.unwrap().is_some(), "reads are answered");
    }
    let elsewhere = SqlStore::open(&file("elsewhere")).await.unwrap();
    for to in [&server, &elsewhere] {
        let again = first.move_to(to, "elsewhere", |_| ()).await;
        assert!(matches!(again, Err(StoreError::InUse(_))), "{again:?}");
    }
    assert!(moved.iter().any(|one| one.table == "jobs" && one.rows == 701), "{moved:?}");
    assert_eq!(server.id().await.unwrap(), first.id().await.unwrap());
    let back = SqlStore::open(&file("back")).await.unwrap();
    let slowly = |_: &sparsetune::store::sql::Moved| std::thread::sleep(Duration::from_millis(60));
    assert_eq!(server.move_to(&back, "back", slowly).await.unwrap(), moved);
    let late = server.renew(&busy.fence, LEASE).await;
    assert!(matches!(late, Err(StoreError::InUse(_))), "{late:?}");
    assert!(server.id().await.is_ok());
    // As `fsck --adopt` has it.
    server.stays().await.unwrap();
    for store in [&server, &back] {
        assert_eq!(trials_of(store, &held.job.id).await, trials);
        assert_eq!(store.plan(&plan.id).await.unwrap().as_ref(), Some(&plan));
        assert_eq!(store.matrix(&matrix.digest).await.unwrap().as_ref(), Some(&matrix));
        assert!(store.revision().await.unwrap() >= first.revision().await.unwrap());
        assert!(claim(store, "w", LEASE).await.is_some());
        let again = store.submit(&new_job(&matrix, "after", 9_999)).await.unwrap();
        assert_eq!(created(again).state, JobState::Queued);
    }
    // Another store is not written over.
    let other = SqlStore::open(&file("other")).await.unwrap();
    queued(&other).await;
    let refused = other.move_to(&server, "there", |_| ()).await;
    assert!(matches!(refused, Err(StoreError::InUse(_))), "{refused:?}");
}

/// Fails once so many tables are there.
fn stop_at(most: usize) -> impl Fn(&sparsetune::store::sql::Moved) {
    let told = std::sync::atomic::AtomicUsize::new(0);
    move |_| {
        let so_far = told.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        assert!(so_far < most, "interrupted");
    }
}
