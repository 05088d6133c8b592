//! Comparison of blobs with their digests, when a process first opens them.

use crate::domain::Digest;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// The digest that a blob with these contents is named by; `None` if they are of no blob, as those of a damaged matrix. Blocks.
pub type NameOf = fn(&Path) -> io::Result<Option<Digest>>;

/// What a file was when its contents were compared. Another length, or another file, is compared again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    bytes: u64,
    inode: u64,
}

/// The blobs that this process has compared. Damage after that is seen by the next process.
#[derive(Debug, Default)]
pub(super) struct Checking {
    /// Without it nothing is compared.
    pub(super) name_of: OnceLock<NameOf>,
    sound: Mutex<HashMap<Digest, Seen>>,
    /// Held while a blob is compared, so that one that many ask for is read once.
    comparing: Mutex<()>,
}

impl Checking {
    /// Whether the file has the contents that the digest names. Blocks.
    pub(super) fn is_sound(&self, digest: &Digest, file: &Path) -> io::Result<bool> {
        let Some(name_of) = self.name_of.get() else { return Ok(true) };
        if self.is_known(digest, file)? {
            return Ok(true);
        }
        let _alone = self.comparing.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have compared it, or set it aside, in the meantime.
        if self.is_known(digest, file)? {
            return Ok(true);
        }
        let (started, seen) = (Instant::now(), seen(file)?);
        let sound = name_of(file)? == Some(*digest);
        if sound {
            let seconds = started.elapsed().as_secs_f64();
            tracing::debug!(%digest, bytes = seen.bytes, seconds, "blob compared with its digest");
            self.sound.lock().unwrap_or_else(PoisonError::into_inner).insert(*digest, seen);
        } else {
            tracing::error!(%digest, bytes = seen.bytes, "a stored blob is damaged: it is set aside");
            metrics::counter!("sparsetune_damaged_blobs_total").increment(1);
        }
        Ok(sound)
    }

    fn is_known(&self, digest: &Digest, file: &Path) -> io::Result<bool> {
        let now = seen(file)?;
        let sound = self.sound.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(sound.get(digest) == Some(&now))
    }
}

fn seen(file: &Path) -> io::Result<Seen> {
    use std::os::unix::fs::MetadataExt;
    let facts = std::fs::metadata(file)?;
    Ok(Seen { bytes: facts.len(), inode: facts.ino() })
}
