//! Process setup of the evaluator: stdout reserved for the protocol, no core dumps, termination with the parent.

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;

/// Reserves stdout for the protocol. Descriptor 1 is redirected to stderr, so that libraries that print do no harm.
pub fn claim_stdout() -> io::Result<File> {
    // SAFETY: descriptor numbers only; each result is checked before use.
    let kept = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_DUPFD_CLOEXEC, 3) };
    if kept < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `kept` was opened just now and nothing else owns it.
    let file = unsafe { File::from_raw_fd(kept) };
    // SAFETY: as above; the standard descriptors are open for the life of the process.
    if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Disables core dumps: those of a process with a device context have gigabytes, and writing one delays the restart.
pub fn dump_no_core() -> io::Result<()> {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a plain call on a valid struct.
    match unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks the kernel to end this process before the service's, if the host or the control group runs out of memory.
pub fn offer_to_the_oom_killer() -> io::Result<()> {
    match cfg!(target_os = "linux") {
        true => std::fs::write("/proc/self/oom_score_adj", "500"),
        false => Ok(()),
    }
}

/// Keeps freed memory for reuse. Rewriting and packing allocate and free gigabytes for each scheme, and the first
/// access to a fresh page costs more than the work on it.
pub fn keep_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: plain calls that set parameters of the C library's allocator; if one fails the default stays.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
        libc::mallopt(libc::M_TOP_PAD, 64 << 20);
    }
}

/// Ends this process when its parent dies, even while a kernel hangs and the end of stdin is not noticed.
///
/// The kernel sends the signal when the parent's *thread* that started this process ends, which may happen while the
/// parent process lives on. So the signal has a handler, which exits only if the parent is another process by then. The
/// last thread of a dying parent always sends one more signal.
#[cfg(target_os = "linux")]
pub fn die_with_parent() -> io::Result<()> {
    use std::sync::atomic::Ordering;

    // SAFETY: getppid cannot fail.
    PARENT.store(unsafe { libc::getppid() }, Ordering::SeqCst);
    // SAFETY: an all-zero sigaction is a valid one: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int) = end_if_orphaned;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler calls only getppid and _exit, which a signal handler may.
    if unsafe { libc::sigaction(libc::SIGHUP, &action, std::ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain values only.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGHUP as libc::c_ulong) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// On other systems only the end of stdin ends the process.
#[cfg(not(target_os = "linux"))]
pub fn die_with_parent() -> io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
static PARENT: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

#[cfg(target_os = "linux")]
extern "C" fn end_if_orphaned(_: libc::c_int) {
    // SAFETY: both calls are async-signal-safe.
    unsafe {
        if libc::getppid() != PARENT.load(std::sync::atomic::Ordering::SeqCst) {
            libc::_exit(libc::EXIT_FAILURE);
        }
    }
}
