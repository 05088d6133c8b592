//! One child process: its pipes, the tail of its stderr, and its termination.

use super::requests::Requests;
use super::spec::{EvaluatorSpec, inherits};
use crate::domain::protocol::{MAX_LINE_BYTES, MISSING_WALL, Message};
use crate::environment;
use serde::de::DeserializeOwned;
use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Number of stderr lines kept for crash reports, and bytes kept of each.
const TAIL_LINES: usize = 20;
const STDERR_LINE_BYTES: u64 = 2048;

/// Messages buffered here; a child that sends more blocks on its pipe.
const READ_AHEAD: usize = 64;

/// Input from the child's stdout, of messages `M`.
#[derive(Debug)]
pub(super) enum Incoming<M> {
    Message(Box<M>),
    /// Not a valid message; nothing after it is read.
    Garbage(String),
}

pub(super) type EvaluatorChild = ChildProcess<Message>;

/// How a child is started.
pub(super) struct Start<'a> {
    /// What the log calls it.
    pub(super) name: String,
    pub(super) program: &'a Path,
    pub(super) args: &'a [OsString],
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Longest line that it may send, in bytes.
    pub(super) line_bytes: u64,
}

impl<'a> Start<'a> {
    pub(super) fn evaluator(spec: &'a EvaluatorSpec) -> Self {
        let inherited = environment::variables().filter(|(name, _)| inherits(name));
        Self {
            name: spec.device.to_string(),
            program: &spec.program,
            args: &spec.args,
            environment: inherited.map(|(name, value)| (name.into(), value.into())).collect(),
            line_bytes: MAX_LINE_BYTES,
        }
    }
}

/// A running child that sends messages `M`, and is killed on drop.
#[derive(Debug)]
pub(super) struct ChildProcess<M> {
    pub(super) requests: Requests,
    pub(super) incoming: mpsc::Receiver<Incoming<M>>,
    pub(super) last_seq: u64,
    process: Child,
    stderr: Stderr,
    _stdout: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Stderr {
    tail: Arc<Mutex<VecDeque<String>>>,
    reader: AbortOnDropHandle<()>,
}

/// The remains of a terminated child.
pub(super) struct Terminated {
    /// How it ended.
    pub(super) how: String,
    /// How it ended, and its last lines on stderr.
    pub(super) report: String,
    /// The signal that ended it, unless this process sent it.
    pub(super) signal: Option<i32>,
    /// The process if it still exists after SIGKILL and a wait, stuck in a driver. The device is not free until it is
    /// gone.
    pub(super) unreaped: Option<Child>,
}

impl<M: DeserializeOwned + Send + 'static> ChildProcess<M> {
    /// Starts the process in its own process group, so that Ctrl-C at the terminal reaches only the parent.
    pub(super) fn spawn(start: Start<'_>) -> io::Result<Self> {
        let (requests, stdin) = Requests::pair()?;
        let mut process = Command::new(start.program)
            .args(start.args)
            .env_clear()
            .envs(start.environment)
            .env(environment::STARTED_AS_CHILD, "1")
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let missing = || io::Error::other("the child has no pipe");
        let stdout = process.stdout.take().ok_or_else(missing)?;
        let stderr = process.stderr.take().ok_or_else(missing)?;
        let (sender, incoming) = mpsc::channel(READ_AHEAD);
        let reader = tokio::spawn(read_messages(stdout, sender, start.line_bytes));
        Ok(Self {
            requests,
            incoming,
            last_seq: 0,
            process,
            stderr: Stderr::follow(stderr, start.name),
            _stdout: AbortOnDropHandle::new(reader),
        })
    }

    /// Whether the child is alive and silent, as expected without a request.
    pub(super) fn is_well(&mut self) -> bool {
        let silent = matches!(self.incoming.try_recv(), Err(mpsc::error::TryRecvError::Empty));
        silent && matches!(self.process.try_wait(), Ok(None))
    }

    /// Its process id, until it has been reaped.
    pub(super) fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// The number of the next request.
    pub(super) fn next_seq(&mut self) -> u64 {
        self.last_seq += 1;
        self.last_seq
    }

    /// Waits up to `patience` for the child to exit by itself, then kills it and waits up to `reap`.
    pub(super) async fn end(mut self, patience: Duration, reap: Duration) -> Terminated {
        let mut status = within(patience, self.process.wait()).await;
        let by_itself = status.is_some();
        if status.is_none() {
            self.kill();
            status = within(reap, self.process.wait()).await;
        }
        let how = match &status {
            Some(Ok(status)) if by_itself => describe(*status),
            Some(Ok(_)) => "it was killed".to_owned(),
            Some(Err(error)) => format!("waiting for its exit failed: {error}"),
            None => "it was killed but has not exited yet".to_owned(),
        };
        let signal = match &status {
            Some(Ok(status)) if by_itself => status.signal(),
            _ => None,
        };
        let last_words = self.stderr.last_words().await;
        let report = match last_words.as_str() {
            "" => how.clone(),
            words => format!("{how}; last lines of its log: {words}"),
        };
        Terminated { how, report, signal, unreaped: status.is_none().then_some(self.process) }
    }

