//! The recording for the replay engine: JSON lines with the device first, then the behaviour of each candidate.

use crate::domain::{Candidate, Device, Resources};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The first line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub device: Device,
}

/// Every other line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub candidate: Candidate,
    #[serde(flatten)]
    pub act: Act,
}

/// The behaviour of a recorded candidate when it is tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "does", rename_all = "snake_case")]
pub enum Act {
    Measured {
        samples_us: Vec<f64>,
        /// What it takes alone, by the isolated clock, if that differs.
        #[serde(default)]
        alone_us: Option<Vec<f64>>,
        #[serde(default)]
        rel_error: f64,
        #[serde(default)]
        resources: Option<Resources>,
        /// Time of its device work before the first call, in milliseconds.
        #[serde(default)]
        prepare_ms: Option<f64>,
        /// Delay before the samples are returned, in milliseconds.
        #[serde(default)]
        latency_ms: u64,
    },
    CompileFailed {
        detail: String,
    },
    Refused {
        detail: String,
    },
    Wrong {
        /// Absent means not finite.
        #[serde(default)]
        rel_error: Option<f64>,
        #[serde(default)]
        unwritten: u64,
    },
    /// Its own watchdog stops its first call.
    Stopped {
        detail: String,
    },
    /// Sleeps forever.
    Hang {
        #[serde(default)]
        during: Step,
    },
    /// Aborts the process.
    Die {
        #[serde(default)]
        during: Step,
    },
    /// Reports that the device's context is lost.
    Lost {
        detail: String,
        #[serde(default)]
        during: Step,
    },
}

/// The call of the engine in which a candidate misbehaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    Compile,
    #[default]
    Verify,
    Time,
    Pair,
}

/// A complete recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    pub device: Device,
    pub acts: HashMap<Candidate, Act>,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("the recording cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("line {line} of the recording: {why}")]
    Line { line: usize, why: serde_json::Error },
    #[error("the recording is empty: its first line must describe a device")]
    Empty,
}

impl Recording {
    /// Reads a recording. If a candidate occurs twice the last record counts. Blank lines are ignored.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        Self::read(BufReader::new(std::fs::File::open(path)?))
    }

    pub fn read(input: impl BufRead) -> Result<Self, RecordingError> {
        let mut device = None;
        let mut acts = HashMap::new();
        for (number, line) in input.lines().enumerate() {
            let line = line?;
            if line.trim().is_empty() {
                continue;
            }
            let at = |why| RecordingError::Line { line: number + 1, why };
            if device.is_none() {
                device = Some(serde_json::from_str::<Header>(&line).map_err(at)?.device);
            } else {
                let record: Record = serde_json::from_str(&line).map_err(at)?;
                acts.insert(record.candidate, record.act);
            }
        }
        Ok(Self { device: device.ok_or(RecordingError::Empty)?, acts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_hand_written_recordings() {
        let act = |text: &str| serde_json::from_str::<Record>(text).map(|record| record.act);
        assert_eq!(
            act(r#"{"candidate":{"family":"a"},"does":"hang"}"#).unwrap(),
            Act::Hang { during: Step::Verify }
        );
        assert_eq!(
            act(r#"{"candidate":{"family":"a","params":{"m1":4}},"does":"die","during":"time"}"#)
                .unwrap(),
            Act::Die { during: Step::Time }
        );
        assert!(act(r#"{"candidate":{"family":"a"},"does":"dance"}"#).is_err());
    }

    #[test]
    fn errors_name_the_line() {
        assert!(matches!(Recording::read("\n".as_bytes()), Err(RecordingError::Empty)));
        let error = Recording::read("\n{}\n".as_bytes()).unwrap_err();
        assert!(matches!(error, RecordingError::Line { line: 2, .. }), "{error}");
    }
}
