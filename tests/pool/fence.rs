//! The fence around an evaluator, tried from within by a child process.

use crate::fixture::{BINARY, EFFORT, Fixture, never, works};
use serde_json::Value;
use sparsetune::domain::DeviceId;
use sparsetune::ops;
use sparsetune::pool::{Evaluator, EvaluatorSpec};
use sparsetune::sparse::canonical;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

const EVALUATOR: [&str; 3] = ["evaluator", "--device", "cpu"];

/// In how many ways a child tries to leave.
const ATTEMPTS: usize = 14;

/// What stopped each attempt of a child with this fence to read `secret`, and the like.
fn attempts(
    child: &[&str],
    fence: &str,
    secret: &Path,
) -> (Output, BTreeMap<String, Option<String>>) {
    let output = Command::new(BINARY)
        .args(child)
        .args(["--fence", fence, "--try-to-leave"])
        .arg(secret)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let stopped = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let stopped = line["stopped"].as_str().map(str::to_owned);
        (line["attempt"].as_str().unwrap().to_owned(), stopped)
    });
    let stopped = stopped.collect();
    (output, stopped)
}

/// Whether this kernel has all that the fence is made of.
fn complete(output: &Output) -> bool {
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return true;
    }
    assert!(errors.contains("does not have all of it") && errors.contains("missing"), "{errors}");
    false
}

/// Whether the kernel can rule files.
fn landlock() -> bool {
    let names = std::fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
    names.split(',').any(|name| name == "landlock")
}

#[test]
fn nothing_leaves_the_fence_and_all_would_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "token").unwrap();
    let (_, without) = attempts(&EVALUATOR, "off", &secret);
    assert_eq!(without.len(), ATTEMPTS);
    assert!(without.values().all(Option::is_none), "{without:?}");

    let calls = [
        "connect to the network",
        "send a datagram",
        "start a program",
        "signal the parent",
        "connect to another program's socket",
        "lower the parent's limits",
        "change a file's mode",
        "signal a thread of the parent",
        "attach shared memory",
        "have the parent signalled",
    ];
    let (_, within) = attempts(&EVALUATOR, "without_files", &secret);
    assert!(calls.iter().all(|call| within[*call].is_some()), "{within:?}");
    assert!(within["read a file"].is_none() && within["list a folder"].is_none(), "{within:?}");
    if landlock() {
        assert!(within["write a file"].is_some(), "{within:?}");
        assert!(within["read the parent's environment"].is_some(), "{within:?}");
    }

    let (output, within) = attempts(&EVALUATOR, "required", &secret);
    if complete(&output) {
        assert_eq!(within.len(), ATTEMPTS);
        assert!(within.values().all(Option::is_some), "{within:?}");
    }
    assert!(secret.exists() && folder.path().read_dir().unwrap().count() == 1);
}

#[test]
fn nothing_leaves_the_fence_of_a_reader() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "token").unwrap();
    let (_, without) = attempts(&["reader"], "off", &secret);
    assert!(without.len() == ATTEMPTS && without.values().all(Option::is_none), "{without:?}");
    // What it may call opens no files, so that it needs no wall around them.
    for fence in ["without_files", "auto", "required"] {
        let (output, within) = attempts(&["reader"], fence, &secret);
        if fence != "required" || complete(&output) {
            assert_eq!(within.len(), ATTEMPTS, "{fence}: {output:?}");
        }
        assert!(within.values().all(Option::is_some), "{fence}: {within:?}");
    }
    assert!(secret.exists() && folder.path().read_dir().unwrap().count() == 1);
}

/// A reader that waits for its order is within its limits.
#[cfg(target_os = "linux")]
#[test]
fn a_reader_may_take_no_more_than_it_is_told() {
    use std::process::Stdio;
    let limits = ["--memory", "268435456", "--addresses", "8589934592", "--file", "1000"];
    let mut child = Command::new(BINARY)
        .args(["reader", "--cpu-s", "7", "--fence", "auto"])
        .args(limits)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}", child.id());
    let read = |file: &str| std::fs::read_to_string(format!("{status}/{file}")).unwrap();
    let filtered = |status: &str| status.lines().any(|line| line == "Seccomp:\t2");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !filtered(&read("status")) {
        assert!(std::time::Instant::now() < until, "{}", read("status"));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let limits = read("limits");
    let of = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].split_whitespace().take(2).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of("Max data size"), "268435456 268435456");
    assert_eq!(of("Max address space"), "8589934592 8589934592");
    assert_eq!(of("Max file size"), "1000 1000");
    assert_eq!(of("Max cpu time"), "7 9");
    assert_eq!(of("Max core file size"), "0 0");
    // Without an order it ends as soon as nobody can give one.
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

/// A search's requests, on a CPU, in a folder that nobody else may enter, as servers make theirs.
async fn searches(user: &str) -> Evaluator {
    let fixture = Fixture::new();
    let private = fixture.folder.path();
    let exports = private.join("blobs/staging/exports");
    std::fs::create_dir_all(&exports).unwrap();
    let spec =
        EvaluatorSpec::new(DeviceId("cpu".to_owned()), BINARY, ["evaluator", "--device", "cpu"])
            .arg("--cubin-cache")
            .arg(private.join("cubins"))
            .fenced("auto", user, &exports);
    let mut evaluator = Evaluator::new(spec);
    evaluator.load(fixture.load.clone(), &never()).await.unwrap();
    let device = evaluator.open(&never()).await.unwrap();
    let (matrix, _) = canonical::open(&fixture.load.path).unwrap();
    let space = ops::space(&matrix, &fixture.load.problem, &device).unwrap();
    // It has an array.
    let (candidate, _) = space.scored.iter().find(|(it, _)| it.family == "row_panel").unwrap();
    let measured = evaluator.measure(candidate, EFFORT, None, &never()).await.unwrap();
    assert_eq!(measured.outcome.state(), "measured", "{measured:?}");
    let folder = tempfile::tempdir_in(&exports).unwrap();
    let exported = evaluator.export(candidate, Some(folder.path()), &never()).await.unwrap();
    for array in &exported.arrays {
        let file = array.file.as_ref().unwrap();
        assert_eq!(file.parent(), Some(folder.path()));
        assert!(file.is_file());
    }
    assert!(!exported.arrays.is_empty());
    evaluator
}

