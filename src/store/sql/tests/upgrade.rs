//! Checks that a store with an earlier schema is opened with all its data, and can be learned from.

use super::raw;
use crate::domain::JobId;
use crate::domain::plan::PlanKey;
use crate::domain::{
    Clock, DeviceClass, Digest, Dtype, L2Policy, Layout, ModelId, Namespace, Problem,
    SearchStrategy, Spmm, Timestamp, Training, Work,
};
use crate::store::sql::SqlStore;
use crate::store::sql::sqlite::MIGRATIONS;
use crate::store::{
    ActivationQuery, Jobs, Learning, PageRequest, PlanQuery, Plans, Retaining, StoreError,
    Submission, Tokens, Trials, Webhooks,
};
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

/// Migrations up to the dashboard's, before learning existed; up to the first for learning; and up to the last before
/// trainings shared the queue of jobs.
const PREVIOUS: [i64; 3] = [3, 4, 5];

/// A plan as it was stored at that time.
const PLAN: &str = include_str!("../../../../tests/http/plan.json");

const FILL: &str = r#"
    INSERT INTO matrices (digest, pattern_digest, created_at, version, facts)
    VALUES (zeroblob(32), zeroblob(32), 1, 1, '{}');
    INSERT INTO plans (id, pattern_digest, problem, device_class, l2_policy, matrix, created_at, version, body,
        facts_version, facts)
    VALUES ('plan', zeroblob(32), 'spmm;n=32;dtype=f32;layout=row', 'class', 'warm', zeroblob(32), 1, 1, '{}', 1, '{}');
    INSERT INTO jobs (id, matrix, device, version, request, dedup_key, state, stage, plan, created_at, finished_at)
    VALUES ('job', zeroblob(32), 'cpu', 1,
        '{"matrix":"4a1f3c5e7092b4d6f8001122334455667788990aabbccddeeff0011223344556",
          "problem":{"op":"spmm","n":32,"dtype":"f32","layout":"row"},"device":"auto","search":{"strategy":"ranked"}}', 'key', 'succeeded', 'done', 'plan', 1, 2);
    INSERT INTO trials (job, ordinal, candidate_id, state, version, body)
    VALUES ('job', 0, 'c', 'measured', 1, '{}'), ('job', 1, 'd', 'pruned', 1, '{}');"#;

#[tokio::test]
async fn a_store_of_an_earlier_schema_is_opened_with_all_it_has() {
    for version in PREVIOUS {
        opened_after(version).await;
    }
}

