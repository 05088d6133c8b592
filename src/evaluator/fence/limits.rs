//! What a process may use, and the rights it had as root.

use super::Wall;
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

/// Memory has no limit here: a driver reserves terabytes of addresses, and what the host's share of a search may be is decided before
/// it is allocated (`limits.max_host_bytes`). Nor have processes: their limit counts all of a user's.
pub(super) fn resources() -> Wall {
    let lower = |resource, most: u64| {
        let (soft, hard) = getrlimit(resource)?;
        setrlimit(resource, soft.min(most), hard.min(most))
    };
    let state = lower(Resource::RLIMIT_FSIZE, MOST_FILE_BYTES)
        .and_then(|()| lower(Resource::RLIMIT_NOFILE, MOST_FILES))
        // A write beyond the limit then fails, and is reported, instead of ending the process.
        // SAFETY: no handler is installed: the signal is ignored.
        .and_then(|()| unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) })
        .map(|_| format!("files up to {} GiB, {MOST_FILES} open", MOST_FILE_BYTES >> 30))
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
