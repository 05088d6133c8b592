//! The fence of child processes: what one gives up before it meets the data of strangers.
//!
//! An evaluator compiles texts, loads closed libraries and runs kernels on data of strangers; a reader unpacks and parses what they
//! upload. Were one of them to take the process over, it should find nothing: no files but an evaluator's own two folders, the
//! system's libraries and what CUDA's processes share (`/dev/shm`, devices), no network, no other process, no new program, no way to more rights. Matrices and uploads come as open
//! descriptors over stdin ([`Inbox`]), so not even the blobs can be read. Landlock keeps files, TCP and signals; a seccomp filter the
//! system calls; `no_new_privs`, the limits and the capabilities the rest. All of it must be in place before the first thread starts,
//! since Landlock binds the calling thread and its children.

#[cfg(target_os = "linux")]
mod calls;
#[cfg(target_os = "linux")]
mod files;
mod folders;
mod inbox;
#[cfg(target_os = "linux")]
mod limits;
mod probe;
mod process;
#[cfg(test)]
mod tests;

pub use folders::{Folders, UserError};
pub use inbox::{Inbox, Passed};
pub use probe::{Attempt, attempts};
pub use process::{
    claim_stdout, die_with_parent, dump_no_core, keep_memory, offer_to_the_oom_killer,
};

use crate::domain::protocol::MISSING_WALL;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The folder of the system that evaluators may read and that this path lies in, if there is one: nothing keeps them from reading it there.
pub fn readable_with(path: &Path) -> Option<&'static Path> {
    #[cfg(target_os = "linux")]
    return files::system_folder(path);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = path;
        None
    }
}

/// What a process still does within its fence.
#[derive(Clone, Copy, Debug)]
pub enum Needs<'a> {
    /// Opens a device. `readable` are files and folders beside the system's that may be read; `folders` those that may be written.
    Device { readable: &'a [PathBuf], folders: &'a Folders },
    /// Computes, with the descriptors that it is given, and takes no more than this.
    Descriptors(Allowance),
}

/// What a process may take that only computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes of memory of its own.
    pub memory: u64,
    /// Bytes of addresses, with the files that it maps.
    pub addresses: u64,
    /// Bytes of any file that it writes.
    pub file: u64,
    /// Seconds of processor time of all its threads.
    pub cpu_s: u64,
}

/// How much of the fence must stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fence {
    /// All that this kernel has; what it lacks is logged.
    #[default]
    Auto,
    /// All of it, or the process does not start.
    Required,
    /// Files may be read wherever this user may, for libraries that the wall around files keeps from opening the device; all else as
    /// with `Auto`.
    WithoutFiles,
    /// None.
    Off,
}

impl Fence {
    pub const ALL: [Self; 4] = [Self::Auto, Self::Required, Self::WithoutFiles, Self::Off];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Required => "required",
            Self::WithoutFiles => "without_files",
            Self::Off => "off",
        }
    }
}

impl FromStr for Fence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|fence| fence.name() == text);
        named.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("`{text}` is not one of {names}")
        })
    }
}

/// One wall, and why it does not stand if it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wall {
    pub name: &'static str,
    /// In force, with a word on how; or the reason for its absence.
    pub state: Result<String, String>,
}

impl fmt::Display for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            Ok(how) => write!(f, "{}: {how}", self.name),
            Err(why) => write!(f, "{}: missing, {why}", self.name),
        }
    }
}

/// A wall that must stand and does not.
#[derive(Debug, thiserror::Error)]
#[error(
    "the fence is required (evaluator.fence = \"required\"), but this host does not have all of it: {0}"
)]
pub struct Incomplete(pub Wall);

/// Raises the fence around this process, which must have one thread. Returns the walls in the order in which they were raised.
#[cfg(target_os = "linux")]
pub fn raise(fence: Fence, needs: &Needs<'_>) -> Result<Vec<Wall>, Incomplete> {
    if fence == Fence::Off {
        return Ok(Vec::new());
    }
    let mut walls =
        vec![limits::no_new_privileges(), limits::resources(needs), limits::capabilities()];
    let extent = match fence {
        Fence::WithoutFiles => files::Extent::Writes,
        Fence::Auto | Fence::Required | Fence::Off => files::Extent::All,
    };
    walls.push(files::restrict(extent, needs));
    walls.push(calls::filter(needs));
    checked(fence, walls)
}

/// Other systems have none of these walls.
#[cfg(not(target_os = "linux"))]
pub fn raise(fence: Fence, _needs: &Needs<'_>) -> Result<Vec<Wall>, Incomplete> {
    if fence == Fence::Off {
        return Ok(Vec::new());
    }
    let state = Err("it is made of what only Linux has".to_owned());
    checked(fence, vec![Wall { name: "fence", state }])
}

/// Reports the walls to the log of this process: a missing one in the words by which the service tells it once.
pub fn report(walls: Vec<Wall>) {
    for wall in walls {
        match wall.state {
            Ok(_) => tracing::debug!(%wall, "fence"),
            Err(_) => tracing::warn!("{MISSING_WALL}{wall}"),
        }
    }
}

fn checked(fence: Fence, walls: Vec<Wall>) -> Result<Vec<Wall>, Incomplete> {
    match walls.iter().find(|wall| wall.state.is_err()) {
        Some(missing) if fence == Fence::Required => Err(Incomplete(missing.clone())),
        _ => Ok(walls),
    }
}