async fn opened_after(version: i64) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
    let old = SqlitePool::connect_with(options).await.unwrap();
    let before: Vec<_> = MIGRATIONS.iter().filter(|m| m.version <= version).cloned().collect();
    assert_eq!(before.len(), version as usize);
    assert!(MIGRATIONS.iter().count() > before.len());
    Migrator { migrations: before.into(), ..Migrator::DEFAULT }.run(&old).await.unwrap();
    sqlx::raw_sql(FILL).execute(&old).await.unwrap();
    sqlx::query("UPDATE plans SET body = ?").bind(PLAN).execute(&old).await.unwrap();
    const SINCE: &str = "SELECT count(*) FROM sqlite_schema WHERE name = 'job_features_since'";
    let since: i64 = sqlx::query_scalar(SINCE).fetch_one(&old).await.unwrap();
    assert_eq!(since, i64::from(version == 4));
    old.close().await;

    let store = SqlStore::open(&file).await.unwrap();
    let since: i64 = sqlx::query_scalar(SINCE).fetch_one(raw(&store)).await.unwrap();
    assert_eq!(since, 0, "an unused index");
    let job = JobId("job".to_owned());
    let counts = store.trial_counts(&job).await.unwrap();
    assert_eq!(counts.iter().map(|count| count.count).sum::<u64>(), 2);
    let described: (i64, i64) = sqlx::query_as("SELECT count(*), count(features) FROM trials")
        .fetch_one(raw(&store))
        .await
        .unwrap();
    assert_eq!(described, (2, 0));
    // Still found under its key, and counts as measured.
    let key = PlanKey {
        pattern_digest: Digest::from_bytes([0; 32]),
        problem: Problem::Spmm(Spmm::new(32, Dtype::F32, Layout::Row)),
        device_class: DeviceClass("class".to_owned()),
        l2_policy: L2Policy::Warm,
    };
    let plan = store
        .plans(&PlanQuery::Measured(key.clone()), &PageRequest::first(1))
        .await
        .unwrap()
        .items
        .remove(0);
    assert_eq!((plan.version, plan.is_predicted(), plan.median_us()), (1, false, Some(12.5)));
    // Times of before there were two clocks are of single calls.
    let by = Clock::ALL.map(|clock| plan.median_by(clock));
    assert_eq!((plan.clock(), by), (Some(Clock::Isolated), [Some(12.5), None]));
    assert_eq!((plan.provenance.model, plan.alternatives), (None, Vec::new()));
    assert_eq!(plan.predicted.map(|predicted| predicted.passed_over), Some(0));
    assert_eq!(
        store
            .plans(&PlanQuery::UnmeasuredOfPattern(key.pattern_digest), &PageRequest::ALL)
            .await
            .unwrap()
            .items,
        []
    );
    let job = store.work(&job).await.unwrap().unwrap().into_job().unwrap();
    assert_eq!((job.follow_up, job.request.search.measure), (None, false));
    assert_eq!(job.request.search.strategy, SearchStrategy::Ranked);
    assert_eq!(store.learned_models(None).await.unwrap(), []);
    assert_eq!(store.activations(ActivationQuery::InUse).await.unwrap(), []);
}

/// One row in every table of schema version 5: an ended job with all its data, a running one, and three trainings: one
/// running, one that ended with its model, and one that cannot be read.
const FULL: &str = r#"
    INSERT INTO jobs (id, matrix, device, version, request, dedup_key, state, stage, created_at, owner, epoch, lease_until,
        attempts, last_seq)
    VALUES ('running', zeroblob(32), 'cuda:0', 1, '{}', 'other', 'running', 'measuring', 3, 'worker', 7, 99, 2, 5);
    INSERT INTO idempotency_keys (key, request, job, created_at) VALUES ('key', zeroblob(32), 'job', 1);
    INSERT INTO events (job, seq, at, version, body, trial)
    VALUES ('job', 1, 1, 1, '{"event":"log","data":{"message":"hello"}}', NULL), ('job', 2, 1, 1, NULL, 0);
    INSERT INTO job_features (job, op, device_class, features_version, problem, matrix, pattern_digest, shared, created_at)
    VALUES ('job', 'spmm', 'class', 1, '{}', zeroblob(32), zeroblob(32), x'', 1);
    INSERT INTO devices (owner, id, seen_at, version, body) VALUES ('worker', 'cpu', 1, 1, '{}');
    INSERT INTO quarantine (device_class, kernel_digest, candidate_id, version, candidate, reason, at)
    VALUES ('class', zeroblob(32), 'c', 1, '{}', 'hung', 1);
    INSERT INTO kernel_figures (device_class, kernel, registers, local_bytes, learnt_at, seen_at)
    VALUES ('class', zeroblob(32), 1, 1, 1, 1);
    INSERT INTO models (id, op, device_class, features_version, created_at, version, card, file)
    VALUES ('model', 'spmm', 'class', 1, 1, 1, '{}', x'01');
    INSERT INTO activations (seq, op, device_class, model, reason, at)
    VALUES (4, 'spmm', 'class', 'model', 'r', 1), (5, 'spmm', 'class', NULL, 'r', 2);
    INSERT INTO trainings (id, op, device_class, state, version, body, attempts, created_at, cancel_requested, owner, epoch,
        lease_until)
    VALUES ('t1', 'spmm', 'class', 'running', 1, '{"version":1,"id":"t1","request":{"scope":{"op":"spmm","device_class":"class"},
            "activate":"always","seed":7},"state":"queued","stage":"judging","progress":0.456789,"message":"judging",
            "model":null,"activated":false,"error":null,"features_version":3,"attempts":0,"created_at":5,"started_at":6,
            "finished_at":null}', 2, 5, 1, 'trainer', 4, 77),
        ('t2', 'sptrsv', 'class', 'succeeded', 1, '{"version":1,"id":"t2","request":{"scope":{"op":"sptrsv",
            "device_class":"class"},"activate":"if_better","seed":1},"state":"succeeded","stage":"done","progress":1.0,
            "message":"put to use","model":"model","activated":true,"error":null,"attempts":1,"created_at":4,"started_at":5,
            "finished_at":8}', 1, 4, 0, NULL, 1, NULL),
        ('t3', 'sptrsv', 'class', 'failed', 1, '{', 3, 3, 0, NULL, 3, NULL);"#;

