//! `sparsetune bench`, end to end: the real binary, its server and its evaluator, on the host's processor.

#[path = "fixture/device.rs"]
mod device;

use serde_json::Value;
use sparsetune::domain::{Candidate, Device, DeviceId, Problem};
use sparsetune::engine::replay::{Act, Header, Record};
use sparsetune::ops;
use sparsetune::sparse::generate::Spec;
use std::path::Path;
use std::process::{Command, Output};

fn bench(folder: &Path, suite: &str, args: &[&str]) -> (Output, String) {
    let file = folder.join("suite.toml");
    std::fs::write(&file, suite).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_sparsetune"))
        .args(["bench", "--suite", file.to_str().unwrap()])
        .args(["--matrices", folder.to_str().unwrap()])
        .args(args)
        .output()
        .unwrap();
    let told = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output, told)
}

const SUITE: &str = "
[[matrix]]
file = 'tiny.mtx'
class = 'handmade'
[[matrix]]
generate = 'poisson2d:nx=12,ny=11'
name = 'grid'
class = 'stencil'
[[problem]]
op = 'spmm'
n = 4
";

const TINY: &str = "%%MatrixMarket matrix coordinate real general\n\
                    3 3 4\n1 1 2.0\n2 1 -1.0\n2 2 3.0\n3 3 1.5\n";

#[test]
fn a_suite_becomes_lines_a_table_a_document_and_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tiny.mtx"), TINY).unwrap();
    let (out, svg) = (folder.path().join("out.json"), folder.path().join("out.svg"));
    let args = ["--device", "cpu", "--top-k", "2", "--out", out.to_str().unwrap()];
    let args = [&args[..], &["--svg", svg.to_str().unwrap()]].concat();
    let (output, told) = bench(folder.path(), SUITE, &args);
    assert!(output.status.success(), "{told}");
    for part in ["spmm f32 n=4 row", "handmade    tiny", "stencil     grid", "speed-up", "of bound"]
    {
        assert!(told.contains(part), "`{part}` is not in\n{told}");
    }

    let found: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for (run, nnz) in runs.iter().zip([4, 132 + 2 * (11 * 11 + 12 * 10)]) {
        assert_eq!(run["nnz"], nnz);
        assert_eq!(run["plan"]["device"]["id"], "cpu", "{run}");
        let figures = &run["figures"];
        assert!(figures["us"].as_f64().unwrap() > 0.0 && figures["speedup"].as_f64().is_some());
        assert!(figures["measured"].as_u64().unwrap() > 0, "{figures}");
        assert!(figures["tuning_s"].as_f64() >= figures["search_s"].as_f64());
    }
    let groups = found["groups"].as_array().unwrap();
    let classes: Vec<_> = groups.iter().map(|group| group["class"].as_str().unwrap()).collect();
    assert_eq!(classes, ["handmade", "stencil", "all"]);
    let product: f64 = runs.iter().map(|run| run["figures"]["speedup"].as_f64().unwrap()).product();
    let mean = groups[2]["speedup"].as_f64().unwrap();
    assert!((mean / product.sqrt() - 1.0).abs() < 1e-9, "{mean}");
    let svg = std::fs::read_to_string(svg).unwrap();
    assert_eq!(svg.matches("<title>").count(), 4, "each run in both panels: {svg}");
}

