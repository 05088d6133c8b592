//! Copies of blobs on this host, within a bound of bytes. Processes may share a folder, or have one each.
//!
//! A copy that is in use is locked by whoever uses it (flock, shared), and only what can be locked alone is removed, the least recently
//! used first. The kernel lets go of the locks of a process that has died. A copy that is being fetched is a file in the folder of what
//! is written, locked by who fetches it, so that others wait for it instead of fetching it again; it has its whole length from the
//! beginning, so that it counts.

use crate::domain::Digest;
use crate::environment::disk;
use crate::store::private;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Folder of files being written, as in a folder of blobs.
pub(in crate::store::blobs) const STAGING: &str = "staging";
/// Begins the names of copies that are being fetched.
pub(super) const FETCHED: &str = "fetch-";

/// Names a folder as one whose contents may be removed at any time.
const MARK: &str = "sparsetune-blob-cache";

#[derive(Debug)]
pub(super) struct Cache {
    root: PathBuf,
    most: u64,
    /// Threads of this process make room one after the other, and so do processes, by a lock of this file.
    clearing: Mutex<File>,
}

/// A copy that stays as long as this is kept.
#[derive(Clone, Debug)]
pub(super) struct InUse {
    pub path: PathBuf,
    pub lock: Arc<File>,
}

/// A copy to be, locked by this process.
#[derive(Debug)]
pub(super) struct Coming {
    pub path: PathBuf,
    pub file: Arc<File>,
}

/// What a copy that is not there yet is.
pub(super) enum Turn {
    /// To be fetched by who asks.
    Ours(Coming),
    /// Fetched by another at this time.
    Others,
}

impl Cache {
    /// Opens the folder, and creates it if it is missing. A folder with other contents is refused: room is made by removing files. Blocks,
    /// as all that follows does.
    pub(super) fn open(root: &Path, most: u64) -> io::Result<Self> {
        private::folder(root)?;
        let mark = root.join(MARK);
        if std::fs::read_dir(root)?.next().is_some() && !mark.is_file() {
            let why = format!(
                "{} has other files and is no cache of blobs: `data.blob_cache` names an empty folder, or one of its own",
                root.display()
            );
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        private::file(&mark)?;
        private::folder(&root.join(STAGING))?;
        let clearing = Mutex::new(File::open(&mark)?);
        Ok(Self { root: root.canonicalize()?, most, clearing })
    }

    pub(super) const fn most(&self) -> u64 {
        self.most
    }

    pub(super) fn staging(&self) -> PathBuf {
        self.root.join(STAGING)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        self.root.join(&name[..2]).join(name)
    }

    /// The copy of a blob, if there is one. It counts as used now.
    pub(super) fn take(&self, digest: &Digest) -> io::Result<Option<InUse>> {
        let path = self.path(digest);
        loop {
            let file = match File::open(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            file.lock_shared()?;
            // Who removed it had it locked before.
            if is_at(&file, &path)? {
                let touched = file.set_modified(SystemTime::now());
                if let Err(error) = touched {
                    tracing::debug!(file = %path.display(), %error, "the use of a copy cannot be noted");
                }
                return Ok(Some(InUse { path, lock: Arc::new(file) }));
            }
        }
    }

    /// Whose turn it is to fetch a blob.
    pub(super) fn turn(&self, digest: &Digest) -> io::Result<Turn> {
        let path = self.staging().join(format!("{FETCHED}{digest}"));
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.open(&path)?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => return Ok(Turn::Others),
                locked => locked?,
            }
            // It is another's by now, or has become the copy.
            if is_at(&file, &path)? {
                return Ok(Turn::Ours(Coming { path, file: Arc::new(file) }));
            }
        }
    }

    /// Makes what was fetched the copy of a blob.
    pub(super) fn publish(&self, coming: &Coming, digest: &Digest) -> io::Result<Option<InUse>> {
        // A loss of power must not leave a name without its contents.
        coming.file.sync_data()?;
        self.name(&coming.path, digest)?;
        std::fs::remove_file(&coming.path)?;
        // The lock of who fetched it is of the same file: it becomes one that others can share.
        coming.file.lock_shared()?;
        self.take(digest)
    }

