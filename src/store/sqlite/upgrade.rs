//! Checks that a store written under an earlier schema is opened with all it has, and learned from.

use super::{MIGRATIONS, SqliteStore};
use crate::domain::JobId;
use crate::domain::plan::PlanKey;
use crate::domain::{DeviceClass, Digest, Dtype, L2Policy, Layout, Problem, SearchStrategy, Spmm};
use crate::store::{Jobs, Learning, Plans, Trials};
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

/// Migrations up to the dashboard's, all that there was before anything was learned, and up to the first for learning.
const PREVIOUS: [i64; 2] = [3, 4];

/// A plan as it was stored then.
const PLAN: &str = include_str!("../../../tests/http/plan.json");

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

    let store = SqliteStore::open(&file).await.unwrap();
    let since: i64 = sqlx::query_scalar(SINCE).fetch_one(&store.readers).await.unwrap();
    assert_eq!(since, 0, "an index that nothing asks");
    let job = JobId("job".to_owned());
    let counts = store.trial_counts(&job).await.unwrap();
    assert_eq!(counts.iter().map(|count| count.count).sum::<u64>(), 2);
    let described: (i64, i64) = sqlx::query_as("SELECT count(*), count(features) FROM trials")
        .fetch_one(&store.readers)
        .await
        .unwrap();
    assert_eq!(described, (2, 0));
    // Found under its key as before: it counts as measured.
    let key = PlanKey {
        pattern_digest: Digest::from_bytes([0; 32]),
        problem: Problem::Spmm(Spmm::new(32, Dtype::F32, Layout::Row)),
        device_class: DeviceClass("class".to_owned()),
        l2_policy: L2Policy::Warm,
    };
    let plan = store.plan_by_key(&key).await.unwrap().unwrap();
    assert_eq!((plan.version, plan.is_predicted(), plan.median_us()), (1, false, Some(12.5)));
    assert_eq!((plan.provenance.model, plan.alternatives), (None, Vec::new()));
    assert_eq!(plan.predicted.map(|predicted| predicted.passed_over), Some(0));
    assert_eq!(store.unmeasured(&key.pattern_digest, 9).await.unwrap(), []);
    let job = store.job(&job).await.unwrap().unwrap();
    assert_eq!((job.follow_up, job.request.search.measure), (None, false));
    assert_eq!(job.request.search.strategy, SearchStrategy::Ranked);
    assert_eq!(store.learned_models(None).await.unwrap(), []);
    assert_eq!(store.active().await.unwrap(), []);
}