#[test]
fn a_search_is_compared_with_an_exhaustive_one() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tiny.mtx"), TINY).unwrap();
    let suite = format!(
        "{SUITE}[[problem]]\nop = 'spmm'\nn = 3\n[[problem]]\nop = 'spmm'\nn = 5\nlayout = 'col'\n"
    );
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (all, few) = (file("all.json"), file("few.json"));
    let some = ["--device", "cpu", "--class", "stencil", "--problem", "1,3"];
    let exhaustive = ["--strategy", "exhaustive", "--expected-calls", "1000", "--out", &all];
    let (output, told) = bench(folder.path(), &suite, &[&some[..], &exhaustive].concat());
    assert!(output.status.success() && !told.contains("tiny"), "{told}");
    let ranked = ["--top-k", "1", "--out", &few, "--compare", &all];
    let (output, told) = bench(folder.path(), &suite, &[&some[..], &ranked].concat());
    assert!(output.status.success() && told.contains("of its best"), "{told}");

    let read =
        |file: &str| -> Value { serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap() };
    let (all, few) = (read(&all), read(&few));
    let compared = few["compared"].as_array().unwrap();
    let tasks: Vec<_> = compared.iter().map(|share| share["task"].as_str().unwrap()).collect();
    assert_eq!(tasks, ["spmm f32 n=4 row", "spmm f32 n=5 col", "all"]);
    let total = &compared[2];
    let (trials, of_all) = (total["trials"].as_u64(), total["earlier_trials"].as_u64());
    assert!(total["runs"] == 2 && trials == Some(2) && of_all > trials, "{total}");
    assert!(total["of_best"].as_f64().unwrap() > 0.0, "{total}");
    let same = total["of_best_same_session"].as_f64().unwrap();
    assert!(0.0 < same && same <= 1.0, "{total}");

    let run = &all["runs"][0];
    assert_eq!(run["plan"]["problem"]["accumulate"], false, "{run}");
    let (figures, trials) = (&run["figures"], run["trials"].as_array().unwrap());
    for known in ["limit_us", "limit_fraction", "bytes", "copy_gbps", "preprocess_ms"] {
        assert!(figures[known].is_number(), "{known}: {figures}");
    }
    assert!(figures.get("break_even_calls").is_some());
    assert!(trials.iter().any(|trial| trial["candidate"] == figures["winner"]), "{run}");
    assert!(trials.iter().any(|trial| trial["predicted_us"].is_number()), "{run}");
}

const PREDICTED: &str = "
[[matrix]]
generate = 'poisson2d:nx=12,ny=11'
name = 'grid'
class = 'stencil'
[[matrix]]
generate = 'poisson2d:nx=13,ny=11'
name = 'larger grid'
class = 'stencil'
[[problem]]
op = 'spmm'
n = 4
[[problem]]
op = 'sptrsv'
rhs = 1
dtype = 'f64'
";

#[test]
fn predictions_are_timed_and_stand_beside_measured_plans() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (all, few, data) = (file("all.json"), file("few.json"), file("data"));
    let bench = |args: &[&str]| {
        let args = [&["--device", "cpu"], args].concat();
        let (output, told) = bench(folder.path(), PREDICTED, &args);
        assert!(output.status.success(), "{told}");
        told
    };
    let read =
        |file: &str| -> Value { serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap() };
    bench(&["--strategy", "exhaustive", "--out", &all]);
    let predict = ["--strategy", "predicted", "--data", &data, "--out", &few];
    let told = bench(&[&predict[..], &["--compare", &all]].concat());
    for part in ["prediction for", "of its best", "Of the lookups before all jobs, 4: "] {
        assert!(told.contains(part), "`{part}` is not in\n{told}");
    }

    let (all, found) = (read(&all), read(&few));
    let (runs, beside) = (found["runs"].as_array().unwrap(), found["beside"].as_array().unwrap());
    assert_eq!((runs.len(), beside.len()), (4, 4));
    for ((run, pair), earlier) in runs.iter().zip(beside).zip(all["runs"].as_array().unwrap()) {
        let (predicted, plan, figures) = (&run["predicted"], &run["plan"], &run["figures"]);
        assert!(predicted["measured"].is_null() && plan["measured"].is_object(), "{run}");
        assert_eq!(predicted["candidate"], plan["candidate"]);
        assert_eq!(figures["us"], plan["measured"]["median_us"]);
        assert_eq!(figures["model"], predicted["predicted"]["model"]);
        assert_eq!(figures["predicted_us"], predicted["predicted"]["median_us"]);
        assert_eq!(figures["search_s"], predicted["provenance"]["search_seconds"]);
        // The candidate alone beside the baseline, which lookups are told.
        let name = |trial: &&Value| trial["candidate"].as_str().unwrap().to_owned();
        let trials = run["trials"].as_array().unwrap().iter();
        let own: Vec<_> = trials.filter(|trial| !name(trial).starts_with("vendor")).collect();
        let [trial] = &own[..] else { panic!("{own:?}") };
        assert_eq!(name(trial), figures["winner"]);
        assert_eq!(trial["predicted_us"], figures["predicted_us"]);
        assert!(plan["provenance"]["narrowed"].is_string() && figures["speedup"].is_number());
        // Also for the second matrix, whose near neighbour was measured before its job, but not before its lookup.
        let lookup = &run["lookup"];
        assert_eq!(lookup["grade"], "predicted", "{lookup}");
        let same = lookup["candidate"] == predicted["candidate"];
        assert_eq!(lookup["same"], same, "{lookup}");
        assert!(!same || lookup["us"] == figures["us"], "{lookup}");
        assert_eq!((&pair["us"], &pair["earlier_us"]), (&figures["us"], &earlier["figures"]["us"]));
        assert_eq!(pair["earlier_winner"], earlier["figures"]["winner"]);
    }
    let shares = found["compared"].as_array().unwrap();
    assert_eq!((shares.len(), &shares[2]["runs"], &shares[2]["trials"]), (3, &4.into(), &4.into()));

    // What was timed is now the plan of the key, and lookups say that its search was narrowed.
    let told = bench(&[&predict[..], &["--only", "larger", "--problem", "1", "--wide"]].concat());
    assert!(told.contains("lookup: exact") && told.contains("1 had the grade exact"), "{told}");
    let lookup = &read(&few)["runs"][0]["lookup"];
    assert!(lookup["same"].is_null(), "{lookup}");
    let mut reasons = lookup["reasons"].as_array().unwrap().iter();
    assert!(
        reasons.any(|why| why.as_str().unwrap().contains("narrowed (one candidate alone)")),
        "{lookup}"
    );
}

