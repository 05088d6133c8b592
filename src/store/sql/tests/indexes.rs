//! Checks that frequently used queries use an index, on a store of 10,000 jobs and as many plans.

use super::raw;
use crate::domain::{DeviceClass, DeviceId, Digest, JobState, Op, WorkKind};
use crate::store::sql::db::Text;
use crate::store::sql::sorted::Start;
use crate::store::sql::{
    SqlStore, batched, devices, events, jobs, learning, leases, matrices, models, plans, quality,
    trials, webhooks,
};
use crate::store::{Direction, JobColumn, JobFilter, JobOrder, MatrixColumn, MatrixOrder};
use sqlx::{AssertSqlSafe, Row};

/// Jobs in all states on four devices, plans of five keys a pattern, and one long job among the others' trials and events.
const FILL: &str = "
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)
    INSERT INTO jobs (id, matrix, device, version, request, dedup_key, state, stage, created_at, finished_at, last_seq)
    SELECT 'job' || i, zeroblob(32), 'cuda:' || (i % 4), 1, '{}', 'key' || i,
        CASE WHEN i % 3 THEN 'succeeded' ELSE 'failed' END, 'done', i, i, 3 FROM n;
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)
    INSERT INTO plans (id, pattern_digest, problem, device_class, l2_policy, matrix, created_at, version, body,
        facts_version, facts, token)
    SELECT 'plan' || i, randomblob(32), 'spmm ' || (i % 5), 'class', 'warm', randomblob(32), i, 1,
        json_object('problem', json_object('op', 'spmm'), 'model_error',
            json_object('model', 'm', 'trials', 9, 'median_ratio', 1.5, 'spread', 1.5)), 1, '{}', CASE i % 2 WHEN 0 THEN 'ci' END FROM n;
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)
    INSERT INTO matrices (digest, pattern_digest, created_at, version, facts)
    SELECT randomblob(32), randomblob(32), i, 1, '{}' FROM n;
    INSERT INTO holdings (namespace, digest, pattern_digest, name, created_at, n_rows, nnz)
    SELECT 'default', digest, pattern_digest, 'm' || created_at, created_at, created_at % 1000, created_at * 7 FROM matrices;
    UPDATE jobs SET started_at = created_at, best = json_object('median_us', created_at * 0.5, 'speedup', 1.5);
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2999)
    INSERT INTO trials (job, ordinal, candidate_id, state, version, body)
    SELECT 'job' || (i % 2), i / 2, i, CASE WHEN i < 2800 THEN 'pruned' ELSE 'measured' END, 1, '{}' FROM n;
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2999)
    INSERT INTO events (job, seq, at, version, body)
    SELECT 'job' || (i % 2), i / 2, 1, 1,
        json_object('event', CASE WHEN i % 100 < 2 THEN 'log' ELSE 'job' END) FROM n;
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 999)
    INSERT INTO quarantine (device_class, kernel_digest, candidate_id, version, candidate, reason, at)
    SELECT 'class' || (i % 3), randomblob(32), i, 1, '{}', '', i FROM n;
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4999)
    INSERT INTO job_features (job, op, device_class, features_version, problem, matrix, pattern_digest, shared, created_at,
        described)
    SELECT 'job' || i, 'spmm', 'class' || (i % 3), 1, '{}', zeroblob(32), zeroblob(32), x'', i, 9 FROM n;
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 499)
    INSERT INTO models (id, op, device_class, features_version, created_at, version, card, file)
    SELECT 'm' || i, 'spmm', 'class' || (i % 3), 1, i, 1, '{}', x'' FROM n;
    INSERT INTO activations (op, device_class, model, reason, at) SELECT op, device_class, id, '', 1 FROM models;
    WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 499)
    INSERT INTO jobs (id, kind, version, request, dedup_key, state, stage, created_at, finished_at)
    SELECT 't' || i, 'train', 1, '{}', 'train;spmm;class', 'succeeded', 'done', i, i FROM n;";

async fn run(store: &SqlStore, sql: &'static str) {
    sqlx::raw_sql(sql).execute(raw(store)).await.unwrap();
}

/// The steps by which SQLite would answer.
async fn steps(store: &SqlStore, sql: &str) -> String {
    let explained = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
    // The writer, which has seen what ANALYZE found.
    let rows = sqlx::query(explained).fetch_all(raw(store)).await.unwrap();
    let steps: Vec<String> = rows.iter().map(|row| row.get("detail")).collect();
    steps.join("; ")
}

