//! The names of the processes that share a store: two with one name would take each other's devices for their own.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

const PAUSE: Duration = Duration::from_millis(100);

/// A name that no other process of the store has until this is dropped, or this process ends in any way.
#[derive(Debug)]
pub struct ProcessName {
    /// Empty if the file system has no locks.
    _held: Option<File>,
    path: PathBuf,
}

impl Drop for ProcessName {
    /// Commands have a new name each time, and their files would add up. Whoever opened the file before sees that it is gone.
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(file = %self.path.display(), %error, "the file of the name remains");
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum NameError {
    #[error(
        "another process named {0:?} uses this store: give each its own name (worker.name, or `sparsetune worker --name`)"
    )]
    Taken(String),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl ProcessName {
    /// Takes the name among the processes that use this database. One that is just ending has so long to do so.
    ///
    /// # Errors
    /// Another process has the name, or there can be no file beside the database.
    pub async fn take(database: &Path, name: &str, patience: Duration) -> Result<Self, NameError> {
        let mut path = database.as_os_str().to_owned();
        path.push(format!(".{}.name", &blake3::hash(name.as_bytes()).to_hex()[..16]));
        let path = PathBuf::from(path);
        let of_file = |source| NameError::Io { path: path.clone(), source };
        let open =
            || File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let mut file = open().map_err(of_file)?;
        let end = Instant::now() + patience;
        let mut waits = false;
        loop {
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => return Ok(Self { _held: Some(file), path }),
                // Its last holder has removed it.
                Ok(()) => file = open().map_err(of_file)?,
                Err(TryLockError::WouldBlock) if Instant::now() < end => {
                    if !waits {
                        let most_s = patience.as_secs();
                        tracing::info!(
                            name,
                            most_s,
                            "another process has this name: waiting for its end"
                        );
                        waits = true;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(TryLockError::WouldBlock) => return Err(NameError::Taken(name.to_owned())),
                Err(TryLockError::Error(error)) => {
                    // Some network file systems have no locks.
                    tracing::warn!(file = %path.display(), %error, "the name cannot be locked: let no two processes have one");
                    return Ok(Self { _held: None, path });
                }
            }
        }
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let inode = |facts: io::Result<std::fs::Metadata>| facts.map(|facts| facts.ino());
    matches!((inode(file.metadata()), inode(std::fs::metadata(path))), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_is_one_process() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("store.db");
        let take =
            async |name: &str| ProcessName::take(&database, name, Duration::from_millis(150)).await;
        let first = take("a/b").await.unwrap();
        drop(take("a-b").await.unwrap());
        let refused = take("a/b").await.unwrap_err();
        assert!(matches!(&refused, NameError::Taken(name) if name == "a/b"));
        assert!(refused.to_string().contains("--name"));
        drop(first);
        drop(take("a/b").await.unwrap());
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 0, "names that are free leave nothing");
    }
}
