//! Advisory locks on files beside a database, for what only one of all threads and processes may do at a time.

use crate::store::{Held, Result, StoreError};
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of symbolic links followed from a database's name to its file; the same limit as in Linux.
const LINKS: usize = 40;

/// What a lock serialises. The lock file is not removed: otherwise one process could lock the old file and another a new one, and both
/// would hold the lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Serial {
    /// Opening and migrating. SQLite's own locks are not enough: sqlx determines the pending migrations before it locks anything,
    /// and switching a new file to WAL mode fails immediately if another process is doing so.
    Opening,
    /// Creating or deleting a matrix's file and row together.
    Publishing,
    /// Moving blobs to the trash, and emptying it.
    Sweeping,
}

impl Serial {
    /// The end of the file's name, and words for who waits.
    const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Opening => (".lock", "opening the store", "is migrating the schema"),
            Self::Publishing => {
                (".publishing", "storing or deleting a matrix", "is storing or deleting a matrix")
            }
            Self::Sweeping => (".sweeping", "sweeping the blobs", "is sweeping the blobs"),
        }
    }
}

/// The lock, released when it is dropped or its process ends in any way. Empty if the file system has no locks.
#[derive(Debug)]
pub(super) struct FileLock(#[expect(dead_code, reason = "held, not read")] Option<File>);

/// The system keeps it for as long as the process has the file.
impl Held for FileLock {}

impl FileLock {
    /// Waits for the lock.
    ///
    /// # Errors
    /// If the file cannot be created or locked, or the lock was not obtained within `patience`.
    pub(super) async fn wait(database: &Path, of: Serial, patience: Duration) -> Result<Self> {
        let (end_of_name, doing, holder) = of.words();
        let path = beside(&real(database), end_of_name);
        let file = open(&path).map_err(|error| unfit(&path, &error))?;
        let end = Instant::now() + patience;
        let mut waits = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(Some(file))),
                Err(TryLockError::Error(error)) if lockless(&error) => {
                    tracing::warn!(
                        lock = %path.display(), %error, doing,
                        "this file system has no locks: let no two processes do this at the same time"
                    );
                    return Ok(Self(None));
                }
                Err(TryLockError::Error(error)) => return Err(unfit(&path, &error)),
                Err(TryLockError::WouldBlock) if Instant::now() < end => {
                    if !waits {
                        // One is held for as long as a migration takes, the other for as long as a file is renamed.
                        match of {
                            Serial::Opening => {
                                tracing::info!(lock = %path.display(), "another process is {doing}: waiting for the lock");
                            }
                            Serial::Publishing | Serial::Sweeping => {
                                tracing::debug!(lock = %path.display(), "another process is {doing}: waiting for the lock");
                            }
                        }
                        waits = true;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(TryLockError::WouldBlock) => {
                    let why = format!(
                        "the lock for {doing} was not obtained in {} s: another process holds {}. It {holder}, or it hangs and \
                         should be terminated",
                        patience.as_secs(),
                        path.display()
                    );
                    return Err(StoreError::Busy(why.into()));
                }
            }
        }
    }
}

/// Opens the lock file, and creates it if it is missing.
fn open(path: &Path) -> io::Result<File> {
    let made = File::options().create(true).truncate(false).write(true).mode(0o600).open(path);
    made.or_else(|refusal| as_it_is(path, refusal))
}

/// Opens a file that another user created, or one in a read-only folder: locking requires no write permission.
fn as_it_is(path: &Path, refusal: io::Error) -> io::Result<File> {
    match refusal.kind() {
        // If there is no such file either, the reason why it could not be created is more useful.
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            File::open(path).map_err(|_| refusal)
        }
        _ => Err(refusal),
    }
}

/// Whether the file system does not support such locks, as some network file systems.
fn lockless(error: &io::Error) -> bool {
    // NFS returns EBADF for a file that was opened read-only.
    let unknown = [libc::ENOLCK, libc::EOPNOTSUPP, libc::ENOSYS, libc::EBADF];
    error.kind() == ErrorKind::Unsupported
        || error.raw_os_error().is_some_and(|code| unknown.contains(&code))
}

