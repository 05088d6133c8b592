//! The fence of the evaluator: what the process gives up before it opens its device.
//!
//! An evaluator compiles texts, loads closed libraries and runs kernels on data of strangers. Were one of them to take the process
//! over, it should find nothing: no files but its own two folders and the system's libraries, no network, no other process, no new
//! program, no way to more rights. The matrix comes as an open descriptor over stdin ([`super::Inbox`]), so not even the blobs can be
//! read. Landlock keeps files, TCP and signals; a seccomp filter the system calls; `no_new_privs`, the limits and the capabilities
//! the rest. All of it must be in place before the first thread starts, since Landlock binds the calling thread and its children.

#[cfg(target_os = "linux")]
mod calls;
#[cfg(target_os = "linux")]
mod files;
mod folders;
#[cfg(target_os = "linux")]
mod limits;
mod probe;
#[cfg(test)]
mod tests;

pub use folders::{Folders, UserError};
pub use probe::{Attempt, attempts};

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// How much of the fence must stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fence {
    /// All that this kernel has; what it lacks is logged.
    #[default]
    Auto,
    /// All of it, or the evaluator does not start.
    Required,
    /// All but the wall around files and network, for libraries that the wall keeps from opening the device.
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
    "the evaluator's fence is required (evaluator.fence = \"required\"), but this host does not have all of it: {0}"
)]
pub struct Incomplete(pub Wall);

/// Raises the fence around this process, which must have one thread. `readable` are folders and files beside the system's that may be
/// read; `folders` those that may be written. Returns the walls in the order in which they were raised.
#[cfg(target_os = "linux")]
pub fn raise(
    fence: Fence,
    readable: &[PathBuf],
    folders: &Folders,
) -> Result<Vec<Wall>, Incomplete> {
    if fence == Fence::Off {
        return Ok(Vec::new());
    }
    let mut walls = vec![limits::no_new_privileges(), limits::resources(), limits::capabilities()];
    if fence != Fence::WithoutFiles {
        walls.push(files::restrict(readable, folders));
    }
    walls.push(calls::filter());
    checked(fence, walls)
}

/// Other systems have none of these walls.
#[cfg(not(target_os = "linux"))]
pub fn raise(
    fence: Fence,
    _readable: &[PathBuf],
    _folders: &Folders,
) -> Result<Vec<Wall>, Incomplete> {
    if fence == Fence::Off {
        return Ok(Vec::new());
    }
    let state = Err("it is made of what only Linux has".to_owned());
    checked(fence, vec![Wall { name: "fence", state }])
}

fn checked(fence: Fence, walls: Vec<Wall>) -> Result<Vec<Wall>, Incomplete> {
    match walls.iter().find(|wall| wall.state.is_err()) {
        Some(missing) if fence == Fence::Required => Err(Incomplete(missing.clone())),
        _ => Ok(walls),
    }
}