#[tokio::test]
async fn trainings_become_work_of_the_one_queue() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
    let old = SqlitePool::connect_with(options.foreign_keys(true)).await.unwrap();
    let before: Vec<_> = MIGRATIONS.iter().filter(|m| m.version <= 5).cloned().collect();
    Migrator { migrations: before.into(), ..Migrator::DEFAULT }.run(&old).await.unwrap();
    sqlx::raw_sql(FILL).execute(&old).await.unwrap();
    sqlx::raw_sql(FULL).execute(&old).await.unwrap();
    old.close().await;

    let store = SqlStore::open(&file).await.unwrap();
    let broken = sqlx::query("PRAGMA foreign_key_check").fetch_all(raw(&store)).await.unwrap();
    assert!(broken.is_empty());
    let sound: String =
        sqlx::query_scalar("PRAGMA integrity_check").fetch_one(raw(&store)).await.unwrap();
    assert_eq!(sound, "ok");
    let listing: i64 =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE sql LIKE '%op IN (%'")
            .fetch_one(raw(&store))
            .await
            .unwrap();
    assert_eq!(listing, 0, "no table lists the operations");
    let kept = [
        ("jobs", 5),
        ("trials", 2),
        ("idempotency_keys", 1),
        ("job_features", 1),
        ("models", 1),
        ("activations", 2),
        ("events", 4),
        ("plans", 1),
        ("matrices", 1),
        ("devices", 1),
        ("quarantine", 1),
        ("kernel_figures", 1),
    ];
    for (table, rows) in kept {
        let count = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        let count: i64 = sqlx::query_scalar(count).fetch_one(raw(&store)).await.unwrap();
        assert_eq!(count, rows, "{table}");
    }
    type Lease = (String, Option<String>, i64, Option<i64>, i64, i64);
    let leases: Vec<Lease> = sqlx::query_as(
        "SELECT id, owner, epoch, lease_until, cancel_requested, last_seq FROM jobs
         WHERE state = 'running' ORDER BY id",
    )
    .fetch_all(raw(&store))
    .await
    .unwrap();
    let lease = |id: &str, owner: &str, epoch, until, cancel, seq| {
        (id.to_owned(), Some(owner.to_owned()), epoch, Some(until), cancel, seq)
    };
    assert_eq!(
        leases,
        [lease("running", "worker", 7, 99, 0, 5), lease("t1", "trainer", 4, 77, 1, 1 << 32)]
    );

    let training = async |id: &str| {
        let work = store.work(&JobId(id.to_owned())).await;
        work.map(|work| work.unwrap().into_training().unwrap())
    };
    let running = training("t1").await.unwrap();
    assert_eq!(
        (running.progress, running.attempts, running.features_version),
        (0.456789, 2, Some(3))
    );
    assert_eq!((running.started_at, running.finished_at), (Some(Timestamp(6)), None));
    let ended = training("t2").await.unwrap();
    assert_eq!((ended.model, ended.activated), (Some(ModelId("model".to_owned())), true));
    assert_eq!(ended.finished_at, Some(Timestamp(8)));
    assert!(matches!(training("t3").await, Err(StoreError::Corrupt { .. })));
    // The event of each end has the final state.
    for id in ["t1", "t2"] {
        let events = store.events(&JobId(id.to_owned()), 0, 9).await.unwrap();
        let stands = Work::from(training(id).await.unwrap()).into_event();
        assert_eq!(events.into_iter().map(|event| event.kind).collect::<Vec<_>>(), [stands]);
    }
    // One training of the scope is running and was asked to stop: it does not block a new one, and ends with its lease.
    let twin = Training::queued(running.request.clone());
    assert!(matches!(store.submit(&twin.into()).await.unwrap(), Submission::Created(_)));
}

