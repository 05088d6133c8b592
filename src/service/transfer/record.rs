//! The records of an export: one JSON object on each line, behind the digest that binds it to those before it.

use crate::domain::transfer::{Selection, SentJob, SentPlan, SentTrial};
use crate::domain::{Digest, LearnedModel, Matrix};
use serde::{Deserialize, Serialize};

/// The format of the first record.
pub const FORMAT: &str = "sparsetune export";
/// The version that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// Most bytes of a line. The largest records are plans with many launches; files are cut into parts.
pub const MOST_LINE: usize = 16 << 20;
/// Bytes of a file in a part.
pub const PART: usize = 384 << 10;
/// How far back a packed export may refer: its decoder takes as much memory.
pub const WINDOW_LOG: u32 = 23;

/// One record. A record with `contents` is followed by the parts of that file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    Header(Header),
    /// A program or an array that the next plan names, by the digest of its bytes.
    File(FileOfPlan),
    Plan(Box<SentPlan>),
    /// A search; its trials follow.
    Job(Box<SentJob>),
    Trial(Box<SentTrial>),
    Model(Box<SentModel>),
    Matrix(Box<SentMatrix>),
    Part(Part),
    End(Counts),
}

impl Record {
    /// The file that follows.
    pub fn contents(&self) -> Option<&Contents> {
        match self {
            Self::File(file) => Some(&file.contents),
            Self::Model(model) => Some(&model.contents),
            Self::Matrix(matrix) => Some(&matrix.contents),
            _ => None,
        }
    }
}

/// The first record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub format: String,
    pub version: u32,
    /// The id of the store.
    pub store: String,
    /// The version of the program that made it.
    pub program: String,
    pub made_at: String,
    pub selection: Selection,
}

/// A file: length and BLAKE3 of its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contents {
    pub bytes: u64,
    pub digest: Digest,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileOfPlan {
    pub contents: Contents,
}

/// A model's card; its file follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SentModel {
    pub card: LearnedModel,
    pub contents: Contents,
}

/// A matrix's facts; its canonical file follows. The facts that are stored are computed from the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SentMatrix {
    pub matrix: Matrix,
    pub contents: Contents,
}

/// Some bytes of a file, in base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    pub data: String,
}

/// The last record: how many of each kind there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    pub files: u64,
    pub plans: u64,
    pub jobs: u64,
    pub trials: u64,
    pub models: u64,
    pub matrices: u64,
}

impl Counts {
    pub fn count(&mut self, record: &Record) {
        match record {
            Record::Header(_) | Record::Part(_) | Record::End(_) => {}
            Record::File(_) => self.files += 1,
            Record::Plan(_) => self.plans += 1,
            Record::Job(_) => self.jobs += 1,
            Record::Trial(_) => self.trials += 1,
            Record::Model(_) => self.models += 1,
            Record::Matrix(_) => self.matrices += 1,
        }
    }
}

/// The digests of the lines: each of all before it.
pub struct Chain(Digest);

impl Chain {
    pub fn begin() -> Self {
        Self(Digest::of(b"sparsetune export v1\0"))
    }

    /// The digest that stands before this text.
    pub fn next(&mut self, text: &[u8]) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.0.as_bytes()).update(text);
        self.0 = Digest::from_bytes(*hasher.finalize().as_bytes());
        self.0
    }
}