/// Every filter of the list of jobs that has an index.
fn job_filters() -> Vec<JobFilter> {
    let (state, matrix) = (Some(JobState::Running), Some(Digest::of(b"m")));
    let device = Some(DeviceId("cuda:0".to_owned()));
    let of = |bits: usize| JobFilter {
        kind: [None, Some(WorkKind::Tune), Some(WorkKind::Train)][bits / 8],
        state: state.filter(|_| bits & 1 > 0),
        matrix: matrix.filter(|_| bits & 2 > 0),
        device: device.clone().filter(|_| bits & 4 > 0),
        op: None,
    };
    (0..24).map(of).collect()
}

/// The list with each of them, on the first page and on a later one.
fn job_lists() -> Vec<String> {
    let mut queries = Vec::new();
    for filter in job_filters() {
        for after in [None, Some((5, "job5".to_owned()))] {
            queries.push(jobs::list_query("default", &filter, after, 51).sql().to_owned());
        }
    }
    queries
}

/// Each order of the lists of jobs and matrices, read on from a row: along an index, from where the page before ended.
async fn sorted(store: &SqlStore) {
    let behind = || Start::Behind(5.0, "job5".to_owned());
    let orders = [
        (JobColumn::CreatedAt, "jobs_newest_of"),
        (JobColumn::Took, "jobs_by_took"),
        (JobColumn::MedianUs, "jobs_by_median"),
        (JobColumn::Speedup, "jobs_by_speedup"),
    ];
    for (by, index) in orders {
        for direction in Direction::ALL {
            let order = JobOrder { by, direction };
            for from in [Start::First, behind(), Start::Absent] {
                // Every job has a time of creation.
                if by == JobColumn::CreatedAt && from == Start::Absent {
                    continue;
                }
                // Every job has a time of creation, by which no range needs to be told.
                let sought = matches!(from, Start::Behind(..) | Start::First)
                    && !(by == JobColumn::CreatedAt && from == Start::First);
                let query = jobs::sorted_query("default", &JobFilter::default(), order, from);
                let steps = steps(store, query.sql()).await;
                let by = format!("SEARCH jobs USING INDEX {index} (namespace=?");
                assert!(
                    steps.contains(&by) && !steps.contains("B-TREE"),
                    "{query}: {steps}",
                    query = query.sql()
                );
                assert!(!sought || steps.contains("(namespace=? AND "), "{steps}");
            }
        }
    }
    let orders = [
        (MatrixColumn::CreatedAt, "holdings_newest"),
        (MatrixColumn::Name, "holdings_by_name"),
        (MatrixColumn::Rows, "holdings_by_rows"),
        (MatrixColumn::Nnz, "holdings_by_nnz"),
    ];
    for (by, index) in orders {
        for direction in Direction::ALL {
            let order = MatrixOrder { by, direction };
            let of = |query: &mut Text<'static>| matrices::source(query, "default", None, by);
            for from in [Start::First, Start::Behind(5, vec![0_u8; 32]), Start::Absent] {
                if by == MatrixColumn::CreatedAt && from == Start::Absent {
                    continue;
                }
                let absent = from == Start::Absent;
                let query = matrices::SORTED.query(order, &of, from, 51);
                let steps = steps(store, query.sql()).await;
                assert!(absent || steps.contains("(namespace=? AND "), "{steps}");
                assert!(
                    steps.contains(index) && !steps.contains("B-TREE"),
                    "{query}: {steps}",
                    query = query.sql()
                );
            }
        }
    }
}

/// Sorted lists with a filter: what its own index finds is sorted, and no order's index is gone through.
async fn sorted_and_filtered(store: &SqlStore) {
    let mut filters = job_filters();
    filters.retain(|filter| *filter != JobFilter { kind: filter.kind, ..JobFilter::default() });
    filters.push(JobFilter { kind: Some(WorkKind::Train), ..JobFilter::default() });
    filters.push(JobFilter { op: Some(Op::Spmm), ..JobFilter::default() });
    for filter in filters {
        for by in [JobColumn::Took, JobColumn::MedianUs, JobColumn::Speedup] {
            for direction in Direction::ALL {
                let order = JobOrder { by, direction };
                let behind = Start::Behind(5.0, "job5".to_owned());
                for from in [Start::First, behind, Start::Absent] {
                    let query = jobs::sorted_query("default", &filter, order, from);
                    let steps = steps(store, query.sql()).await;
                    let told = format!("{}: {steps}", query.sql());
                    assert!(
                        !["jobs_by_took", "jobs_by_median", "jobs_by_speedup"]
                            .iter()
                            .any(|by| steps.contains(by)),
                        "{told}"
                    );
                    assert!(
                        steps.contains("SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)"),
                        "{told}"
                    );
                    assert_eq!(steps.matches("B-TREE").count(), 1, "{told}");
                    assert!(
                        !steps.contains("SCAN jobs") || filter.kind == Some(WorkKind::Train),
                        "{told}"
                    );
                }
            }
        }
    }
}

