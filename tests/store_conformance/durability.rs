//! Opening again, and rows that are not what they should be.

use crate::Harness;
use crate::words::*;
use sparsetune::domain::Serving;
use sparsetune::domain::{Candidate, Digest, JobState, L2Policy, QuarantineScope, Timestamp};
use sparsetune::store::{Devices, JobFilter, Quarantined, SqliteStore, Store, StoreError};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

pub async fn everything_is_there_after_opening_again(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, _) = queued(&*store).await;
    let claim = claim(&*store, "w", LEASE).await.unwrap();
    let trials = [trial(&claim.job.id, 0, 0.1), pruned(&claim.job.id, 1)];
    store.record_trials(&claim.fence, &trials).await.unwrap();
    store.put_device("w", &device(), &Serving::default()).await.unwrap();
    let plan = plan(&matrix, &claim.job.id, 1);
    let finish = ended(&claim.job, JobState::Succeeded, Some(plan.clone()));
    store.finish(&claim.fence, &finish).await.unwrap();
    let job = store.job(&claim.job.id).await.unwrap();
    let events = store.events(&claim.job.id, 0, 10).await.unwrap();
    drop(store);

    let store = harness.open().await;
    assert_eq!(store.matrix(&matrix.digest).await.unwrap(), Some(matrix));
    assert_eq!(store.job(&claim.job.id).await.unwrap(), job);
    assert_eq!(trials_of(&*store, &claim.job.id).await, trials);
    assert_eq!(store.events(&claim.job.id, 0, 10).await.unwrap(), events);
    assert_eq!(store.plan(&plan.id).await.unwrap(), Some(plan));
    assert_eq!(store.devices().await.unwrap()[0].device, device());
}

pub async fn spoilt_rows_are_corrupt_not_panics(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, _) = queued(&*store).await;
    let claim = claim(&*store, "w", LEASE).await.unwrap();
    let id = &claim.job.id;
    store.record_trials(&claim.fence, &[trial(id, 0, 1.0)]).await.unwrap();
    store.put_device("w", &device(), &Serving::default()).await.unwrap();
    let plan = plan(&matrix, id, 1);
    let finish = ended(&claim.job, JobState::Succeeded, Some(plan.clone()));
    store.finish(&claim.fence, &finish).await.unwrap();
    let entry = Quarantined {
        class: device().class(),
        kernel_digest: Digest::of(b"text"),
        candidate: Candidate::new("row_split"),
        scope: QuarantineScope::Pattern,
        reason: "hung".to_owned(),
        at: Timestamp(1),
    };
    store.quarantine(&entry, &plan.pattern_digest).await.unwrap();

    macro_rules! corrupt {
        ($statement:literal, $($call:expr),+) => {
            harness.spoil($statement).await;
            $(match $call.await {
                Err(StoreError::Corrupt { .. }) => {}
                other => panic!("after {}: {:?}", $statement, other.map(|_| "an answer")),
            })+
        };
    }
    corrupt!(
        "UPDATE trials SET body = '[]'",
        store.trials(id, &TrialQuery::All, &page(5)),
        store.trials(id, &TrialQuery::Summaries, &page(5)),
        store.events(id, 0, 9)
    );
    corrupt!("UPDATE events SET body = '{}' WHERE trial IS NULL", store.events(id, 0, 9));
    corrupt!("UPDATE plans SET version = 99", store.plan(&plan.id));
    corrupt!(
        "UPDATE plans SET facts = '[]'",
        store.plans_for(&plan.problem, &device().class(), L2Policy::Warm, 9)
    );
    corrupt!(
        "UPDATE plans SET body = '{\"problem\":{\"op\":\"?\"}}'",
        store.plan_keys(&plan.pattern_digest)
    );
    corrupt!(
        "UPDATE matrices SET facts = '{\"rows\":1}'",
        store.matrix(&matrix.digest),
        store.matrices(&MatrixQuery::All, &page(5)),
        store.known_matrix(&matrix.digest)
    );
    corrupt!(
        "UPDATE jobs SET stage = 'dreaming'",
        store.job(id),
        store.jobs(&JobFilter::default(), &page(5)),
        store.request_cancel(id)
    );
    corrupt!("UPDATE jobs SET stage = 'done', attempts = -1", store.job(id));
    corrupt!("UPDATE jobs SET attempts = 1, best = '[]'", store.job(id));
    corrupt!("UPDATE devices SET body = 'null'", store.devices());
    corrupt!(
        "UPDATE quarantine SET candidate = '1'",
        store.quarantined(Some(&entry.class), &page(9)),
        store.quarantined(None, &page(5))
    );
    corrupt!("UPDATE revision SET value = -1", store.revision());
}

