//! Blobs in a bucket of an S3 store, with copies of those in use on this host.
//!
//! | object, below the prefix | what |
//! |---|---|
//! | `blobs/DIGEST` | a blob |
//! | `put/DIGEST` | it was put again when this was written: an object's own time cannot be set |
//! | `trash/DIGEST` | a blob that nothing named, until it is deleted |
//! | `damaged/DIGEST` | a copy of a blob that was found damaged |
//! | `store-id`, `restoring` | as the files of a folder of blobs |
//! | `probe/...` | what is tried at a start |
//!
//! **Nothing that may be another's newer object is ever deleted**, since S3 has no lock and few stores delete by condition. A damaged blob
//! stays under its key, known as damaged by its version, until an upload overwrites it; so a process that finds the damage cannot remove
//! what another has just mended. A blob goes to the trash by a copy, a deletion, and a second look whether it was put again meanwhile;
//! who puts it again writes `put/DIGEST` first and looks for the blob then, so one of the two sees the other.
//!
//! **Small blobs are created** (`If-None-Match: *`), and that one exists is success. Blobs of more than one part are looked for first and
//! then completed without a condition, which stores differ in: what another writes under the same name meanwhile has the same contents.

mod bucket;
mod cache;
mod contents;
mod fault;
mod keeping;
mod probe;
mod transport;

use super::checking::Checking;
use super::sweep::sweep;
use super::{BlobError, BlobFacts, Blobs, LocalBlobs, LocalFile, NameOf, Result, digest_of};
use crate::domain::Digest;
use async_trait::async_trait;
use bucket::{Bucket, blocking};
use bytes::Bytes;
use cache::{Cache, FETCHED, InUse};
use contents::Known;
use fault::{Fault, Kind};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use keeping::Whose;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::{NamedTempFile, TempDir, TempPath};
use tokio_util::io::ReaderStream;

/// Number of bytes read at once when a blob is streamed.
const CHUNK: usize = 1 << 16;
/// How long an address is valid that leads to a blob.
const LINKED: Duration = Duration::from_secs(300);
const CONFIGURED: &str = "use the settings of the store ([s3], AWS_*)";

/// A value that is not displayed.
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A prefix of a bucket, how it is reached, and where copies are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketSettings {
    pub bucket: String,
    /// Without a slash at either end; may be empty.
    pub prefix: String,
    /// Options of the store by the names that the crate `object_store` has for them (`aws_region`), later ones before earlier ones;
    /// unknown names are ignored.
    pub options: Vec<(String, Secret)>,
    /// Whether the store may be reached without TLS.
    pub allow_http: bool,
    /// A file in PEM with the certificates of the authorities that are trusted instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Longest time of one request.
    pub timeout: Duration,
    /// How long requests are repeated that may succeed.
    pub retry: Duration,
    /// Whether clients are sent to the store for what they download.
    pub presign: bool,
    /// The folder of the copies.
    pub cache: PathBuf,
    /// Most bytes of them.
    pub cache_most: u64,
}

/// Cheap to clone: clones refer to the same bucket and copies.
#[derive(Clone, Debug)]
pub struct S3Blobs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bucket: Bucket,
    cache: Cache,
    checking: Checking,
    known: Known,
    presign: bool,
    whose: Whose,
}

impl S3Blobs {
    /// Opens a bucket, and tries whether it does what is needed.
    ///
    /// # Errors
    /// It cannot be reached, refuses what is needed, or does it wrongly.
    pub async fn open(settings: &BucketSettings) -> Result<Self> {
        let bucket = Bucket::new(settings)?;
        let (folder, most) = (settings.cache.clone(), settings.cache_most);
        let cache = blocking(move || Cache::open(&folder, most)).await?;
        probe::probe(&bucket).await?;
        let (checking, known, presign) = (Checking::default(), Known::default(), settings.presign);
        let whose = Whose::default();
        Ok(Self(Arc::new(Inner { bucket, cache, checking, known, presign, whose })))
    }

    /// File operations on a thread that may block.
    async fn with_files<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Inner) -> io::Result<T> + Send + 'static,
    {
        let inner = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        Ok(done.map_err(io::Error::other)??)
    }
}

#[async_trait]
impl Blobs for S3Blobs {
    async fn owner(&self) -> Result<Option<String>> {
        self.0.read_owner().await
    }

    async fn give_to(&self, id: &str) -> Result<()> {
        self.0.write_owner(id).await
    }

    async fn is_being_filled(&self) -> Result<bool> {
        self.0.is_filling().await
    }

    async fn begin_to_fill(&self) -> Result<()> {
        self.0.filling().await
    }

    async fn end_filling(&self) -> Result<()> {
        self.0.filled().await
    }

    async fn all(&self) -> Result<Vec<Digest>> {
        self.0.list_all().await
    }

    async fn set_aside(&self) -> Result<u64> {
        self.0.list_damaged().await.map(|damaged| damaged.len() as u64)
    }

    fn are_shared(&self) -> bool {
        true
    }

    async fn stored_bytes(&self) -> Result<Option<u64>> {
        self.0.count_bytes().await.map(Some)
    }

    fn check_with(&self, name_of: NameOf) {
        // A second service on the same blobs brings the same.
        self.0.checking.name_of.get_or_init(|| name_of);
    }

