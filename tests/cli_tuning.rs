//! The subcommands that tune, end to end: the real binary, its server, its evaluator, on the host's processor.

#[path = "fixture/program.rs"]
mod program;

use program::{Server, binary, json, matrix, signal, sparsetune, told};
use serde_json::Value;
use sparsetune::domain::learned::{LearnedModel, Scope};
use sparsetune::domain::{JobState, Work};
use sparsetune::ops::features;
use sparsetune::store::{ActivationQuery, JobFilter, Jobs, Learning, PageRequest, SqliteStore};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

fn assert_plan(plan: &Value) {
    assert_eq!(plan["device"]["id"], "cpu", "{plan}");
    assert!(plan["measured"]["median_us"].as_f64().unwrap() > 0.0);
    assert!(plan["baseline"]["median_us"].as_f64().unwrap() > 0.0);
    assert!(plan["speedup"].as_f64().unwrap() > 0.0);
    assert!(!plan["funnel"].as_array().unwrap().is_empty());
}

#[test]
fn quickstart_ends_with_a_plan_found_by_hash() {
    let args = ["quickstart", "--device", "cpu", "--n", "2", "--seconds", "1", "--json"];
    let shown = json(&sparsetune(&args));
    assert_eq!(shown["matrix"]["name"], "delaunay_n15");
    assert_eq!(shown["job"]["state"], "succeeded");
    assert_plan(&shown["plan"]);
    assert_eq!(shown["lookup"]["match"]["grade"], "exact");
    assert_eq!(shown["lookup"]["plan"]["id"], shown["plan"]["id"]);
}

#[test]
fn tune_shows_candidates_funnel_and_plan_and_keeps_them_where_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = matrix(folder.path(), "grid.mtx", 5);
    let (file, data) = (file.to_str().unwrap(), folder.path().join("kept"));
    let args = [
        "tune",
        file,
        "--device",
        "cpu",
        "--n",
        "7",
        "--top-k",
        "2",
        "--data",
        data.to_str().unwrap(),
    ];
    let shown = sparsetune(&args);
    let text = told(&shown);
    assert!(shown.status.success(), "{text}");
    for part in ["grid: 132 x 132", "median us", "load_balance", "winner", "baseline ", "bound    "]
    {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }

    let shown = json(&sparsetune(&[args.as_slice(), &["--layout", "col", "--json"]].concat()));
    assert_plan(&shown["plan"]);
    let trials = shown["trials"].as_array().unwrap();
    assert!(trials.iter().any(|trial| trial["state"] == "measured"));

    // What tune kept, a server finds.
    let server = Server::start(&data);
    let found = json(&sparsetune(&["lookup", file, "--n", "7", "--json", "--server", &server.url]));
    assert_eq!(found["match"]["grade"], "exact");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_double_product_that_accumulates_is_tuned_on_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let file = matrix(folder.path(), "grid.mtx", 2);
    let file = file.to_str().unwrap();
    let problem = ["--n", "5", "--dtype", "f64", "--accumulate", "--strategy", "exhaustive"];
    let args = [&["tune", file, "--device", "cpu", "--json"], &problem[..]].concat();
    let shown = json(&sparsetune(&args));
    assert_plan(&shown["plan"]);
    let problem = &shown["plan"]["problem"];
    assert_eq!((&problem["dtype"], &problem["accumulate"]), (&"f64".into(), &true.into()));
    let trials = shown["trials"].as_array().unwrap().iter();
    let tried: Vec<&Value> = trials.filter(|trial| trial["state"] != "pruned").collect();
    assert!(tried.len() > 5 && tried.iter().all(|trial| trial["state"] == "measured"), "{tried:?}");
}

