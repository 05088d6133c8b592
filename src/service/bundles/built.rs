//! Bundles that are written for downloads, and kept for a while within bounds.

use super::ReadyBundle;
use crate::domain::{Namespace, PlanId};
use crate::sparse::read::{Held, Pool, ReadError};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bundles that were built for downloads, until others are asked for or some time has passed: a client may ask for the rest of one. Oldest
/// first.
#[derive(Default)]
pub(in crate::service) struct Built(Mutex<Vec<Kept>>);

/// The namespace that it was built for, to which a plan of another tells less; the plan; and whether it is without values.
type Key = (Namespace, PlanId, bool);

struct Kept {
    key: Key,
    since: Instant,
    ready: ReadyBundle,
}

/// Files kept for a next download, of which share of the disk for temporary files, and for how long.
const MOST_BUILT: usize = 8;
const KEPT_SHARE: u64 = 8;
const BUILT_FOR: Duration = Duration::from_secs(600);

impl Built {
    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|one| one.since.elapsed() < BUILT_FOR);
        kept
    }

    pub(super) fn get(&self, key: &Key) -> Option<ReadyBundle> {
        self.kept().iter().find(|one| one.key == *key).map(|one| one.ready.clone())
    }

    /// Keeps a bundle for a next download, if it is no more than their share of the disk, for which the oldest go.
    pub(super) fn keep(&self, key: Key, ready: &ReadyBundle, disk: &Pool) {
        let most = disk.present() / KEPT_SHARE;
        if ready.bytes > most {
            return;
        }
        let mut kept = self.kept();
        let bytes = |kept: &[Kept]| kept.iter().map(|one| one.ready.bytes).sum::<u64>();
        while kept.len() >= MOST_BUILT || bytes(&kept).saturating_add(ready.bytes) > most {
            kept.remove(0);
        }
        kept.push(Kept { key, since: Instant::now(), ready: ready.clone() });
    }

    /// Gives back the disk of what has been kept for its time.
    pub(in crate::service) fn expire(&self) {
        drop(self.kept());
    }

    /// Gives back the disk of all that nobody downloads at present.
    pub(super) fn clear(&self) {
        self.kept().clear();
    }
}

/// A file whose bytes are charged before they are written.
pub(super) struct Charging<'a> {
    file: &'a mut File,
    at: u64,
    disk: Option<&'a Held>,
    refused: Option<ReadError>,
}

impl<'a> Charging<'a> {
    /// From the beginning of the file; without `disk` nothing is charged.
    pub(super) fn new(file: &'a mut File, disk: Option<&'a Held>) -> Self {
        Self { file, at: 0, disk, refused: None }
    }

    /// Why a write has failed, if it was for want of disk.
    pub(super) fn refused(&mut self) -> Option<ReadError> {
        self.refused.take()
    }
}

impl Write for Charging<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = self.at.saturating_add(bytes.len() as u64);
        if let Some(disk) = self.disk
            && let Err(error) =
                disk.charge(end.saturating_sub(disk.bytes()), 1, "a bundle that is built")
        {
            self.refused = Some(error);
            return Err(io::ErrorKind::StorageFull.into());
        }
        let written = self.file.write(bytes)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for Charging<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = self.file.seek(to)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::BundleFile;
    use super::*;
    use crate::domain::Digest;
    use std::sync::Arc;
    use tempfile::NamedTempFile;

    #[test]
    fn a_file_is_charged_before_it_is_written() {
        let disk = Pool::disk(10);
        let held = disk.open(u64::MAX);
        let mut file = tempfile::tempfile().unwrap();
        let mut out = Charging::new(&mut file, Some(&held));
        out.write_all(b"12345678").unwrap();
        // What is written again takes nothing more.
        out.seek(SeekFrom::Start(4)).unwrap();
        out.write_all(b"5678").unwrap();
        assert_eq!(disk.taken(), 8);
        assert!(out.write_all(b"9..").is_err() && out.refused().is_some());
        assert_eq!((disk.taken(), file.metadata().unwrap().len()), (8, 8));
    }

    #[test]
    fn bundles_are_kept_within_bounds() {
        let (disk, built) = (Pool::disk(240), Built::default());
        let ready = |bytes: u64| {
            let held = disk.open(u64::MAX);
            held.charge(bytes, 1, "a bundle").unwrap();
            let path = NamedTempFile::new().unwrap().into_temp_path();
            let file = BundleFile::Temporary { path: Arc::new(path), _disk: Arc::new(held) };
            let (without_values, blob, sha256) = (false, Digest::of(b""), [0; 32]);
            ReadyBundle { without_values, blob, bytes, sha256, file }
        };
        let keep = |bytes| {
            built.keep((Namespace::default(), PlanId::fresh(), false), &ready(bytes), &disk);
            disk.taken()
        };
        assert_eq!((keep(10), keep(20)), (10, 30));
        assert_eq!(keep(5), 25, "the oldest has made room");
        assert_eq!(keep(31), 25, "too large to be kept");
        // No machine's clock begins before it was started.
        if let Some(then) = Instant::now().checked_sub(BUILT_FOR) {
            built.kept()[0].since = then;
            built.expire();
            assert_eq!(disk.taken(), 5);
        }
        built.clear();
        assert_eq!(disk.taken(), 0);
    }
}