#[tokio::test]
async fn a_search_needs_nothing_beyond_the_fence() {
    searches("").await.close().await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_child_of_root_goes_on_as_its_user_without_capabilities() {
    use std::os::unix::fs::MetadataExt;
    let own = std::fs::metadata("/proc/self").unwrap().uid();
    let mut evaluator = searches("nobody").await;
    let child = evaluator.process_id().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(field("CapPrm:").trim_start_matches('0'), "", "{status}");
    assert_eq!(field("NoNewPrivs:"), "1");
    // A filter of system calls.
    assert_eq!(field("Seccomp:"), "2");
    // Only root can become another user; nobody else's child tries to.
    assert_eq!(field("Uid:") == own.to_string(), own != 0, "{status}");
    evaluator.close().await;
}

#[tokio::test]
async fn a_device_that_needs_more_files_opens_at_the_last_attempt_and_stays_so() {
    let fixture = Fixture::new();
    let exports = fixture.folder.path().join("exports");
    let script = r#"case "$*" in *without_files*) exec "$0" "$@";; *) exit 3;; esac"#;
    let selector = fixture.selector();
    let spawning = |fence: &str| {
        let args = ["-c", script, BINARY, "evaluator", "--device", &selector];
        let spec = EvaluatorSpec::new(DeviceId("replay".to_owned()), "sh", args);
        Evaluator::new(spec.fenced(fence, "", &exports))
    };
    let mut evaluator = spawning("auto");
    evaluator.load(fixture.load.clone(), &never()).await.unwrap();
    assert_eq!(evaluator.restarts(), 2);
    evaluator.close().await;
    // The next child is started in this way at once, and is no restart.
    works(&mut evaluator).await;
    assert_eq!(evaluator.restarts(), 2);

    let error = spawning("required").open(&never()).await.unwrap_err();
    assert!(error.to_string().contains("exit code 3"), "{error}");
}

/// As a driver does that is kept from a file: the child lives, and says that the device does not open.
const REFUSING: &str = r#"read -r request; seq=$(echo "$request" | sed 's/.*"seq":\([0-9]*\).*/\1/')
    echo "{\"seq\":$seq,\"message\":\"reply\",\"reply\":\"failed\",\"data\":{\"error\":\"no driver\"}}"; read -r request"#;

#[tokio::test]
async fn a_device_that_says_that_it_does_not_open_gets_one_more_attempt_with_more_files() {
    let fixture = Fixture::new();
    let selector = fixture.selector();
    let spawning = |script: String, fence: &str| {
        let args = ["-c", &script, BINARY, "evaluator", "--device", &selector];
        let spec = EvaluatorSpec::new(DeviceId("replay".to_owned()), "sh", args);
        Evaluator::new(spec.fenced(fence, "", &fixture.folder.path().join("exports")))
    };
    let opens = format!(r#"case "$*" in *without_files*) exec "$0" "$@";; *) {REFUSING};; esac"#);
    let mut evaluator = spawning(opens, "auto");
    evaluator.open(&never()).await.unwrap();
    assert_eq!(evaluator.restarts(), 1);
    evaluator.close().await;

    let refuses =
        format!(r#"echo "$*" >> {}; {REFUSING}"#, fixture.folder.path().join("starts").display());
    for (fence, starts) in [("auto", 2), ("required", 1)] {
        let error = spawning(refuses.clone(), fence).open(&never()).await.unwrap_err();
        assert_eq!(error.to_string(), "no driver");
        let log = fixture.folder.path().join("starts");
        assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), starts, "{fence}");
        std::fs::remove_file(log).unwrap();
    }
}

/// Somebody who can have the first starts killed must not get a lower fence by it.
#[tokio::test]
async fn a_killed_start_keeps_the_fence() {
    let fixture = Fixture::new();
    let log = fixture.folder.path().join("starts");
    let script = format!(r#"echo "$*" >> {}; kill -KILL $$"#, log.display());
    let args = ["-c", &script, BINARY, "evaluator", "--device", "cpu"];
    let spec = EvaluatorSpec::new(DeviceId("cpu".to_owned()), "sh", args);
    let mut evaluator = Evaluator::new(spec.fenced("auto", "", fixture.folder.path()));
    evaluator.open(&never()).await.unwrap_err();
    let starts = std::fs::read_to_string(log).unwrap();
    assert!(starts.lines().count() > 1 && !starts.contains("without_files"), "{starts}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_servers_memory_is_hidden_from_its_user() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let mut server = Command::new(BINARY)
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(folder.path())
        .env("SPARSETUNE_DEVICES__USE", "[]")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(server.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    // The kernel gives root what belongs to a hidden process, and other users nothing of it.
    let mode = std::fs::metadata(format!("/proc/{}/environ", server.id())).unwrap();
    assert_eq!(mode.uid(), 0, "{line}");
    server.kill().unwrap();
    server.wait().unwrap();
}