/// A suite of one product on a recorded device, whose candidates do as is said of their position in the model's order.
fn replayed(acts: impl Fn(usize) -> Act) -> String {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording.jsonl");
    // Jobs name a device as its recording does.
    let selector = format!("replay:{}", recording.display());
    let device = Device { id: DeviceId(selector.clone()), ..device::processor() };
    let matrix = Spec::parse("poisson2d:nx=12,ny=11").unwrap().generate().unwrap();
    let problem: Problem = serde_json::from_str(r#"{"op": "spmm", "n": 4}"#).unwrap();
    let mut space = ops::space(&matrix, &problem, &device).unwrap();
    space.scored.sort_by(|a, b| a.1.total_cmp(&b.1));
    let own = space.scored.into_iter().enumerate().map(|(at, (one, _))| (one, acts(at)));
    let vendor = space.vendor.into_iter().map(|routine| (routine, measured()));
    let mut lines = vec![serde_json::to_string(&Header { device }).unwrap()];
    lines.extend(own.chain(vendor).map(|(candidate, act): (Candidate, Act)| {
        serde_json::to_string(&Record { candidate, act }).unwrap()
    }));
    std::fs::write(&recording, lines.join("\n")).unwrap();
    let args = ["--device", &selector, "--only", "grid", "--strategy", "predicted", "--wide"];
    let (output, told) = bench(folder.path(), SUITE, &args);
    let failed = output.status.code() == Some(1);
    assert_eq!(failed, told.contains("1 of 1 runs failed"), "{told}");
    told.lines().find(|line| line.starts_with("stencil ")).unwrap_or(&told).to_owned()
}

fn measured() -> Act {
    let samples_us = vec![5.0; 9];
    Act::Measured {
        samples_us,
        alone_us: None,
        rel_error: 0.0,
        resources: None,
        prepare_ms: None,
        latency_ms: 0,
    }
}

#[test]
fn a_prediction_that_fails_on_the_device_is_a_failed_run() {
    let good = replayed(|_| measured());
    assert!(good.contains("; lookup: same") && !good.contains("FAILED"), "{good}");
    let wrong = replayed(|_| Act::Wrong { rel_error: Some(0.5), unwritten: 0 });
    assert!(
        wrong.contains("FAILED: ") && wrong.contains("was predicted, and is wrong: "),
        "{wrong}"
    );
    // The job passes over what cannot be compiled; a lookup compiles nothing.
    let detail = "no such instruction".to_owned();
    let refused = replayed(|at| match at {
        0 => Act::CompileFailed { detail: detail.clone() },
        _ => measured(),
    });
    let said = "FAILED: what the lookup before the job predicted: ";
    assert!(refused.contains(said) && refused.contains(&detail), "{refused}");
}

#[test]
fn what_fails_is_a_line_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tiny.mtx"), "%%MatrixMarket matrix coordinate\n").unwrap();
    let (output, told) =
        bench(folder.path(), SUITE, &["--device", "cpu", "--trials", "2", "--wide"]);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("FAILED") && told.contains("1 of 2 runs failed"), "{told}");
    let grid = told.lines().find(|line| line.starts_with("stencil     grid")).unwrap();
    assert!(!grid.contains("FAILED") && grid.contains("bytes"), "{grid}");
}

