//! One reader process per upload: started ahead, given its order, answered until it has ended, and gone before its work is used.
//!
//! A reader is not used twice: what took one over would have the next upload. So that an upload need not wait for a start, the next
//! reader is started while one works, and waits.

use super::child::{ChildProcess, Incoming, Start, Terminated};
use super::life::from_outside;
use super::{oom, spec};
use crate::domain::reading::{Answer, MAX_LINE_BYTES, Order, Refusal, Said};
use async_trait::async_trait;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// Most questions of one reader: some for each 8 MiB that it takes, and never as many as would keep the service busy.
const MOST_QUESTIONS: u32 = 1 << 16;

/// How long a reader that closed its stdout may take to exit by itself, so that its own exit status is reported.
const LEAVING: Duration = Duration::from_secs(1);
/// How long a killed one is waited for: the memory of a large matrix takes a while to be freed.
const REAP: Duration = Duration::from_secs(30);

/// What readers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Bytes that one may be granted, of memory and of disk.
    pub memory: u64,
    pub disk: u64,
    /// Bytes of an upload as it arrives.
    pub upload: u64,
    /// Time by the clock, and of processor time.
    pub time: Duration,
}

/// How readers are started.
#[derive(Clone, Debug)]
pub struct ReaderSpec {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    pub time: Duration,
    /// Whether the next one is started while one works.
    pub ahead: bool,
}

impl ReaderSpec {
    /// `program` with these arguments and no limits of its own.
    pub fn new(
        program: impl Into<PathBuf>,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
            time: Duration::from_secs(600),
            ahead: true,
        }
    }

    /// The `reader` subcommand of the running binary, or of what [`super::set_program`] names.
    pub fn of_this_binary() -> io::Result<Self> {
        let (program, leading) = spec::this_binary()?;
        Ok(Self::new(program, leading.into_iter().chain(["reader".into()])))
    }

    /// This configuration with readers that are fenced in, as an evaluator is by its own.
    pub fn fenced(self, fence: &str, user: &str) -> Self {
        self.arg("--fence", fence).arg("--user", user)
    }

    /// This configuration with limits that the system keeps, above those that the service grants: what is allocated beside what is
    /// charged (threads, the program itself, and what allocators lose between blocks) has to fit as well.
    pub fn within(mut self, allowed: Allowed) -> Self {
        let Allowed { memory, disk, upload, time } = allowed;
        let threads = threads() as u64;
        let own =
            memory.saturating_add(memory / 8).saturating_add((128 << 20) + threads * (4 << 20));
        let mapped = disk.saturating_add(upload).saturating_add((4 << 30) + threads * (128 << 20));
        self.time = time;
        self.arg("--memory", own.to_string())
            .arg("--addresses", own.saturating_add(mapped).to_string())
            .arg("--file", memory.max(disk).saturating_add(1 << 20).to_string())
            .arg("--cpu-s", time.as_secs().max(1).to_string())
    }

    fn arg(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.args.push(name.into());
        self.args.push(value.into());
        self
    }
}

/// Threads of one reader: it cannot see how many a control group permits.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The service's side while an upload is read.
#[async_trait]
pub trait Host: Send {
    /// Answers what a reader needs, with the file if that is what it asked for.
    async fn answer(&mut self, said: Said) -> (Answer, Option<File>);
}

/// How a reader ended its work. It has exited, so that nothing changes what it wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The canonical form is written. The name is that which the file declares.
    Done {
        name: Option<String>,
    },
    Refused(Refusal),
}

/// Why there is neither a matrix nor a refusal. The texts are for clients; what the reader said last is in the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReaderError {
    #[error("the process that reads uploads could not be started: {0}")]
    Start(String),
    #[error("reading the upload took longer than {} s, and was stopped", .0.as_secs_f64())]
    Late(Duration),
    #[error("reading the upload took more than {} s of processor time, and was stopped", .0.as_secs_f64())]
    Spent(Duration),
    /// It was killed by someone else, or by the kernel for want of memory.
    #[error("the process that read the upload was killed from outside: {0}")]
    Killed(String),
    /// By itself, or for want of the memory that one reader may have.
    #[error("the process that read the upload ended before it was done: {0}")]
    Crashed(String),
    #[error("the process that read the upload did not keep to its protocol, and was stopped: {0}")]
    Garbage(String),
}

type ReaderChild = ChildProcess<Said>;

/// Starts readers.
#[derive(Clone, Debug)]
pub struct Readers {
    spec: Arc<ReaderSpec>,
    /// One that waits for an order.
    waiting: Arc<Mutex<Option<ReaderChild>>>,
}

impl Readers {
    /// Starts none before the first upload.
    pub fn new(spec: ReaderSpec) -> Self {
        Self { spec: Arc::new(spec), waiting: Arc::default() }
    }

    /// Has an upload read. A call that is dropped before its end kills its reader.
    pub async fn read(
        &self,
        order: &Order,
        upload: &File,
        host: &mut dyn Host,
    ) -> Result<Ending, ReaderError> {
        let child = self.ready().map_err(|error| ReaderError::Start(error.to_string()))?;
        let kills = oom::kills(None);
        self.converse(child, order, upload, host, kills).await
    }

