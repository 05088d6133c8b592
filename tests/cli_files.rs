//! The subcommands that need no server, as a shell sees them: output, exit codes, what is on standard error.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const BUNDLED: &str = "data/delaunay_n15.mtx.gz";

fn sparsetune(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sparsetune"))
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The digests that data/README.md gives, which were computed when the file came in.
#[test]
fn the_bundled_matrix_is_what_its_readme_says() {
    let found = json(&sparsetune(&["digest", "--json", BUNDLED]));
    let readme = include_str!("../data/README.md");
    for name in ["digest", "pattern_digest"] {
        assert!(readme.contains(found[name].as_str().unwrap()), "{name} is not in data/README.md");
    }
    assert_eq!((found["rows"].as_u64(), found["nnz"].as_u64()), (Some(32768), Some(196548)));
}

/// Computed from the layout in docs/reference/digest.md by another implementation (Python, struct.pack and the blake3 package).
#[test]
fn a_known_matrix_has_its_known_digest() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("known.mtx");
    let entries =
        "%%MatrixMarket matrix coordinate real general\r\n2 3 3\r\n2 2 0\r\n1 3 1\r\n2 1 -2.5\r\n";
    std::fs::write(&file, entries).unwrap();
    let found = json(&sparsetune(&["digest", "--json", file.to_str().unwrap()]));
    assert_eq!(found["digest"], "d95e4f30f94ab58e3dd48ed0dc813ed1f2e53fb2340be58eaedd920925fe4b23");
}

fn digest_of(file: &Path) -> Value {
    json(&sparsetune(&["digest", "--json", file.to_str().unwrap()]))["digest"].clone()
}

#[test]
fn generated_files_are_the_same_every_time_packed_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let spec = "rmat:scale=9,edge_factor=4,seed=3";
    for name in ["a.mtx", "b.mtx", "c.mtx.gz", "d.mtx.gz"] {
        let made = sparsetune(&["generate", spec, "-o", file(name).to_str().unwrap()]);
        assert!(made.status.success(), "{}", text(&made.stderr));
    }
    let bytes = |name: &str| std::fs::read(file(name)).unwrap();
    assert_eq!(bytes("a.mtx"), bytes("b.mtx"));
    assert_eq!(bytes("c.mtx.gz"), bytes("d.mtx.gz"));
    assert_ne!(bytes("a.mtx"), bytes("c.mtx.gz"));
    assert_eq!(digest_of(&file("a.mtx")), digest_of(&file("c.mtx.gz")));
    assert_eq!(sparsetune(&["generate", spec]).stdout, bytes("a.mtx"));

    let other = sparsetune(&["generate", "rmat:scale=9,edge_factor=4,seed=4"]);
    assert_ne!(other.stdout, bytes("a.mtx"));
}

#[test]
fn a_bad_file_is_told_with_its_line_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.mtx");
    std::fs::write(&bad, "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n3 1 1\n")
        .unwrap();
    let output = sparsetune(&["digest", bad.to_str().unwrap(), BUNDLED]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(told.contains("bad.mtx") && told.contains("line 4"), "{told}");
    assert!(text(&output.stdout).contains("196548 nonzeros"));
}

