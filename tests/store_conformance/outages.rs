//! Connections that are short, lost, or of no use any more, and rows that go while others refer to them.

use crate::vanishing::Vanishing;
use crate::words::*;
use crate::{Harness, postgres};
use futures_util::future::join_all;
use sparsetune::domain::webhook::{Webhook, WebhookId};
use sparsetune::domain::{Digest, JobState, Timestamp};
use sparsetune::store::{
    Jobs as _, NewWork, PostgresOptions, Queue, SqlStore, StoreError, Trials as _, Upkeep as _,
};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection past the store, and past a pooler.
async fn raw(harness: &Harness) -> PgConnection {
    let Harness::Postgres { database, .. } = harness else { panic!("there is no server") };
    PgConnection::connect(&postgres::shared().url(database, false)).await.unwrap()
}

async fn run(raw: &mut PgConnection, statement: &str) {
    raw.execute(sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))).await.unwrap();
}

/// Long enough for a busy machine, and shorter than what those wait who hold the others up.
const SOON: Duration = Duration::from_secs(4);

async fn soon<T>(what: &str, call: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, call).await.unwrap_or_else(|_| panic!("{what} was held up"))
}

pub async fn those_who_wait_for_their_turn_leave_connections(harness: &Harness) {
    let (url, options) = harness.url();
    let options = PostgresOptions { connections: 4, read_connections: 2, ..options };
    let store = Arc::new(SqlStore::connect(&url, options).await.unwrap());
    let (matrix, job) = queued(&*store).await;
    let held = claim(&*store, "w", LEASE).await.unwrap();
    // The first of them has its turn, and is kept from writing.
    let mut other = raw(harness).await;
    run(&mut other, "BEGIN; LOCK TABLE idempotency_keys IN EXCLUSIVE MODE").await;
    let submitted: Vec<_> = (0..12)
        .map(|at| {
            let key = Some((format!("key {at}"), Digest::of(&[at as u8])));
            let new = NewWork { idempotency: key, ..new_job(&matrix, &at.to_string(), at) };
            let store = store.clone();
            tokio::spawn(async move { store.submit(&new).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    for at in 0..3 {
        soon("a look", store.work(&job.id)).await.unwrap().unwrap();
        soon("a renewal", store.renew(&held.fence, LEASE)).await.unwrap();
        let trials = [trial(&job.id, at, 1.0)];
        soon("a trial", store.record_trials(&held.fence, &trials)).await.unwrap();
    }
    let waiting: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    .fetch_one(&mut other)
    .await
    .unwrap();
    assert_eq!(waiting, 0, "they wait here, without connections");
    // Who gives up leaves nothing behind.
    let (gone, kept) = submitted.split_at(6);
    gone.iter().skip(1).for_each(tokio::task::JoinHandle::abort);
    run(&mut other, "COMMIT").await;
    for task in kept {
        while !task.is_finished() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    for at in 0..8 {
        let new = new_job(&matrix, &format!("after {at}"), at);
        soon("a submission", store.submit(&new)).await.unwrap();
    }
}

/// As one that has become a replica: connections that were made then stay so.
pub async fn a_server_that_takes_no_writes_is_busy_until_it_does(harness: &Harness) {
    let (url, options) = harness.url();
    let Harness::Postgres { database, .. } = harness else { panic!("there is no server") };
    let before = SqlStore::connect(&url, options).await.unwrap();
    let (matrix, _) = queued(&before).await;
    let mut other = raw(harness).await;
    let set = format!("ALTER DATABASE {database} SET default_transaction_read_only = on");
    run(&mut other, &set).await;
    let store = SqlStore::connect(&url, options).await.unwrap();
    for at in 0..20 {
        let refused = store.submit(&new_job(&matrix, &at.to_string(), at)).await;
        assert!(matches!(refused, Err(StoreError::Busy(_))), "{refused:?}");
    }
    let set = format!("ALTER DATABASE {database} RESET default_transaction_read_only");
    let mut other =
        PgConnection::connect(&postgres::shared().url("postgres", false)).await.unwrap();
    run(&mut other, &set).await;
    store.submit(&new_job(&matrix, "after", 99)).await.unwrap();
}

/// As a newer process changes them.
pub async fn plans_of_statements_that_changed_are_made_anew(harness: &Harness) {
    let store = harness.open().await;
    let id = store.id().await.unwrap();
    for _ in 0..20 {
        assert_eq!(store.id().await.unwrap(), id);
    }
    run(&mut raw(harness).await, "ALTER TABLE store_id ALTER COLUMN id TYPE VARCHAR(80)").await;
    assert_eq!(store.id().await.unwrap(), id);
}

/// The lock is of another connection than the row.
pub async fn what_is_published_under_a_lost_lock_is_refused(harness: &Harness) {
    let store = harness.open().await;
    let (one, two) = (matrix("one", 1), matrix("two", 2));
    let guard = store.publishing().await.unwrap();
    guard.is_still_held().await.unwrap();
    assert!(store.insert_matrix(&one).await.unwrap());
    let mut other = raw(harness).await;
    let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory'
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let begun = Instant::now();
    while sqlx::query_scalar::<_, i64>(ended).fetch_one(&mut other).await.unwrap() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "it is lost");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(guard.is_still_held().await.is_err());
    let refused = store.insert_matrix(&two).await;
    assert!(matches!(refused, Err(StoreError::Busy(_))), "{refused:?}");
    assert!(store.matrix(&two.digest).await.unwrap().is_none());
    drop(guard);
    let _guard = store.publishing().await.unwrap();
    assert!(store.insert_matrix(&two).await.unwrap());
}

pub async fn a_webhook_may_go_while_a_job_ends(harness: &Harness) {
    let store = harness.open().await;
    let (_, _) = queued(&*store).await;
    let held = claim(&*store, "w", LEASE).await.unwrap();
    let hook = |name: &str| Webhook {
        id: WebhookId(name.to_owned()),
        url: "https://example.com".to_owned(),
        states: vec![JobState::Failed],
        created_at: Timestamp::now(),
        paused_until: None,
    };
    for name in ["goes", "stays"] {
        store.insert_webhook(&hook(name), "secret", 9).await.unwrap();
    }
    // It is deleted, and that is not committed yet.
    let mut other = raw(harness).await;
    run(&mut other, "BEGIN; DELETE FROM webhooks WHERE id = 'goes'").await;
    let ends = {
        let store = store.clone();
        let finish = ended(&held.job, JobState::Failed, None);
        tokio::spawn(async move { store.finish(&held.fence, &finish).await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    run(&mut other, "COMMIT").await;
    ends.await.unwrap().unwrap();
    let due =
        store.claim_deliveries(&[], Timestamp::now().plus_millis(60_000), (9, 9)).await.unwrap();
    let told: Vec<&str> = due.iter().map(|one| one.hook.0.as_str()).collect();
    assert_eq!(told, ["stays"]);
}

pub async fn limits_of_time_hold_behind_a_pooler(harness: &Harness) {
    let (url, options) = harness.url();
    let short = Duration::from_millis(300);
    let options = PostgresOptions { statement_timeout: short, ..options };
    let store = SqlStore::connect(&url, options).await.unwrap();
    let (_, job) = queued(&store).await;
    let mut other = raw(harness).await;
    run(&mut other, "BEGIN; LOCK TABLE jobs, store_id IN ACCESS EXCLUSIVE MODE").await;
    // On a connection of its own, and on any.
    let late = soon("a look", store.work(&job.id)).await;
    assert!(matches!(late, Err(StoreError::Busy(_))), "{late:?}");
    let late = soon("a look", store.id()).await;
    assert!(matches!(late, Err(StoreError::Busy(_))), "{late:?}");
}

pub async fn what_an_owner_holds_is_given_back(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, job) = queued(&*store).await;
    let held = claim(&*store, "here", LEASE).await.unwrap();
    store.submit(&new_job(&matrix, "another", 2)).await.unwrap();
    let others = claim(&*store, "there", LEASE).await.unwrap();
    assert_eq!(store.release_all("here").await.unwrap(), 1);
    assert_eq!(store.release_all("here").await.unwrap(), 0);
    let back = store.job(&job.id).await.unwrap().unwrap();
    assert_eq!((back.state, back.attempts), (JobState::Queued, 0));
    store.renew(&others.fence, LEASE).await.unwrap();
    let late = store.renew(&held.fence, LEASE).await;
    assert!(matches!(late, Err(StoreError::Fenced(_))), "{late:?}");
    let queue: Queue = of_cpu();
    assert!(store.claim(&queue, "there", LEASE, 5).await.unwrap().is_some());
}

pub async fn one_sweeps_at_a_time(harness: &Harness) {
    let (here, there) = (harness.open().await, harness.open().await);
    let held = here.sweeping().await.unwrap().unwrap();
    held.is_still_held().await.unwrap();
    assert!(there.sweeping().await.unwrap().is_none());
    assert!(here.sweeping().await.unwrap().is_none());
    drop(held);
    let begun = Instant::now();
    while there.sweeping().await.unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it was given back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Reads, writes, and what waits for its turn end in time, and none of their connections is used again once another host has the address.
pub async fn a_host_that_vanishes_is_not_waited_for(harness: &Harness) {
    let Harness::Postgres { database, .. } = harness else { panic!("there is no server") };
    let proxy = Vanishing::before(postgres::shared());
    let options = PostgresOptions {
        connections: 4,
        read_connections: 3,
        statement_timeout: Duration::from_millis(500),
        lock_timeout: Duration::from_secs(2),
        ..PostgresOptions::default()
    };
    let store = Arc::new(SqlStore::connect(&proxy.url(database), options).await.unwrap());
    let (matrix, job) = queued(&*store).await;
    let held = claim(&*store, "w", LEASE).await.unwrap();
    // All connections are there, and were used a moment ago.
    let used = (0..8).map(|_| async { store.work(&job.id).await.unwrap() });
    join_all(used).await;
    proxy.vanish();
    let begun = Instant::now();
    let calls = (0..6u8).map(|at| {
        let (store, matrix, held, job) = (&store, &matrix, &held, &job);
        async move {
            match at % 3 {
                0 => store.work(&job.id).await.map(drop),
                1 => store.submit(&new_job(matrix, &at.to_string(), i64::from(at))).await.map(drop),
                _ => store.renew(&held.fence, LEASE).await.map(drop),
            }
        }
    });
    for call in join_all(calls).await {
        assert!(matches!(call, Err(StoreError::Busy(_))), "{call:?}");
    }
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(25), "{waited:?}");
    proxy.come_back();
    let begun = Instant::now();
    for at in 10..30 {
        let again = store.submit(&new_job(&matrix, &at.to_string(), at)).await;
        again
            .unwrap_or_else(|error| panic!("submission {at} after {:?}: {error}", begun.elapsed()));
        store.work(&job.id).await.unwrap().unwrap();
    }
    store.renew(&held.fence, LEASE).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

/// All leases end together then, and each worker is given the time to take its job back.
pub async fn a_lease_that_ended_while_the_server_was_away_is_not_taken_at_once(harness: &Harness) {
    let Harness::Postgres { database, .. } = harness else { panic!("there is no server") };
    let proxy = Vanishing::before(postgres::shared());
    let options = PostgresOptions {
        statement_timeout: Duration::from_millis(500),
        lock_timeout: Duration::from_millis(500),
        ..PostgresOptions::default()
    };
    let lease = 3_000;
    let (witness, thief) =
        (harness.open().await, SqlStore::connect(&proxy.url(database), options).await.unwrap());
    let (_, job) = queued(&*witness).await;
    let held = claim(&*witness, "w", lease).await.unwrap();
    proxy.vanish();
    let silent = thief.claim(&of_cpu(), "thief", lease, 1).await;
    assert!(matches!(silent, Err(StoreError::Busy(_))), "{silent:?}");
    harness.spoil("UPDATE jobs SET lease_until = 0").await;
    proxy.come_back();
    // Nor is it given up, although it has had its attempts.
    assert!(thief.claim(&of_cpu(), "thief", lease, 1).await.unwrap().is_none());
    assert_eq!(witness.job(&job.id).await.unwrap().unwrap().state, JobState::Running);
    assert_eq!(witness.release_all("w").await.unwrap(), 1);
    let back = thief.claim(&of_cpu(), "thief", lease, 1).await.unwrap().unwrap();
    assert_eq!(back.work.attempts(), 1, "what the server was the cause of is no attempt");
    assert!(matches!(witness.renew(&held.fence, lease).await, Err(StoreError::Fenced(_))));
    // Who does not come back loses it.
    harness.spoil("UPDATE jobs SET lease_until = 0").await;
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    let next = thief.claim(&of_cpu(), "next", lease, 5).await.unwrap().unwrap();
    assert_eq!(next.work.attempts(), 2);
}

/// The server answers all the time, and only this process has nothing left to ask it with.
pub async fn who_has_no_connection_left_judges_no_server(harness: &Harness) {
    let (url, options) = harness.url();
    let patience = Duration::from_secs(2);
    let options = PostgresOptions { read_connections: 2, lock_timeout: patience, ..options };
    let store = Arc::new(SqlStore::connect(&url, options).await.unwrap());
    let (_, _) = queued(&*store).await;
    claim(&*store, "lost", LEASE).await.unwrap();
    let mut other = raw(harness).await;
    run(&mut other, "BEGIN; LOCK TABLE store_id IN ACCESS EXCLUSIVE MODE").await;
    let read = || {
        let store = store.clone();
        tokio::spawn(async move { store.id().await })
    };
    // Two have both connections until the server refuses them, and two after them.
    let mut reads = vec![read(), read()];
    tokio::time::sleep(patience * 6 / 10).await;
    reads.extend([read(), read()]);
    tokio::time::sleep(patience / 10).await;
    let busy = store.claim(&of_cpu(), "thief", LEASE, 5).await;
    assert!(matches!(busy, Err(StoreError::Busy(_))), "{busy:?}");
    for read in join_all(reads).await {
        assert!(matches!(read.unwrap(), Err(StoreError::Busy(_))));
    }
    run(&mut other, "COMMIT").await;
    harness.spoil("UPDATE jobs SET lease_until = 0").await;
    let taken = store.claim(&of_cpu(), "thief", LEASE, 5).await.unwrap();
    assert_eq!(taken.expect("its worker is lost").work.attempts(), 2);
}

/// The server answers a COMMIT of such a one with a ROLLBACK, and no error.
pub async fn a_failed_transaction_is_not_taken_for_a_commit(harness: &Harness) {
    let store = harness.open().await;
    let (_, _) = queued(&*store).await;
    let held = claim(&*store, "w", LEASE).await.unwrap();
    // Its end fails within its transaction.
    let mut other = raw(harness).await;
    run(&mut other, "ALTER TABLE jobs ADD CONSTRAINT no_end CHECK (state <> 'failed')").await;
    let finish = ended(&held.job, JobState::Failed, None);
    let failed = store.finish(&held.fence, &finish).await;
    assert!(matches!(failed, Err(StoreError::Misuse(_))), "{failed:?}");
    assert_eq!(store.job(&held.job.id).await.unwrap().unwrap().state, JobState::Running);
    run(&mut other, "ALTER TABLE jobs DROP CONSTRAINT no_end").await;
    store.finish(&held.fence, &finish).await.unwrap();
}

/// The sums of what turns have searched are of all: two that end jobs of the same turns in another order each wrote what the other waited for.
pub async fn those_who_end_jobs_of_many_do_not_wait_for_each_other(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, first) = queued(&*store).await;
    for at in 0..3 {
        store.submit(&new_job(&matrix, &at.to_string(), at)).await.unwrap();
    }
    let mut all = vec![first.id.0];
    let mut other = raw(harness).await;
    let rest: Vec<String> = sqlx::query_scalar("SELECT id FROM jobs WHERE id <> $1 ORDER BY id")
        .bind(&all[0])
        .fetch_all(&mut other)
        .await
        .unwrap();
    all.extend(rest);
    // Two of one token and two of another.
    for (job, token) in all.iter().zip(["x", "y", "y", "x"]) {
        run(&mut other, &format!("UPDATE jobs SET token = '{token}' WHERE id = '{job}'")).await;
    }
    // Connections of the server's processes of which each fifth at the latest has a slot that another had before.
    let mut ends = Vec::new();
    for _ in 0..5 {
        ends.push(raw(harness).await);
    }
    let mut numbers: Vec<(i32, PgConnection)> = Vec::new();
    for mut end in ends {
        let number = sqlx::query_scalar("SELECT pg_backend_pid() % 4").fetch_one(&mut end).await;
        numbers.push((number.unwrap(), end));
    }
    numbers.sort_by_key(|(number, _)| *number);
    let at = numbers.windows(2).position(|pair| pair[0].0 == pair[1].0).unwrap();
    let mut pair = numbers.drain(at..at + 2).map(|(_, end)| end);
    let (mut one, mut two) = (pair.next().unwrap(), pair.next().unwrap());
    let end = |job: &str| {
        format!("UPDATE jobs SET state = 'failed', finished_at = clock_ms() WHERE id = '{job}'")
    };
    for transaction in [&mut one, &mut two] {
        run(transaction, "BEGIN; SET LOCAL deadlock_timeout = '100ms'").await;
    }
    soon("x", run(&mut one, &end(&all[0]))).await;
    soon("y", run(&mut two, &end(&all[1]))).await;
    let [second, first] = [end(&all[2]), end(&all[3])];
    let crossed = async {
        tokio::join!(run(&mut one, &second), run(&mut two, &first));
    };
    soon("the other's", crossed).await;
    run(&mut one, "COMMIT").await;
    run(&mut two, "COMMIT").await;
    let sums = sqlx::query_as::<_, (String, f64)>(
        "SELECT turn, SUM(seconds) FROM searched GROUP BY turn ORDER BY turn",
    );
    let sums = sums.fetch_all(&mut other).await.unwrap();
    let expected = [("default", 4.0), ("default/x", 2.0), ("default/y", 2.0)];
    assert_eq!(sums, expected.map(|(turn, sum)| (turn.to_owned(), sum)));
}

pub async fn a_round_of_upkeep_is_one_processes(harness: &Harness) {
    let stores = [harness.open().await, harness.open().await];
    let minute = Duration::from_secs(60);
    let asked = (0..8).map(|at| stores[at % 2].take_round("rules", minute));
    let taken = join_all(asked).await;
    let taken = taken.into_iter().filter(|taken| *taken.as_ref().unwrap()).count();
    assert_eq!(taken, 1);
    // Those with other rules have a round of their own.
    assert!(stores[1].take_round("others", minute).await.unwrap());
    // By the store's clock, which may have been set back.
    harness.spoil("UPDATE rounds SET begun_at = begun_at - 60000").await;
    assert!(stores[1].take_round("rules", minute).await.unwrap());
    assert!(!stores[0].take_round("rules", minute).await.unwrap());
    harness.spoil("UPDATE rounds SET begun_at = begun_at + 3600000").await;
    assert!(stores[0].take_round("rules", minute).await.unwrap());
}

/// More than one statement removes.
pub async fn much_that_is_old_goes_in_batches(harness: &Harness) {
    let store = harness.open().await;
    queued(&*store).await;
    harness
        .spoil(
            "INSERT INTO idempotency_keys (key, request, job, created_at)
             SELECT 'key' || i, x'0000000000000000000000000000000000000000000000000000000000000000', (SELECT id FROM jobs), i
             FROM (WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4999) SELECT i FROM n) n",
        )
        .await;
    let retention = sparsetune::store::Retention {
        idempotency_keys: Timestamp(4_500),
        events: Timestamp(0),
        devices: Timestamp(0),
        predicted: Timestamp(0),
        bundles: Timestamp(0),
        deliveries: Timestamp(0),
    };
    assert_eq!(store.prune(&retention).await.unwrap().idempotency_keys, 4_500);
    assert_eq!(store.prune(&retention).await.unwrap().idempotency_keys, 0);
}
