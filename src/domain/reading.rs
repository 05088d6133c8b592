//! The protocol between the service and the reader of an upload: one JSON object per line, over the reader's stdin and stdout.
//!
//! The service sends an [`Order`], with the upload as an open file. The reader says what it needs ([`Said`]) and gets an [`Answer`] to
//! each; its last line is `done` or `refused`. The service decides: memory and disk are charged where all readers share them, files are
//! opened by the service alone, and nothing that the reader says is stored before it was checked.

use serde::{Deserialize, Serialize};

/// Longest line that either side reads, including the newline.
pub const MAX_LINE_BYTES: u64 = 64 << 10;

/// What an upload is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    /// A matrix: its canonical form is written.
    Matrix,
    /// A bundle: it is unpacked, and what a service keeps of it is written (`bundle::Extract`).
    Bundle,
    /// Anything that was packed on its way: it is unpacked, and nothing else is written.
    Unpacked,
}

/// What to read, and within which limits; see `sparse::read::Limits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub wanted: Wanted,
    /// Coding of the upload on its way, as in `Content-Encoding`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coding: Option<String>,
    pub max_rows: u64,
    pub max_cols: u64,
    pub max_nnz: u64,
    pub max_decompressed_bytes: u64,
    pub max_ratio: u64,
}

/// A line of the reader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub enum Said {
    /// It is about to allocate `least` bytes for `place`, and would rather have `most` at once.
    Memory { least: u64, most: u64, place: String },
    /// It is about to write as many bytes to the file for unpacked bytes.
    Disk { least: u64, most: u64, place: String },
    /// It needs a file for unpacked bytes.
    Spool,
    /// The upload is read: it needs the file for what it makes of it, of so many bytes.
    Output { bytes: u64 },
    /// All is written; of a canonical form all but its digests. `name` is that which the file declares.
    Done {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// The upload cannot be read.
    Refused(Refusal),
}

/// An answer to what the reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// So many bytes may be taken.
    Granted { bytes: u64 },
    /// The file that comes with this line.
    File,
    /// It is not to be had; the service knows why.
    Denied,
}

/// Why an upload cannot be read, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub kind: ReadErrorKind,
    pub message: String,
    /// Line of the unpacked text, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Offset into the unpacked bytes, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub byte: Option<u64>,
}

/// Kind of error; the service maps each to one HTTP response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadErrorKind {
    /// The file is in no known format.
    NotRecognised,
    /// A known format with unsupported contents (complex values, object arrays, ...).
    Unsupported,
    /// The file violates the rules of its format.
    Malformed,
    /// A number outside its valid range: an index outside the shape, an integer that float64 cannot represent.
    OutOfRange,
    /// A NaN or an infinity, stored or as the sum of duplicates.
    NotFinite,
    /// It is no bundle that this version can use.
    NoBundle,
    /// A limit is exceeded.
    TooLarge,
    /// There is not enough disk space to decompress it; a retry may succeed.
    StorageFull,
    /// There is enough memory or disk, but others use it now; a retry may succeed.
    Busy,
    /// An operating system error, not a fault of the upload.
    Io,
}