#[test]
fn submit_and_lookup_speak_with_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = matrix(folder.path(), "grid.mtx", 5);
    let file = file.to_str().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let on = ["--server", &server.url, "--n", "4", "--json"];
    let ask = |args: &[&str]| sparsetune(&[args, &on].concat());

    let nothing = ask(&["lookup", file]);
    assert_eq!(nothing.status.code(), Some(1), "nothing is known yet: {}", told(&nothing));

    let plan = json(&ask(&["submit", file, "--top-k", "1"]));
    assert_plan(&plan);
    let found = json(&ask(&["lookup", file]));
    assert_eq!((&found["match"]["grade"], &found["plan"]["id"]), (&"exact".into(), &plan["id"]));

    let other = matrix(folder.path(), "other.mtx", 6);
    let found = json(&ask(&["lookup", other.to_str().unwrap()]));
    assert_eq!(found["plan"]["id"], plan["id"], "other values, the same pattern: {found}");

    let models = told(&sparsetune(&["models", "--server", &server.url]));
    for part in ["spmm on cpu/", "measured / predicted", "rank correlation", "ranked here"] {
        assert!(models.contains(part), "`{part}` is not in\n{models}");
    }

    let digest = plan["matrix"].as_str().unwrap();
    let job = json(&ask(&["submit", digest, "--detach", "--seed", "9"]));
    assert_eq!(job["matrix"], digest);

    // A matrix that the server has is also called by its name, or by the first digits of its digest.
    for name in ["grid", &digest[..8]] {
        let found = json(&ask(&["lookup", name]));
        assert_eq!(found["plan"]["id"], plan["id"], "{name}");
        let job = json(&ask(&["submit", name, "--detach", "--seed", "9"]));
        assert_eq!(job["matrix"], digest, "{name}");
    }
    json(&ask(&["submit", other.to_str().unwrap(), "--detach"]));
    let pattern = json(&sparsetune(&["digest", file, "--json"]));
    let short = &pattern["pattern_digest"].as_str().unwrap()[..8];
    for (text, words) in [
        (short, ["fits 2 matrices", "grid: 132 x 132", "other: 132 x 132"]),
        ("0123", ["is no file here", "the server has no matrix", "sparsetune digest FILE"]),
    ] {
        let refused = ask(&["submit", text]);
        assert_eq!(refused.status.code(), Some(1));
        let said = told(&refused);
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }

    let bad = folder.path().join("bad.mtx");
    std::fs::write(&bad, "%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 nan\n")
        .unwrap();
    let refused = ask(&["submit", bad.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(told(&refused).contains("line 3"), "{}", told(&refused));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_solve_is_asked_for_by_its_own_flags() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let file = folder.path().join("holes.mtx");
    let text = "%%MatrixMarket matrix coordinate real general\n3 3 3\n1 1 1.0\n2 1 3.0\n3 3 2.0\n";
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let ask = |args: &[&str]| sparsetune(&[args, &["--server", &server.url]].concat());
    for mixed in [&["--op", "sptrsv", "--n", "8"][..], &["--rhs", "2"], &["--diagonal", "unit"]] {
        let refused = ask(&[&["submit", file][..], mixed].concat());
        assert_eq!(refused.status.code(), Some(2), "{}", told(&refused));
        assert!(told(&refused).contains("belongs to --op"), "{}", told(&refused));
    }
    let refused = ask(&["submit", file, "--op", "sptrsv", "--device", "cpu"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(told(&refused).contains("[1] (counted from 0)"), "{}", told(&refused));
    let unit =
        ["submit", file, "--op", "sptrsv", "--diagonal", "unit", "--dtype", "f64", "--detach"];
    let job = json(&ask(&[&unit[..], &["--device", "cpu", "--json"]].concat()));
    let problem = serde_json::json!({
        "op": "sptrsv", "rhs": 1, "dtype": "f64", "triangle": "lower", "diagonal": "unit", "transpose": false,
        "stability": "windowed", "approximate": false
    });
    assert_eq!((&job["problem"], &job["search"]["strategy"]), (&problem, &"halving".into()));
    let nothing = ask(&["lookup", file, "--op", "sptrsv", "--triangle", "upper"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(told(&nothing).contains("match    none"), "{}", told(&nothing));
}

#[test]
fn a_device_that_is_not_there_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = matrix(folder.path(), "grid.mtx", 5);
    let output = sparsetune(&["tune", file.to_str().unwrap(), "--device", "cuda:99"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // The reason, and nothing before it.
    assert!(said.starts_with("sparsetune: device cuda:99"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// How many jobs of a data folder are in this state.
async fn jobs(data: &Path, state: JobState) -> u64 {
    let store = SqliteStore::open(&data.join("sparsetune.db")).await.unwrap();
    let counts = store.job_counts(sparsetune::store::Whose::Own).await.unwrap();
    counts.iter().find(|(_, of, _)| *of == state).map_or(0, |(_, _, count)| *count)
}

/// `tune` of a matrix that takes long, in a data folder.
fn long_tune(folder: &Path, data: &Path) -> Child {
    let file = folder.join("large.mtx");
    let spec = "poisson2d:nx=80,ny=80";
    assert!(sparsetune(&["generate", spec, "-o", file.to_str().unwrap()]).status.success());
    let args = ["--device", "cpu", "--n", "32", "--strategy", "exhaustive"];
    let tune = binary()
        .args(["tune", file.to_str().unwrap(), "--data", data.to_str().unwrap()])
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    tune.unwrap()
}

/// Waits until the folder has a running job, and one that has measured something if that is asked for.
async fn under_way(data: &Path, measured: bool) {
    let begun = Instant::now();
    loop {
        if data.join("sparsetune.db").is_file() && jobs(data, JobState::Running).await > 0 {
            let store = SqliteStore::open(&data.join("sparsetune.db")).await.unwrap();
            let page = PageRequest { after: None, limit: 1 };
            let works = store.works(&JobFilter::default(), &page).await.unwrap().items;
            let best = |work: &Work| matches!(work, Work::Tune(job) if job.best.is_some());
            if !measured || works.iter().any(best) {
                return;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no job has begun");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_tune_that_is_interrupted_keeps_the_best_so_far() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("kept");
    let tune = long_tune(folder.path(), &data);
    under_way(&data, true).await;
    signal(&tune, libc::SIGINT);
    let ended = tune.wait_with_output().unwrap();
    let text = told(&ended);
    assert_eq!(ended.status.code(), Some(130), "{text}");
    for part in ["the best so far", "winner", "ended early on request"] {
        assert!(text.contains(part), "`{part}` is not in\n{text}");
    }
    assert_eq!(jobs(&data, JobState::Succeeded).await, 1);
}

#[tokio::test]
async fn a_tune_that_is_interrupted_twice_cancels_its_job() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("kept");
    let mut tune = long_tune(folder.path(), &data);
    under_way(&data, false).await;
    signal(&tune, libc::SIGINT);
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Where nothing was measured yet the first has ended it.
    if tune.try_wait().unwrap().is_none() {
        signal(&tune, libc::SIGINT);
    }
    assert_eq!(tune.wait().unwrap().code(), Some(130));
    assert_eq!(jobs(&data, JobState::Cancelled).await, 1);
}

#[test]
fn a_server_whose_output_nobody_reads_serves_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = binary()
        .args(["serve", "--listen", "127.0.0.1:0", "--data", folder.path().to_str().unwrap()])
        .env("SPARSETUNE_DEVICES__USE", "[]")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("serving")), "it ended before it served");
    signal(&child, libc::SIGTERM);
    log.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A server without devices, all of whose output is kept. It is killed when it is dropped.
struct Beginner {
    child: Child,
    line: Receiver<String>,
}

impl Beginner {
    fn start(data: &Path) -> Self {
        let mut child = binary()
            .args(["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()])
            .env("SPARSETUNE_DEVICES__USE", "[]")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (told, line) = mpsc::channel();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let mut line = String::new();
            // Nobody may be asking any more.
            let _ = lines.read_line(&mut line).map(|_| told.send(line));
        });
        Self { child, line }
    }

    /// The first line on standard output, and the log up to that, or to the end of its patience.
    fn begun(&mut self) -> (String, String) {
        let line = self.line.recv_timeout(Duration::from_secs(60)).unwrap_or_default();
        self.child.kill().unwrap();
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (line, log)
    }
}

impl Drop for Beginner {
    fn drop(&mut self) {
        // Fails only where the child has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The scopes of models that ship for the features of here.
fn shipped() -> BTreeSet<Scope> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/models");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let cards = files.filter(|file| file.to_str().unwrap().ends_with(".card.json"));
    let cards = cards
        .map(|file| serde_json::from_slice::<LearnedModel>(&std::fs::read(file).unwrap()).unwrap());
    let fit = cards.filter(|card| card.features_version == features::version(card.scope.op));
    fit.map(|card| card.scope).collect()
}

#[test]
fn who_waits_for_the_turn_to_open_can_be_stopped() {
    for command in ["serve", "worker"] {
        let folder = tempfile::tempdir().unwrap();
        let lock = std::fs::File::create(folder.path().join("sparsetune.db.lock")).unwrap();
        lock.lock().unwrap();
        let child = binary()
            .args([command, "--data", folder.path().to_str().unwrap()])
            .env("SPARSETUNE_SERVER__LISTEN", "127.0.0.1:0")
            .env("SPARSETUNE_DEVICES__USE", if command == "worker" { r#"["cpu"]"# } else { "[]" })
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let waits = log.any(|line| line.unwrap().contains("waiting for the lock"));
        signal(&child, libc::SIGTERM);
        let asked = Instant::now();
        while child.try_wait().unwrap().is_none() && asked.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // It would wait for ten minutes else.
        child.kill().unwrap();
        let rest: Vec<String> = log.map(Result::unwrap).collect();
        let code = child.wait().unwrap().code();
        assert!(waits && code == Some(0), "{command}: {rest:?}");
        assert!(!folder.path().join("sparsetune.db").exists(), "{command}: it has waited");
    }
}

#[tokio::test]
async fn servers_that_begin_a_folder_together_all_serve_it() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let data = folder.path().join(round.to_string());
        let mut servers: Vec<Beginner> = (0..4).map(|_| Beginner::start(&data)).collect();
        for server in &mut servers {
            let (line, log) = server.begun();
            assert!(line.starts_with("listening on "), "round {round}: {log}");
            assert!(!log.contains("could not be imported"), "round {round}: {log}");
        }
        // The models that ship with the program were put to use by one of them.
        let store = SqliteStore::open(&data.join("sparsetune.db")).await.unwrap();
        let active = store.activations(ActivationQuery::InUse).await.unwrap();
        let scopes: BTreeSet<Scope> = active.into_iter().map(|change| change.scope).collect();
        assert_eq!(scopes, shipped());
        for scope in &scopes {
            assert_eq!(
                store.activations(ActivationQuery::OfScope(scope, 9)).await.unwrap().len(),
                1,
                "round {round}"
            );
        }
    }
}
