//! Server-sent events as used by the API: `event`, `id` and one-line `data`, in frames that end with a blank line.

use crate::wire::{Event, Job, Trial, Work};
use anyhow::{Context, bail};
use reqwest::Response;
use serde::Deserialize;
use std::collections::VecDeque;

/// Maximum length of a line; the server sends no longer ones.
const LONGEST_LINE: usize = 4 << 20;

/// An event of a job.
#[derive(Clone, Debug)]
pub enum Happening {
    Job(Box<Job>),
    Trial(Box<Trial>),
    Log(String),
}

/// An open stream of events.
pub struct Events {
    response: Response,
    frames: Frames,
}

impl Events {
    pub(super) fn new(response: Response) -> Self {
        Self { response, frames: Frames::default() }
    }

    /// The next event with its number; `None` at the end of the stream.
    pub async fn next(&mut self) -> anyhow::Result<Option<(u64, Happening)>> {
        loop {
            while let Some(frame) = self.frames.ready.pop_front() {
                if let Some(event) = frame.happening()? {
                    return Ok(Some((frame.id, event)));
                }
            }
            match self.response.chunk().await.context("the event stream was interrupted")? {
                Some(chunk) => self.frames.push(&chunk)?,
                None => return Ok(None),
            }
        }
    }
}

/// One frame of the stream.
#[derive(Clone, Debug, Default, PartialEq)]
struct Frame {
    id: u64,
    event: String,
    data: String,
}

impl Frame {
    /// The content of the frame; `None` for a kind of event that this version does not know.
    fn happening(&self) -> anyhow::Result<Option<Happening>> {
        /// What an event of failure has of problem+json.
        #[derive(Deserialize)]
        struct Failure {
            detail: Option<String>,
        }
        const NO_JSON: &str = "an event is not JSON of the expected form";
        if self.event == "error" {
            let failure: Failure = serde_json::from_str(&self.data).context(NO_JSON)?;
            bail!("the event stream failed: {}", failure.detail.unwrap_or_default());
        }
        let Event { job, trial, message, .. } =
            serde_json::from_str(&self.data).context(NO_JSON)?;
        let job = job.and_then(|work| match work {
            Work::Tune(job) => Some(Happening::Job(job)),
            Work::Train(_) => None,
        });
        Ok(job.or(trial.map(Happening::Trial)).or(message.map(Happening::Log)))
    }
}

/// Splits received bytes into complete frames.
#[derive(Default)]
struct Frames {
    line: Vec<u8>,
    open: Frame,
    ready: VecDeque<Frame>,
}

impl Frames {
    fn push(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if self.line.len() > LONGEST_LINE {
                bail!("the event stream contains a line of more than {LONGEST_LINE} bytes");
            }
            if self.line.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                self.end_line(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']));
            }
        }
        Ok(())
    }

    fn end_line(&mut self, line: &str) {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" if line.is_empty() => {
                // The number remains valid until another one is sent, as the standard requires.
                let next = Frame { id: self.open.id, ..Frame::default() };
                let frame = std::mem::replace(&mut self.open, next);
                if !frame.data.is_empty() {
                    self.ready.push_back(frame);
                }
            }
            "id" => self.open.id = value.parse().unwrap_or(self.open.id),
            "event" => self.open.event = value.to_owned(),
            "data" => self.open.data.push_str(value),
            // Comments keep the connection alive; other fields are not used here.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Frames, Happening};

    #[test]
    fn frames_come_whole_however_the_bytes_are_cut() {
        let text = b": hello\n\nevent: log\nid: 7\ndata: {\"seq\":7,\"at\":\"2026-01-01T00:00:00Z\",\"message\":\"a\"}\r\n\nid: 8\nevent: funnel\ndata: {\"seq\":8,\"at\":\"2026-01-01T00:00:00Z\",\"funnel\":[]}\n\n";
        for cut in 1..text.len() {
            let mut frames = Frames::default();
            text.chunks(cut).for_each(|chunk| frames.push(chunk).unwrap());
            assert_eq!(frames.ready.len(), 2, "cut every {cut} bytes");
            assert_eq!(frames.ready[0].id, 7);
            let Some(Happening::Log(message)) = frames.ready[0].happening().unwrap() else {
                panic!("{:?}", frames.ready[0]);
            };
            assert_eq!(message, "a");
            assert_eq!(frames.ready[1].id, 8);
            assert!(frames.ready[1].happening().unwrap().is_none());
        }
    }

    #[test]
    fn an_error_event_is_an_error() {
        let mut frames = Frames::default();
        frames.push(b"event: error\ndata: {\"detail\":\"gone\"}\n\n").unwrap();
        assert!(frames.ready[0].happening().unwrap_err().to_string().contains("gone"));
    }
}