    /// A reader that waits, or a new one; and another that waits for the next upload.
    fn ready(&self) -> io::Result<ReaderChild> {
        let waiting = self.take();
        if self.spec.ahead {
            let readers = self.clone();
            // Not in this upload's way.
            tokio::task::spawn_blocking(move || readers.prepare());
        }
        // One that an operator has ended meanwhile is of no use.
        match waiting.and_then(|mut child| child.is_well().then_some(child)) {
            Some(child) => Ok(child),
            None => self.start(),
        }
    }

    fn take(&self) -> Option<ReaderChild> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn prepare(&self) {
        match self.start() {
            // One that another upload prepared meanwhile is killed.
            Ok(child) => {
                *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(child);
            }
            Err(error) => tracing::warn!(%error, "the next reader could not be started ahead"),
        }
    }

    fn start(&self) -> io::Result<ReaderChild> {
        ReaderChild::spawn(Start {
            name: "reader".to_owned(),
            program: &self.spec.program,
            args: &self.spec.args,
            environment: vec![("RAYON_NUM_THREADS".into(), threads().to_string().into())],
            line_bytes: MAX_LINE_BYTES,
        })
    }

    async fn converse(
        &self,
        mut child: ReaderChild,
        order: &Order,
        upload: &File,
        host: &mut dyn Host,
        kills: Option<u64>,
    ) -> Result<Ending, ReaderError> {
        let talked = timeout(self.spec.time, talk(&mut child, order, upload, host)).await;
        // It has nothing left to do, and what it wrote is not looked at before it is gone.
        let failed = match talked {
            Ok(Ok(ending)) => return self.end(child, Duration::ZERO).await.map(|_| ending),
            Ok(Err(Broken::Gone(unsent))) => return Err(self.lost(child, unsent, kills).await),
            Ok(Err(Broken::Garbage(how))) => ReaderError::Garbage(how),
            Err(_) => ReaderError::Late(self.spec.time),
        };
        let ended = self.end(child, Duration::ZERO).await?;
        tracing::warn!(report = ended.report, "a reader was stopped: {failed}");
        Err(failed)
    }

    /// A reader that went away in the middle.
    async fn lost(
        &self,
        child: ReaderChild,
        unsent: Option<io::Error>,
        kills: Option<u64>,
    ) -> ReaderError {
        let ended = match self.end(child, LEAVING).await {
            Ok(ended) => ended,
            Err(error) => return error,
        };
        let unsent = unsent.map(|error| format!("nothing could be sent to it ({error})"));
        tracing::warn!(report = ended.report, unsent, "a reader ended before it was done");
        let how = match oom::since(kills, oom::kills(None)) {
            Some(counted) => format!("{}; {counted}", ended.how),
            None => ended.how,
        };
        match ended.signal {
            Some(libc::SIGXCPU) => ReaderError::Spent(self.spec.time),
            Some(signal) if from_outside(signal) => ReaderError::Killed(how),
            Some(libc::SIGABRT) => {
                ReaderError::Crashed(format!("{how}, as a process is that gets no more memory"))
            }
            _ => ReaderError::Crashed(how),
        }
    }

    /// Ends the process and waits until it is gone.
    async fn end(&self, child: ReaderChild, patience: Duration) -> Result<Terminated, ReaderError> {
        let ended = child.end(patience, REAP).await;
        match ended.unreaped {
            // It may still write.
            Some(_) => Err(ReaderError::Crashed("it was killed, and does not exit".to_owned())),
            None => Ok(ended),
        }
    }
}

/// Why a conversation ended too early.
enum Broken {
    /// Its stdout ended; and why it could not be sent anything, if that was seen before.
    Gone(Option<io::Error>),
    Garbage(String),
}

/// Gives the order, and answers until the reader has done its work.
async fn talk(
    child: &mut ReaderChild,
    order: &Order,
    upload: &File,
    host: &mut dyn Host,
) -> Result<Ending, Broken> {
    // If it cannot be sent the reader is gone, which its stdout will show, and how.
    let mut sent = child.requests.send(&line(order)?, Some(upload)).await;
    for _ in 0..MOST_QUESTIONS {
        let said = match child.incoming.recv().await {
            Some(Incoming::Message(said)) => *said,
            Some(Incoming::Garbage(text)) => {
                return Err(Broken::Garbage(format!("it sent `{text}`")));
            }
            None => return Err(Broken::Gone(sent.err())),
        };
        let (answer, file) = match said {
            Said::Done { name } => return Ok(Ending::Done { name }),
            Said::Refused(refusal) => return Ok(Ending::Refused(refusal)),
            question => host.answer(question).await,
        };
        sent = sent.and(child.requests.send(&line(&answer)?, file.as_ref()).await);
    }
    Err(Broken::Garbage(format!("it asked {MOST_QUESTIONS} questions")))
}

fn line(of: &impl serde::Serialize) -> Result<Vec<u8>, Broken> {
    let mut line = serde_json::to_vec(of).map_err(|error| Broken::Garbage(error.to_string()))?;
    line.push(b'\n');
    Ok(line)
}
