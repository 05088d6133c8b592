//! Whose turn it is to bring the schema up to date: one opener at a time, of all threads and processes.

use crate::store::{Result, StoreError};
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// The turn, until it is dropped or its process ends, however it ends.
#[derive(Debug)]
pub(super) struct Turn(#[expect(dead_code, reason = "held, not read")] File);

impl Turn {
    /// Waits for the lock on a file beside the database. SQLite's own locks are not enough: sqlx looks for what is to be
    /// done before it locks anything, and the change of a new file to WAL fails at once where another is at it. The lock
    /// file stays: were it removed, one who waits for the old file and one who makes it anew would both have the turn.
    ///
    /// # Errors
    /// Where the file cannot be made or locked, or the turn has not come after `patience`.
    pub(super) async fn wait(database: &Path, patience: Duration) -> Result<Self> {
        let path = beside(database);
        let failed = |error| {
            StoreError::Backend(format!("the lock file {} is of no use: {error}", path.display()))
        };
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(failed)?;
        let end = Instant::now() + patience;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
                Err(TryLockError::WouldBlock) if Instant::now() < end => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Backend(format!(
                        "another process has held {} for {} s: it is bringing the schema up to date, or hangs",
                        path.display(),
                        patience.as_secs()
                    )));
                }
            }
        }
    }
}

fn beside(database: &Path) -> PathBuf {
    let mut name = OsString::from(database);
    name.push(".lock");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::Turn;
    use std::time::Duration;

    #[tokio::test]
    async fn a_turn_is_one_openers_and_waited_for_so_long() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store");
        let patience = Duration::from_millis(50);
        let turn = Turn::wait(&file, patience).await.unwrap();
        let error = Turn::wait(&file, patience).await.unwrap_err().to_string();
        assert!(error.contains("store.lock") && error.contains("another process"), "{error}");
        let (next, ()) = tokio::join!(Turn::wait(&file, Duration::from_secs(9)), async {
            tokio::time::sleep(patience).await;
            drop(turn);
        });
        drop(next.unwrap());
        assert!(!file.exists(), "the database itself is left alone");

        let nowhere = folder.path().join("nowhere/store");
        let error = Turn::wait(&nowhere, patience).await.unwrap_err().to_string();
        assert!(error.contains("is of no use"), "{error}");
    }
}
