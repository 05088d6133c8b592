//! Tuners in this process, with the binary's evaluator: several on one folder, jobs that are polled, lookups.

use sparsetune::domain::{Grade, JobState};
use sparsetune::store::{Devices as _, SqliteStore, Upkeep as _};
use sparsetune::{Matrix, Problem, Search, Tuner, TunerError};
use std::path::Path;
use std::time::{Duration, Instant};

/// Started by a program with arguments of its own, as a package for another language does.
fn open(folder: &Path) -> Tuner {
    let binary = env!("CARGO_BIN_EXE_sparsetune");
    let options = Tuner::options().data(folder).evaluator("sh");
    let options = options.evaluator_arguments(["-c", r#"exec "$0" "$@""#, binary]);
    options.open("cpu").unwrap()
}

fn problem(n: u32) -> Problem {
    serde_json::from_str(&format!(r#"{{"op": "spmm", "n": {n}}}"#)).unwrap()
}

fn brief() -> Search {
    Search { top_k: Some(1), seconds: Some(5.0), ..Search::default() }
}

/// The names under which devices are served.
fn owners(folder: &Path) -> Vec<String> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let devices = runtime.block_on(async {
        let store = SqliteStore::open(&folder.join("sparsetune.db")).await.unwrap();
        let devices = store.devices().await.unwrap();
        store.close().await;
        devices
    });
    devices.into_iter().map(|seen| seen.owner).collect()
}

#[test]
fn two_tuners_on_one_folder_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (open(folder.path()), open(folder.path()));
    let both = owners(folder.path());
    assert!(both.len() == 2 && both[0] != both[1], "{both:?}");
    assert!(both.iter().all(|owner| owner.starts_with("tuner/")), "{both:?}");

    let matrix = Matrix::generate("poisson2d:nx=12,ny=11").unwrap();
    let jobs = [
        (&first, first.submit(&matrix, &problem(3), brief(), None).unwrap()),
        (&second, second.submit(&matrix, &problem(4), brief(), None).unwrap()),
    ];
    let started = Instant::now();
    for (tuner, id) in &jobs {
        let job = loop {
            let job = tuner.job(id).unwrap();
            if job.state.is_final() {
                break job;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "{job:?}");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(job.state, JobState::Succeeded, "{job:?}");
        // Each claim of a job was the only one.
        assert_eq!(job.attempts, 1);
        let plan = tuner.plan(job.plan.as_ref().unwrap()).unwrap();
        assert_eq!(plan.provenance.job.as_ref(), Some(id));
    }
    // What one has tuned, the other finds.
    let found = second.lookup(&matrix.facts().digest, &problem(3)).unwrap();
    assert_eq!((found.grade, found.plan.is_some()), (Grade::Exact, true));

    drop(first);
    assert_eq!(owners(folder.path()).len(), 1);
    assert!(second.tune_with(&matrix, &problem(5), brief(), None).is_ok());
    drop(second);
    // Nothing writes to the database any more: its log is gone.
    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let files: Vec<_> = files.filter(|name| name.to_string_lossy().contains(".db-")).collect();
    assert!(files.is_empty(), "{files:?}");
    assert!(owners(folder.path()).is_empty());
}

#[test]
fn a_lookup_measures_and_predicts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let tuner = open(folder.path());
    let matrix = Matrix::generate("poisson2d:nx=9,ny=7").unwrap();
    let missed = tuner.lookup(&matrix.facts().digest, &problem(8)).unwrap();
    assert_eq!((missed.grade, missed.plan), (Grade::None, None));
    assert!(!missed.reasons.is_empty());
    let unknown = tuner.job(&sparsetune::domain::JobId::fresh());
    assert!(matches!(unknown, Err(TunerError::Service(_))), "{unknown:?}");
}