fn unfit(path: &Path, error: &io::Error) -> StoreError {
    let why = format!(
        "the lock file {} cannot be used: {error}. Its folder must exist and be writable by this user, or the file must be \
         readable",
        path.display()
    );
    StoreError::Backend(why.into())
}

/// The canonical path of the database, so that symbolic links to the file or its folder share the lock. The file need not
/// exist.
fn real(database: &Path) -> PathBuf {
    let within = |path: &Path| path.parent().map(Path::to_owned).unwrap_or_default();
    let mut path = database.to_owned();
    // Resolved by hand, because a link may point to a file that does not exist yet.
    for _ in 0..LINKS {
        let Ok(target) = std::fs::read_link(&path) else { break };
        path = within(&path).join(target);
    }
    let here = Path::new(".").join(within(&path));
    match (here.canonicalize(), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path,
    }
}

fn beside(database: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(database);
    name.push(end);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::{FileLock, Serial, as_it_is, lockless, real};
    use crate::store::Result;
    use std::io::{self, ErrorKind};
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;
    use std::time::Duration;

    async fn wait(database: &Path, patience: Duration) -> Result<FileLock> {
        FileLock::wait(database, Serial::Opening, patience).await
    }

    #[tokio::test]
    async fn one_opener_holds_the_lock_and_others_wait_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store");
        let patience = Duration::from_millis(50);
        let held = wait(&file, patience).await.unwrap();
        let error = wait(&file, patience).await.unwrap_err().to_string();
        assert!(error.contains("store.lock") && error.contains("another process"), "{error}");
        let (next, ()) = tokio::join!(wait(&file, Duration::from_secs(9)), async {
            tokio::time::sleep(patience).await;
            drop(held);
        });
        let _held = next.unwrap();
        // What is done at other times is not held up.
        FileLock::wait(&file, Serial::Publishing, patience).await.unwrap();
        assert!(!file.exists(), "the database itself is left alone");

        let nowhere = folder.path().join("nowhere/store");
        let error = wait(&nowhere, patience).await.unwrap_err().to_string();
        assert!(error.contains("cannot be used") && error.contains("must exist"), "{error}");
    }

    #[tokio::test]
    async fn a_lock_file_that_cannot_be_written_is_locked_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store");
        let lock = folder.path().join("store.lock");
        std::fs::write(&lock, "").unwrap();
        std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o444)).unwrap();
        let patience = Duration::from_millis(50);
        let held = wait(&file, patience).await.unwrap();
        assert!(wait(&file, patience).await.is_err());
        drop(held);

        // Root may open any file, so the check above alone would prove little there.
        for kind in [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem] {
            as_it_is(&lock, kind.into()).unwrap().try_lock().unwrap();
            assert_eq!(as_it_is(&file, kind.into()).unwrap_err().kind(), kind);
        }
        assert!(as_it_is(&lock, ErrorKind::StorageFull.into()).is_err());
    }

    #[tokio::test]
    async fn a_link_shares_its_targets_lock() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let of = |name: &str| root.join(name);
        std::fs::create_dir(of("data")).unwrap();
        symlink("data", of("again")).unwrap();
        symlink("again/store", of("link")).unwrap();
        symlink(of("link"), of("link of a link")).unwrap();
        for _ in 0..2 {
            for name in ["data/store", "again/store", "link", "link of a link", "data/../link"] {
                assert_eq!(real(&of(name)), of("data/store"), "{name}");
            }
            // The same when the file exists.
            std::fs::write(of("data/store"), "").unwrap();
        }
        let patience = Duration::from_millis(50);
        let held = wait(&of("link"), patience).await.unwrap();
        assert!(wait(&of("data/store"), patience).await.is_err());
        drop(held);
        symlink("round", of("round")).unwrap();
        assert_eq!(real(&of("round")), of("round"));
        assert!(real(Path::new("store")).is_absolute());
    }

    #[test]
    fn a_file_system_without_locks_is_known_by_its_refusal() {
        for code in [libc::ENOLCK, libc::EOPNOTSUPP, libc::ENOSYS] {
            assert!(lockless(&io::Error::from_raw_os_error(code)));
        }
        assert!(!lockless(&io::Error::from_raw_os_error(libc::EIO)));
    }
}
