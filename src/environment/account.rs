//! Users of this host.

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::Mode;
use nix::unistd::{self, Gid, Uid, User};
use std::io;
use std::path::Path;

/// A user as which a process of root may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    uid: Uid,
    gid: Gid,
}

impl Account {
    /// The account that this process can become: none if it is not root's, if there is no user of this name, or if the user is root.
    pub fn of(name: &str) -> io::Result<Option<Self>> {
        if name.is_empty() || !Uid::effective().is_root() {
            return Ok(None);
        }
        let found = User::from_name(name)?.filter(|user| !user.uid.is_root());
        Ok(found.map(|user| Self { name: user.name, uid: user.uid, gid: user.gid }))
    }

    /// Makes the file or folder this account's.
    pub fn own(&self, path: &Path) -> io::Result<()> {
        std::os::unix::fs::lchown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
    }

    /// [`Self::own`] for a folder and all below it. Whoever owns the tree may change it meanwhile, so no link is followed: each folder is
    /// opened as such, and what is in it is named relative to what was opened.
    pub fn own_all(&self, folder: &Path) -> io::Result<()> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        self.own_below(Dir::open(folder, flags, Mode::empty())?)
    }

    fn own_below(&self, mut folder: Dir) -> io::Result<()> {
        unistd::fchown(&folder, Some(self.uid), Some(self.gid))?;
        let entries: Vec<_> = folder.iter().collect::<Result<_, _>>()?;
        for entry in entries {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            match Dir::openat(&folder, name, flags, Mode::empty()) {
                Ok(below) => self.own_below(below)?,
                Err(Errno::ENOTDIR | Errno::ELOOP) => {
                    let this = AtFlags::AT_SYMLINK_NOFOLLOW;
                    unistd::fchownat(&folder, name, Some(self.uid), Some(self.gid), this)?;
                }
                // Another evaluator of the same user removed it.
                Err(Errno::ENOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Goes on as this account with its groups, for good. The process must have one thread.
    #[cfg(target_os = "linux")]
    pub fn become_it(&self) -> io::Result<()> {
        let name = std::ffi::CString::new(self.name.clone())?;
        nix::unistd::initgroups(&name, self.gid)?;
        nix::unistd::setresgid(self.gid, self.gid, self.gid)?;
        nix::unistd::setresuid(self.uid, self.uid, self.uid)?;
        // A change of user hides the process's own files below /proc from it, which drivers read.
        nix::sys::prctl::set_dumpable(true)?;
        Ok(())
    }

    /// Goes on as this account with its groups, for good. The process must have one thread.
    #[cfg(not(target_os = "linux"))]
    pub fn become_it(&self) -> io::Result<()> {
        nix::unistd::setgid(self.gid)?;
        nix::unistd::setuid(self.uid)?;
        Ok(())
    }
}

/// Hides this process's memory, environment and open files from others of the same user, evaluators among them: no debugger, no
/// `/proc/PID/mem`. A crash leaves no core file either. Programs that it starts are not hidden.
#[cfg(target_os = "linux")]
pub fn hide_this_process() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Hides this process's memory from others of the same user. Other systems than Linux have rules of their own for it.
#[cfg(not(target_os = "linux"))]
pub fn hide_this_process() -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// A change of owner, also to the same one, is seen in the time of a file's last change of attributes.
    #[test]
    fn what_links_lead_to_keeps_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let (tree, outside) = (folder.path().join("tree"), folder.path().join("outside"));
        for of in [&tree, &outside] {
            std::fs::create_dir_all(of.join("below")).unwrap();
            std::fs::write(of.join("below/file"), "").unwrap();
        }
        std::os::unix::fs::symlink(&outside, tree.join("folder")).unwrap();
        std::os::unix::fs::symlink(outside.join("below/file"), tree.join("below/link")).unwrap();
        let changed = |path: &Path| {
            let at = std::fs::symlink_metadata(path).unwrap();
            (at.ctime(), at.ctime_nsec())
        };
        let within =
            ["", "below", "below/file", "below/link", "folder"].map(|name| tree.join(name));
        let beyond = ["", "below", "below/file"].map(|name| outside.join(name));
        let times = |paths: &[std::path::PathBuf]| -> Vec<_> {
            paths.iter().map(|path| changed(path)).collect()
        };
        let (before_within, before_beyond) = (times(&within), times(&beyond));
        std::thread::sleep(std::time::Duration::from_millis(50));
        let account = Account { name: "self".to_owned(), uid: Uid::current(), gid: Gid::current() };
        account.own_all(&tree).unwrap();
        assert!(times(&within).iter().zip(&before_within).all(|(after, before)| after > before));
        assert_eq!(times(&beyond), before_beyond);
        // A link instead of the folder is refused.
        assert!(account.own_all(&tree.join("folder")).is_err());
        assert_eq!(times(&beyond), before_beyond);
    }
}
