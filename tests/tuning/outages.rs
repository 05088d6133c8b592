//! A store on PostgreSQL whose server crashes while a job is measured: the job goes on, whoever is to blame is not the job.

use crate::bench::*;
use crate::postgres::{self, is_left_out};
use crate::vanishing::Vanishing;
use sparsetune::domain::*;
use sparsetune::engine::replay::Act;
use sparsetune::service::ServiceSettings;
use sparsetune::store::{PostgresOptions, SqlStore, Store};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// More crashes than a job may have attempts.
const CRASHES: usize = 6;

async fn bench(server: &postgres::Server, pooled: bool, lease_ms: i64) -> Bench {
    let url = server.url(&server.database().await, pooled);
    let options = PostgresOptions { pooled, ..options() };
    bench_on(&url, options, lease_ms).await
}

fn options() -> PostgresOptions {
    PostgresOptions {
        connections: 4,
        read_connections: 2,
        lock_timeout: Duration::from_secs(2),
        ..PostgresOptions::default()
    }
}

async fn bench_on(url: &str, options: PostgresOptions, lease_ms: i64) -> Bench {
    let store = SqlStore::connect(url, options).await.unwrap();
    let bench = Bench::on(store, |settings| settings.lease_ms = lease_ms).await;
    assert_eq!(bench.service.settings().max_attempts, ServiceSettings::default().max_attempts);
    assert!((bench.service.settings().max_attempts as usize) < CRASHES);
    bench
}

fn unhurried(bench: &Bench) -> BTreeMap<Candidate, Act> {
    let each = Duration::from_millis(150);
    let times = (0..).map(|i| takes_and_waits(100.0 + f64::from(i), each));
    let mut acts: BTreeMap<Candidate, Act> =
        bench.candidates(&device()).into_iter().zip(times).collect();
    acts.insert(vendor(), takes_and_waits(150.0, each));
    acts
}

/// What the store says of a job, once it answers.
async fn job(bench: &Bench, id: &JobId) -> Job {
    let begun = Instant::now();
    loop {
        match bench.service.job(id).await {
            Ok(job) => return job,
            Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn ended(bench: &Bench, id: &JobId) -> Job {
    let begun = Instant::now();
    loop {
        let job = job(bench, id).await;
        if job.state.is_final() {
            return job;
        }
        assert!(begun.elapsed() < LONG * 2, "{job:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Every candidate is on record once, and the attempts are few.
async fn whole(bench: &Bench, job: &Job) {
    bench.plan(job).await;
    let tried = bench.tried(&job.id).await;
    assert_eq!(tried.len(), bench.candidates(&device()).len() + 1);
    assert!(distinct(tried.iter().map(|trial| &trial.candidate)));
    assert_eq!(job.attempts, 1, "what the store was the cause of is no attempt");
    bench.events(&job.id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_goes_on_through_crashes_of_the_store() {
    if is_left_out() {
        return;
    }
    let mut server = postgres::Server::start();
    server.pool();
    for pooled in [false, true] {
        let bench = bench(&server, pooled, 15_000).await;
        let worker = bench.work(&bench.service, &device(), unhurried(&bench)).await;
        let id = bench.submit(exhaustive()).await;
        bench.when(&id, |_, tried| !tried.is_empty()).await;
        let mut crashes = 0;
        while crashes < CRASHES && !job(&bench, &id).await.state.is_final() {
            server.kill();
            tokio::time::sleep(Duration::from_millis(200)).await;
            server.run();
            crashes += 1;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        assert!(crashes >= 3, "only {crashes} crashes");
        let job = ended(&bench, &id).await;
        whole(&bench, &job).await;
        // Nothing was measured again, but for what was under way.
        let measured = bench.measured().len();
        assert!(measured <= bench.tried(&id).await.len() + 2, "{measured}");
        worker.stop().await;
    }
}

/// Longer than its lease: the worker stops, and gives the job back as soon as it can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_lease_ran_out_for_the_store_has_lost_no_attempt() {
    if is_left_out() {
        return;
    }
    let mut server = postgres::Server::start();
    let bench = bench(&server, false, 1_500).await;
    let worker = bench.work(&bench.service, &device(), unhurried(&bench)).await;
    let id = bench.submit(exhaustive()).await;
    bench.when(&id, |_, tried| tried.len() >= 2).await;
    for _ in 0..2 {
        server.kill();
        tokio::time::sleep(Duration::from_secs(5)).await;
        server.run();
        tokio::time::sleep(Duration::from_millis(1_000)).await;
    }
    let job = ended(&bench, &id).await;
    whole(&bench, &job).await;
    worker.stop().await;
}

/// Without a word, so that nothing that was asked is ever answered: the worker stops when its lease ends, before its statements are given up,
/// and goes on once another host has the address, at the latest when they are and the server has ended what was left open there.
async fn goes_on_after_a_host_vanished(at_commit: bool) {
    if is_left_out() {
        return;
    }
    let server = postgres::shared();
    let database = server.database().await;
    let proxy = Vanishing::before(server);
    let short = PostgresOptions {
        statement_timeout: Duration::from_secs(5),
        // The server knows nothing of it, and keeps what a transaction has locked for so long.
        idle_timeout: Duration::from_secs(5),
        ..options()
    };
    let bench = bench_on(&proxy.url(&database), short, 2_000).await;
    // Beside it, past what vanishes.
    let seen = SqlStore::connect(&server.url(&database, false), options()).await.unwrap();
    let seen: &dyn Store = &seen;
    let worker = bench.work(&bench.service, &device(), unhurried(&bench)).await;
    let id = bench.submit(exhaustive()).await;
    bench.when(&id, |_, tried| tried.len() >= 2).await;
    if at_commit {
        proxy.vanish_at_commit().await;
    } else {
        proxy.vanish();
    }
    tokio::time::sleep(Duration::from_millis(6_000)).await;
    let measured = bench.measured().len();
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    assert_eq!(bench.measured().len(), measured, "it measures without a lease");
    proxy.come_back();
    let begun = Instant::now();
    let tried = seen.job(&id).await.unwrap().unwrap().progress.done;
    while seen.job(&id).await.unwrap().unwrap().progress.done <= tried {
        assert!(begun.elapsed() < LONG, "it is still held up");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let job = ended(&bench, &id).await;
    whole(&bench, &job).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_not_held_up_by_a_host_that_vanishes() {
    goes_on_after_a_host_vanished(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_is_not_held_up_by_what_a_vanished_host_has_locked() {
    goes_on_after_a_host_vanished(true).await;
}