#[test]
fn what_cannot_be_generated_is_refused_with_the_reason() {
    let output = sparsetune(&["generate", "poisson4d:nx=2"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("poisson3d"), "a wrong name lists the right ones");
    let output = sparsetune(&["generate", "banded:n=2000000000,half=1000"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("entries"), "{}", text(&output.stderr));
}

/// What is missing on a machine is a finding, not a failure.
#[test]
fn doctor_reports_libraries_and_a_working_cpu_anywhere() {
    let report = json(&sparsetune(&["doctor", "--json"]));
    let devices = report["devices"].as_array().unwrap();
    let cpu = devices.iter().find(|device| device["id"] == "cpu").unwrap();
    assert_eq!(cpu["works"], true, "{cpu}");
    assert!(cpu["copy_gbps"].as_f64().unwrap() > 0.0);
    for library in report["libraries"].as_array().unwrap() {
        let told = if library["found"] == true { "version" } else { "remedy" };
        assert!(library[told].is_string(), "{library}");
    }
    let table = sparsetune(&["doctor"]);
    assert!(table.status.success() && text(&table.stdout).contains("NVRTC"));
}

/// A newer copy that is no library does not keep the older ones from being opened, and is told of.
#[test]
fn doctor_tells_why_a_newer_library_is_not_used() {
    let root = tempfile::tempdir().unwrap();
    let newest = root.path().join("libcusparse.so.12.99.0.1");
    std::fs::write(&newest, "not a library").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_sparsetune"))
        .args(["doctor", "--json"])
        .env("LD_LIBRARY_PATH", root.path())
        .output()
        .unwrap();
    let report = json(&output);
    let libraries = report["libraries"].as_array().unwrap();
    let found = libraries.iter().find(|library| library["name"] == "cuSPARSE").unwrap();
    let passed = found["not_used"].as_array().unwrap();
    let told = passed.iter().find(|copy| copy["path"] == newest.to_str().unwrap()).unwrap();
    assert_eq!(told["version"], "12.99.0.1");
    let reason = told["reason"].as_str().unwrap();
    // A driver for CUDA 12 rules it out before it is opened.
    assert!(reason.starts_with("cannot be loaded: ") || reason.contains("CUDA 13"), "{reason}");
    if found["found"] == false {
        assert!(found["problem"].as_str().unwrap().contains("12.99.0.1"), "{found}");
    }
}

#[test]
fn wrong_usage_is_2_and_a_missing_server_is_1() {
    assert_eq!(sparsetune(&["tune"]).status.code(), Some(2));
    assert_eq!(sparsetune(&["lookup", "x", "--n", "0"]).status.code(), Some(2));
    // Port 9 is discard; nobody serves it here.
    let output = sparsetune(&["ready", "--server", "http://127.0.0.1:9"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no response from http://127.0.0.1:9"));
    let output = sparsetune(&["ready", "--server", "https://127.0.0.1:9"]);
    assert!(text(&output.stderr).contains("not https"), "{}", text(&output.stderr));
}

#[test]
fn what_is_neither_a_digest_nor_a_file_is_told_what_is_wanted() {
    for command in ["lookup", "submit"] {
        // Port 9 is discard: what a server makes of it, the tests of servers tell.
        let told = sparsetune(&[command, "no-such.mtx", "--server", "http://127.0.0.1:9"]);
        assert_eq!(told.status.code(), Some(1));
        let said = text(&told.stderr);
        assert!(said.contains("`no-such.mtx` is no file here"), "{said}");
        assert!(said.contains("no response from http://127.0.0.1:9"), "{said}");
    }
}

#[test]
fn a_generated_file_has_the_permissions_that_the_umask_grants() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    for (mask, wanted) in [("022", 0o644), ("007", 0o660)] {
        let file = folder.path().join(format!("{mask}.mtx"));
        let line = format!(
            "umask {mask} && exec '{}' generate poisson2d:nx=3,ny=3 -o '{}'",
            env!("CARGO_BIN_EXE_sparsetune"),
            file.display()
        );
        let made = Command::new("sh").args(["-c", &line]).output().unwrap();
        assert!(made.status.success(), "{}", text(&made.stderr));
        let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, wanted, "{mask}: {mode:o}");
    }
}

#[test]
fn shells_and_manual_readers_are_served_and_help_is_grouped() {
    for (shell, part) in [
        ("bash", "_sparsetune"),
        ("zsh", "#compdef sparsetune"),
        ("fish", "complete -c sparsetune"),
    ] {
        let script = sparsetune(&["completions", shell]);
        assert!(script.status.success() && text(&script.stdout).contains(part), "{shell}");
        assert!(text(&script.stdout).contains("quickstart"), "{shell}");
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert!(sparsetune(&["man", pages.to_str().unwrap()]).status.success());
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("sparsetune.1").contains("quickstart"));
    assert!(page("sparsetune-tune.1").contains("top\\-k"), "{}", page("sparsetune-tune.1"));
    let help = text(&sparsetune(&["--help"]).stdout);
    for part in ["Find a plan:", "Run a store:", "Examples:", "sparsetune quickstart"] {
        assert!(help.contains(part), "{part}\n{help}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 120), "{help}");
}
