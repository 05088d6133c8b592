//! The files that an evaluator wrote for a plan, as files of this process.
//!
//! The evaluator lives on, and may be in the hands of whoever wrote a kernel's text: it can write to what it has written, or put
//! something else under its name, at any time. So a file is opened once, looked at by that descriptor alone, and copied to a file of
//! this process's own, whose bytes are what is hashed and stored.

use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path};

/// A file in a folder. The folder belongs to the evaluator's user, who may put another under its path: it is opened once as well.
struct Placed {
    folder: File,
    name: CString,
}

/// The file's place, which must be the folder itself.
fn placed(folder: &Path, file: &Path) -> io::Result<Placed> {
    let refused = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    let mut parts =
        file.strip_prefix(folder).map_err(|_| refused("outside the folder"))?.components();
    let (Some(Component::Normal(name)), None) = (parts.next(), parts.next()) else {
        return Err(refused("outside the folder"));
    };
    let name = CString::new(OsStr::as_bytes(name))?;
    let folder = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(folder)?;
    Ok(Placed { folder, name })
}

impl Placed {
    /// Opens it, and not what a link names. A pipe is not waited for.
    fn open(&self) -> io::Result<File> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        // SAFETY: the folder is open, and the name ends with a zero.
        match unsafe { libc::openat(self.folder.as_raw_fd(), self.name.as_ptr(), flags) } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: it was opened just now, and nothing else owns it.
            opened => Ok(unsafe { File::from_raw_fd(opened) }),
        }
    }

    fn remove(&self) -> io::Result<()> {
        // SAFETY: as above.
        match unsafe { libc::unlinkat(self.folder.as_raw_fd(), self.name.as_ptr(), 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Moves the content of a file that should have so many bytes to a file of this process. Blocks.
pub(super) fn take(folder: &Path, file: &Path, bytes: u64, to: &mut File) -> io::Result<()> {
    let placed = placed(folder, file)?;
    let from = placed.open()?;
    let facts = from.metadata()?;
    // Another name of it would be a file that the evaluator has not written.
    if !facts.is_file() || facts.nlink() != 1 || facts.len() != bytes {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "does not have the stated length"));
    }
    // It may grow or shrink meanwhile.
    match io::copy(&mut from.take(bytes), to)? == bytes {
        // Each is large, and there may be many.
        true => placed.remove(),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    fn copied(folder: &Path, file: &Path, bytes: u64) -> io::Result<Vec<u8>> {
        let copy = tempfile::NamedTempFile::new()?;
        super::take(folder, file, bytes, &mut copy.reopen()?)?;
        std::fs::read(copy.path())
    }

    #[test]
    fn only_plain_files_of_the_folder_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let (inside, outside) = (folder.path().join("in"), folder.path().join("out"));
        std::fs::create_dir(&inside).unwrap();
        std::fs::create_dir(inside.join("deep")).unwrap();
        for file in [&outside, &inside.join("plain"), &inside.join("deep/file")] {
            std::fs::write(file, "12").unwrap();
        }
        symlink(&outside, inside.join("link")).unwrap();
        std::fs::hard_link(&outside, inside.join("twice")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(inside.join("pipe")).status();
        assert!(pipe.unwrap().success());
        assert!(copied(&inside, &inside.join("plain"), 3).is_err());
        for bad in ["link", "twice", "pipe", "deep/file", "deep", "../out", "none", ""] {
            assert!(copied(&inside, &inside.join(bad), 2).is_err(), "{bad}");
        }
        // The folder itself is another's.
        symlink(&inside, folder.path().join("other")).unwrap();
        let other = folder.path().join("other");
        assert!(copied(&other, &other.join("plain"), 2).is_err());
        assert_eq!(copied(&inside, &inside.join("plain"), 2).unwrap(), b"12");
        assert!(!inside.join("plain").exists(), "what was taken is gone");
    }

    #[test]
    fn what_is_written_later_is_not_in_the_copy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("array");
        std::fs::write(&file, "before").unwrap();
        let mut still_open = OpenOptions::new().write(true).open(&file).unwrap();
        let copy = tempfile::NamedTempFile::new().unwrap();
        super::take(folder.path(), &file, 6, &mut copy.reopen().unwrap()).unwrap();
        still_open.write_all(b"after!").unwrap();
        assert_eq!(std::fs::read(copy.path()).unwrap(), b"before");
    }
}
