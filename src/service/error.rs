//! Errors of use cases. Status codes are not known here; they belong to the transport.

use crate::domain::QuotaExceeded;
use crate::pool::ReaderError;
use crate::sparse::canonical::CanonicalError;
use crate::sparse::read::{ReadError, ReadErrorKind, Shortage};
use crate::store::{BlobError, StoreError, is_full};
use std::sync::Arc;

#[derive(Clone, Debug, thiserror::Error)]
pub enum ServiceError {
    /// A part of the request is invalid or refers to something that does not exist.
    #[error("{message}")]
    Invalid {
        /// JSON pointer into the body (`/problem/n`), or the name of a parameter.
        pointer: String,
        message: String,
    },
    /// A name in the request stands for several things.
    #[error("{message}")]
    Ambiguous {
        /// As of [`Self::Invalid`].
        pointer: String,
        message: String,
        /// What to name instead.
        choices: Vec<String>,
    },
    /// The upload is not a matrix in a supported format.
    #[error("{message}")]
    Unreadable {
        message: String,
        /// Line of the unpacked text, counted from 1.
        line: Option<u64>,
        /// Offset into the unpacked bytes, counted from 0.
        byte: Option<u64>,
    },
    /// The upload is not a bundle that this version can use.
    #[error("{message}")]
    BadBundle { message: String },
    /// The upload is not an export that this version can take in.
    #[error("{message}")]
    BadExport { message: String },
    /// Well-formed, but not supported by this version.
    #[error("{message}")]
    Unsupported { pointer: Option<String>, message: String },
    #[error("there is no {what} {id}")]
    NotFound { what: &'static str, id: String },
    /// The current state does not permit the request.
    #[error("{message}")]
    Conflict { message: String },
    #[error("the idempotency key was used before with another request")]
    KeyReused,
    #[error("{message}")]
    TooLarge { message: String },
    /// More memory or disk than there is for such requests, or than is free now.
    #[error("{message}")]
    Shortage { message: String, shortage: Shortage, lack: Lack },
    /// A limit of the caller's token.
    #[error("{0}")]
    Quota(QuotaExceeded),
    /// The same request may succeed later.
    #[error("{message}")]
    Unavailable { message: String },
    /// Another connection keeps the store busy: the same request may succeed later.
    #[error("the server's store is busy: try again later")]
    Busy(#[source] Cause),
    /// The disk of the server is full: the same request may succeed once the operator has made room.
    #[error("the server's disk is full")]
    Full(#[source] Cause),
    /// The process that read the upload failed, for which the upload may be the cause: the same request would fail again.
    #[error("{message}")]
    ReaderFailed { message: String },
    /// A fault of this program or its machine. The text is for the log, not for the client.
    #[error(transparent)]
    Internal(Cause),
}

/// What kind of shortage it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// There is never as much, for this request.
    Never,
    /// There is never as much on this server, whose fault it is: what it stores may have come under larger limits.
    Host,
    /// Others use it now: the same request may succeed later.
    InUse,
    /// The store is full, until the operator makes room.
    Full,
}

/// The cause of an error; shared, so that all requests that wait for one answer get the same error.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

pub type Result<T> = std::result::Result<T, ServiceError>;

impl ServiceError {
    pub(crate) fn invalid(pointer: &str, message: impl Into<String>) -> Self {
        Self::Invalid { pointer: pointer.to_owned(), message: message.into() }
    }

    pub(crate) fn not_found(what: &'static str, id: impl ToString) -> Self {
        Self::NotFound { what, id: id.to_string() }
    }

    /// A fault of this program, from an error or a text.
    pub(crate) fn internal(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Internal(cause.into().into())
    }

    /// A failed read or write of `what`.
    pub(crate) fn of_io(what: &'static str, error: std::io::Error) -> Self {
        if is_full(&error) {
            return Self::Full(Arc::new(error));
        }
        Self::Internal(Arc::new(IoFailure { what, source: error }))
    }

    /// A stored matrix that is to be read takes more memory than there is for it: nothing about the request is too large.
    fn short_of_memory(shortage: Shortage, kind: ReadErrorKind) -> Self {
        let Shortage { need, limit, place } = &shortage;
        let (why, lack) = match kind {
            ReadErrorKind::Busy => {
                ("others use too much of them now: try again later", Lack::InUse)
            }
            _ => ("that is less: raise server.reading_bytes", Lack::Host),
        };
        let message = format!(
            "reading the stored matrix needs at least {need} bytes of memory (for {place}); {limit} may be used for reading, and {why}"
        );
        Self::Shortage { message, shortage, lack }
    }

    /// Whether the server failed rather than the request.
    pub(crate) const fn is_failure(&self) -> bool {
        matches!(
            self,
            Self::Busy(_) | Self::Full(_) | Self::Internal(_) | Self::ReaderFailed { .. }
        ) || matches!(self, Self::Shortage { lack: Lack::InUse | Lack::Full | Lack::Host, .. })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
struct IoFailure {
    what: &'static str,
    source: std::io::Error,
}

/// Why an upload could not be read.
impl From<ReadError> for ServiceError {
    fn from(error: ReadError) -> Self {
        let message = error.to_string();
        if let Some(shortage) = error.shortage {
            let lack = match error.kind {
                ReadErrorKind::Busy => Lack::InUse,
                ReadErrorKind::StorageFull => Lack::Full,
                _ => Lack::Never,
            };
            return Self::Shortage { message, shortage, lack };
        }
        match error.kind {
            ReadErrorKind::Unsupported => Self::Unsupported { pointer: None, message },
            ReadErrorKind::TooLarge => Self::TooLarge { message },
            ReadErrorKind::StorageFull => {
                Self::of_io("an upload", std::io::ErrorKind::StorageFull.into())
            }
            ReadErrorKind::Busy => Self::Unavailable { message },
            ReadErrorKind::Io => Self::internal(error),
            ReadErrorKind::NoBundle => Self::BadBundle { message },
            ReadErrorKind::NotRecognised
            | ReadErrorKind::Malformed
            | ReadErrorKind::OutOfRange
            | ReadErrorKind::NotFinite => {
                Self::Unreadable { line: error.line, byte: error.byte, message }
            }
        }
    }
}

/// Why a stored matrix could not be read.
impl From<CanonicalError> for ServiceError {
    fn from(error: CanonicalError) -> Self {
        match error {
            CanonicalError::Memory(error) => match error.shortage {
                Some(shortage) => Self::short_of_memory(shortage, error.kind),
                None => (*error).into(),
            },
            error => Self::internal(error),
        }
    }
}

/// Why an upload was not read, though nothing may be wrong with it.
impl From<ReaderError> for ServiceError {
    fn from(error: ReaderError) -> Self {
        let message = format!("{error}; the upload was not stored");
        match error {
            ReaderError::Late(_) | ReaderError::Spent(_) => Self::TooLarge { message },
            ReaderError::Start(_) | ReaderError::Killed(_) => Self::Unavailable { message },
            ReaderError::Crashed(_) | ReaderError::Garbage(_) => Self::ReaderFailed { message },
        }
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::BadCursor => Self::invalid("cursor", error.to_string()),
            StoreError::Quota(exceeded) => Self::Quota(exceeded),
            StoreError::InUse(message) => Self::Conflict { message },
            StoreError::Fenced(_) | StoreError::Missing(_) => {
                Self::Conflict { message: error.to_string() }
            }
            StoreError::Busy(_) => Self::Busy(Arc::new(error)),
            StoreError::Full(_) => Self::Full(Arc::new(error)),
            StoreError::Corrupt { .. } | StoreError::Misuse(_) | StoreError::Backend(_) => {
                Self::internal(error)
            }
        }
    }
}

impl From<BlobError> for ServiceError {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::NotFound(digest) => Self::not_found("blob", digest),
            BlobError::Damaged(digest) => Self::Conflict {
                message: format!(
                    "the stored blob {digest} was damaged and has been set aside: tune the matrix again, or restore a backup"
                ),
            },
            BlobError::Unavailable(_) => Self::Busy(Arc::new(error)),
            BlobError::Full(_) => Self::Full(Arc::new(error)),
            BlobError::Failed(_) => Self::internal(error),
        }
    }
}

impl From<tokio::task::JoinError> for ServiceError {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::internal(format!("a task of the service failed: {error}"))
    }
}

