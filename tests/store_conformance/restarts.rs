//! A PostgreSQL server that crashes and is started again while workers use it: nothing that was acknowledged is lost, nothing is there
//! twice, and nobody has to be started again.

use crate::postgres::{Server, is_left_out};
use crate::words::*;
use sparsetune::domain::{JobId, JobState, Timestamp};
use sparsetune::store::{
    Jobs as _, Matrices as _, PostgresOptions, SqlStore, Store, StoreError, Upkeep as _, Whose,
};
use sqlx::{Connection as _, Executor as _};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Enough for several crashes, however fast the machine is.
const JOBS: i64 = 300;
const TRIALS: u32 = 8;

/// Calls until the answer is not that the server is gone for a moment.
macro_rules! patiently {
    ($call:expr) => {
        loop {
            match $call.await {
                Err(error) if error.is_transient() => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                answer => break answer,
            }
        }
    };
}

/// Works until all jobs have ended, as a worker does: what is refused as fenced is left to whom it belongs.
async fn work(store: Arc<dyn Store>, owner: String, done: Arc<AtomicUsize>) {
    loop {
        let queue = of_cpu();
        let claim = patiently!(store.claim(&queue, &owner, 3000, u32::MAX)).unwrap();
        let Some(claim) = claim else {
            let counts = patiently!(store.job_counts(Whose::All)).unwrap();
            if counts.iter().all(|(_, state, _)| state.is_final()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let job = claim.work.clone().into_job().unwrap();
        let fence = &claim.fence;
        let mut held = true;
        for ordinal in 0..TRIALS {
            let trials = [trial(&job.id, ordinal, 1.0)];
            match patiently!(store.record_trials(fence, &trials)) {
                Ok(()) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(StoreError::Fenced(_)) => held = false,
                Err(error) => panic!("{error}"),
            }
        }
        if !held {
            continue;
        }
        let finish = ended(&job, JobState::Failed, None);
        match patiently!(store.finish(fence, &finish)) {
            // That it is fenced may also say that the end was stored, and the answer lost.
            Ok(_) | Err(StoreError::Fenced(_)) => _ = done.fetch_add(1, Ordering::Relaxed),
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_loses_nothing() {
    if is_left_out() {
        return;
    }
    let mut server = Server::start();
    server.pool();
    let database = server.database().await;
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for pooled in [false, false, true] {
        let options = PostgresOptions {
            connections: 6,
            pooled,
            lock_timeout: Duration::from_secs(5),
            ..PostgresOptions::default()
        };
        let store = SqlStore::connect(&server.url(&database, pooled), options).await.unwrap();
        stores.push(Arc::new(store));
    }
    let matrix = matrix("m", 1);
    stores[0].insert_matrix(&matrix).await.unwrap();
    let mut jobs: Vec<JobId> = Vec::new();
    for at in 0..JOBS {
        let new = new_job(&matrix, &at.to_string(), at);
        jobs.push(created(stores[0].submit(&new).await.unwrap()).id);
    }
    let done = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..9)
        .map(|n| tokio::spawn(work(stores[n % 3].clone(), format!("w{n}"), done.clone())))
        .collect();
    let mut crashes = 0;
    while done.load(Ordering::Relaxed) < JOBS as usize * 2 / 3 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        server.kill();
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.run();
        crashes += 1;
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    for worker in workers {
        tokio::time::timeout(Duration::from_secs(120), worker).await.unwrap().unwrap();
    }
    assert!(crashes >= 2, "only {crashes} crashes");
    let mut states: HashMap<JobState, usize> = HashMap::new();
    for id in &jobs {
        let job = patiently!(stores[0].job(id)).unwrap().unwrap();
        *states.entry(job.state).or_default() += 1;
        let trials = trials_of(&*stores[0], id).await;
        let ordinals: Vec<u32> = trials.iter().map(|trial| trial.ordinal).collect();
        assert_eq!(ordinals, (0..TRIALS).collect::<Vec<_>>(), "trials of {id}");
        let events = stores[0].events(id, 0, 1000).await.unwrap();
        let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "events of {id}");
    }
    assert_eq!(states, HashMap::from([(JobState::Failed, JOBS as usize)]));
}

/// All leases end together then, and who has no connection left cannot ask when.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stood_still_while_all_connections_were_in_use_was_away() {
    if is_left_out() {
        return;
    }
    let lease = 3_000;
    let server = Server::start();
    let database = server.database().await;
    let options = PostgresOptions {
        read_connections: 2,
        lock_timeout: Duration::from_secs(2),
        ..PostgresOptions::default()
    };
    let store = SqlStore::connect(&server.url(&database, false), options).await.unwrap();
    let store = Arc::new(store);
    let (_, job) = queued(&*store).await;
    let held = claim(&*store, "w", lease).await.unwrap();
    let mut other = sqlx::PgConnection::connect(&server.url(&database, false)).await.unwrap();
    other.execute("BEGIN; LOCK TABLE store_id IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let reads = [(); 2].map(|()| {
        let store = store.clone();
        tokio::spawn(async move { store.id().await })
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    // It gives up once while the server stands still, and asks again.
    let thief = {
        let store = store.clone();
        tokio::spawn(async move { patiently!(store.claim(&of_cpu(), "thief", lease, 5)) })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    // The server answers others after it was asked.
    let last = Timestamp::now();
    store.insert_matrix(&matrix("another", 2)).await.unwrap();
    let frozen = server.freeze();
    tokio::time::sleep(Duration::from_millis(3_400)).await;
    drop(frozen);
    let taken = thief.await.unwrap().unwrap();
    assert!(taken.is_none(), "its worker could not renew it: {taken:?}");
    assert!(Timestamp::now().0 - last.0 > lease);
    for read in reads {
        _ = read.await.unwrap();
    }
    // The worker is there again, and the job goes on; or it is not, and another has the job after another lease.
    let seen: &dyn Store = &*store;
    assert_eq!(seen.job(&job.id).await.unwrap().unwrap().state, JobState::Running);
    store.renew(&held.fence, lease).await.unwrap();
    tokio::time::sleep(Duration::from_millis(3_200)).await;
    let next = store.claim(&of_cpu(), "next", lease, 5).await.unwrap().unwrap();
    assert_eq!(next.work.attempts(), 2);
}
