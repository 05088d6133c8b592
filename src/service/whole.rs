//! Whether stored files are whole: what a blob's contents say that it is named.

use super::{Lack, Result, Service, ServiceError};
use crate::domain::Digest;
use crate::sparse::Csr;
use crate::sparse::canonical::{self, CanonicalError};
use crate::sparse::read::Held;
use crate::store::blobs::digest_of;
use crate::store::{BlobError, LocalFile};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

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
        BlobError::Unavailable(_) | BlobError::Full(_) | BlobError::Failed(_) => return None,
    };
    Some(format!("the stored file of matrix {matrix} {what}: upload the matrix again"))
}

/// How long work that nobody waits for at the other end of a connection waits for memory that others use.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval at which it tries again.
const AGAIN: Duration = Duration::from_millis(250);

impl Service {
    /// A stored matrix for a job or a training, in the memory that all readers share, as long as the second value is kept. While
    /// others use too much of it this waits for them, up to a limit.
    pub(super) async fn read_patiently(&self, file: &LocalFile) -> Result<(Csr, Held)> {
        let began = Instant::now();
        loop {
            let (file, memory) = (file.clone(), self.inner.settings.limits.memory.clone());
            let read = tokio::task::spawn_blocking(move || canonical::open_in(&file, &memory));
            match read.await?.map_err(ServiceError::from) {
                Err(ServiceError::Shortage { lack: Lack::InUse, .. })
                    if began.elapsed() < PATIENCE =>
                {
                    tokio::time::sleep(AGAIN).await;
                }
                read => return read.map(|(matrix, _, held)| (matrix, held)),
            }
        }
    }

    /// The canonical file of a matrix that is to be read for a request.
    pub(super) async fn entries(&self, matrix: &Digest) -> Result<LocalFile> {
        self.matrix_file(matrix).await.map_err(|error| match upload_again(&error, matrix) {
            Some(message) => ServiceError::Conflict { message },
            None => error.into(),
        })
    }
}
