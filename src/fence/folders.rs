//! The folders that an evaluator writes to, and the user as which it does.

use crate::environment::account::Account;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Why the evaluator cannot go on as its user.
#[derive(Debug, thiserror::Error)]
#[error("the evaluator cannot go on as user {user}: {error}")]
pub struct UserError {
    user: String,
    error: io::Error,
}

/// A folder by the name that the pool uses and, if this process may no longer look it up by that, another one.
#[derive(Debug)]
struct Folder {
    named: PathBuf,
    reached: PathBuf,
    /// Keeps `reached` valid, if that is by descriptor.
    _open: Option<File>,
}

impl Folder {
    fn of(path: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&path)?;
        Ok(Self { reached: path.clone(), named: path, _open: None })
    }
}

/// Below the folder of compiled kernels, where CUDA's driver keeps what it compiles itself.
const OF_THE_DRIVER: &str = "driver";

/// The folders of its own that an evaluator may write to.
#[derive(Debug, Default)]
pub struct Folders {
    cubins: Option<Folder>,
    exports: Option<Folder>,
}

impl Folders {
    /// The cache of compiled kernels, and the folder in which those lie to which arrays of plans are written. They are created if they
    /// are missing.
    pub fn new(cubins: Option<PathBuf>, exports: Option<PathBuf>) -> io::Result<Self> {
        let folder = |path: Option<PathBuf>| path.map(Folder::of).transpose();
        if let Some(cubins) = &cubins {
            std::fs::create_dir_all(cubins.join(OF_THE_DRIVER))?;
        }
        Ok(Self { cubins: folder(cubins)?, exports: folder(exports)? })
    }

    /// Goes on as this user, who gets the folders. They lie in a folder that is private to the user of the service, so they are kept
    /// open, and reached by descriptor from now on.
    pub fn become_user(&mut self, account: &Account) -> Result<(), UserError> {
        self.change(account).map_err(|error| UserError { user: account.name.clone(), error })
    }

    fn change(&mut self, account: &Account) -> io::Result<()> {
        for folder in self.cubins.iter_mut().chain(&mut self.exports) {
            account.own_all(&folder.named)?;
            let open = File::open(&folder.named)?;
            folder.reached = format!("/proc/self/fd/{}", open.as_raw_fd()).into();
            folder._open = Some(open);
        }
        account.become_it()
    }

    /// Where the cache of compiled kernels is reached.
    pub fn cubins(&self) -> Option<&Path> {
        self.cubins.as_ref().map(|folder| folder.reached.as_path())
    }

    /// Where CUDA's driver may keep what it compiles: a cache that programs of the same user share would let whoever takes an
    /// evaluator over put code into theirs.
    pub fn driver_cache(&self) -> Option<PathBuf> {
        Some(self.cubins()?.join(OF_THE_DRIVER))
    }

    /// Where the folder that the pool names is reached.
    pub(crate) fn reach(&self, named: &Path) -> PathBuf {
        let below = self.exports.as_ref().and_then(|exports| {
            Some(exports.reached.join(named.strip_prefix(&exports.named).ok()?))
        });
        below.unwrap_or_else(|| named.to_owned())
    }

    #[cfg(target_os = "linux")]
    pub(super) fn writable(&self) -> impl Iterator<Item = &Path> {
        self.cubins.iter().chain(&self.exports).map(|folder| folder.reached.as_path())
    }
}
