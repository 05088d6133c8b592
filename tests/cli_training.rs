//! The subcommands that make models, end to end: a corpus tuned by the real binary, and a training in a folder of trials.

#[path = "fixture/claimed.rs"]
mod claimed;
#[path = "fixture/device.rs"]
mod device;
#[path = "fixture/measured.rs"]
mod measured;
#[path = "fixture/plan.rs"]
mod plan;

use serde_json::Value;
use sparsetune::service::{Service, ServiceSettings};
use sparsetune::store::{LocalBlobs, Matrices, MatrixQuery, SqliteStore};
use sqlx::Connection;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

const GROUPS: usize = 24;

fn sparsetune(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sparsetune"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(args);
    command.env("SPARSETUNE_LEARNING__MIN_TRIALS", "100").output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A data folder with trials, whose device nobody knows any more.
async fn recorded(data: &Path) {
    std::fs::create_dir_all(data.join("uploads")).unwrap();
    let file = data.join("sparsetune.db");
    let store = SqliteStore::open(&file).await.unwrap();
    let blobs = LocalBlobs::open(&data.join("blobs")).unwrap();
    let settings = ServiceSettings { temp_dir: data.join("uploads"), ..ServiceSettings::default() };
    let service = Service::new(Arc::new(store), Arc::new(blobs), settings);
    measured::measured(&service, &device::processor(), GROUPS).await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
    let mut raw = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    let gone = sqlx::query("DELETE FROM devices").execute(&mut raw).await.unwrap();
    assert_eq!(gone.rows_affected(), 1);
    raw.close().await.unwrap();
}

#[tokio::test]
async fn a_folder_of_trials_is_trained_on_without_its_device() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    recorded(&data).await;
    let class = device::processor().class().0;
    let data = data.to_str().unwrap();
    let train = ["train", "--data", data, "--op", "spmm"];

    let shown = sparsetune(&[&train[..], &["--activate", "always"]].concat());
    let text = out(&shown);
    assert!(shown.status.success(), "{text}{}", err(&shown));
    let trials = GROUPS as u32 * measured::ROWS;
    let (head, data_used) = (
        format!("lambdamart for spmm on {class}: "),
        format!("{trials} trials of {GROUPS} problems"),
    );
    for part in [&*head, &*data_used, "analytic", "random", "activated"] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }

    let named = [&train[..], &["--device", &class, "--seed", "2", "--activate", "never", "--json"]];
    let shown = sparsetune(&named.concat());
    let told: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(told[0]["job"]["state"], "succeeded", "{told}");
    assert_eq!(
        (&told[0]["model"]["device_class"], &told[0]["model"]["active"]),
        (&class.into(), &false.into())
    );

    // What is asked for beside it comes to nothing, and says why.
    let both = sparsetune(&["train", "--data", data]);
    assert_eq!(both.status.code(), Some(1));
    assert!(out(&both).contains("lambdamart for spmm"), "{}", out(&both));
    assert!(err(&both).contains("no trials of sptrsv are recorded here"), "{}", err(&both));
}

#[test]
fn a_training_needs_one_place_that_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere");
    let missing = sparsetune(&["train", "--data", nowhere.to_str().unwrap()]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(err(&missing).contains("nothing has been recorded here"), "{}", err(&missing));
    assert!(!nowhere.exists(), "a slip of the pen makes no folder");
    let here = folder.path().to_str().unwrap();
    let both = sparsetune(&["train", "--data", here, "--server", "http://127.0.0.1:1"]);
    assert_eq!(both.status.code(), Some(2), "{}", err(&both));
}

/// Names of the matrices that a folder holds.
async fn kept(data: &Path) -> Vec<String> {
    let store = SqliteStore::open(&data.join("sparsetune.db")).await.unwrap();
    let page = sparsetune::store::PageRequest { after: None, limit: 9 };
    let matrices = store.matrices(&MatrixQuery::All, &page).await.unwrap();
    matrices.items.into_iter().map(|matrix| matrix.name.unwrap()).collect()
}

fn files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| if entry.path().is_dir() { files(&entry.path()) } else { 1 }).sum()
}

