//! One request and its reply, with a deadline that each stage restarts, and cancellation.

use super::child::{EvaluatorChild, Incoming};
use crate::domain::protocol::{MAX_LINE_BYTES, Message, MessageBody, Reply, Request, RequestBody};
use std::fs::File;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Most stage notes before a reply; without a limit a misbehaving child could extend its deadline forever.
const MOST_NOTES: u32 = 32;

/// Why the child must be terminated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// No reply by the deadline of the given stage.
    Late { stage: String, after: Duration },
    /// Its stdout ended.
    Gone,
    /// It sent an invalid message.
    Garbage(String),
    /// The call was cancelled and the child did not finish within the grace period.
    Cancelled,
    /// The request is longer than the protocol allows and was not sent.
    Unsendable(String),
}

/// Writes the request and reads until its reply, concurrently, so that two full pipes cannot deadlock.
///
/// `allowed` returns the time for a stage by its name, and for `None` the time up to the first note.
pub(super) async fn exchange(
    child: &mut EvaluatorChild,
    body: &RequestBody,
    allowed: impl Fn(Option<&str>) -> Duration,
    grace: Duration,
    cancel: &CancellationToken,
) -> Result<Reply, Broken> {
    let seq = child.next_seq();
    let line = line_of(seq, body)?;
    let file = file_of(body)?;
    let EvaluatorChild { requests, incoming, .. } = child;
    let mut write = pin!(requests.send(&line, file.as_ref()));
    let mut written = false;
    let mut wait = Wait::new(allowed(None));
    let mut notes = 0;
    loop {
        tokio::select! {
            biased;
            message = incoming.recv() => match take(message, seq)? {
                MessageBody::Reply(reply) => return Ok(reply),
                MessageBody::Stage { stage } => {
                    notes += 1;
                    if notes > MOST_NOTES {
                        return Err(Broken::Garbage(format!("{notes} stage notes for one request")));
                    }
                    wait.enter(allowed(Some(&stage)), stage);
                }
            },
            // If the write fails the child is gone or has closed stdin, which its stdout or the deadline will show.
            _ = &mut write, if !written => written = true,
            () = cancel.cancelled(), if !wait.cancelled => wait.cancel(grace),
            () = sleep_until(wait.until) => return Err(wait.over()),
        }
    }
}

/// The file that goes with the request: the evaluator may not be allowed to open it.
fn file_of(body: &RequestBody) -> Result<Option<File>, Broken> {
    let RequestBody::Load(load) = body else { return Ok(None) };
    let opened = File::open(&load.path);
    let what =
        |error| Broken::Unsendable(format!("the stored file of matrix {}: {error}", load.digest));
    opened.map(Some).map_err(what)
}

/// Encodes the request as one line within the protocol's limit.
fn line_of(seq: u64, body: &RequestBody) -> Result<Vec<u8>, Broken> {
    let request = Request { seq, body: body.clone() };
    let mut line = serde_json::to_vec(&request).map_err(|e| Broken::Unsendable(e.to_string()))?;
    line.push(b'\n');
    if line.len() as u64 > MAX_LINE_BYTES {
        return Err(Broken::Unsendable(format!("the request has {} bytes", line.len())));
    }
    Ok(line)
}

/// The body of a message that belongs to this request.
fn take(incoming: Option<Incoming<Message>>, seq: u64) -> Result<MessageBody, Broken> {
    match incoming {
        None => Err(Broken::Gone),
        Some(Incoming::Garbage(text)) => Err(Broken::Garbage(text)),
        Some(Incoming::Message(message)) => match *message {
            Message { seq: found, body } if found == seq => Ok(body),
            Message { seq: found, .. } => {
                Err(Broken::Garbage(format!("a reply to request {found} instead of {seq}")))
            }
        },
    }
}

/// The current deadline.
struct Wait {
    stage: Option<String>,
    allowed: Duration,
    until: Instant,
    cancelled: bool,
}

impl Wait {
    fn new(allowed: Duration) -> Self {
        Self { stage: None, allowed, until: Instant::now() + allowed, cancelled: false }
    }

    fn enter(&mut self, allowed: Duration, stage: String) {
        self.stage = Some(stage);
        // After a cancellation, stages no longer extend the deadline.
        if !self.cancelled {
            self.allowed = allowed;
            self.until = Instant::now() + allowed;
        }
    }

    fn cancel(&mut self, grace: Duration) {
        self.cancelled = true;
        self.until = self.until.min(Instant::now() + grace);
    }

    fn over(self) -> Broken {
        if self.cancelled {
            return Broken::Cancelled;
        }
        let stage = self.stage.unwrap_or_else(|| "starting".to_owned());
        Broken::Late { stage, after: self.allowed }
    }
}
