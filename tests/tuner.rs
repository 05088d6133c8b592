//! Tuners in this process, with the binary's evaluator: several on one folder, jobs that are polled, lookups.

use sparsetune::bundle::{LoadedPlan, Opened, Place};
use sparsetune::domain::{Grade, JobState, SearchStrategy};
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

/// Combined factors: L with ones strictly below the diagonal of U.
fn factors(rows: usize) -> Matrix {
    let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..rows {
        for col in [row.wrapping_sub(5), row.wrapping_sub(1), row, row + 1, row + 4] {
            if col < rows {
                indices.push(col as u32);
                let at = (row * 13 + col * 7) as f64;
                values.push(if row == col { 4.0 + at.sin() } else { 0.7 * at.cos() });
            }
        }
        indptr.push(indices.len());
    }
    Matrix::from_csr(rows, rows, indptr, indices, values).unwrap()
}

/// The product with the factors, or with their transposes.
fn product(matrix: &Matrix, values: &[f64], x: &[f64], transpose: bool) -> Vec<f64> {
    let csr = matrix.csr();
    let apply = |x: &[f64], upper: bool| {
        let mut out = if upper { vec![0.0; x.len()] } else { x.to_vec() };
        for row in 0..csr.rows() {
            let range = csr.indptr()[row]..csr.indptr()[row + 1];
            for (&col, value) in csr.indices()[range.clone()].iter().zip(&values[range]) {
                let col = col as usize;
                if (col >= row) == upper {
                    let (to, from) = if transpose { (col, row) } else { (row, col) };
                    out[to] += value * x[from];
                }
            }
        }
        out
    };
    apply(&apply(x, !transpose), transpose)
}

/// One request, two plans, one lookup, one file, one call, one update: on this host's CPU.
#[test]
fn combined_factors_are_tuned_by_one_request_and_solved_by_one_call() {
    let folder = tempfile::tempdir().unwrap();
    let tuner = open(folder.path());
    for (rows, transpose) in [(83, false), (83, true), (1, false)] {
        let matrix = factors(rows);
        let problem = format!(
            r#"{{"op": "sptrsv", "rhs": 1, "dtype": "f64", "triangle": "both", "diagonal": "unit", "transpose": {transpose}}}"#
        );
        let problem: Problem = serde_json::from_str(&problem).unwrap();
        let search = Search {
            strategy: SearchStrategy::Halving,
            trials: Some(4),
            seconds: Some(8.0),
            ..Search::default()
        };
        let refused = tuner.tune_with(&matrix, &problem, search.clone(), None);
        assert!(refused.unwrap_err().to_string().contains("tune_both"));
        let plans = tuner.tune_both(&matrix, &problem, search, None).unwrap();
        assert_eq!(plans.each_ref().map(|plan| plan.problem), problem.parts().unwrap());
        let found = tuner.lookup(&matrix.facts().digest, &problem).unwrap();
        assert_eq!(found.grade, Grade::Exact);
        let ids = [found.plan.unwrap().id, found.second.unwrap().id];
        assert_eq!(ids, plans.map(|plan| plan.id));

        let file = folder.path().join(format!("both-{rows}-{transpose}.stplan"));
        tuner.bundle_both([&ids[0], &ids[1]], &file).unwrap();
        assert!(tuner.bundle_both([&ids[1], &ids[0]], &file).is_err());
        let mut plan = LoadedPlan::open(&Opened::open(&file).unwrap(), &Place::Host).unwrap();
        assert!(plan.check().unwrap().passed());
        let x: Vec<f64> = (0..rows).map(|row| 1.0 + (row as f64).sin()).collect();
        let solves = |plan: &LoadedPlan, values: &[f64]| {
            let b = product(&matrix, values, &x, transpose);
            let bytes: Vec<u8> = b.iter().flat_map(|b| b.to_le_bytes()).collect();
            let mut out = vec![0u8; bytes.len()];
            plan.run_on_host(&bytes, &mut out, 1.0, 0.0).unwrap();
            for (got, x) in out.chunks_exact(8).zip(&x) {
                let got = f64::from_le_bytes(got.try_into().unwrap());
                assert!((got - x).abs() < 1e-10, "{got} {x}");
            }
        };
        solves(&plan, matrix.csr().values());
        let other: Vec<f64> =
            matrix.csr().values().iter().map(|value| 0.9 * value + 0.01).collect();
        plan.update_values(&other).unwrap();
        solves(&plan, &other);
    }
}
