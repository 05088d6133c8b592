//! Users of this host.

use nix::unistd::{Gid, Uid, User};
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

    /// [`Self::own`] for a folder and all below it.
    pub fn own_all(&self, folder: &Path) -> io::Result<()> {
        self.own(folder)?;
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => self.own_all(&entry.path())?,
                false => self.own(&entry.path())?,
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