/// Every list of a job's trials.
const TRIAL_LISTS: [&str; 5] =
    [trials::ALL, trials::PRUNED, trials::TRIED, trials::OF_STATE, trials::SUMMARIES];

async fn check(store: &SqlStore) {
    for query in job_lists() {
        let steps = steps(store, &query).await;
        assert!(
            steps.contains("USING INDEX jobs_") && !steps.contains("B-TREE"),
            "{query}: {steps}"
        );
        let filtered =
            query.contains("state =") || query.contains("device =") || query.contains("matrix =");
        assert!(!filtered || steps.starts_with("SEARCH"), "{query}: {steps}");
        if query.contains("state =") && query.contains("device =") && !query.contains("matrix =") {
            assert!(steps.contains("jobs_by_device_and_state"), "{query}: {steps}");
        }
    }
    for query in TRIAL_LISTS {
        let steps = steps(store, query).await;
        let by = if query.contains("<> 'pruned'") { "trials_tried" } else { "autoindex_trials_1" };
        assert!(steps.starts_with("SEARCH") && steps.contains(by), "{query}: {steps}");
        assert!(!steps.contains("B-TREE"), "{query}: {steps}");
    }
    let one = |query, by: &'static [&'static str]| async move {
        let steps = steps(store, query).await;
        assert!(by.iter().all(|by| steps.contains(by)), "{query}: {steps}");
        steps
    };
    one(jobs::COUNTS, &["USING COVERING INDEX jobs_by_"]).await;
    one(webhooks::DUE, &["USING COVERING INDEX deliveries_due (hook=? AND next_at<?)"]).await;
    one(jobs::OWN_COUNTS, &["SEARCH jobs USING COVERING INDEX jobs_by_state (namespace=?)"]).await;
    let story = one(events::STORY, &["SEARCH events USING INDEX events_told (job=?)"]).await;
    assert!(!story.contains("B-TREE"), "{story}");
    let quality = one(quality::BY_PLAN, &["USING COVERING INDEX plans_by_model"]).await;
    assert!(!quality.contains("B-TREE"), "{quality}");
    let of_keys =
        &["plans_by_key (namespace=? AND pattern_digest=?)", "sqlite_autoindex_plans_1 (id=?)"];
    one(plans::NEWEST_OF_EACH_KEY, of_keys).await;
    let unmeasured = &[
        "plans_predicted (namespace=? AND pattern_digest=?)",
        "plans_by_key (namespace=? AND pattern_digest=? AND",
    ];
    one(plans::UNMEASURED, unmeasured).await;
    let by_key = one(
        plans::MEASURED,
        &["plans USING INDEX plans_by_key (namespace=? AND pattern_digest=? AND"],
    )
    .await;
    assert!(!by_key.contains("B-TREE"), "{by_key}");
    let keys = &["SEARCH plans USING INDEX plans_by_key (namespace=? AND pattern_digest=?)"];
    one(plans::KEYS, keys).await;
    let of_problem = &["SEARCH plans USING INDEX plans_by_problem (namespace=? AND problem=? AND"];
    one(plans::OF_PROBLEM, of_problem).await;
    let facts = one(
        matrices::KNOWN,
        &[
            "plans_by_matrix (namespace=? AND matrix=?",
            "holdings_by_pattern (namespace=?",
            "plans_by_key (namespace=? AND pattern_digest=?)",
        ],
    )
    .await;
    let scans = ["SCAN plans", "SCAN matrices", "SCAN h "];
    assert!(!scans.iter().any(|scan| facts.contains(scan)), "{facts}");
    let lookup = one(
        batched::OF_MATRICES,
        &["plans_by_key (namespace=? AND pattern_digest=? AND problem=?"],
    )
    .await;
    assert!(!lookup.contains("SCAN plans") && !lookup.contains("SCAN holdings"), "{lookup}");
    let shared = one(
        plans::SHARED,
        &[
            "plans_of_tokens (pattern_digest=? AND problem=? AND device_class=? AND l2_policy=?",
            "plans_of_tokens_by_matrix (matrix=?)",
            "tokens_in_force (namespace=? AND name=?)",
        ],
    )
    .await;
    assert!(!shared.contains("SCAN") && !shared.contains("B-TREE"), "{shared}");
    one(
        matrices::ALL,
        &["USING COVERING INDEX holdings_newest (namespace=? AND (created_at,digest)<"],
    )
    .await;
    let counts = one(trials::COUNTS, &["SEARCH trials USING INDEX trials_sorted (job=?)"]).await;
    assert!(!counts.contains("B-TREE"), "{counts}");
    let by = &["USING INDEX trials_sorted (job=? AND <expr>=? AND state=?)"];
    one(trials::PRUNED_SAMPLE, by).await;
    // At most 20,000 entries of an index that has all names; what is found is sorted, and looked up once it is cut.
    one(matrices::NAMED, &["USING COVERING INDEX holdings_newest (namespace=?)", "(digest=?)"])
        .await;
    // The plans of one matrix, which are few, are sorted for the newest.
    one(
        matrices::NAMES,
        &["(namespace=? AND digest=?)", "USING INDEX plans_by_matrix (namespace=? AND matrix=?"],
    )
    .await;
    let between = &[
        "(namespace=? AND digest>? AND digest<?)",
        "holdings_by_pattern (namespace=? AND pattern_digest>? AND pattern_digest<?)",
    ];
    one(matrices::BETWEEN, between).await;
    quarantine(store).await;
    learned(store).await;
    sorted(store).await;
    sorted_and_filtered(store).await;
}