pub async fn a_newer_schema_is_refused(harness: &Harness) {
    drop(harness.open().await);
    harness
        .spoil(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (9999, 'from the future', TRUE, x'00', 0)",
        )
        .await;
    let error = harness.try_open().await.unwrap_err();
    assert!(error.to_string().contains("newer version of sparsetune"), "{error}");
}

/// Where the child of the next check finds its store.
const CHILD_STORE: &str = "SPARSETUNE_TEST_CHILD_STORE";

#[tokio::test]
#[ignore = "the child process of a_recorded_trial_survives_a_kill"]
async fn child_records_until_killed() {
    let file = std::env::var_os(CHILD_STORE).expect("started by its parent alone");
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(file.as_ref()).await.unwrap());
    let claim = claim(&*store, "child", LEASE).await.unwrap();
    for ordinal in 0.. {
        store.record_trials(&claim.fence, &[trial(&claim.job.id, ordinal, 1.0)]).await.unwrap();
        println!("recorded {ordinal}");
    }
}

pub async fn a_recorded_trial_survives_a_kill(harness: &Harness) {
    let (_, job) = queued(&*harness.open().await).await;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "durability::child_records_until_killed", "--ignored", "--nocapture"])
        .env(CHILD_STORE, harness.file())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut told = lines.by_ref().filter(|line| line.as_ref().unwrap().contains("recorded"));
    told.nth(40).expect("the child records").unwrap();
    // SIGKILL, in the middle of whatever it is doing.
    child.kill().unwrap();
    let told = 41 + told.count();
    child.wait().unwrap();

    let store = harness.open().await;
    let kept = trials_of(&*store, &job.id).await.len();
    assert!(kept == told || kept == told + 1, "{told} were told of, {kept} are there");
    let events = store.events(&job.id, 0, 1_000_000).await.unwrap();
    let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=kept as u64 + 2).collect::<Vec<_>>());
}

/// What is waited for comes within a minute, or something hangs.
fn until(condition: impl Fn() -> bool, what: &str) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[tokio::test]
#[ignore = "a child process of a_new_file_is_opened_by_many_at_once"]
async fn child_opens() {
    let file = std::env::var_os(CHILD_STORE).expect("started by its parent alone");
    // Processes take their time to start: those of one round begin together, by its file.
    let file = Path::new(&file);
    std::fs::write(ready(file, std::process::id()), "").unwrap();
    until(|| file.with_extension("go").exists(), "the others");
    let store = SqliteStore::open(file).await.unwrap();
    assert_eq!(store.devices().await.unwrap(), []);
}

/// The file by which a child says that it is about to open.
fn ready(file: &Path, child: u32) -> PathBuf {
    file.with_extension(format!("ready{child}"))
}

/// A child process that does not outlive its test, however that ends.
struct Kept(Option<Child>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // Fails only where the child has ended, which is what is wanted.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub async fn a_new_file_is_opened_by_many_at_once(_: &Harness) {
    for round in 0..20 {
        let harness = Harness::sqlite();
        let children: Vec<_> = (0..3)
            .map(|_| {
                let child = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "durability::child_opens", "--ignored"])
                    .env(CHILD_STORE, harness.file())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn();
                Kept(Some(child.unwrap()))
            })
            .collect();
        // The parent's own count, too: the last to come lets all begin.
        let barrier = Arc::new(Barrier::new(8 + 1));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (file, barrier) = (harness.file(), Arc::clone(&barrier));
                std::thread::spawn(move || {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    barrier.wait();
                    runtime.block_on(async {
                        let store = SqliteStore::open(&file).await.map_err(|e| e.to_string())?;
                        store.devices().await.map_err(|e| e.to_string())
                    })
                })
            })
            .collect();
        let waits = |kept: &Kept| ready(&harness.file(), kept.0.as_ref().unwrap().id()).exists();
        until(|| children.iter().all(waits), "the children");
        std::fs::write(harness.file().with_extension("go"), "").unwrap();
        barrier.wait();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Ok(Vec::new()), "round {round}");
        }
        for mut child in children {
            let ended = child.0.take().unwrap().wait_with_output().unwrap();
            let told = String::from_utf8_lossy(&ended.stdout);
            assert!(ended.status.success() && told.contains("1 passed"), "round {round}: {told}");
        }
    }
}
