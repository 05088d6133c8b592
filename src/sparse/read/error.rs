//! Errors of the matrix readers: a kind for callers, a sentence for users, and the position in the file.

use super::super::CsrError;
use super::pool::Shortage;
pub use crate::domain::reading::ReadErrorKind;
use crate::domain::reading::Refusal;
use std::{fmt, io};

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
    /// An error without a place.
    pub fn of(kind: ReadErrorKind, message: String) -> Self {
        Self::new(kind, message)
    }

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

impl From<Refusal> for ReadError {
    fn from(refusal: Refusal) -> Self {
        let Refusal { kind, message, line, byte } = refusal;
        Self { kind, message, line, byte, shortage: None }
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        let ReadError { kind, message, line, byte, shortage: _ } = error;
        Self { kind, message, line, byte }
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
