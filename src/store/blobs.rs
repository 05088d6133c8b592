//! Blobs by digest in a folder: written beside their place, then renamed into it, so that none is ever seen half.

use super::StoreError;
use crate::domain::Digest;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Location;
use object_store::{ObjectStoreExt, PutPayload};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::{NamedTempFile, TempDir, TempPath};

/// Folder of files being written; on the same file system as their final place, or the rename would be a copy.
const STAGING: &str = "staging";

/// Cheap to clone. Canonical matrix files are named by their matrix's digest, all else by the digest of its bytes.
#[derive(Clone, Debug)]
pub struct Blobs {
    root: Arc<PathBuf>,
    store: Arc<LocalFileSystem>,
}

#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("there is no blob {0}")]
    NotFound(Digest),
    #[error("the blob folder: {0}")]
    Io(#[from] std::io::Error),
    #[error("the blob store: {0}")]
    Store(#[from] object_store::Error),
}

type Result<T> = std::result::Result<T, BlobError>;

impl From<BlobError> for StoreError {
    fn from(error: BlobError) -> Self {
        Self::Backend(error.into())
    }
}

impl Blobs {
    /// Opens the folder, and makes it where there is none.
    pub fn open(root: &Path) -> Result<Self> {
        std::fs::create_dir_all(root.join(STAGING))?;
        let root = root.canonicalize()?;
        // A loss of power may take the newest blobs, but never leaves a name without its content.
        let store = LocalFileSystem::new_with_prefix(&root)?.with_fsync(true);
        Ok(Self { root: Arc::new(root), store: Arc::new(store) })
    }

    /// A file to write a blob to before its digest is known; removed when dropped. Blocks on the file system.
    pub fn stage(&self) -> Result<NamedTempFile> {
        Ok(tempfile::Builder::new().prefix("blob-").tempfile_in(self.staging())?)
    }

    /// A folder for another process to write blobs to; removed when dropped. Blocks on the file system.
    pub fn stage_folder(&self) -> Result<TempDir> {
        Ok(tempfile::Builder::new().prefix("blobs-").tempdir_in(self.staging())?)
    }

    /// Where [`Self::stage`] puts its files; what a killed process left there is upkeep's to remove.
    pub fn staging(&self) -> PathBuf {
        self.root.join(STAGING)
    }

    /// Gives a staged file its name. A blob that is already there stays: equal names are equal content.
    pub async fn put_file(&self, staged: TempPath, digest: &Digest) -> Result<()> {
        if self.renewed(digest).await? {
            return Ok(());
        }
        let target = self.local_path(digest);
        tokio::task::spawn_blocking(move || {
            if let Some(folder) = target.parent() {
                std::fs::create_dir_all(folder)?;
            }
            // Temporary files are private; blobs are as readable as the folder they lie in allows.
            publish(&staged, &target)
        })
        .await
        .map_err(std::io::Error::other)??;
        Ok(())
    }

    /// Gives a file of a staged folder the digest of its bytes for a name.
    pub async fn put_staged(&self, path: PathBuf) -> Result<Digest> {
        let hashed = tokio::task::spawn_blocking(move || {
            let mut hasher = blake3::Hasher::new();
            hasher.update_reader(File::open(&path)?)?;
            Ok::<_, std::io::Error>((path, Digest::from_bytes(*hasher.finalize().as_bytes())))
        });
        let (path, digest) = hashed.await.map_err(std::io::Error::other)??;
        self.put_file(TempPath::try_from_path(path)?, &digest).await?;
        Ok(digest)
    }

    /// Stores bytes under their own digest.
    pub async fn put_bytes(&self, bytes: Bytes) -> Result<Digest> {
        let digest = Digest::of(&bytes);
        if !self.renewed(&digest).await? {
            self.store.put(&location(&digest), PutPayload::from_bytes(bytes)).await?;
        }
        Ok(digest)
    }

    pub async fn get(&self, digest: &Digest) -> Result<Bytes> {
        match self.store.get(&location(digest)).await {
            Ok(found) => Ok(found.bytes().await?),
            Err(object_store::Error::NotFound { .. }) => Err(BlobError::NotFound(*digest)),
            Err(error) => Err(error.into()),
        }
    }

    /// The blob's length, and its bytes as they are read.
    pub async fn stream(
        &self,
        digest: &Digest,
    ) -> Result<(u64, BoxStream<'static, Result<Bytes>>)> {
        match self.store.get(&location(digest)).await {
            Ok(found) => {
                let bytes = found.meta.size;
                Ok((bytes, found.into_stream().map_err(BlobError::from).boxed()))
            }
            Err(object_store::Error::NotFound { .. }) => Err(BlobError::NotFound(*digest)),
            Err(error) => Err(error.into()),
        }
    }

    pub async fn exists(&self, digest: &Digest) -> Result<bool> {
        match self.store.head(&location(digest)).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Blobs put longer ago than this, put again included. Blocks on the file system.
    pub fn older_than(&self, age: Duration) -> Result<Vec<Digest>> {
        let mut old = Vec::new();
        for folder in std::fs::read_dir(&*self.root)? {
            let folder = folder?;
            if !folder.file_type()?.is_dir() || folder.file_name() == STAGING {
                continue;
            }
            for entry in std::fs::read_dir(folder.path())?.flatten() {
                // What bears no digest for a name is not ours.
                let digest = entry.file_name().to_str().and_then(|name| name.parse().ok());
                if let Some(digest) = digest
                    && is_older(&self.local_path(&digest), age)
                {
                    old.push(digest);
                }
            }
        }
        Ok(old)
    }

    /// Removes a blob unless it was put again of late; false where it stays, or there was none. Blocks.
    pub fn remove_old(&self, digest: &Digest, age: Duration) -> Result<bool> {
        let path = self.local_path(digest);
        if !is_older(&path, age) {
            return Ok(false);
        }
        std::fs::remove_file(path)?;
        Ok(true)
    }

    /// Whether the blob is there; if so it is as if it had just been put, so that upkeep does not take it for old before
    /// its plan is stored.
    async fn renewed(&self, digest: &Digest) -> Result<bool> {
        if !self.exists(digest).await? {
            return Ok(false);
        }
        let path = self.local_path(digest);
        let renew = move || match File::open(&path) {
            Ok(file) => {
                if let Err(error) = file.set_modified(SystemTime::now()) {
                    tracing::debug!(blob = %path.display(), %error, "its time stays");
                }
                Ok(true)
            }
            // Removed in between.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        };
        Ok(tokio::task::spawn_blocking(renew).await.map_err(std::io::Error::other)??)
    }

    /// False when there was none.
    pub async fn delete(&self, digest: &Digest) -> Result<bool> {
        match self.store.delete(&location(digest)).await {
            Ok(()) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Where the blob lies, or would lie: matrices travel to the evaluator by path.
    pub fn local_path(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        self.root.join(&name[..2]).join(name)
    }
}

fn is_older(path: &Path, age: Duration) -> bool {
    let put = std::fs::symlink_metadata(path).and_then(|facts| facts.modified());
    put.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|passed| passed >= age))
}

fn publish(staged: &Path, target: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(staged, std::fs::Permissions::from_mode(0o644))?;
    }
    // Content first, name after: a name on the disk must not come to stand for nothing.
    File::open(staged)?.sync_all()?;
    // The guard of the temporary file will find nothing left to remove.
    std::fs::rename(staged, target)?;
    // The row that follows says that the blob is there: so must the folder.
    match target.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// 256 folders: no folder grows too long to list.
fn location(digest: &Digest) -> Location {
    let name = digest.to_string();
    Location::from_iter([&name[..2], name.as_str()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[tokio::test]
    async fn bytes_and_files_come_back_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(&folder.path().join("blobs")).unwrap();
        let digest = blobs.put_bytes(Bytes::from_static(b"kernel")).await.unwrap();
        assert_eq!(digest, Digest::of(b"kernel"));
        assert_eq!(blobs.get(&digest).await.unwrap(), "kernel");
        assert_eq!(std::fs::read(blobs.local_path(&digest)).unwrap(), b"kernel");

        let named = Digest::of(b"a matrix");
        for content in ["first", "again"] {
            let mut file = blobs.stage().unwrap();
            file.write_all(content.as_bytes()).unwrap();
            blobs.put_file(file.into_temp_path(), &named).await.unwrap();
        }
        assert_eq!(blobs.get(&named).await.unwrap(), "first");
        assert_eq!(std::fs::read_dir(blobs.staging()).unwrap().count(), 0);

        assert!(blobs.delete(&named).await.unwrap());
        assert!(!blobs.delete(&named).await.unwrap());
        assert!(!blobs.exists(&named).await.unwrap());
        assert!(matches!(blobs.get(&named).await, Err(BlobError::NotFound(_))));
    }

    #[tokio::test]
    async fn a_staged_folder_gives_its_files_away() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path()).unwrap();
        let staged = blobs.stage_folder().unwrap();
        for name in ["one", "two"] {
            let file = staged.path().join(name);
            std::fs::write(&file, b"order").unwrap();
            let digest = blobs.put_staged(file).await.unwrap();
            assert_eq!(digest, Digest::of(b"order"));
            let (bytes, stream) = blobs.stream(&digest).await.unwrap();
            assert_eq!(bytes, 5);
            assert_eq!(stream.try_collect::<Vec<Bytes>>().await.unwrap().concat(), b"order");
        }
        assert_eq!(std::fs::read_dir(staged.path()).unwrap().count(), 0);
        assert!(blobs.put_staged(staged.path().join("three")).await.is_err());
    }

    #[tokio::test]
    async fn a_dropped_stage_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path()).unwrap();
        drop(blobs.stage().unwrap());
        drop(blobs.stage_folder().unwrap());
        assert_eq!(std::fs::read_dir(blobs.staging()).unwrap().count(), 0);
    }
}
