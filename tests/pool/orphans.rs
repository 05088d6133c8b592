//! The evaluator does not outlive its parent: not at rest, and not in the midst of a hung kernel.

use crate::fixture::{BINARY, EFFORT, Fixture, hostile};
use sparsetune::domain::protocol::{Message, PROTOCOL_VERSION, Request, RequestBody};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The requests that get a hostile candidate to hang.
fn requests(fixture: &Fixture) -> String {
    let bodies = [
        RequestBody::Open { protocol: PROTOCOL_VERSION },
        RequestBody::Load(fixture.load.clone()),
        RequestBody::Measure { candidate: hostile("hang"), effort: EFFORT },
    ];
    let line = |(seq, body)| serde_json::to_string(&Request { seq, body }).unwrap() + "\n";
    (1..).zip(bodies).map(line).collect()
}

fn spawn(fixture: &Fixture, program: &[&str]) -> Child {
    Command::new(program[0])
        .args(&program[1..])
        // The matrix is passed by its path here.
        .args(["evaluator", "--allow-hostile", "--fence", "without_files"])
        .args(["--device", &fixture.selector()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap()
}

/// Kills the group: where the test fails, a child that spins for ever must not be what is left of it.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: a plain call; a group that is gone by then is an error that says so.
        unsafe { libc::kill(-(self.0 as i32), libc::SIGKILL) };
    }
}

/// Reads the child's stdout up to its end, which comes when the last process that holds it is gone.
fn end_of(stdout: impl Read + Send + 'static) -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        BufReader::new(stdout).read_to_end(&mut rest).unwrap();
        sender.send(()).unwrap();
    });
    receiver
}

#[test]
fn the_end_of_stdin_is_the_end() {
    let fixture = Fixture::new();
    let mut child = spawn(&fixture, &[BINARY]);
    drop(child.stdin.take());
    end_of(child.stdout.take().unwrap()).recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn a_hung_child_dies_with_its_parent() {
    let fixture = Fixture::new();
    // The shell is the parent; the child's stdin stays open here, so that its end cannot be what ends the child.
    let script = r#"exec 3<&0; "$0" "$@" <&3 & wait"#;
    let mut shell = spawn(&fixture, &["sh", "-c", script, BINARY]);
    let _group = Group(shell.id());
    let mut stdin = shell.stdin.take().unwrap();
    stdin.write_all(requests(&fixture).as_bytes()).unwrap();
    let mut stdout = BufReader::new(shell.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("verifying") {
        line.clear();
        assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "it ended before it hung");
    }
    let end = end_of(stdout);
    assert!(end.recv_timeout(Duration::from_millis(100)).is_err(), "it did not hang");
    shell.kill().unwrap();
    end.recv_timeout(Duration::from_secs(10)).unwrap();
    shell.wait().unwrap();
    drop(stdin);
}

/// The kernel reports the end of the *thread* that started the child; that alone must not end it.
#[test]
fn the_end_of_a_thread_of_the_parent_is_not_the_end() {
    let fixture = Fixture::new();
    let mut child = std::thread::scope(|scope| {
        let started = scope.spawn(|| {
            let mut child = spawn(&fixture, &[BINARY]);
            // Answered: it has asked for the signal by now.
            assert_eq!(ask(&mut child, 1), 1);
            child
        });
        started.join().unwrap()
    });
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(ask(&mut child, 2), 2);
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Has the child open its device; the answer is the number of its reply.
fn ask(child: &mut Child, seq: u64) -> u64 {
    let request = Request { seq, body: RequestBody::Open { protocol: PROTOCOL_VERSION } };
    let line = serde_json::to_string(&request).unwrap() + "\n";
    child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    let mut reply = String::new();
    // One line is answered at a time, so the reader holds nothing back when it goes.
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut reply).unwrap();
    serde_json::from_str::<Message>(&reply).unwrap().seq
}
