//! Comparison of blobs with their digests, when a process first opens them.

use crate::domain::Digest;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

/// The digest that a blob with these contents is named by; `None` if they are of no blob, as those of a damaged matrix. Blocks.
pub type NameOf = fn(&Path) -> io::Result<Option<Digest>>;

/// What a file was when its contents were compared. Another length, or another file, is compared again. A file system hands out the numbers of
/// files that are gone, so the time at which one was made counts, too, where it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    bytes: u64,
    inode: u64,
    made: Option<SystemTime>,
}

/// What a comparison found.
#[derive(Debug)]
pub(super) enum Verdict {
    Sound,
    Damaged(Read),
}

/// The file that was read. It stays open, so that no other file can have the number of its inode meanwhile.
#[derive(Debug)]
pub(super) struct Read {
    file: File,
    modified: SystemTime,
}

impl Read {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let modified = file.metadata()?.modified()?;
        Ok(Self { file, modified })
    }

    /// Whether this is the file at the path, and nobody has written to it since it was read. Another process may have replaced it.
    pub(super) fn is_still_at(&self, path: &Path) -> io::Result<bool> {
        let now = match std::fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            facts => facts?,
        };
        Ok(Seen::of(&self.file.metadata()?) == Seen::of(&now) && now.modified()? == self.modified)
    }
}

impl Seen {
    fn of(facts: &Metadata) -> Self {
        Self { bytes: facts.len(), inode: facts.ino(), made: facts.created().ok() }
    }
}

/// The blobs that this process has compared. Damage after that is seen by the next process.
#[derive(Debug, Default)]
pub(super) struct Checking {
    /// Without it nothing is compared.
    pub(super) name_of: OnceLock<NameOf>,
    sound: Mutex<HashMap<Digest, Seen>>,
    /// For each blob that is being compared a lock, so that one that many ask for is read once, and others meanwhile.
    comparing: Mutex<HashMap<Digest, Arc<Mutex<()>>>>,
}

impl Checking {
    /// Whether the file has the contents that the digest names. Blocks.
    pub(super) fn verdict(&self, digest: &Digest, path: &Path) -> io::Result<Verdict> {
        let Some(name_of) = self.name_of.get() else { return Ok(Verdict::Sound) };
        if self.is_known(digest, path)? {
            return Ok(Verdict::Sound);
        }
        let turn = Arc::clone(locked(&self.comparing).entry(*digest).or_default());
        let verdict = {
            let _alone = locked(&turn);
            self.compare(digest, path, *name_of)
        };
        drop(turn);
        let mut comparing = locked(&self.comparing);
        if comparing.get(digest).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            comparing.remove(digest);
        }
        verdict
    }

    /// The blob is not there any more: there would be an entry for each that ever was.
    pub(super) fn forget(&self, digest: &Digest) {
        locked(&self.sound).remove(digest);
    }

    /// The blobs that were compared, in no particular order.
    #[cfg(test)]
    pub(super) fn known(&self) -> Vec<Digest> {
        locked(&self.sound).keys().copied().collect()
    }

    fn compare(&self, digest: &Digest, path: &Path, name_of: NameOf) -> io::Result<Verdict> {
        // Another thread may have compared it, or set it aside, in the meantime.
        if self.is_known(digest, path)? {
            return Ok(Verdict::Sound);
        }
        let started = Instant::now();
        let read = Read::open(path)?;
        let seen = Seen::of(&read.file.metadata()?);
        if name_of(path)? != Some(*digest) {
            return Ok(Verdict::Damaged(read));
        }
        let seconds = started.elapsed().as_secs_f64();
        tracing::debug!(%digest, bytes = seen.bytes, seconds, "blob compared with its digest");
        locked(&self.sound).insert(*digest, seen);
        Ok(Verdict::Sound)
    }

    fn is_known(&self, digest: &Digest, path: &Path) -> io::Result<bool> {
        let now = Seen::of(&std::fs::metadata(path)?);
        Ok(locked(&self.sound).get(digest) == Some(&now))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Condvar;
    use std::time::Duration;

    /// How many comparisons have begun, of any blob.
    static BEGUN: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

    /// Ends only once `BEGUN` is two, or after a while.
    fn slowly(path: &Path) -> io::Result<Option<Digest>> {
        let (begun, more) = &BEGUN;
        let mut begun = begun.lock().unwrap();
        *begun += 1;
        more.notify_all();
        let patience = Duration::from_secs(20);
        let (_begun, waited) =
            more.wait_timeout_while(begun, patience, |begun| *begun < 2).unwrap();
        assert!(!waited.timed_out(), "the other blob waits for this one");
        Ok(Some(Digest::of(&std::fs::read(path)?)))
    }

    #[test]
    fn blobs_are_compared_side_by_side_and_each_once() {
        let folder = tempfile::tempdir().unwrap();
        let checking = Checking::default();
        checking.name_of.set(slowly).unwrap();
        let blobs = [b"one", b"two"].map(|contents| {
            let path = folder.path().join(String::from_utf8_lossy(contents).as_ref());
            std::fs::write(&path, contents).unwrap();
            (Digest::of(contents), path)
        });
        std::thread::scope(|scope| {
            for (digest, path) in blobs.iter().chain(&blobs).chain(&blobs) {
                let checking = &checking;
                scope.spawn(move || {
                    assert!(matches!(checking.verdict(digest, path).unwrap(), Verdict::Sound))
                });
            }
        });
        assert_eq!(*BEGUN.0.lock().unwrap(), 2, "a blob that several ask for is read once");
        assert!(locked(&checking.comparing).is_empty());
    }
}
