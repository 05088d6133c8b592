//! Blobs by digest: what every blob store must do. `local` keeps them in a folder; an object store would be a second
//! implementation.

mod local;

pub use local::LocalBlobs;
pub(crate) use local::sweep;

use super::{Cause, is_full};
use crate::domain::Digest;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::{NamedTempFile, TempDir, TempPath};

/// Canonical matrix files are named by their matrix's digest, all other blobs by the digest of their bytes. A name appears
/// only once its content is whole and durable, and equal names are equal content: a blob is never changed, only deleted.
#[async_trait]
pub trait Blobs: Send + Sync {
    /// Stores bytes under their digest.
    async fn put(&self, bytes: Bytes) -> Result<Digest>;
    /// Stores a file that was written to a place of [`Self::stage`] or [`Self::stage_folder`], under this digest or, without
    /// one, under that of its bytes. A blob that is there already stays. The file is gone afterwards.
    async fn put_file(&self, file: TempPath, digest: Option<Digest>) -> Result<Digest>;
    /// A local file to write a blob to before its digest is known; removed when dropped.
    async fn stage(&self) -> Result<NamedTempFile>;
    /// A local folder in which another process writes blobs; removed when dropped.
    async fn stage_folder(&self) -> Result<TempDir>;
    /// Removes files and folders that killed processes staged and that were not written to for this long: how many.
    async fn sweep_staged(&self, age: Duration) -> Result<u64>;
    /// The whole content, in memory.
    async fn get(&self, digest: &Digest) -> Result<Bytes>;
    /// The length in bytes, and the content as it is read.
    async fn stream(&self, digest: &Digest) -> Result<(u64, BoxStream<'static, Result<Bytes>>)>;
    /// The blob as a file of this machine, for readers that map it or belong to another process.
    async fn local_copy(&self, digest: &Digest) -> Result<LocalFile>;
    async fn exists(&self, digest: &Digest) -> Result<bool>;
    /// False when there was none.
    async fn delete(&self, digest: &Digest) -> Result<bool>;
    /// The blobs that were last put longer ago than this. To put a blob that is there counts.
    async fn older_than(&self, age: Duration) -> Result<Vec<Digest>>;
    /// Deletes those of these blobs that are still older than this: how many. One that cannot be deleted is logged and stays.
    async fn delete_old(&self, digests: Vec<Digest>, age: Duration) -> Result<u64>;
}

/// A blob as a file to be read. Whoever hands its path on keeps this value until the path is no longer used: the copy of a
/// remote blob may be removed with it.
#[derive(Clone, Debug)]
pub struct LocalFile {
    path: PathBuf,
}

impl Deref for LocalFile {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for LocalFile {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("there is no blob {0}")]
    NotFound(Digest),
    /// The same call may succeed once there is room.
    #[error("the blob store is full: {0}")]
    Full(#[source] Cause),
    #[error("the blob store failed: {0}")]
    Failed(#[source] Cause),
}

pub type Result<T> = std::result::Result<T, BlobError>;

impl From<io::Error> for BlobError {
    fn from(error: io::Error) -> Self {
        let kind = if is_full(&error) { Self::Full } else { Self::Failed };
        kind(error.into())
    }
}