    async fn put(&self, bytes: Bytes) -> Result<Digest> {
        let (digest, bytes) = tokio::task::spawn_blocking(move || (Digest::of(&bytes), bytes))
            .await
            .map_err(io::Error::other)?;
        self.put_bytes(&digest, bytes).await?;
        Ok(digest)
    }

    async fn put_file(&self, file: TempPath, digest: Option<Digest>) -> Result<Digest> {
        let file = Arc::new(file);
        let digest = match digest {
            Some(digest) => digest,
            None => {
                let file = Arc::clone(&file);
                self.with_files(move |_| digest_of(&file)).await?
            }
        };
        self.send(&file, &digest).await?;
        self.with_files(move |inner| {
            // It is as likely to be read soon as what is read.
            if let Err(error) = inner.cache.keep(&file, &digest) {
                tracing::warn!(%digest, %error, "no copy of a blob was kept");
            }
            Ok(digest)
        })
        .await
    }

    async fn send_ahead(&self, file: &std::path::Path, digest: &Digest) -> Result<bool> {
        self.send(file, digest).await
    }

    async fn stage(&self) -> Result<NamedTempFile> {
        self.with_files(|inner| NamedTempFile::with_prefix_in("blob-", inner.cache.staging())).await
    }

    async fn stage_folder(&self) -> Result<TempDir> {
        self.with_files(|inner| LocalBlobs::export_folder(inner.cache.root())).await
    }

    async fn sweep_staged(&self, age: Duration) -> Result<u64> {
        self.with_files(move |inner| {
            let exports = LocalBlobs::exports(inner.cache.root());
            let folders = if exports.is_dir() { sweep(&exports, "", age) } else { 0 };
            let files = ["blob", FETCHED].map(|prefix| sweep(&inner.cache.staging(), prefix, age));
            Ok(files.iter().sum::<u64>() + folders)
        })
        .await
    }

    async fn get(&self, digest: &Digest) -> Result<Bytes> {
        let InUse { path, lock } = self.copy_of(digest).await?;
        let read = move |_: &Inner| -> io::Result<Bytes> {
            let contents = std::fs::read(path)?;
            drop(lock);
            Ok(contents.into())
        };
        self.with_files(read).await
    }

    async fn stream(&self, digest: &Digest) -> Result<(u64, BoxStream<'static, Result<Bytes>>)> {
        let InUse { path, lock } = self.copy_of(digest).await?;
        let open = move |_: &Inner| -> io::Result<(u64, std::fs::File)> {
            let file = std::fs::File::open(path)?;
            drop(lock);
            Ok((file.metadata()?.len(), file))
        };
        let (bytes, file) = self.with_files(open).await?;
        let chunks = ReaderStream::with_capacity(tokio::fs::File::from_std(file), CHUNK);
        Ok((bytes, chunks.map_err(BlobError::from).boxed()))
    }

    async fn local_copy(&self, digest: &Digest) -> Result<LocalFile> {
        let copy = self.copy_of(digest).await?;
        Ok(LocalFile { path: copy.path, _lock: Some(copy.lock) })
    }

    fn has_links(&self) -> bool {
        self.0.presign
    }

    async fn link(
        &self,
        digest: &Digest,
        media_type: &str,
        name: Option<&str>,
    ) -> Result<Option<String>> {
        if !self.0.presign {
            return Ok(None);
        }
        let facts = self.0.present(digest).await?;
        if self.0.known.is_damaged(digest, &facts.version) {
            return Err(BlobError::NotFound(*digest));
        }
        let disposition = name.map(|name| format!("attachment; filename=\"{name}\""));
        let mut told = vec![("response-content-type", media_type)];
        told.extend(disposition.as_deref().map(|text| ("response-content-disposition", text)));
        Ok(Some(self.0.bucket.link(&self.0.blob(digest), &told, LINKED).await?))
    }

    async fn exists(&self, digest: &Digest) -> Result<bool> {
        self.has(digest).await
    }

    async fn forget_copy(&self, digest: &Digest) -> Result<bool> {
        let digest = *digest;
        self.with_files(move |inner| {
            inner.checking.forget(&digest);
            inner.cache.remove(&digest)?;
            Ok(true)
        })
        .await
    }

    async fn renew(&self, digest: &Digest) -> Result<bool> {
        self.put_again(digest).await
    }

    async fn facts(&self, digests: Vec<Digest>) -> Result<Vec<Option<BlobFacts>>> {
        self.0.facts_of(&digests).await
    }

    async fn delete(&self, digest: &Digest) -> Result<bool> {
        let removed = self.0.remove(digest).await?;
        let digest = *digest;
        self.with_files(move |inner| {
            inner.checking.forget(&digest);
            inner.cache.remove(&digest)
        })
        .await?;
        Ok(removed)
    }

    async fn older_than(&self, age: Duration) -> Result<Vec<Digest>> {
        self.0.list_older(age).await
    }

    async fn discard_old(&self, digests: Vec<Digest>, age: Duration) -> Result<u64> {
        self.0.discard(&digests, age).await
    }

    async fn in_trash(&self) -> Result<Vec<Digest>> {
        self.0.list_trash().await
    }

    async fn empty_trash(&self, named: Vec<Digest>, age: Duration) -> Result<u64> {
        self.0.empty(&named, age).await
    }
}

/// Of a blob, not of an object.
fn not_found(digest: &Digest) -> impl FnOnce(Fault) -> BlobError {
    let digest = *digest;
    move |fault| match fault.kind {
        Kind::Missing => BlobError::NotFound(digest),
        _ => fault.into(),
    }
}
