//! How much each store bears, by hand: `cargo test --test store_conformance -- --ignored --nocapture throughput`. What it told stands in
//! `benches/NOTES.md`.

use crate::words::*;
use crate::{Harness, postgres};
use sparsetune::domain::{Caller, JobState, Namespace};
use sparsetune::store::{PostgresOptions, SqlStore, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SECONDS: f64 = 4.0;

/// Calls from this many workers for a while; returns the calls in a second.
async fn rate<F>(workers: usize, call: impl Fn(usize, u32) -> F) -> f64
where
    F: Future<Output = ()> + Send + 'static,
{
    let done = Arc::new(AtomicU64::new(0));
    let begun = Instant::now();
    let tasks: Vec<_> = (0..workers)
        .map(|worker| {
            let calls: Vec<F> = (0..20_000).map(|n| call(worker, n)).collect();
            let done = done.clone();
            tokio::spawn(async move {
                for call in calls {
                    if begun.elapsed().as_secs_f64() > SECONDS {
                        break;
                    }
                    call.await;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}

async fn measure(name: &str, store: Arc<dyn Store>) {
    let matrix = matrix("m", 1);
    store.insert_matrix(&matrix).await.unwrap();
    let first = created(store.submit(&new_job(&matrix, "first", 1)).await.unwrap());
    let held = claim(&*store, "w", 3_600_000).await.unwrap();
    let plan = plan(&matrix, &first.id, 1);
    let key = crate::plans::key(&plan);
    store.finish(&held.fence, &ended(&held.job, JobState::Succeeded, Some(plan))).await.unwrap();
    for workers in [1, 4, 16, 64] {
        // Each worker's jobs are of its namespace, as those of teams are.
        let stores: Vec<Arc<dyn Store>> = {
            let mut stores = Vec::new();
            for worker in 0..workers {
                let namespace: Namespace = format!("team-{worker}").parse().unwrap();
                let own = store.on_behalf_of(&Caller::owner(None, namespace));
                own.insert_matrix(&matrix).await.unwrap();
                stores.push(own);
            }
            stores
        };
        let submits = rate(workers, |worker, n| {
            let (store, new) =
                (stores[worker].clone(), new_job(&matrix, &format!("{workers} {worker} {n}"), 2));
            async move { drop(store.submit(&new).await.unwrap()) }
        })
        .await;
        let claims = rate(workers, |worker, _| {
            let store = store.clone();
            async move {
                if let Some(claim) = claim(&*store, &format!("w{worker}"), 3_600_000).await {
                    store
                        .finish(&claim.fence, &ended(&claim.job, JobState::Failed, None))
                        .await
                        .unwrap();
                }
            }
        })
        .await;
        let mut fences = Vec::new();
        for (worker, own) in stores.iter().enumerate() {
            let new = new_job(&matrix, &format!("trials {workers} {worker}"), 0);
            created(own.submit(&new).await.unwrap());
            fences.push(claim(&*store, "w", 3_600_000).await.unwrap());
        }
        let trials = rate(workers, |worker, n| {
            let (store, held) = (store.clone(), fences[worker].clone());
            async move {
                store.record_trials(&held.fence, &[trial(&held.job.id, n, 1.0)]).await.unwrap()
            }
        })
        .await;
        let lookups = rate(workers, |_, _| {
            let (store, key, digest) = (store.clone(), key.clone(), matrix.digest);
            async move { assert!(store.plan_for(&digest, &key).await.unwrap().is_some()) }
        })
        .await;
        println!(
            "{name:<12} {workers:>3} workers: {submits:>7.0} submissions/s {claims:>7.0} claims and ends/s {trials:>7.0} trials/s \
             {lookups:>7.0} lookups/s"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "a measurement, by hand"]
async fn throughput() {
    let file = Harness::sqlite();
    measure("SQLite", file.open().await).await;
    let server = postgres::shared();
    for pooled in [false, true] {
        let options = PostgresOptions {
            connections: 24,
            pooled,
            lock_timeout: Duration::from_secs(60),
            ..PostgresOptions::default()
        };
        let url = server.url(&server.database().await, pooled);
        let name = if pooled { "PgBouncer" } else { "PostgreSQL" };
        measure(name, Arc::new(SqlStore::connect(&url, options).await.unwrap())).await;
    }
}
