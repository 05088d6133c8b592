//! The process's environment: all that is read of it is read here (`tests/tidy.rs` sees to it).

pub mod account;
pub mod disk;
pub mod files;
pub mod gpus;
pub mod memory;
pub mod random;

use std::path::PathBuf;

/// All variables as text; what is not UTF-8 is replaced. The configuration takes those with its prefix, a child process
/// inherits those that its specification lists.
pub fn variables() -> impl Iterator<Item = (String, String)> {
    let text = |name: std::ffi::OsString| name.to_string_lossy().into_owned();
    std::env::vars_os().map(move |(name, value)| (text(name), text(value)))
}

/// Set for every child process: one that finds it is itself an evaluator or a reader, or should have been.
pub const STARTED_AS_CHILD: &str = "STARTED_BY_SPARSETUNE";

/// Whether another process of this program started this one as its child.
pub fn started_as_child() -> bool {
    std::env::var_os(STARTED_AS_CHILD).is_some()
}

/// The server that clients ask unless they are told another; the Python package reads the same variable.
pub fn server() -> Option<String> {
    std::env::var("SPARSETUNE_SERVER").ok().filter(|address| !address.is_empty())
}

/// The name of this host; `local` if it has none.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "local".to_owned(),
        name => name.to_owned(),
    }
}

/// Names this start of this host's system, so that two hosts of one name differ; empty if the system does not tell.
pub fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().to_owned()
}

/// Roots of CUDA toolkits, as the vendor's own tools name them.
pub fn toolkit_roots() -> impl Iterator<Item = PathBuf> {
    ["CUDA_PATH", "CUDA_HOME"].into_iter().filter_map(path)
}

/// Roots of Python environments, whose packages bring NVIDIA's libraries along.
pub fn python_roots() -> impl Iterator<Item = PathBuf> {
    ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path)
}

/// Folders that the dynamic loader searches first.
pub fn loader_folders() -> impl Iterator<Item = PathBuf> {
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&listed).collect();
    folders.into_iter().filter(|folder| folder.is_absolute())
}

/// The folder of CUDA's multi-process service, if it is named.
pub fn multi_process_folder() -> Option<PathBuf> {
    path("CUDA_MPS_PIPE_DIRECTORY")
}

/// Where CUDA's driver keeps what it compiles, if that is named.
pub fn driver_cache() -> Option<PathBuf> {
    path(CUDA_CACHE)
}

const CUDA_CACHE: &str = "CUDA_CACHE_PATH";

/// Lets CUDA's driver keep in `folder` what it compiles in this process, unless the environment names a folder for it. Without either
/// that is one in the user's home, shared by all of the user's programs.
///
/// # Safety
///
/// No other thread may run: they read the environment at any time.
pub unsafe fn keep_driver_cache(folder: &std::path::Path) {
    if path(CUDA_CACHE).is_none() {
        // SAFETY: the caller has this process's only thread.
        unsafe { std::env::set_var(CUDA_CACHE, folder) };
    }
}

/// An empty or relative one would be of whichever folder the process was started in.
fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}
