//! Whose turn it is to bring the schema up to date: one opener at a time, of all threads and processes.

use crate::store::{Result, StoreError};
use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);
/// Links that are followed from a database's name to its file: as many as Linux follows.
const LINKS: usize = 40;

/// The turn, until it is dropped or its process ends, however it ends. Empty where the file system has no locks.
#[derive(Debug)]
pub(super) struct MigrationLock(#[expect(dead_code, reason = "held, not read")] Option<File>);

impl MigrationLock {
    /// Waits for the lock on a file beside the database. SQLite's own locks are not enough: sqlx looks for what is to be
    /// done before it locks anything, and the change of a new file to WAL fails at once where another is at it. The lock
    /// file stays: were it removed, one who waits for the old file and one who makes it anew would both have the turn.
    ///
    /// # Errors
    /// Where the file cannot be made or locked, or the turn has not come after `patience`.
    pub(super) async fn wait(database: &Path, patience: Duration) -> Result<Self> {
        let path = beside(&real(database));
        let file = open(&path).map_err(|error| unfit(&path, &error))?;
        let end = Instant::now() + patience;
        let mut waits = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(Some(file))),
                Err(TryLockError::Error(error)) if lockless(&error) => {
                    tracing::warn!(
                        lock = %path.display(), %error,
                        "this file system has no locks: let no two processes open the store for the first time at once"
                    );
                    return Ok(Self(None));
                }
                Err(TryLockError::Error(error)) => return Err(unfit(&path, &error)),
                Err(TryLockError::WouldBlock) if Instant::now() < end => {
                    if !waits {
                        tracing::info!(lock = %path.display(), "another opens the store: waiting for the turn");
                        waits = true;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(TryLockError::WouldBlock) => {
                    let why = format!(
                        "the turn to open the store did not come in {} s: another opener holds {}. It is bringing the \
                         schema up to date, or hangs and is to be ended",
                        patience.as_secs(),
                        path.display()
                    );
                    return Err(StoreError::Busy(why.into()));
                }
            }
        }
    }
}

/// The lock file, made where it is missing.
fn open(path: &Path) -> io::Result<File> {
    let made = File::options().create(true).truncate(false).write(true).open(path);
    made.or_else(|refusal| as_it_is(path, refusal))
}

/// Opens what another user made, or what lies where nothing may be written: a lock needs no leave to write.
fn as_it_is(path: &Path, refusal: io::Error) -> io::Result<File> {
    match refusal.kind() {
        // Where there is none to be opened, that none could be made says more.
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            File::open(path).map_err(|_| refusal)
        }
        _ => Err(refusal),
    }
}

/// Whether the file system knows no such locks, as some that are mounted from elsewhere.
fn lockless(error: &io::Error) -> bool {
    // NFS answers EBADF where the file could be opened for reading alone.
    let unknown = [libc::ENOLCK, libc::EOPNOTSUPP, libc::ENOSYS, libc::EBADF];
    error.kind() == ErrorKind::Unsupported
        || error.raw_os_error().is_some_and(|code| unknown.contains(&code))
}

fn unfit(path: &Path, error: &io::Error) -> StoreError {
    let why = format!(
        "the lock file {} is of no use: {error}. Its folder must be there and this user's to write to, or the file this \
         user's to read",
        path.display()
    );
    StoreError::Backend(why.into())
}

/// The database's one name: a link to it, or a folder by another name, shares its lock. The file need not be there.
fn real(database: &Path) -> PathBuf {
    let within = |path: &Path| path.parent().map(Path::to_owned).unwrap_or_default();
    let mut path = database.to_owned();
    // By hand, for a link may be to what is yet to be made.
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

fn beside(database: &Path) -> PathBuf {
    let mut name = OsString::from(database);
    name.push(".lock");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::{MigrationLock, as_it_is, lockless, real};
    use std::io::{self, ErrorKind};
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;
    use std::time::Duration;

    #[tokio::test]
    async fn a_turn_is_one_openers_and_waited_for_so_long() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store");
        let patience = Duration::from_millis(50);
        let held = MigrationLock::wait(&file, patience).await.unwrap();
        let error = MigrationLock::wait(&file, patience).await.unwrap_err().to_string();
        assert!(error.contains("store.lock") && error.contains("another opener"), "{error}");
        let (next, ()) = tokio::join!(MigrationLock::wait(&file, Duration::from_secs(9)), async {
            tokio::time::sleep(patience).await;
            drop(held);
        });
        drop(next.unwrap());
        assert!(!file.exists(), "the database itself is left alone");

        let nowhere = folder.path().join("nowhere/store");
        let error = MigrationLock::wait(&nowhere, patience).await.unwrap_err().to_string();
        assert!(error.contains("is of no use") && error.contains("must be there"), "{error}");
    }

    #[tokio::test]
    async fn a_lock_file_that_cannot_be_written_is_locked_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store");
        let lock = folder.path().join("store.lock");
        std::fs::write(&lock, "").unwrap();
        std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o444)).unwrap();
        let patience = Duration::from_millis(50);
        let held = MigrationLock::wait(&file, patience).await.unwrap();
        assert!(MigrationLock::wait(&file, patience).await.is_err());
        drop(held);

        // Root is refused nothing, so that the above alone would say little there.
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
            // The same with the file there.
            std::fs::write(of("data/store"), "").unwrap();
        }
        let patience = Duration::from_millis(50);
        let held = MigrationLock::wait(&of("link"), patience).await.unwrap();
        assert!(MigrationLock::wait(&of("data/store"), patience).await.is_err());
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
