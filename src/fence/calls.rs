//! The wall of system calls: a seccomp filter.
//!
//! For a device's process the filter lists what is refused, not what is allowed: closed drivers make calls that nobody can list for
//! all their versions. A process that only computes has a list of what it may, and nothing on it opens a file or makes a process.
//! A refused call fails with an error, as it does for others without the right to it, and the process continues.

use super::{Needs, Wall};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};
use std::collections::BTreeMap;
use std::io;

/// Calls by which a process starts programs, reaches into others, into the kernel, or into what it was not given. Landlock does not
/// know what is done to a file's owner, mode, times and attributes, so nobody does that here.
const REFUSED: &[libc::c_long] = &[
    // Programs and other processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_setsid,
    libc::SYS_setpgid,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_kcmp,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_migrate_pages,
    // Memory and messages that any process of the host may attach to.
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    // What belongs to a file beside its content.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_utimensat,
    // The kernel, and what it keeps for all.
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
    libc::SYS_name_to_handle_at,
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
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
];

/// What a process makes that computes with threads on the descriptors that it has. One that is refused here costs a message or some
/// speed if it was made in vain, as when a thread is given its name.
const COMPUTING: [libc::c_long; 46] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
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

/// The same number on all processors; `libc` does not have it everywhere.
const FCHMODAT2: libc::c_long = 452;

/// Older calls that only this processor has; each has a newer form among those above.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[libc::c_long] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[libc::c_long] = &[];

/// Calls that name a process by their first argument: 0 is the caller itself, and others are refused. Threads can therefore be bound to
/// processors only by themselves.
const OF_ITSELF: &[libc::c_long] = &[
    libc::SYS_prlimit64,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_setattr,
];

/// Likewise by their second argument.
const OF_ITSELF_SECOND: &[libc::c_long] = &[libc::SYS_setpriority, libc::SYS_ioprio_set];

/// Signals to threads of a process, which must be this one: `raise` and `abort` send them.
const TO_OWN_THREADS: &[libc::c_long] =
    &[libc::SYS_tgkill, libc::SYS_rt_sigqueueinfo, libc::SYS_rt_tgsigqueueinfo];

/// By these arguments of `fcntl` and `ioctl` the kernel sends signals to a process that is named so, as if `kill` had been called, or
/// puts words into another's terminal.
const FCNTL_SIGNALS: [libc::c_int; 5] =
    [libc::F_SETOWN, F_SETSIG, F_SETOWN_EX, libc::F_SETLEASE, libc::F_NOTIFY];
const IOCTL_SIGNALS: [u64; 4] = [FIOSETOWN, SIOCSPGRP, TIOCSPGRP, TIOCSTI];
/// `libc` does not have these everywhere.
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const FIOSETOWN: u64 = 0x8901;
const SIOCSPGRP: u64 = 0x8902;
const TIOCSPGRP: u64 = 0x5410;
const TIOCSTI: u64 = 0x5412;

/// What a process that only computes may ask of its descriptors.
const FCNTL: [libc::c_int; 6] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
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
            refused_connections().and_then(|()| {
                install(refused().and_then(|rules| compile(rules, Listed::Refused(libc::EPERM))))
            }),
            match multi_process_service() {
                false => "no programs, no connections, no other processes",
                true => {
                    "no programs, no network but sockets with a path (CUDA's multi-process service is reached by one), no \
                     other processes"
                }
            },
        ),
        Needs::Descriptors(_) => (
            install(computing().and_then(|rules| compile(rules, Listed::Allowed))),
            "nothing but to compute, to read and to write",
        ),
    };
    let state = installed.map(|()| format!("seccomp: {told}")).map_err(|error| error.to_string());
    Wall { name: "system calls", state }
}

fn refused_connections() -> Result<(), FilterError> {
    if multi_process_service() {
        return Ok(());
    }
    // As where nobody listens, which drivers know: they look for the multi-process service and the persistence daemon, and go on.
    let connect = BTreeMap::from([(libc::SYS_connect, Vec::new())]);
    Ok(apply(&compile(connect, Listed::Refused(libc::ECONNREFUSED))?)?)
}

