//! Files that killed processes left behind.

use std::path::Path;
use std::time::{Duration, SystemTime};

/// Time elapsed since then; `None` for a time in the future.
pub(super) fn passed(at: SystemTime) -> Option<Duration> {
    SystemTime::now().duration_since(at).ok()
}

/// Removes files and folders whose name begins with `prefix` and that have not been written to for `age`, as killed
/// processes leave them; returns their number. What cannot be removed is logged and kept. Blocks on the file system.
pub(crate) fn sweep(folder: &Path, prefix: &str, age: Duration) -> u64 {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "a folder of temporary files cannot be listed");
            return 0;
        }
    };
    let mut removed = 0;
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        // The process that works on the file may remove it first.
        let Ok(facts) = entry.metadata() else { continue };
        let old = facts.modified().is_ok_and(|at| passed(at) >= Some(age));
        if !(old && (facts.is_file() || facts.is_dir())) {
            continue;
        }
        // Such a folder holds the arrays of a plan that was not stored.
        let gone = match facts.is_dir() {
            true => std::fs::remove_dir_all(entry.path()),
            false => std::fs::remove_file(entry.path()),
        };
        match gone {
            Ok(()) => removed += 1,
            Err(error) => {
                tracing::warn!(file = %entry.path().display(), %error, "an old temporary file cannot be removed");
            }
        }
    }
    removed
}
