//! Errors of the matrix readers: a kind for callers, a sentence for users, and the position in the file.

use super::super::CsrError;
use super::pool::Shortage;
use std::{fmt, io};

/// Kind of error; the service maps each to one HTTP response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// One of the [`Limits`](super::Limits) is exceeded.
    TooLarge,
    /// There is not enough disk space to decompress it; a retry may succeed.
    StorageFull,
    /// There is enough memory or disk, but others use it now; a retry may succeed.
    Busy,
    /// An operating system error, not a fault of the upload.
    Io,
}

/// Why a file was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ReadError {
    pub kind: ReadErrorKind,
    pub message: String,
    /// Line of the (decompressed) text, from 1.
    pub line: Option<u64>,
    /// Offset into the (decompressed) bytes, from 0.
    pub byte: Option<u64>,
    /// If there was too little memory or disk: how much.
    pub shortage: Option<Shortage>,
}

impl fmt::Display for ReadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)?;
        match (self.line, self.byte) {
            (Some(line), Some(byte)) => write!(out, " (line {line}, byte {byte})"),
            (Some(line), None) => write!(out, " (line {line})"),
            (None, Some(byte)) => write!(out, " (byte {byte})"),
            (None, None) => Ok(()),
        }
    }
}

impl ReadError {
    pub(super) fn new(kind: ReadErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), line: None, byte: None, shortage: None }
    }

    pub(super) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ReadErrorKind::Unsupported, message)
    }

    pub(super) fn malformed(message: impl Into<String>) -> Self {
        Self::new(ReadErrorKind::Malformed, message)
    }

    pub(super) fn out_of_range(message: impl Into<String>) -> Self {
        Self::new(ReadErrorKind::OutOfRange, message)
    }

    pub(super) fn too_large(message: impl Into<String>) -> Self {
        Self::new(ReadErrorKind::TooLarge, message)
    }

    pub(super) fn io(doing: &str, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ReadErrorKind::StorageFull,
            _ => ReadErrorKind::Io,
        };
        Self::new(kind, format!("{doing}: {error}"))
    }

    /// Adds the position of the faulty byte in `text`, and its line. Lines are counted only here, so that the readers
    /// need not track line numbers.
    pub(super) fn at(mut self, text: &[u8], byte: usize) -> Self {
        let before = &text[..byte.min(text.len())];
        self.line = Some(memchr::memchr_iter(b'\n', before).count() as u64 + 1);
        self.byte = Some(byte as u64);
        self
    }
}

impl From<CsrError> for ReadError {
    fn from(error: CsrError) -> Self {
        let kind = match error {
            CsrError::TooLarge { .. } => ReadErrorKind::TooLarge,
            CsrError::ColumnRange { .. } => ReadErrorKind::OutOfRange,
            CsrError::NotFinite { .. } => ReadErrorKind::NotFinite,
            CsrError::RowPointers { .. } | CsrError::Unsorted { .. } | CsrError::Lengths { .. } => {
                ReadErrorKind::Malformed
            }
        };
        Self::new(kind, error.to_string())
    }
}

/// The token that begins at `at`, truncated and printable, for a message.
pub(super) fn quote(text: &[u8], at: usize) -> String {
    let rest = text.get(at..).unwrap_or_default();
    let end = rest.iter().position(|byte| byte.is_ascii_whitespace()).unwrap_or(rest.len());
    if end == 0 {
        return "the end of the line".into();
    }
    format!("'{}{}'", rest[..end.min(40)].escape_ascii(), if end > 40 { "..." } else { "" })
}