    /// Makes a file of the folder of what is written the copy of a blob as well, if there is room for it.
    pub(super) fn keep(&self, staged: &Path, digest: &Digest) -> io::Result<()> {
        let bytes = std::fs::metadata(staged)?.len();
        self.alone(|| match self.make_room(bytes)? {
            true => self.name(staged, digest),
            false => Ok(()),
        })
    }

    /// Makes a copy to be so long as it is going to be, with disk for all of it; false if those in use leave no room.
    pub(super) fn reserve(&self, coming: &Coming, bytes: u64) -> io::Result<bool> {
        self.alone(|| {
            // What is left of an earlier attempt goes.
            coming.file.set_len(0)?;
            Ok(self.make_room(bytes)? && disk::reserve(&coming.file, bytes).map(|()| true)?)
        })
    }

    /// What makes room and takes it is done by one at a time, of all processes that share the folder: each would have the same room.
    fn alone<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let file = self.clearing.lock().unwrap_or_else(PoisonError::into_inner);
        file.lock()?;
        let done = work();
        file.unlock()?;
        done
    }

    fn name(&self, staged: &Path, digest: &Digest) -> io::Result<()> {
        let path = self.path(digest);
        if let Some(folder) = path.parent() {
            private::folder(folder)?;
        }
        match std::fs::hard_link(staged, path) {
            // It may be in use, and is the same.
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes a copy whose contents were found wrong, or whose blob is deleted. Who reads it goes on.
    pub(super) fn remove(&self, digest: &Digest) -> io::Result<()> {
        match std::fs::remove_file(self.path(digest)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes copies that nobody uses until so many bytes can be added; false if those in use take too much.
    fn make_room(&self, bytes: u64) -> io::Result<bool> {
        let Some(room) = self.most.checked_sub(bytes) else { return Ok(false) };
        let mut copies = self.copies()?;
        let mut taken: u64 = copies.iter().map(|copy| copy.bytes).sum();
        copies.sort_unstable_by_key(|copy| copy.used);
        // What a process that died was fetching is not locked either.
        for copy in &copies {
            if taken <= room {
                break;
            }
            if remove_unused(&copy.path)? {
                taken -= copy.bytes;
            }
        }
        Ok(taken <= room)
    }

    /// Bytes of all copies, those that are being fetched included.
    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        self.copies().unwrap().iter().map(|copy| copy.bytes).sum()
    }

    fn copies(&self) -> io::Result<Vec<Kept>> {
        let mut copies: Vec<Kept> = Vec::new();
        for folder in std::fs::read_dir(&self.root)? {
            let folder = folder?;
            let coming = folder.file_name() == STAGING;
            if !folder.file_type()?.is_dir() {
                continue;
            }
            for entry in std::fs::read_dir(folder.path())?.flatten() {
                // What is removed meanwhile takes nothing.
                let Ok(facts) = entry.metadata() else { continue };
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let counts = match coming {
                    true => name.starts_with(FETCHED),
                    false => name.parse::<Digest>().is_ok(),
                };
                if facts.is_file() && counts {
                    let (path, bytes, used) = (entry.path(), facts.len(), facts.modified()?);
                    copies.push(Kept { path, bytes, used });
                }
            }
        }
        Ok(copies)
    }
}

struct Kept {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Whether this is the file at the path.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        there => {
            let (there, here) = (there?, file.metadata()?);
            Ok((there.dev(), there.ino()) == (here.dev(), here.ino()))
        }
    }
}

/// Removes a file unless it is in use; whether it is gone.
fn remove_unused(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        file => file?,
    };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Ok(false),
        locked => locked?,
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn kept(cache: &Cache, contents: &[u8], age_s: u64) -> Digest {
        let digest = Digest::of(contents);
        let Turn::Ours(coming) = cache.turn(&digest).unwrap() else { panic!("nobody else") };
        assert!(cache.reserve(&coming, contents.len() as u64).unwrap());
        std::fs::write(&coming.path, contents).unwrap();
        drop(cache.publish(&coming, &digest).unwrap().unwrap());
        drop(coming);
        let at = SystemTime::now() - Duration::from_secs(age_s);
        File::open(cache.path(&digest)).unwrap().set_modified(at).unwrap();
        digest
    }

    #[test]
    fn the_least_recently_used_goes_and_what_is_in_use_stays() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), 30).unwrap();
        // Another process would have the same folder, and locks of its own.
        let other = Cache::open(folder.path(), 30).unwrap();
        let [oldest, used, newest] =
            [(b"0123456789", 30), (b"1123456789", 20), (b"2123456789", 10)]
                .map(|(contents, age)| kept(&cache, contents, age));
        let oldest_in_use = other.take(&oldest).unwrap().unwrap();
        let at = SystemTime::now() - Duration::from_secs(30);
        oldest_in_use.lock.set_modified(at).unwrap();
        assert!(cache.make_room(10).unwrap());
        assert!(cache.take(&used).unwrap().is_none(), "the oldest that is not in use goes");
        assert!(cache.take(&oldest).unwrap().is_some() && cache.take(&newest).unwrap().is_some());
        assert!(!cache.make_room(25).unwrap(), "what is in use takes too much");
        assert!(oldest_in_use.path.exists() && cache.take(&newest).unwrap().is_none());
        drop(oldest_in_use);
        assert!(cache.make_room(25).unwrap());
        assert!(!cache.make_room(31).unwrap(), "more than there ever is");
        assert_eq!(cache.taken(), 0);
    }

    #[test]
    fn files_of_others_are_neither_taken_over_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("ab")).unwrap();
        let refused = Cache::open(folder.path(), 30).unwrap_err().to_string();
        assert!(refused.contains("is no cache of blobs"), "{refused}");
        std::fs::remove_dir(folder.path().join("ab")).unwrap();
        let cache = Cache::open(folder.path(), 30).unwrap();
        std::fs::create_dir(folder.path().join("ab")).unwrap();
        let other = folder.path().join("ab/letter");
        std::fs::write(&other, [0; 40]).unwrap();
        assert!(cache.make_room(30).unwrap() && other.exists());
        drop(cache);
        assert!(Cache::open(folder.path(), 30).is_ok(), "its own");
    }

    #[test]
    fn a_blob_is_fetched_by_one_and_a_dead_one_s_turn_is_the_next_s() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path(), 100).unwrap();
        let digest = Digest::of(b"blob");
        let Turn::Ours(coming) = cache.turn(&digest).unwrap() else { panic!("nobody else") };
        assert!(matches!(cache.turn(&digest).unwrap(), Turn::Others));
        assert!(cache.reserve(&coming, 60).unwrap());
        assert!(!cache.make_room(50).unwrap(), "it counts while it is fetched");
        drop(coming);
        let Turn::Ours(coming) = cache.turn(&digest).unwrap() else { panic!("it was given up") };
        std::fs::write(&coming.path, "blob").unwrap();
        assert!(cache.publish(&coming, &digest).unwrap().is_some());
        assert!(cache.take(&digest).unwrap().is_some());
    }

    /// Threads and processes that look for room at the same moment each found the same room.
    #[test]
    fn many_who_fetch_at_once_stay_within_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let caches = [0, 1].map(|_| Cache::open(folder.path(), 100).unwrap());
        let start = std::sync::Barrier::new(16);
        let taken: Vec<bool> = std::thread::scope(|scope| {
            let fetch = |at: usize| {
                let (cache, start) = (&caches[at % 2], &start);
                move || {
                    let digest = Digest::of(&[at as u8]);
                    let Turn::Ours(coming) = cache.turn(&digest).unwrap() else { panic!() };
                    start.wait();
                    let got = cache.reserve(&coming, 30).unwrap();
                    // Held until all have asked.
                    start.wait();
                    got
                }
            };
            let threads: Vec<_> = (0..16).map(|at| scope.spawn(fetch(at))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(taken.into_iter().filter(|got| *got).count(), 3);
        assert_eq!(caches[0].taken(), 90);
    }
}