impl From<tokio::sync::AcquireError> for ServiceError {
    fn from(error: tokio::sync::AcquireError) -> Self {
        Self::internal(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn a_stored_matrix_is_never_too_large_a_request() {
        let memory = crate::sparse::read::Pool::memory(100);
        let of = |bytes| {
            let error = memory.open(u64::MAX).charge(bytes, 1, "entries").unwrap_err();
            ServiceError::from(CanonicalError::from(error))
        };
        let other = memory.open(u64::MAX);
        other.charge(60, 1, "another").unwrap();
        for (bytes, lack, says) in [(50, Lack::InUse, "try again"), (200, Lack::Host, "raise")] {
            let error = of(bytes);
            assert!(error.is_failure() && error.to_string().contains(says), "{error}");
            assert!(error.to_string().contains("stored matrix"), "{error}");
            assert!(matches!(error, ServiceError::Shortage { lack: found, .. } if found == lack));
        }
    }

    #[test]
    fn kinds_and_causes_are_kept() {
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        let error = ServiceError::from(StoreError::Full(full().into()));
        assert!(matches!(error, ServiceError::Full(_)));
        assert!(error.source().and_then(|store| store.source()).unwrap().is::<std::io::Error>());
        assert!(matches!(ServiceError::of_io("a file", full()), ServiceError::Full(_)));
        let busy = ServiceError::from(StoreError::Busy("locked".into()));
        assert!(matches!(busy, ServiceError::Busy(_)));
        let internal = ServiceError::from(StoreError::Backend(full().into()));
        assert!(internal.is_failure() && internal.to_string().starts_with("the store failed"));
        assert!(internal.source().unwrap().is::<std::io::Error>());
    }
}