/// Both lists of the quarantine, on every page.
async fn quarantine(store: &SqlStore) {
    let class = DeviceClass("class1".to_owned());
    for (class, by) in [(None, "quarantine_newest "), (Some(&class), "quarantine_newest_of_class ")]
    {
        let query = devices::page_query(class, None, 51);
        let steps = steps(store, query.sql()).await;
        assert!(steps.contains(by) && steps.starts_with("SEARCH"), "{steps}");
        assert!(!steps.contains("B-TREE"), "{steps}");
    }
    // A small table, counted in the order of its key.
    let counts = steps(store, devices::QUARANTINE_COUNTS).await;
    assert!(!counts.contains("B-TREE"), "{counts}");
}

/// A claim goes from turn to turn, and reads of each the oldest job and what was added up within the hour.
async fn claimed(store: &SqlStore) {
    let take = steps(store, leases::TAKE).await;
    let by = [
        "jobs_waiting (kind=? AND queue=? AND priority=? AND turn<?)",
        "jobs_waiting (kind=? AND queue=? AND priority<?)",
        "jobs_waiting (kind=? AND queue=? AND priority=? AND turn=?)",
        "jobs_running (kind=? AND queue=?)",
        "searched USING PRIMARY KEY (turn=? AND since>?)",
        "jobs_running_of (turn=?)",
        "jobs_running_of (turn>? AND turn<?)",
    ];
    assert!(by.iter().all(|by| take.contains(by)), "{take}");
    assert!(!take.contains("SCAN jobs") && !take.contains("SCAN next"), "{take}");
}

/// What training reads and what models are found by.
async fn learned(store: &SqlStore) {
    let sorted = [
        (learning::GROUPS, "SEARCH job_features USING INDEX job_features_of_scope (op=? AND"),
        (learning::UNDESCRIBED, "SEARCH j USING INDEX jobs_newest ("),
        (models::CHANGES, "SEARCH a USING INDEX activations_of_scope (op=? AND"),
        (models::ALL, "SCAN models USING INDEX models_newest"),
        (models::OF_SCOPE, "SEARCH models USING INDEX models_of_scope (op=? AND device_class=?)"),
        (models::HISTORY, "SEARCH activations USING INDEX activations_of_scope (op=? AND"),
        (leases::WAITING, "jobs_waiting (kind=? AND queue=?"),
    ];
    for (query, by) in sorted {
        let steps = steps(store, query).await;
        assert!(steps.contains(by) && !steps.contains("B-TREE"), "{query}: {steps}");
    }
    claimed(store).await;
    // Of each job the trials that were tried, in the order of their index.
    let rows = steps(store, learning::ROWS).await;
    assert!(rows.contains("SEARCH t USING INDEX trials_tried (job=?)"), "{rows}");
    let recorded = steps(store, learning::RECORDED).await;
    let by = ["SEARCH p USING", "SEARCH t USING", "INDEX trials_tried (job=?)"];
    assert!(by.iter().all(|by| recorded.contains(by)), "{recorded}");
    let described = steps(store, learning::DESCRIBED).await;
    let by = [
        "INDEX job_features_of_scope (op=? AND device_class=? AND features_version=?)",
        "INDEX sqlite_autoindex_jobs_1 (id=?)",
    ];
    assert!(by.iter().all(|by| described.contains(by)), "{described}");
    let active = steps(store, models::ACTIVE).await;
    assert!(active.contains("COVERING INDEX activations_of_scope"), "{active}");
    assert!(active.contains("SEARCH activations USING INTEGER PRIMARY KEY"), "{active}");
}

#[tokio::test]
async fn what_is_looked_at_all_day_goes_by_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqlStore::open(&folder.path().join("store")).await.unwrap();
    // As the planner guesses, and as it knows once a store was closed in good order.
    check(&store).await;
    run(&store, FILL).await;
    check(&store).await;
    run(&store, "ANALYZE").await;
    check(&store).await;
}