#[tokio::test]
async fn a_corpus_leaves_trials_not_matrices_and_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    // Two systems of this seed that are small: 3375 rows and 896.
    let corpus = |more: &[&str]| {
        let on = ["corpus", "--device", "cpu", "--data", data.to_str().unwrap()];
        let of = ["--op", "sptrsv", "--seed", "1", "--trials", "8", "--seconds", "30"];
        sparsetune(&[&on[..], &of[..], more].concat())
    };
    let dry = out(&corpus(&["--from", "15", "--count", "2", "--dry"]));
    let drawn: Vec<&str> = dry.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert!(!data.exists() && drawn[0].starts_with("ilu0_poisson3d:nx=15,"), "{dry}");
    assert!(drawn[1].ends_with(",of=cholesky_poisson2d:nx=32,ny=28,seed=929389"), "{dry}");
    let first = corpus(&["--from", "15", "--count", "1"]);
    let text = out(&first);
    assert!(first.status.success(), "{text}{}", err(&first));
    // What it may take comes first.
    let line = text.lines().find(|line| line.starts_with(&format!("15 {} ", drawn[0])));
    assert!(line.is_some_and(|line| line.contains("8 trials")), "{text}");
    assert!(kept(&data).await.is_empty());
    assert_eq!(files(&data.join("blobs")), 1, "the id of the store is alone there");

    let second = corpus(&["--from", "15", "--count", "2", "--keep", "--train"]);
    let text = out(&second);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].ends_with("was tuned before"), "{text}");
    assert_eq!(lines[3], "tried 2: 1 tuned, 1 tuned before, 0 failed", "{text}");
    assert!(
        lines[2].starts_with(&format!("16 {} ", drawn[1])) && lines[2].contains("trials, best"),
        "{text}"
    );
    assert_eq!(kept(&data).await, [drawn[1]]);
    // The training took place, and found two matrices to be too few.
    assert_eq!(second.status.code(), Some(1));
    assert!(err(&second).contains("too little to learn from"), "{}", err(&second));
    assert!(err(&second).contains("trials of sptrsv on cpu/"), "{}", err(&second));
}

#[tokio::test]
async fn a_corpus_takes_no_other_search_for_its_own_and_no_matrix_away() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let draw = ["corpus", "--op", "sptrsv", "--seed", "1", "--from", "16", "--count", "1"];
    let dry = out(&sparsetune(&[&draw[..], &["--dry"]].concat()));
    let (spec, problem) = dry.trim().split_once(' ').unwrap();
    let same = "sptrsv;rhs=1;dtype=f32;triangle=lower;diagonal=non-unit;transpose=false";
    assert_eq!(problem, same);
    // Somebody's, by the very name that the corpus would give it, tuned for the very problem.
    let file = folder.path().join(format!("{spec}.mtx"));
    let file = file.to_str().unwrap();
    let made = sparsetune(&["generate", spec, "-o", file]);
    assert!(made.status.success(), "{}", err(&made));
    let on = ["--device", "cpu", "--data", data.to_str().unwrap(), "--trials", "8"];
    let solve = ["tune", file, "--op", "sptrsv", "--dtype", "f32", "--triangle", "lower"];
    let tuned = sparsetune(&[&solve[..], &on].concat());
    assert!(tuned.status.success(), "{}", err(&tuned));
    assert_eq!(kept(&data).await, [spec]);

    let corpus = out(&sparsetune(&[&draw[..], &on].concat()));
    assert!(corpus.ends_with("tried 1: 1 tuned, 0 tuned before, 0 failed\n"), "{corpus}");
    assert_eq!(kept(&data).await, [spec]);
}

#[test]
fn a_dry_corpus_lists_what_the_device_that_is_meant_can_do() {
    let dry = |device: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sparsetune"));
        // Without GPUs, wherever the test runs: `auto` is the processor.
        command.env("CUDA_VISIBLE_DEVICES", "").args(["corpus", "--count", "24", "--dry"]);
        out(&command.args(device).output().unwrap())
    };
    let auto = dry(&[]);
    assert_eq!(auto.lines().count(), 24, "{auto}");
    assert_eq!(auto, dry(&["--device", "cpu"]));
    assert_ne!(auto, dry(&["--device", "cuda:0"]));
}

#[test]
fn a_corpus_of_nothing_is_misuse() {
    let nothing = sparsetune(&["corpus", "--count", "0", "--dry"]);
    assert_eq!(nothing.status.code(), Some(2), "{}", err(&nothing));
}