    fn kill(&mut self) {
        // The id is available only until the child has been reaped, so it cannot refer to another process.
        if let Some(group) = self.process.id().and_then(|id| i32::try_from(id).ok()) {
            // SAFETY: a plain call. The group may no longer exist; the child itself is killed below.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        if let Err(error) = self.process.start_kill() {
            tracing::warn!(%error, "a child process could not be killed");
        }
    }
}

async fn within<T>(patience: Duration, wait: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(patience, wait).await.ok()
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with exit code {code}"),
        (None, Some(signal)) => match signal_name(signal) {
            Some(name) => format!("it was terminated by signal {signal} ({name})"),
            None => format!("it was terminated by signal {signal}"),
        },
        (None, None) => format!("it exited: {status}"),
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGILL => "SIGILL",
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGKILL => "SIGKILL",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        _ => return None,
    })
}

/// Reads until the end of input, the first invalid message, or a closed channel.
async fn read_messages<M: DeserializeOwned>(
    stdout: impl AsyncRead + Unpin,
    sender: mpsc::Sender<Incoming<M>>,
    line_bytes: u64,
) {
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        let incoming = match (&mut stdout).take(line_bytes).read_until(b'\n', &mut line).await {
            Ok(0) => return,
            Ok(_) if line.last() != Some(&b'\n') => Incoming::Garbage(excerpt(&line)),
            Ok(_) => serde_json::from_slice(&line)
                .map_or_else(|_| Incoming::Garbage(excerpt(&line)), Incoming::Message),
            Err(error) => Incoming::Garbage(error.to_string()),
        };
        let last = matches!(incoming, Incoming::Garbage(_));
        if sender.send(incoming).await.is_err() || last {
            return;
        }
    }
}

/// The beginning of a line, escaped for a log.
fn excerpt(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(120)]).escape_debug().to_string()
}

impl Stderr {
    /// Forwards each line to the log and keeps the last ones.
    fn follow(stderr: impl AsyncRead + Send + Unpin + 'static, device: String) -> Self {
        let tail = Arc::new(Mutex::new(VecDeque::with_capacity(TAIL_LINES)));
        let kept = tail.clone();
        let reader = tokio::spawn(async move {
            let mut stderr = BufReader::new(stderr);
            let mut line = Vec::new();
            loop {
                line.clear();
                let piece =
                    (&mut stderr).take(STDERR_LINE_BYTES).read_until(b'\n', &mut line).await;
                match piece {
                    Ok(0) => return,
                    Ok(_) => {
                        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                        tell(&device, &text);
                        keep(&kept, text);
                    }
                    Err(error) => {
                        tracing::warn!(%device, %error, "a child's stderr cannot be read");
                        return;
                    }
                }
            }
        });
        Self { tail, reader: AbortOnDropHandle::new(reader) }
    }

    /// The last lines in order. Waits briefly for lines still in the pipe, but not forever, since a grandchild may keep
    /// it open.
    async fn last_words(&mut self) -> String {
        let _cut_short = within(Duration::from_millis(100), &mut self.reader).await;
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.iter().map(String::as_str).collect::<Vec<_>>().join(" | ")
    }
}

/// Walls that some child's fence lacked.
static MISSING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Most of them that are told once; a host has fewer walls.
const MOST_MISSING: usize = 64;

/// Forwards a line of a child's log; of a missing wall, which every child tells, only the first one.
fn tell(device: &str, text: &str) {
    let Some((_, wall)) = text.split_once(MISSING_WALL) else {
        tracing::info!(target: "sparsetune::evaluator", device, "{text}");
        return;
    };
    match is_new(wall) {
        true => tracing::warn!(device, "{MISSING_WALL}{wall} (told once)"),
        false => tracing::debug!(device, "{text}"),
    }
}

/// Whether no child has told of this wall before.
fn is_new(wall: &str) -> bool {
    let mut missing = MISSING.lock().unwrap_or_else(PoisonError::into_inner);
    missing.len() < MOST_MISSING && missing.insert(wall.to_owned())
}

fn keep(tail: &Mutex<VecDeque<String>>, line: String) {
    let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
    if tail.len() == TAIL_LINES {
        tail.pop_front();
    }
    tail.push_back(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_wall_is_told_once() {
        assert!(is_new("of a test: one") && is_new("of a test: two"));
        assert!(!is_new("of a test: one") && !is_new("of a test: two"));
    }
}