fn install(program: Result<BpfProgram, FilterError>) -> Result<(), FilterError> {
    #[cfg(target_arch = "x86_64")]
    apply(&without_x32())?;
    // The flags of this call are in memory, where no filter sees them. The C library knows this answer, and makes the other call.
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    apply(&compile(clone3, Listed::Refused(libc::ENOSYS))?)?;
    // The last one: it may not permit to install another.
    apply(&program?)?;
    Ok(())
}

/// Whether the driver's multi-process service runs here: its clients reach their device through a socket of it, so all sockets that
/// have a path can be reached then.
fn multi_process_service() -> bool {
    super::files::multi_process_service().next().is_some()
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn refused() -> Result<Rules, FilterError> {
    let always = REFUSED.iter().chain(REFUSED_HERE);
    let mut rules: Rules = always.map(|call| (*call, Vec::new())).collect();
    let unless = |argument, allowed: u64| {
        let other =
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, allowed)?;
        SeccompRule::new(vec![other])
    };
    let own = u64::from(std::process::id());
    for call in OF_ITSELF {
        rules.insert(*call, vec![unless(0, 0)?]);
    }
    for call in OF_ITSELF_SECOND {
        rules.insert(*call, vec![unless(1, 0)?]);
    }
    for call in TO_OWN_THREADS {
        rules.insert(*call, vec![unless(0, own)?]);
    }
    // Threads only: another process would live on when this one's group is killed.
    let thread = u64::from(libc::CLONE_THREAD.cast_unsigned());
    let process =
        SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(thread), 0)?;
    let process = SeccompRule::new(vec![process])?;
    rules.insert(libc::SYS_fcntl, second(FCNTL_SIGNALS.map(|asked| asked as u64))?);
    rules.insert(libc::SYS_ioctl, second(IOCTL_SIGNALS)?);
    // Drivers make sockets of this family to share memory among a user's processes, and listen. A socket for datagrams could name its
    // receiver with each of them, which no filter sees.
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        let mut asked = vec![unless(0, libc::AF_UNIX as u64)?];
        for kind in [libc::SOCK_DGRAM, libc::SOCK_RAW] {
            let masked = SeccompCmpOp::MaskedEq(SOCKET_KIND);
            let kind = SeccompCondition::new(1, SeccompCmpArgLen::Dword, masked, kind as u64)?;
            asked.push(SeccompRule::new(vec![kind])?);
        }
        rules.insert(call, asked);
    }
    let mut made = vec![process];
    for namespace in NAMESPACES {
        let bit = u64::from(namespace.cast_unsigned());
        let asked =
            SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(bit), bit)?;
        made.push(SeccompRule::new(vec![asked])?);
    }
    rules.insert(libc::SYS_clone, made);
    Ok(rules)
}

/// The bits of a socket's type that are not flags (`SOCK_TYPE_MASK` of the kernel).
const SOCKET_KIND: u64 = 0xf;

/// Refuses calls of the x32 convention, whose numbers have another bit, so that the other filters do not know them.
#[cfg(target_arch = "x86_64")]
fn without_x32() -> BpfProgram {
    const X32: u32 = 0x4000_0000;
    let statement = |code: u32, k| sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // The number of the call is the first word of what a filter sees.
    let load = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0);
    let compare = statement(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, X32);
    let refuse = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    vec![
        load,
        sock_filter { jf: 1, ..compare },
        statement(libc::BPF_RET | libc::BPF_K, refuse),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ]
}

/// A rule for each of these values of the second argument.
fn second(values: impl IntoIterator<Item = u64>) -> Result<Vec<SeccompRule>, FilterError> {
    let rule = |value| {
        let asked = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)?;
        Ok(SeccompRule::new(vec![asked])?)
    };
    values.into_iter().map(rule).collect()
}

/// The calls that a process may make which only computes: threads of its own, and signals to itself, by which it aborts.
fn computing() -> Result<Rules, FilterError> {
    let mut rules: Rules = COMPUTING.iter().map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_fcntl, second(FCNTL.map(|asked| asked as u64))?);
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