/// What belonged to nobody in particular is of the namespace `default` from migration 17 on, with all that was said of it.
#[tokio::test]
async fn what_was_there_is_of_the_default_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store");
    let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
    let old = SqlitePool::connect_with(options).await.unwrap();
    let before: Vec<_> = MIGRATIONS.iter().filter(|m| m.version < 17).cloned().collect();
    Migrator { migrations: before.into(), ..Migrator::DEFAULT }.run(&old).await.unwrap();
    sqlx::raw_sql(FILL).execute(&old).await.unwrap();
    sqlx::raw_sql(
        "UPDATE matrices SET facts = json_object('name', 'old'), token = 'ci', charged = 7, pinned_at = 3;
         INSERT INTO matrices (digest, pattern_digest, created_at, version, facts)
         VALUES (randomblob(32), randomblob(32), 2, 1, '{}');
         UPDATE plans SET pinned_at = 4;
         INSERT INTO webhooks (id, url, secret, states, created_at) VALUES ('hook', 'http://x', 's', ',failed,', 1);
         INSERT INTO tokens (hash, name, scopes, namespace, created_at) VALUES (zeroblob(32), 'ci', 'read', 'default', 1);
         INSERT INTO jobs (id, kind, matrix, device, version, request, dedup_key, state, stage, created_at)
         SELECT 'queued', 'tune', zeroblob(32), 'cpu', 1, request, 'k', 'queued', 'waiting', 5 FROM jobs WHERE id = 'job'",
    )
    .execute(&old)
    .await
    .unwrap();
    sqlx::query("UPDATE plans SET body = ?").bind(PLAN).execute(&old).await.unwrap();
    old.close().await;

    let store = SqlStore::open(&file).await.unwrap();
    type Holding = (String, Option<String>, i64, Option<String>, i64, Option<i64>);
    let holdings: Vec<Holding> = sqlx::query_as(
        "SELECT namespace, name, created_at, token, charged, pinned_at FROM holdings ORDER BY created_at",
    )
    .fetch_all(raw(&store))
    .await
    .unwrap();
    let of = || "default".to_owned();
    let pinned = (of(), Some("old".to_owned()), 1, Some("ci".to_owned()), 7, Some(3));
    assert_eq!(holdings, [pinned, (of(), None, 2, None, 0, None)]);
    let pins = store.pins().await.unwrap();
    assert_eq!((pins.matrices.len(), pins.plans.len()), (1, 1));
    let elsewhere = store.within(&"b".parse().unwrap());
    for id in ["job", "queued"].map(|id| JobId(id.to_owned())) {
        assert!(store.work(&id).await.unwrap().is_some());
        assert!(elsewhere.work(&id).await.unwrap().is_none());
    }
    assert_eq!(store.webhooks().await.unwrap().len(), 1);
    assert!(elsewhere.webhooks().await.unwrap().is_empty());
    let token = store.tokens(None).await.unwrap().remove(0).token;
    assert_eq!((token.namespace, token.name.as_str()), (Namespace::default(), "ci"));
}
