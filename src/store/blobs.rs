//! Blobs by digest: what every blob store must do. `local` keeps them in a folder, `s3` in a bucket of an object store.

mod checking;
mod local;
mod place;
mod s3;
mod sweep;

pub use checking::NameOf;
pub use local::{LocalBlobs, STAGING};
pub use place::BlobPlace;
pub use s3::{BucketSettings, S3Blobs, Secret};
pub(crate) use sweep::sweep;

use super::{Cause, is_full};
use crate::domain::Digest;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::{NamedTempFile, TempDir, TempPath};

/// A canonical matrix file is named by the matrix's digest, every other blob by the digest of its bytes. A name appears only
/// once its content is complete and durable, and equal names mean equal content: a blob is never changed, only deleted.
#[async_trait]
pub trait Blobs: Debug + Send + Sync {
    /// The id of the store that the blobs belong to; `None` if they do not say.
    async fn owner(&self) -> Result<Option<String>>;
    /// Makes the blobs those of this store.
    async fn give_to(&self, id: &str) -> Result<()>;
    /// Whether a backup is being restored to them, or was when that was interrupted.
    async fn is_being_filled(&self) -> Result<bool>;
    /// Says that a backup is being restored to them, of which there are none yet.
    async fn begin_to_fill(&self) -> Result<()>;
    /// Ends what [`Self::begin_to_fill`] began, if it did.
    async fn end_filling(&self) -> Result<()>;
    /// Every blob, in no particular order.
    async fn all(&self) -> Result<Vec<Digest>>;
    /// The number of damaged blobs that were set aside, and are still there.
    async fn set_aside(&self) -> Result<u64>;
    /// Whether servers on several hosts may put theirs there.
    fn are_shared(&self) -> bool {
        false
    }
    /// Bytes of everything that is stored, where that is not what a folder on this host has.
    async fn stored_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Compares the contents of a blob with its digest from now on, when it is first opened. A damaged blob is set aside: the
    /// call that finds it fails with `Damaged`, later ones with `NotFound`, and what is put under its digest takes its place.
    fn check_with(&self, name_of: NameOf);
    /// Stores bytes under their digest.
    async fn put(&self, bytes: Bytes) -> Result<Digest>;
    /// Stores a file that was written to a place from [`Self::stage`] or [`Self::stage_folder`], under the given digest or,
    /// without one, under the digest of its bytes. An existing blob is kept. The file is removed in either case.
    async fn put_file(&self, file: TempPath, digest: Option<Digest>) -> Result<Digest>;
    /// Brings a file to where [`Self::put_file`] would store it under its digest, and leaves the file: for who then calls that while
    /// others wait, where it would take long. True if it was not there.
    async fn send_ahead(&self, _file: &Path, _digest: &Digest) -> Result<bool> {
        Ok(false)
    }
    /// A temporary local file for a blob whose digest is not known yet; removed when dropped.
    async fn stage(&self) -> Result<NamedTempFile>;
    /// A temporary local folder in which another process writes blobs; removed when dropped.
    async fn stage_folder(&self) -> Result<TempDir>;
    /// Removes staged files and folders of killed processes that have not been written to for `age`, and returns their
    /// number.
    async fn sweep_staged(&self, age: Duration) -> Result<u64>;
    /// The complete content, in memory.
    async fn get(&self, digest: &Digest) -> Result<Bytes>;
    /// The length in bytes, and a stream of the content.
    async fn stream(&self, digest: &Digest) -> Result<(u64, BoxStream<'static, Result<Bytes>>)>;
    /// Whether [`Self::link`] gives any.
    fn has_links(&self) -> bool {
        false
    }
    /// Where a client may read the blob for some minutes without this process, as a file of this type and, where it is to be saved, of
    /// this name. `None` if blobs are read through this process alone.
    async fn link(
        &self,
        _digest: &Digest,
        _media_type: &str,
        _name: Option<&str>,
    ) -> Result<Option<String>> {
        Ok(None)
    }
    /// The blob as a local file, for readers that map it or run in another process.
    async fn local_copy(&self, digest: &Digest) -> Result<LocalFile>;
    async fn exists(&self, digest: &Digest) -> Result<bool>;
    /// Removes this host's copy of a blob that is elsewhere, so that the next who reads it reads the blob itself. False if there are no copies.
    async fn forget_copy(&self, _digest: &Digest) -> Result<bool> {
        Ok(false)
    }
    /// [`Self::exists`], and counts as putting it.
    async fn renew(&self, digest: &Digest) -> Result<bool>;
    /// What there is of each of these without opening it; `None` for one that is not there, also if it is in the trash.
    async fn facts(&self, digests: Vec<Digest>) -> Result<Vec<Option<BlobFacts>>>;
    /// Deletes the blob at once. False if it did not exist.
    async fn delete(&self, digest: &Digest) -> Result<bool>;
    /// The blobs that were last put longer ago than `age`. Putting an existing blob counts.
    async fn older_than(&self, age: Duration) -> Result<Vec<Digest>>;
    /// Moves those of the given blobs that are still older than `age` to the trash, and returns their number. A blob that cannot be
    /// moved is logged and kept. One that is asked for or put again comes back.
    async fn discard_old(&self, digests: Vec<Digest>, age: Duration) -> Result<u64>;
    /// What is in the trash.
    async fn in_trash(&self) -> Result<Vec<Digest>>;
    /// Brings those that are named back from the trash, as for a database of an earlier time that was put back; then deletes what
    /// has been there for `age`, and returns its number.
    async fn empty_trash(&self, named: Vec<Digest>, age: Duration) -> Result<u64>;
}

/// What a blob store knows of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobFacts {
    pub bytes: u64,
    /// When it was last put.
    pub put_at: SystemTime,
}

/// A blob as a readable file. Keep this value as long as its path is in use: the local copy of a remote blob may be removed
/// when it is dropped.
#[derive(Clone, Debug)]
pub struct LocalFile {
    path: PathBuf,
    /// Keeps a copy from being removed.
    _lock: Option<Arc<File>>,
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
    #[error("blob {0} does not exist")]
    NotFound(Digest),
    /// Its contents are not those that its name is the digest of.
    #[error("blob {0} was damaged, and has been set aside")]
    Damaged(Digest),
    /// The store throttles, is out of reach, or fails for now: the same call may succeed later.
    #[error("the blob store cannot be used now: {0}")]
    Unavailable(#[source] Cause),
    /// The same call may succeed once there is room.
    #[error("the blob store is full: {0}")]
    Full(#[source] Cause),
    #[error("the blob store failed: {0}")]
    Failed(#[source] Cause),
}

/// The digest of a file's bytes. Blocks.
pub fn digest_of(path: &Path) -> io::Result<Digest> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(std::fs::File::open(path)?)?;
    Ok(Digest::from_bytes(*hasher.finalize().as_bytes()))
}

pub type Result<T> = std::result::Result<T, BlobError>;

impl From<io::Error> for BlobError {
    fn from(error: io::Error) -> Self {
        let kind = if is_full(&error) { Self::Full } else { Self::Failed };
        kind(error.into())
    }
}
