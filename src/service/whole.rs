//! Whether stored files are whole: what a blob's contents say that it is named.

use super::{Result, Service, ServiceError};
use crate::domain::Digest;
use crate::sparse::canonical::{self, CanonicalError};
use crate::store::blobs::digest_of;
use crate::store::{BlobError, LocalFile};
use std::io;
use std::path::Path;

/// The digest that a blob with these contents is named by: of a matrix for a canonical file, else of the bytes. `None` for a
/// canonical file that is damaged. Blocks.
pub fn name_of(path: &Path) -> io::Result<Option<Digest>> {
    match canonical::recomputed(path) {
        Ok(Some(digest)) => Ok(Some(digest)),
        Ok(None) => digest_of(path).map(Some),
        Err(CanonicalError::Io(error)) if error.kind() != io::ErrorKind::UnexpectedEof => {
            Err(error)
        }
        // Nothing is known of its contents then.
        Err(CanonicalError::Memory(error)) => Err(io::Error::other(error)),
        Err(_) => Ok(None),
    }
}

/// What a client is told of a matrix whose facts are stored, but whose file is not, or not any more.
pub(super) fn upload_again(error: &BlobError, matrix: &Digest) -> Option<String> {
    let what = match error {
        BlobError::NotFound(_) => "is missing",
        BlobError::Damaged(_) => "was damaged and has been set aside",
        BlobError::Full(_) | BlobError::Failed(_) => return None,
    };
    Some(format!("the stored file of matrix {matrix} {what}: upload the matrix again"))
}

impl Service {
    /// The canonical file of a matrix that is to be read for a request.
    pub(super) async fn entries(&self, matrix: &Digest) -> Result<LocalFile> {
        self.matrix_file(matrix).await.map_err(|error| match upload_again(&error, matrix) {
            Some(message) => ServiceError::Conflict { message },
            None => error.into(),
        })
    }
}
