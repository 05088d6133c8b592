//! What a process may use, and the rights it had as root.

use super::{Allowance, Needs, Wall};
use caps::CapSet;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};

/// Largest file: the largest array of a plan is that of the entries of a matrix with 2^31 of them, copied a few times by its format.
const MOST_FILE_BYTES: u64 = 64 << 30;

/// Open files: a driver opens a few dozen for each device.
const MOST_FILES: u64 = 4096;

/// Programs that it starts cannot have more rights than it has. The filter of system calls needs this as well.
pub(super) fn no_new_privileges() -> Wall {
    let state = nix::sys::prctl::set_no_new_privs()
        .map(|()| "programs get no rights of their file".to_owned())
        .map_err(|errno| errno.to_string());
    Wall { name: "no_new_privs", state }
}

/// Open files of a process that opens none: the standard ones, and those that it is given.
const FEW_FILES: u64 = 32;

/// Seconds between the signal that ends a process at the limit of its processor time and the one that cannot be ignored.
const LAST_SECONDS: u64 = 2;

/// Of a device's process memory has no limit here: a driver reserves terabytes of addresses, and what the host's share of a search may be is decided before
/// it is allocated (`limits.max_host_bytes`). Nor have processes: their limit counts all of a user's.
pub(super) fn resources(needs: &Needs<'_>) -> Wall {
    let lower = |resource, most: u64| {
        let (soft, hard) = getrlimit(resource)?;
        setrlimit(resource, soft.min(most), hard.min(most))
    };
    let limited = match needs {
        Needs::Device { .. } => lower(Resource::RLIMIT_FSIZE, MOST_FILE_BYTES)
            .and_then(|()| lower(Resource::RLIMIT_NOFILE, MOST_FILES))
            .map(|()| format!("files up to {} GiB, {MOST_FILES} open", MOST_FILE_BYTES >> 30)),
        Needs::Descriptors(Allowance { memory, addresses, file, cpu_s }) => {
            lower(Resource::RLIMIT_FSIZE, *file)
                .and_then(|()| lower(Resource::RLIMIT_NOFILE, FEW_FILES))
                .and_then(|()| lower(Resource::RLIMIT_DATA, *memory))
                .and_then(|()| lower(Resource::RLIMIT_AS, *addresses))
                .and_then(|()| {
                    let (soft, hard) = getrlimit(Resource::RLIMIT_CPU)?;
                    let last = cpu_s.saturating_add(LAST_SECONDS);
                    setrlimit(Resource::RLIMIT_CPU, soft.min(*cpu_s), hard.min(last))
                })
                .map(|()| format!("{memory} bytes of memory, {cpu_s} s of processor time"))
        }
    };
    let state = limited
        // A write beyond the limit then fails, and is reported, instead of ending the process.
        // SAFETY: no handler is installed: the signal is ignored.
        .and_then(|told| unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.map(|_| told))
        .map_err(|errno| errno.to_string());
    Wall { name: "limits", state }
}

/// Root without capabilities owns its files and can do no more than others with the rest of the system.
pub(super) fn capabilities() -> Wall {
    let had = caps::read(None, CapSet::Permitted).is_ok_and(|all| !all.is_empty());
    // The bounding set cannot be lowered without the right to, which is among those that go.
    let bounding = if had { caps::clear(None, CapSet::Bounding) } else { Ok(()) };
    let state = bounding
        .or_else(|error| {
            match caps::has_cap(None, CapSet::Effective, caps::Capability::CAP_SETPCAP) {
                Ok(false) => Ok(()),
                _ => Err(error),
            }
        })
        .and_then(|()| caps::clear(None, CapSet::Ambient))
        .and_then(|()| caps::clear(None, CapSet::Inheritable))
        .and_then(|()| caps::clear(None, CapSet::Effective))
        .and_then(|()| caps::clear(None, CapSet::Permitted))
        .map(|()| if had { "all given up" } else { "it had none" }.to_owned())
        .map_err(|error| error.to_string());
    Wall { name: "capabilities", state }
}
