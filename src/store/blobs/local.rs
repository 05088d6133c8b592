//! Blobs in a local folder. Each is written to a temporary file and then renamed, so that no partial blob is ever visible.
//!
//! Plain file operations, without the `object_store` crate, which serves buckets alone: three quarters of what is needed here (staging
//! for other processes, publishing a file by rename, file times, paths to map) is outside its interface.

mod keeping;

use super::checking::{Checking, Verdict};
use super::sweep::sweep;
use super::{BlobError, BlobFacts, Blobs, LocalFile, NameOf, Result, digest_of};
use crate::domain::Digest;
use crate::store::private;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::{NamedTempFile, TempDir, TempPath};
use tokio_util::io::ReaderStream;

/// Folder of files being written. It must be on the same file system as the final place, or a rename would be a copy.
pub const STAGING: &str = "staging";
/// Follows the name of a damaged blob that was set aside.
const DAMAGED: &str = ".damaged";
/// How often a blob is read again that another process has replaced while it was read.
const ATTEMPTS: usize = 4;
/// Number of bytes read at once when a blob is streamed.
const CHUNK: usize = 1 << 16;

/// Cheap to clone: clones refer to the same folder.
#[derive(Clone, Debug)]
pub struct LocalBlobs {
    root: Arc<PathBuf>,
    checking: Arc<Checking>,
}

impl LocalBlobs {
    /// Opens the folder, and creates it if it is missing. Blocks on the file system.
    pub fn open(root: &Path) -> Result<Self> {
        private::folder(&root.join(STAGING))?;
        let root = Arc::new(root.canonicalize()?);
        Ok(Self { root, checking: Arc::default() })
    }

    fn staging(&self) -> PathBuf {
        self.root.join(STAGING)
    }

    /// The folder in which the folders of [`Blobs::stage_folder`] lie, for blobs in `root`: the only one among the blobs that evaluators
    /// write to.
    pub fn exports(root: &Path) -> PathBuf {
        root.join(STAGING).join("exports")
    }

    /// A folder in [`Self::exports`]. Blocks.
    pub(super) fn export_folder(root: &Path) -> io::Result<TempDir> {
        let exports = Self::exports(root);
        match std::fs::create_dir(&exports) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        TempDir::with_prefix_in("blobs-", exports)
    }

    /// The blob's path, in one of 256 folders, so that no folder becomes too long to list.
    fn path(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        self.root.join(&name[..2]).join(name)
    }

