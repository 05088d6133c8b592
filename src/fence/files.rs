//! The wall around files, TCP and signals: Landlock.

use super::{Needs, Wall};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};
use std::path::{Path, PathBuf};

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

/// Where drivers and the multi-process service keep what they share.
const SHARED: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/shm", "/tmp/nvidia-mps"];

pub(super) fn restrict(needs: &Needs<'_>) -> Wall {
    let state = enforce(needs).map_err(|error| error.to_string()).and_then(|(status, landlock)| {
        match (status, landlock) {
            (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => {
                Err("Landlock is not enabled in this kernel (the boot option `lsm` must name it)"
                    .to_owned())
            }
            (RulesetStatus::NotEnforced, _) => {
                Err("this kernel has no Landlock, which came with Linux 5.13".to_owned())
            }
            (_, LandlockStatus::Available { effective_abi, .. }) => {
                Ok(format!("Landlock {}: {}", effective_abi as i32, parts(effective_abi)))
            }
            _ => Ok("Landlock".to_owned()),
        }
    });
    Wall { name: "files and network", state }
}

/// What a version of Landlock keeps.
fn parts(abi: ABI) -> &'static str {
    match abi as i32 {
        ..=3 => "files",
        4 | 5 => "files, TCP",
        _ => "files, TCP, signals",
    }
}

fn enforce(needs: &Needs<'_>) -> Result<(RulesetStatus, LandlockStatus), landlock::RulesetError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    let Needs::Device { readable, folders } = needs else {
        let status = ruleset.restrict_self()?;
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
    let system = SYSTEM.iter().map(PathBuf::from).chain(readable.iter().cloned());
    let shared = SHARED.iter().map(PathBuf::from).chain(crate::environment::shared_by_cuda());
    let status = ruleset
        .add_rules(path_beneath_rules(system, read))?
        .add_rules(path_beneath_rules(shared, work))?
        .add_rules(path_beneath_rules(device_files(), devices))?
        .add_rules(path_beneath_rules(folders.writable(), work))?
        .restrict_self()?;
    Ok((status.ruleset, status.landlock))
}

/// `/dev/nvidia0`, `/dev/nvidiactl`, `/dev/nvidia-uvm`, `/dev/nvidia-caps`, those of Jetson (`nvmap`, `nvhost-*`), and WSL's `/dev/dxg`.
fn device_files() -> Vec<PathBuf> {
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
