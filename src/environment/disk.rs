//! The disk space that this process may still use.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Free bytes of the file system that a folder is on, without those kept for its owner; `None` if it does not tell.
pub fn free(folder: &Path) -> Option<u64> {
    let path = CString::new(folder.as_os_str().as_bytes()).ok()?;
    let mut facts = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte, and there is room for the answer.
    let failed = unsafe { libc::statvfs(path.as_ptr(), facts.as_mut_ptr()) } != 0;
    if failed {
        return None;
    }
    // SAFETY: the call succeeded, so it has written all of it.
    let facts = unsafe { facts.assume_init() };
    Some(facts.f_bavail.saturating_mul(facts.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::free;
    use std::path::Path;

    #[test]
    fn a_folder_has_room_and_what_is_no_folder_tells_nothing() {
        assert!(free(&std::env::temp_dir()).is_some_and(|bytes| bytes > 0));
        assert_eq!(free(Path::new("/no/such/folder")), None);
    }
}