    /// Whether the blob exists, and is sound. If so, its time is set to now, so that upkeep does not consider it old before its plan is
    /// stored.
    fn put_again(&self, digest: &Digest) -> Result<bool> {
        if !self.has(digest)? {
            return Ok(false);
        }
        let path = self.path(digest);
        match File::open(&path) {
            Ok(file) => {
                if let Err(error) = file.set_modified(SystemTime::now()) {
                    tracing::debug!(blob = %path.display(), %error, "the blob's modification time cannot be updated");
                }
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives a staged file its final name. The content reaches the disk before the name, and both before this returns: a
    /// loss of power may remove the newest blobs, but never leaves a name without its content.
    fn publish(&self, staged: &Path, digest: &Digest) -> io::Result<()> {
        // Temporary files are private, and so is what they become.
        File::open(staged)?.sync_all()?;
        let target = self.path(digest);
        let folder = target.parent().unwrap_or(&self.root);
        if !folder.is_dir() {
            private::folder(folder)?;
            File::open(&*self.root)?.sync_all()?;
        }
        // The guard of the temporary file finds nothing left to remove.
        std::fs::rename(staged, &target)?;
        File::open(folder)?.sync_all()
    }

    /// The blob's file, whose contents have been compared if they are to be. A damaged one is set aside.
    fn sound(&self, digest: &Digest) -> Result<PathBuf> {
        let path = self.path(digest);
        let lost = |error: io::Error| match error.kind() {
            ErrorKind::NotFound => BlobError::NotFound(*digest),
            _ => error.into(),
        };
        for _ in 0..ATTEMPTS {
            if !path.try_exists()? && !self.recover(digest)? {
                self.checking.forget(digest);
                return Err(BlobError::NotFound(*digest));
            }
            match self.checking.verdict(digest, &path).map_err(lost)? {
                Verdict::Sound => return Ok(path),
                Verdict::Damaged(read) if self.put_aside(digest, &read)? => {
                    return Err(BlobError::Damaged(*digest));
                }
                // Another process has set it aside, and an upload may have healed it since.
                Verdict::Damaged(_) => {}
            }
        }
        Err(io::Error::other(format!("blob {digest} is replaced all the time")).into())
    }

    /// Whether the blob exists and is sound.
    fn has(&self, digest: &Digest) -> Result<bool> {
        match self.sound(digest) {
            Ok(_) => Ok(true),
            Err(BlobError::NotFound(_) | BlobError::Damaged(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Runs file operations on a thread that may block.
    async fn blocking<T, E, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        E: Into<BlobError> + Send + 'static,
        F: FnOnce(&Self) -> std::result::Result<T, E> + Send + 'static,
    {
        let blobs = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&blobs)).await;
        done.map_err(io::Error::other)?.map_err(E::into)
    }

    /// [`Self::blocking`] on the file of one blob, which may be missing or damaged.
    async fn with_file<T, F>(&self, digest: &Digest, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(PathBuf) -> io::Result<T> + Send + 'static,
    {
        let digest = *digest;
        let found = self.blocking(move |blobs| match work(blobs.sound(&digest)?) {
            Err(error) if error.kind() == ErrorKind::NotFound => Err(BlobError::NotFound(digest)),
            done => Ok(done?),
        });
        found.await
    }
}

#[async_trait]
impl Blobs for LocalBlobs {
    async fn owner(&self) -> Result<Option<String>> {
        self.blocking(Self::read_owner).await
    }

    async fn give_to(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        self.blocking(move |blobs| blobs.write_owner(&id)).await
    }

    async fn is_being_filled(&self) -> Result<bool> {
        self.blocking(Self::is_filling).await
    }

    async fn begin_to_fill(&self) -> Result<()> {
        self.blocking(Self::filling).await
    }

    async fn end_filling(&self) -> Result<()> {
        self.blocking(Self::filled).await
    }

    async fn all(&self) -> Result<Vec<Digest>> {
        self.blocking(Self::list).await
    }

    async fn set_aside(&self) -> Result<u64> {
        self.blocking(|blobs| blobs.list_aside().map(|files| files.len() as u64)).await
    }

    fn check_with(&self, name_of: NameOf) {
        // A second service on the same folder brings the same.
        self.checking.name_of.get_or_init(|| name_of);
    }

    async fn put(&self, bytes: Bytes) -> Result<Digest> {
        let put = move |blobs: &Self| -> Result<Digest> {
            let digest = Digest::of(&bytes);
            if !blobs.put_again(&digest)? {
                let mut staged = NamedTempFile::with_prefix_in("blob-", blobs.staging())?;
                staged.write_all(&bytes)?;
                blobs.publish(staged.path(), &digest)?;
            }
            Ok(digest)
        };
        self.blocking(put).await
    }

    async fn put_file(&self, file: TempPath, digest: Option<Digest>) -> Result<Digest> {
        let put = move |blobs: &Self| -> Result<Digest> {
            let digest = match digest {
                Some(digest) => digest,
                None => digest_of(&file)?,
            };
            if !blobs.put_again(&digest)? {
                blobs.publish(&file, &digest)?;
            }
            Ok(digest)
        };
        self.blocking(put).await
    }

    async fn stage(&self) -> Result<NamedTempFile> {
        self.blocking(|blobs: &Self| NamedTempFile::with_prefix_in("blob-", blobs.staging())).await
    }

    async fn stage_folder(&self) -> Result<TempDir> {
        self.blocking(|blobs: &Self| Self::export_folder(&blobs.root)).await
    }

    async fn sweep_staged(&self, age: Duration) -> Result<u64> {
        let swept = move |blobs: &Self| {
            let exports = Self::exports(&blobs.root);
            let folders = if exports.is_dir() { sweep(&exports, "", age) } else { 0 };
            io::Result::Ok(sweep(&blobs.staging(), "blob", age) + folders)
        };
        self.blocking(swept).await
    }

    async fn get(&self, digest: &Digest) -> Result<Bytes> {
        self.with_file(digest, |path| Ok(std::fs::read(path)?.into())).await
    }

    async fn stream(&self, digest: &Digest) -> Result<(u64, BoxStream<'static, Result<Bytes>>)> {
        let opened = self.with_file(digest, |path| {
            let file = File::open(path)?;
            Ok((file.metadata()?.len(), file))
        });
        let (bytes, file) = opened.await?;
        let chunks = ReaderStream::with_capacity(tokio::fs::File::from_std(file), CHUNK);
        Ok((bytes, chunks.map_err(BlobError::from).boxed()))
    }

    async fn local_copy(&self, digest: &Digest) -> Result<LocalFile> {
        self.with_file(digest, |path| Ok(LocalFile { path, _lock: None })).await
    }

    async fn exists(&self, digest: &Digest) -> Result<bool> {
        let digest = *digest;
        self.blocking(move |blobs| blobs.has(&digest)).await
    }

    async fn renew(&self, digest: &Digest) -> Result<bool> {
        let digest = *digest;
        self.blocking(move |blobs| blobs.put_again(&digest)).await
    }

    async fn facts(&self, digests: Vec<Digest>) -> Result<Vec<Option<BlobFacts>>> {
        let look = move |blobs: &Self| -> io::Result<Vec<Option<BlobFacts>>> {
            let one = |digest: &Digest| match std::fs::metadata(blobs.path(digest)) {
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                facts => {
                    let facts = facts?;
                    Ok(Some(BlobFacts { bytes: facts.len(), put_at: facts.modified()? }))
                }
            };
            digests.iter().map(one).collect()
        };
        self.blocking(look).await
    }

    async fn delete(&self, digest: &Digest) -> Result<bool> {
        let digest = *digest;
        self.blocking(move |blobs| blobs.remove(&digest)).await
    }

    async fn older_than(&self, age: Duration) -> Result<Vec<Digest>> {
        self.blocking(move |blobs| blobs.list_older(age)).await
    }

    async fn discard_old(&self, digests: Vec<Digest>, age: Duration) -> Result<u64> {
        self.blocking(move |blobs| blobs.discard(&digests, age)).await
    }

    async fn in_trash(&self) -> Result<Vec<Digest>> {
        self.blocking(|blobs| blobs.trash()).await
    }

    async fn empty_trash(&self, named: Vec<Digest>, age: Duration) -> Result<u64> {
        self.blocking(move |blobs| blobs.empty(&named, age)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files and folders that are being written; the folder of the latter stays.
    fn staged(blobs: &LocalBlobs) -> usize {
        let count = |folder: &Path| std::fs::read_dir(folder).map_or(0, Iterator::count);
        let exports = LocalBlobs::exports(&blobs.root);
        count(&blobs.staging()) - usize::from(exports.is_dir()) + count(&exports)
    }

    #[tokio::test]
    async fn bytes_and_files_come_back_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = LocalBlobs::open(&folder.path().join("blobs")).unwrap();
        let digest = blobs.put(Bytes::from_static(b"kernel")).await.unwrap();
        assert_eq!(digest, Digest::of(b"kernel"));
        assert_eq!(blobs.get(&digest).await.unwrap(), "kernel");
        let copy = blobs.local_copy(&digest).await.unwrap();
        assert_eq!(std::fs::read(&copy).unwrap(), b"kernel");

        let named = Digest::of(b"a matrix");
        for content in ["first", "again"] {
            let mut file = blobs.stage().await.unwrap();
            file.write_all(content.as_bytes()).unwrap();
            blobs.put_file(file.into_temp_path(), Some(named)).await.unwrap();
        }
        assert_eq!(blobs.get(&named).await.unwrap(), "first");
        assert_eq!(staged(&blobs), 0);

        assert!(blobs.delete(&named).await.unwrap());
        assert!(!blobs.delete(&named).await.unwrap());
        assert!(!blobs.exists(&named).await.unwrap());
        assert!(matches!(blobs.get(&named).await, Err(BlobError::NotFound(_))));
        assert!(matches!(blobs.local_copy(&named).await, Err(BlobError::NotFound(_))));
    }

    #[tokio::test]
    async fn a_staged_folder_gives_its_files_away() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = LocalBlobs::open(folder.path()).unwrap();
        let staged = blobs.stage_folder().await.unwrap();
        let path = |name: &str| TempPath::try_from_path(staged.path().join(name)).unwrap();
        for name in ["one", "two"] {
            let file = path(name);
            std::fs::write(&file, b"order").unwrap();
            let digest = blobs.put_file(file, None).await.unwrap();
            assert_eq!(digest, Digest::of(b"order"));
            let (bytes, stream) = blobs.stream(&digest).await.unwrap();
            assert_eq!(bytes, 5);
            assert_eq!(stream.try_collect::<Vec<Bytes>>().await.unwrap().concat(), b"order");
        }
        assert_eq!(std::fs::read_dir(staged.path()).unwrap().count(), 0);
        assert!(blobs.put_file(path("three"), None).await.is_err());
    }

    #[tokio::test]
    async fn a_dropped_stage_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = LocalBlobs::open(folder.path()).unwrap();
        drop(blobs.stage().await.unwrap());
        drop(blobs.stage_folder().await.unwrap());
        assert_eq!(staged(&blobs), 0);
    }

    /// Reads a damaged file; before it has an answer, another process sets the file aside and an upload heals it.
    fn healed_meanwhile(path: &Path) -> io::Result<Option<Digest>> {
        let read = std::fs::read(path)?;
        if read == b"damaged" {
            std::fs::rename(path, path.with_extension("damaged"))?;
            std::fs::write(path, "matrix!")?;
        }
        Ok(Some(Digest::of(&read)))
    }

    #[tokio::test]
    async fn what_was_healed_meanwhile_is_not_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = LocalBlobs::open(folder.path()).unwrap();
        let digest = blobs.put(Bytes::from_static(b"matrix!")).await.unwrap();
        std::fs::write(blobs.path(&digest), "damaged").unwrap();
        blobs.check_with(healed_meanwhile);
        assert_eq!(blobs.get(&digest).await.unwrap(), "matrix!");
        assert_eq!(std::fs::read(blobs.path(&digest)).unwrap(), b"matrix!");
    }

    #[tokio::test]
    async fn the_newest_damaged_files_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = LocalBlobs::open(folder.path()).unwrap();
        blobs.check_with(|path| Ok(Some(digest_of(path)?)));
        let many = keeping::MOST_DAMAGED + 3;
        let mut all = Vec::new();
        for i in 0..many {
            let digest = blobs.put(Bytes::from(format!("blob {i}"))).await.unwrap();
            let at = SystemTime::now() - Duration::from_secs((many - i) as u64);
            std::fs::write(blobs.path(&digest), "damaged").unwrap();
            File::open(blobs.path(&digest)).unwrap().set_modified(at).unwrap();
            all.push(digest);
        }
        for digest in &all {
            assert!(matches!(blobs.get(digest).await, Err(BlobError::Damaged(_))));
        }
        let aside = blobs.list_aside().unwrap();
        assert_eq!(aside.len(), keeping::MOST_DAMAGED);
        let oldest = blobs.path(&all[0]).with_extension("damaged");
        assert!(!aside.contains(&oldest), "the oldest go first");
    }

    #[test]
    fn a_full_disk_is_told_from_other_failures() {
        let of = |kind: ErrorKind| BlobError::from(io::Error::from(kind));
        assert!(matches!(of(ErrorKind::StorageFull), BlobError::Full(_)));
        assert!(matches!(of(ErrorKind::QuotaExceeded), BlobError::Full(_)));
        assert!(matches!(of(ErrorKind::PermissionDenied), BlobError::Failed(_)));
    }
}
