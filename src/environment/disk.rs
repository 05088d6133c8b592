//! The disk space that this process may still use.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
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

/// Makes an empty file so long, with disk for all of it, so that writing to it does not find the disk full.
///
/// # Errors
/// There is no such room, or the file cannot be written.
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)?;
    let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    if !cfg!(target_os = "linux") || length == 0 {
        return Ok(());
    }
    // SAFETY: a plain system call on a descriptor that is open while it lasts.
    match unsafe { allocate(file.as_raw_fd(), length) } {
        0 => Ok(()),
        // A file system that has no such call finds out while it is written.
        libc::EOPNOTSUPP | libc::EINVAL => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

#[cfg(target_os = "linux")]
unsafe fn allocate(file: libc::c_int, length: libc::off_t) -> libc::c_int {
    // SAFETY: as of the caller.
    unsafe { libc::posix_fallocate(file, 0, length) }
}

#[cfg(not(target_os = "linux"))]
unsafe fn allocate(_: libc::c_int, _: libc::off_t) -> libc::c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::{free, reserve};
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    #[test]
    fn what_is_reserved_is_there() {
        let file = tempfile::tempfile().unwrap();
        reserve(&file, 1 << 20).unwrap();
        let facts = file.metadata().unwrap();
        assert_eq!(facts.len(), 1 << 20);
        if cfg!(target_os = "linux") {
            assert!(facts.blocks() * 512 >= 1 << 20, "{}", facts.blocks());
        }
        let room = free(&std::env::temp_dir()).unwrap();
        assert!(reserve(&tempfile::tempfile().unwrap(), room.saturating_mul(4)).is_err());
    }

    #[test]
    fn a_folder_has_room_and_what_is_no_folder_tells_nothing() {
        assert!(free(&std::env::temp_dir()).is_some_and(|bytes| bytes > 0));
        assert_eq!(free(Path::new("/no/such/folder")), None);
    }
}
