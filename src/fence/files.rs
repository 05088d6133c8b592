//! The wall around files, TCP and signals: Landlock.

use super::{Needs, Wall};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    PathBeneath, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
    path_beneath_rules,
};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The newest version whose restrictions were thought through here; older kernels have fewer of them.
const KNOWN: ABI = ABI::V7;

/// What libraries are made of, and what the C library and NVIDIA's driver read about the system. Nothing of `/etc` that is a secret:
/// root may read `shadow` without any capability.
const SYSTEM: [&str; 22] = [
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt",
    "/nix/store",
    "/gnu/store",
    "/run/opengl-driver",
    "/proc",
    "/sys",
    "/etc/alternatives",
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/nvidia",
    "/etc/passwd",
    "/run/nvidia-persistenced",
    "/dev/random",
    "/dev/urandom",
];

/// The folder of [`SYSTEM`] below which a path lies, if it does.
pub(super) fn system_folder(path: &Path) -> Option<&'static Path> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    // What is not there yet lies where the nearest folder above it does.
    let there = path.ancestors().find(|at| at.exists()).map_or_else(|| path.to_owned(), real);
    SYSTEM.iter().map(Path::new).find(|folder| there.starts_with(real(folder)))
}

/// Where drivers and the multi-process service keep what they share.
const SHARED: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/shm"];

/// Where the driver's multi-process service listens, unless the environment says otherwise.
const MULTI_PROCESS: &str = "/tmp/nvidia-mps";

/// The folders of CUDA's multi-process service, where that runs as this user or as root: anybody may make a folder of that name in `/tmp`,
/// and an evaluator could make the service's pipe in one that was left.
pub(super) fn multi_process_service() -> impl Iterator<Item = PathBuf> {
    let ours = |path: &Path| {
        let owner = std::fs::symlink_metadata(path).map(|at| at.uid());
        owner.is_ok_and(|owner| owner == 0 || owner == nix::unistd::geteuid().as_raw())
    };
    let named = crate::environment::multi_process_folder();
    let folders = named.into_iter().chain([MULTI_PROCESS.into()]);
    folders.filter(move |folder| ours(folder) && ours(&folder.join("control")))
}

/// What the wall keeps of files. Signals, TCP and the memory of other processes it always keeps, where the kernel can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// Only what libraries and drivers are known to need is readable.
    All,
    /// Files may be read wherever this user may, and all devices opened that the user may open, unless that is root.
    Writes,
}

pub(super) fn restrict(extent: Extent, needs: &Needs<'_>) -> Wall {
    let state =
        enforce(extent, needs).map_err(|error| error.to_string()).and_then(|(status, landlock)| {
            match (status, landlock) {
                (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => Err(
                    "Landlock is not enabled in this kernel (the boot option `lsm` must name it)"
                        .to_owned(),
                ),
                (RulesetStatus::NotEnforced, _) => {
                    Err("this kernel has no Landlock, which came with Linux 5.13".to_owned())
                }
                (_, LandlockStatus::Available { effective_abi, .. }) => {
                    let files = match extent {
                        Extent::All => "files",
                        Extent::Writes => "changes of files",
                    };
                    Ok(format!(
                        "Landlock {}: {files}{}",
                        effective_abi as i32,
                        parts(effective_abi)
                    ))
                }
                _ => Ok("Landlock".to_owned()),
            }
        });
    Wall { name: "files and network", state }
}

/// What a version of Landlock keeps beside files.
fn parts(abi: ABI) -> &'static str {
    match abi as i32 {
        ..=3 => "",
        4 | 5 => ", TCP",
        _ => ", TCP, signals",
    }
}

fn ruleset(kept: BitFlags<AccessFs>) -> Result<RulesetCreated, landlock::RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(kept)?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()
}

fn enforce(
    extent: Extent,
    needs: &Needs<'_>,
) -> Result<(RulesetStatus, LandlockStatus), landlock::RulesetError> {
    let Needs::Device { readable, folders } = needs else {
        let status = ruleset(AccessFs::from_all(KNOWN))?.restrict_self()?;
        return Ok((status.ruleset, status.landlock));
    };
    let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
    // Not links, sockets, pipes or devices: whoever takes the files over would follow them.
    let work = read
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer;
    let devices = read | AccessFs::WriteFile | AccessFs::IoctlDev;
    let reading = read | AccessFs::Execute;
    let all = AccessFs::from_all(KNOWN);
    let kept = match extent {
        Extent::All => all,
        Extent::Writes => all & !reading,
    };
    let system = SYSTEM.iter().map(PathBuf::from).chain(readable.iter().cloned());
    let shared = SHARED
        .iter()
        .map(PathBuf::from)
        .chain(multi_process_service())
        .chain(crate::environment::driver_cache());
    let mut ruleset = ruleset(kept)?
        .add_rules(path_beneath_rules(shared, work & kept))?
        .add_rules(path_beneath_rules(device_files(extent), devices & kept))?
        .add_rules(path_beneath_rules(folders.writable(), work & kept))?;
    if extent == Extent::All {
        ruleset = ruleset.add_rules(path_beneath_rules(system, read))?;
    }
    if let Some(threads) = threads() {
        let named = AccessFs::WriteFile | AccessFs::Truncate;
        ruleset = ruleset.add_rule(PathBeneath::new(threads, named & kept))?;
    }
    let status = ruleset.restrict_self()?;
    Ok((status.ruleset, status.landlock))
}

/// Where this process's threads have their names. CUDA's driver names its own by writing there, and does not open a device if it may not.
/// No rule tells names from what else is below, all of it this process's own: its memory, and its weight for the OOM killer, which without
/// the right to it cannot be made less than whoever had that right has set (`offer_to_the_oom_killer`, if started as root).
/// The folder stays open for good: it would get another identity, which no rule permits, once the kernel had forgotten it.
fn threads() -> Option<&'static File> {
    static THREADS: OnceLock<Option<File>> = OnceLock::new();
    THREADS.get_or_init(|| File::open("/proc/self/task").ok()).as_ref()
}

/// `/dev/nvidia0`, `/dev/nvidiactl`, `/dev/nvidia-uvm`, `/dev/nvidia-caps`, those of Jetson (`nvmap`, `nvhost-*`), and WSL's `/dev/dxg`.
///
/// Where only writes are kept, all devices: a driver may have one of another name. Root owns those of disks and memory, so root's are
/// the same ones as ever.
fn device_files(extent: Extent) -> Vec<PathBuf> {
    if extent == Extent::Writes && !nix::unistd::geteuid().is_root() {
        return vec!["/dev".into()];
    }
    let names = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = names
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // Disks are `nvme0n1` and the like.
            name.starts_with("nv") && !name.starts_with("nvme") && !name.starts_with("nvram")
        })
        .map(|entry| entry.path())
        .collect();
    files.push(Path::new("/dev/dxg").to_owned());
    files
}
