//! Whose blobs a folder has, and the trash: what upkeep removes stays there for a while, and comes back when it is asked for.

use super::super::checking::Read;
use super::super::sweep::{passed, sweep};
use super::{DAMAGED, LocalBlobs, STAGING};
use crate::domain::Digest;
use crate::store::private;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use tempfile::NamedTempFile;

/// Most damaged files that are kept.
pub(super) const MOST_DAMAGED: usize = 32;
/// Folder of blobs that nothing named, until they are deleted.
pub(super) const TRASH: &str = "trash";
/// File with the id of the store that the blobs belong to.
const OWNER: &str = "store-id";
/// File in a folder that a backup is being restored to. What is there came from a restoration that did not end.
const FILLING: &str = "restoring";

impl LocalBlobs {
    /// The id of the store that the blobs belong to; `None` if the folder does not say. Blocks.
    pub(super) fn read_owner(&self) -> io::Result<Option<String>> {
        match std::fs::read_to_string(self.root.join(OWNER)) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the blobs those of this store. Blocks.
    pub(super) fn write_owner(&self, id: &str) -> io::Result<()> {
        let mut staged = NamedTempFile::with_prefix_in("blob-", self.staging())?;
        writeln!(staged, "{id}")?;
        staged.as_file().sync_all()?;
        staged.persist(self.root.join(OWNER)).map_err(|failed| failed.error)?;
        File::open(&*self.root)?.sync_all()
    }

    /// Ends what [`Self::filling`] began, if it did. Blocks.
    pub(super) fn filled(&self) -> io::Result<()> {
        match std::fs::remove_file(self.root.join(FILLING)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => File::open(&*self.root)?.sync_all(),
        }
    }

    /// Says that the folder, which is empty, is being filled. Blocks.
    pub(super) fn filling(&self) -> io::Result<()> {
        private::file(&self.root.join(FILLING))?;
        File::open(self.root.join(FILLING))?.sync_all()?;
        File::open(&*self.root)?.sync_all()
    }

    /// Whether the folder is being filled, or was when that was interrupted. Blocks.
    pub(super) fn is_filling(&self) -> io::Result<bool> {
        self.root.join(FILLING).try_exists()
    }

    /// Every blob, in no particular order. Blocks.
    pub(super) fn list(&self) -> io::Result<Vec<Digest>> {
        let mut all = Vec::new();
        self.each_file(|name, _| all.extend(name.parse::<Digest>().ok()))?;
        Ok(all)
    }

    /// The files of blobs that were damaged and set aside. Blocks.
    pub(super) fn list_aside(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        self.each_file(|name, path| {
            let of_a_blob =
                name.strip_suffix(DAMAGED).is_some_and(|it| it.parse::<Digest>().is_ok());
            found.extend(of_a_blob.then_some(path));
        })?;
        Ok(found)
    }

    /// Sets a file aside that was read and found damaged. False if it is not there any more: another process has replaced it.
    pub(super) fn put_aside(&self, digest: &Digest, read: &Read) -> io::Result<bool> {
        let path = self.path(digest);
        if !read.is_still_at(&path)? {
            return Ok(false);
        }
        let mut aside = path.clone().into_os_string();
        aside.push(DAMAGED);
        let aside = PathBuf::from(aside);
        match std::fs::rename(&path, &aside) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            moved => moved?,
        }
        if !read.is_still_at(&aside)? {
            // It was replaced between the two: what was moved may be sound, and goes back unless there is another already.
            match std::fs::hard_link(&aside, &path) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => std::fs::remove_file(&aside)?,
            }
            return Ok(false);
        }
        tracing::error!(%digest, "a stored blob is damaged: it is set aside");
        metrics::counter!("sparsetune_damaged_blobs_total").increment(1);
        self.bound_set_aside()?;
        Ok(true)
    }

    /// Damaged files are kept for who looks into the cause, but not without end.
    fn bound_set_aside(&self) -> io::Result<()> {
        let mut files = self.list_aside()?;
        let excess = files.len().saturating_sub(MOST_DAMAGED);
        files.sort_by_cached_key(|file| std::fs::metadata(file).and_then(|it| it.modified()).ok());
        for file in &files[..excess] {
            match std::fs::remove_file(file) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => tracing::info!(file = %file.display(), "an old damaged file was deleted"),
            }
        }
        Ok(())
    }

    fn each_file(&self, mut with: impl FnMut(&str, PathBuf)) -> io::Result<()> {
        for folder in std::fs::read_dir(&*self.root)? {
            let folder = folder?;
            let name = folder.file_name();
            if !folder.file_type()?.is_dir() || name == STAGING || name == TRASH {
                continue;
            }
            for entry in std::fs::read_dir(folder.path())?.flatten() {
                if let Some(name) = entry.file_name().to_str() {
                    with(name, entry.path());
                }
            }
        }
        Ok(())
    }

    pub(super) fn list_older(&self, age: Duration) -> io::Result<Vec<Digest>> {
        let mut all = self.list()?;
        all.retain(|digest| self.is_older(digest, age));
        Ok(all)
    }

    fn is_older(&self, digest: &Digest, age: Duration) -> bool {
        let put = std::fs::symlink_metadata(self.path(digest)).and_then(|facts| facts.modified());
        put.is_ok_and(|at| passed(at) >= Some(age))
    }

    fn in_trash(&self, digest: &Digest) -> PathBuf {
        self.root.join(TRASH).join(digest.to_string())
    }

    /// Moves those that are still older than `age` to the trash; returns their number.
    pub(super) fn discard(&self, digests: &[Digest], age: Duration) -> io::Result<u64> {
        private::folder(&self.root.join(TRASH))?;
        let mut moved = 0;
        for digest in digests.iter().filter(|digest| self.is_older(digest, age)) {
            let path = self.path(digest);
            // Its time in the trash counts from now.
            let stamped = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
            match stamped.and_then(|()| std::fs::rename(&path, self.in_trash(digest))) {
                Ok(()) => {
                    self.checking.forget(digest);
                    moved += 1;
                }
                Err(error) => {
                    tracing::warn!(%digest, %error, "an old blob cannot be moved to the trash")
                }
            }
        }
        Ok(moved)
    }

    /// Brings a blob back from the trash; false if it is not there.
    pub(super) fn recover(&self, digest: &Digest) -> io::Result<bool> {
        let (from, to) = (self.in_trash(digest), self.path(digest));
        if !from.try_exists()? {
            return Ok(false);
        }
        if let Some(folder) = to.parent() {
            private::folder(folder)?;
        }
        match std::fs::rename(from, &to) {
            // Another thread was faster: it brought it back, or deleted it.
            Err(error) if error.kind() == ErrorKind::NotFound => return to.try_exists(),
            moved => moved?,
        }
        File::open(to)?.set_modified(SystemTime::now())?;
        tracing::warn!(%digest, "a blob was needed that nothing had named: it is back from the trash");
        Ok(true)
    }

    /// Deletes a blob for good, also from the trash. False if there was none.
    pub(super) fn remove(&self, digest: &Digest) -> io::Result<bool> {
        let mut removed = false;
        for path in [self.path(digest), self.in_trash(digest)] {
            match std::fs::remove_file(path) {
                Ok(()) => removed = true,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.checking.forget(digest);
        Ok(removed)
    }

    /// What is in the trash.
    pub(super) fn trash(&self) -> io::Result<Vec<Digest>> {
        let entries = match std::fs::read_dir(self.root.join(TRASH)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<Digest>().ok()));
        }
        Ok(found)
    }

    pub(super) fn empty(&self, named: &[Digest], age: Duration) -> io::Result<u64> {
        for digest in named {
            self.recover(digest)?;
        }
        let trash = self.root.join(TRASH);
        Ok(if trash.is_dir() { sweep(&trash, "", age) } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Blobs as _;

    /// There would be an entry for each blob that ever was.
    #[tokio::test]
    async fn what_is_gone_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = LocalBlobs::open(folder.path()).unwrap();
        blobs.check_with(|path| Ok(Some(Digest::of(&std::fs::read(path)?))));
        let mut all = Vec::new();
        for contents in ["deleted", "discarded", "lost", "kept"] {
            let digest = blobs.put(contents.into()).await.unwrap();
            blobs.get(&digest).await.unwrap();
            all.push(digest);
        }
        assert_eq!(blobs.checking.known().len(), 4);
        assert!(blobs.delete(&all[0]).await.unwrap());
        assert_eq!(blobs.discard_old(vec![all[1]], Duration::ZERO).await.unwrap(), 1);
        // Another process deletes this one.
        std::fs::remove_file(blobs.path(&all[2])).unwrap();
        assert!(!blobs.exists(&all[2]).await.unwrap());
        assert_eq!(blobs.checking.known(), [all[3]]);
    }
}