#[test]
fn a_dry_run_says_levels_and_class_and_needs_no_device() {
    let folder = tempfile::tempdir().unwrap();
    let suite = "
        [[matrix]]
        generate = 'lower_levels:n=300,levels=100'
        name = 'narrow'
        [[matrix]]
        generate = 'lower_levels:n=6000,levels=2'
        name = 'wide'
        [[matrix]]
        generate = 'uniform:rows=30,cols=30,nnz=60'
        name = 'holes'";
    let args = ["--dry", "--problem", "1", "--device", "cuda:99"];
    let (output, told) = bench(folder.path(), suite, &args);
    let line = |name: &str| told.lines().find(|line| line.contains(name)).unwrap_or_default();
    assert!(line("narrow").starts_with("< 4 "), "{told}");
    assert!(line("wide").starts_with(">= 2000 "), "{told}");
    assert!(line("holes").contains("have no diagonal entry"), "{told}");
    assert_eq!(output.status.code(), Some(1));
    let (output, told) = bench(folder.path(), suite, &[&args[..], &["--only", "narrow"]].concat());
    assert!(output.status.success() && !told.contains("holes"), "{told}");
}

#[test]
fn a_full_search_of_each_family_becomes_a_study() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tiny.mtx"), TINY).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (data, packed, document) = (path("data"), path("study.jsonl.gz"), path("PAPERS.md"));
    let full = ["--device", "cpu", "--strategy", "full", "--trials", "40", "--data", &data];
    let args =
        [&full[..], &["--fix", "row_split.n1=8", "--only", "grid", "--each-family", "--wide"]]
            .concat();
    let (output, told) = bench(folder.path(), SUITE, &args);
    assert!(output.status.success(), "{told}");
    for line in ["spmm f32 n=4 row row_panel", "spmm f32 n=4 row row_split"] {
        assert!(told.contains(line), "`{line}` is not in\n{told}");
    }
    let study = |args: &[&str]| {
        let binary = env!("CARGO_BIN_EXE_sparsetune");
        let output = Command::new(binary).arg("study").args(args).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), told, error)
    };
    let suite = path("suite.toml");
    let (good, told, error) = study(&["--data", &data, "--suite", &suite, "--export", &packed]);
    assert!(good && told.starts_with("3 searches written"), "{told}{error}");
    let (good, told, error) = study(&["--from", &packed]);
    assert!(good, "{error}");
    for part in ["1 full search of 1 matrix", "| all rules | 1 |", "| row_panel | m1 |"] {
        assert!(told.contains(part), "`{part}` is not in\n{told}");
    }
    assert!(!told.contains("ranked, as run"), "it had no choice of families\n{told}");
    assert!(!told.contains("| row_split | n1 | 16 |"), "it was fixed to 8\n{told}");
    let (good, _, error) = study(&["--from", &packed, "--write", &document, "--csv", &path("csv")]);
    assert!(good, "{error}");
    let written = std::fs::read_to_string(&document).unwrap();
    assert!(written.contains("<!-- study: lo -->") && written.contains("| problem | search |"));
    let lines = std::fs::read_to_string(folder.path().join("csv/lo-searches.csv")).unwrap();
    assert!(lines.contains("\ngrid,stencil,"), "{lines}");
    let (plain, other) = (path("study.jsonl"), path("other.jsonl"));
    assert!(study(&["--from", &packed, "--export", &plain]).0);
    let searches = std::fs::read_to_string(&plain).unwrap();
    std::fs::write(&other, searches.replace("\"device\":\"", "\"device\":\"Other ")).unwrap();
    let (good, _, error) = study(&["--from", &plain, "--from", &other]);
    assert!(!good && error.contains("several devices"), "{error}");
    assert!(study(&["--from", &plain, "--from", &other, "--device", "Other"]).0);
    let (good, _, error) = study(&["--from", &packed, "--problem", "n=5"]);
    assert!(!good && error.contains("no searches"), "{error}");
}
