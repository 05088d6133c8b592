//! Why an upload is not a matrix: a kind that callers can act on, a sentence that people can, and the place.

use super::super::CsrError;
use std::{fmt, io};

/// What sort of refusal it is; the service maps each to one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadErrorKind {
    /// No known format begins like this.
    NotRecognised,
    /// A known format, holding something this service does not take (complex values, object arrays, ...).
    Unsupported,
    /// The bytes break the rules of their own format.
    Malformed,
    /// A number outside what its place allows: an index outside the shape, an integer float64 cannot hold.
    OutOfRange,
    /// A NaN or an infinity, stored or reached by summing duplicates.
    NotFinite,
    /// Beyond one of the [`Limits`](super::Limits).
    TooLarge,
    /// There is no room to unpack it: it may work later.
    StorageFull,
    /// The operating system failed, not the upload.
    Io,
}

/// A refused upload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ReadError {
    pub kind: ReadErrorKind,
    pub message: String,
    /// Line of the (decompressed) text, from 1.
    pub line: Option<u64>,
    /// Offset into the (decompressed) bytes, from 0.
    pub byte: Option<u64>,
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
        Self { kind, message: message.into(), line: None, byte: None }
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

    /// Names the byte of `text` at fault, and so its line. Lines are counted only here, on the way out, so that
    /// the readers need not carry a line number through every chunk.
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

/// The token that begins at `at`, short and printable, for a message.
pub(super) fn quote(text: &[u8], at: usize) -> String {
    let rest = text.get(at..).unwrap_or_default();
    let end = rest.iter().position(|byte| byte.is_ascii_whitespace()).unwrap_or(rest.len());
    if end == 0 {
        return "the end of the line".into();
    }
    format!("'{}{}'", rest[..end.min(40)].escape_ascii(), if end > 40 { "..." } else { "" })
}
