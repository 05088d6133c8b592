//! What a use case can answer instead of a result. Knows no status code: that is the transport's to decide.

use crate::store::StoreError;
use crate::store::blobs::BlobError;

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A part of the request is nonsense, or refers to what is not there.
    #[error("{message}")]
    Invalid {
        /// JSON pointer into the body (`/problem/n`), or a parameter's name.
        pointer: String,
        message: String,
    },
    /// The upload is not a matrix in a format that is read here.
    #[error("{message}")]
    Unreadable {
        message: String,
        /// Line of the decompressed text, from 1.
        line: Option<u64>,
        /// Offset into the decompressed bytes, from 0.
        byte: Option<u64>,
    },
    /// Well-formed, but of a kind that this version does not do.
    #[error("{message}")]
    Unsupported { pointer: Option<String>, message: String },
    #[error("there is no {what} {id}")]
    NotFound { what: &'static str, id: String },
    /// The state of things forbids it now.
    #[error("{message}")]
    Conflict { message: String },
    #[error("the idempotency key was used before with another request")]
    KeyReused,
    #[error("{message}")]
    TooLarge { message: String },
    /// May work later.
    #[error("{message}")]
    Unavailable { message: String },
    /// Our own fault, or the machine's. The text is for the log, not for the client.
    #[error("{0}")]
    Internal(String),
}

pub type Result<T> = std::result::Result<T, ServiceError>;

impl ServiceError {
    pub(crate) fn invalid(pointer: &str, message: impl Into<String>) -> Self {
        Self::Invalid { pointer: pointer.to_owned(), message: message.into() }
    }

    pub(crate) fn not_found(what: &'static str, id: impl ToString) -> Self {
        Self::NotFound { what, id: id.to_string() }
    }

    /// A full disk passes; any other failure of the file system is ours.
    pub(crate) fn of_io(what: &str, error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Self::Unavailable { message: "the server's disk is full".to_owned() }
            }
            _ => Self::Internal(format!("{what}: {error}")),
        }
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::BadCursor => Self::invalid("cursor", error.to_string()),
            StoreError::InUse(message) => Self::Conflict { message },
            StoreError::Fenced(_) | StoreError::Missing(_) => {
                Self::Conflict { message: error.to_string() }
            }
            StoreError::Corrupt { .. } | StoreError::Backend(_) => {
                Self::Internal(error.to_string())
            }
        }
    }
}

impl From<BlobError> for ServiceError {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::NotFound(digest) => Self::not_found("blob", digest),
            BlobError::Io(ref cause) => Self::of_io("the blob folder", cause),
            BlobError::Store(_) => Self::Internal(error.to_string()),
        }
    }
}

impl From<tokio::task::JoinError> for ServiceError {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Internal(format!("a task of the service did not end well: {error}"))
    }
}
