//! The wall of system calls: a seccomp filter.
//!
//! For a device's process the filter lists what is refused, not what is allowed: closed drivers make calls that nobody can list for
//! all their versions. A process that only computes has a list of what it may, and nothing on it opens a file or makes a process.
//! A refused call fails with an error, as it does for others without the right to it, and the process continues.

use super::{Needs, Wall};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use std::io;

/// Calls by which a process starts programs, reaches into others, into the kernel, or into what it was not given.
const REFUSED: [libc::c_long; 48] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
];

/// What a process makes that computes with threads on the descriptors that it has. One that is refused here costs a message or some
/// speed if it was made in vain, as when a thread is given its name.
const COMPUTING: [libc::c_long; 47] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_ppoll,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_membarrier,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrusage,
    libc::SYS_dup,
];

/// Threads are made by the same call as processes in namespaces of their own, where they would be root.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

#[derive(Debug, thiserror::Error)]
enum FilterError {
    #[error("no filter is known for this processor: {0}")]
    Filter(#[from] seccompiler::BackendError),
    #[error("the kernel refuses it: {0}")]
    Kernel(#[from] io::Error),
}

pub(super) fn filter(needs: &Needs<'_>) -> Wall {
    let (installed, told) = match needs {
        Needs::Device { .. } => (
            install(refused().and_then(|rules| compile(rules, Listed::Refused(libc::EPERM)))),
            "no programs, no network, no other processes",
        ),
        Needs::Descriptors(_) => (
            install(computing().and_then(|rules| compile(rules, Listed::Allowed))),
            "nothing but to compute, to read and to write",
        ),
    };
    let state = installed.map(|()| format!("seccomp: {told}")).map_err(|error| error.to_string());
    Wall { name: "system calls", state }
}

fn install(program: Result<BpfProgram, FilterError>) -> Result<(), FilterError> {
    // The flags of this call are in memory, where no filter sees them. The C library knows this answer, and makes the other call.
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    apply(&compile(clone3, Listed::Refused(libc::ENOSYS))?)?;
    // The last one: it may not permit to install another.
    apply(&program?)?;
    Ok(())
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn refused() -> Result<Rules, FilterError> {
    let mut rules: Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let unix = libc::AF_UNIX as u64;
    let elsewhere = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, unix)?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(vec![elsewhere])?]);
    let mut made = Vec::new();
    for namespace in NAMESPACES {
        let bit = u64::from(namespace.cast_unsigned());
        let asked =
            SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(bit), bit)?;
        made.push(SeccompRule::new(vec![asked])?);
    }
    rules.insert(libc::SYS_clone, made);
    Ok(rules)
}

/// The calls that a process may make which only computes: threads of its own, and signals to itself, by which it aborts.
fn computing() -> Result<Rules, FilterError> {
    let mut rules: Rules = COMPUTING.iter().map(|call| (*call, Vec::new())).collect();
    // The other filter answers it; where both have an answer, a refusal goes before a permission.
    rules.insert(libc::SYS_clone3, Vec::new());
    let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
    let asked =
        SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(thread), thread)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![asked])?]);
    let own = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::Eq,
        u64::from(std::process::id()),
    )?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own])?]);
    Ok(rules)
}

/// What happens to the calls that a filter lists; the others have the opposite.
#[derive(Clone, Copy)]
enum Listed {
    Allowed,
    /// With this error.
    Refused(i32),
}

fn compile(rules: Rules, listed: Listed) -> Result<BpfProgram, FilterError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let (others, these) = match listed {
        Listed::Allowed => (SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow),
        Listed::Refused(errno) => (SeccompAction::Allow, SeccompAction::Errno(errno as u32)),
    };
    Ok(SeccompFilter::new(rules, others, these, arch)?.try_into()?)
}

/// Installs the program for this process. The library's own function lets kernels before 5.16 switch off the processor's
/// speculation past stores as well, which would slow down everything that is measured here on the host.
fn apply(program: &BpfProgram) -> io::Result<()> {
    let length = program.len().try_into().map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut().cast() };
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW | libc::SECCOMP_FILTER_FLAG_TSYNC;
    // SAFETY: the program and its instructions, of the layout that the kernel defines, live until the call returns.
    let failed = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            std::ptr::from_ref(&program),
        )
    };
    match failed {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has another filter"))),
    }
}
