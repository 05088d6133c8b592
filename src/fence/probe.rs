//! Attempts to leave the fence, for `doctor` and for tests: what stands is what stops them, not what was asked for.

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// One attempt, and what stopped it if something did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub what: &'static str,
    pub stopped: Option<String>,
}

/// Tries what an evaluator never does. `secret` is a file that the user of this process may read, `folder` one in which it may write,
/// were it not for the fence. Nothing is changed by an attempt that succeeds but a file in `folder`, which is removed again.
pub fn attempts(secret: &Path, folder: &Path) -> Vec<Attempt> {
    let mark = folder.join("outside-the-fence");
    let written = std::fs::write(&mark, "").and_then(|()| std::fs::remove_file(&mark));
    vec![
        attempt("read a file", std::fs::read(secret).map(drop)),
        attempt("list a folder", std::fs::read_dir(folder).map(drop)),
        attempt("write a file", written),
        attempt("connect to the network", connect()),
        attempt("send a datagram", UdpSocket::bind(("127.0.0.1", 0)).map(drop)),
        attempt("start a program", Command::new("/bin/true").status().map(drop)),
        attempt("signal the parent", signal_parent()),
        attempt("read the parent's environment", read_parent()),
        attempt("connect to another program's socket", connect_to_socket()),
        attempt("lower the parent's limits", limit_parent()),
        attempt("change a file's mode", change_mode(secret)),
        attempt("signal a thread of the parent", signal_thread()),
        attempt("attach shared memory", share_memory()),
        attempt("have the parent signalled", own_by_parent()),
    ]
}

fn attempt(what: &'static str, outcome: io::Result<()>) -> Attempt {
    Attempt { what, stopped: outcome.err().map(|error| error.to_string()) }
}

/// Nobody listens on the discard port, so that a connection is refused at once if it may be tried; then nothing stopped the attempt.
fn connect() -> io::Result<()> {
    let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
    match TcpStream::connect_timeout(&nobody, Duration::from_secs(1)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    }
}

/// Signal 0 only asks whether it could be sent.
fn signal_parent() -> io::Result<()> {
    Ok(nix::sys::signal::kill(nix::unistd::getppid(), None)?)
}

fn read_parent() -> io::Result<()> {
    std::fs::read(format!("/proc/{}/environ", nix::unistd::getppid())).map(drop)
}

/// A socket without a file, so that no wall around files has a part in it, and this process's own, so that no other is disturbed.
fn connect_to_socket() -> io::Result<()> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    let name = format!("sparsetune-{}-tries-to-leave", std::process::id());
    let address = SocketAddr::from_abstract_name(name)?;
    let _listener = UnixListener::bind_addr(&address)?;
    UnixStream::connect_addr(&address).map(drop)
}

/// Sets what it is already.
fn limit_parent() -> io::Result<()> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let parent = nix::unistd::getppid().as_raw();
    let files = libc::RLIMIT_NOFILE;
    // SAFETY: both pointers are to a local of the type that the call reads and writes.
    let failed = unsafe {
        libc::prlimit(parent, files, std::ptr::null(), &raw mut now) != 0
            || libc::prlimit(parent, files, &raw const now, std::ptr::null_mut()) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// To what it is already.
fn change_mode(file: &Path) -> io::Result<()> {
    let mode = std::fs::metadata(file)?.permissions();
    std::fs::set_permissions(file, mode)
}

/// The first thread has the number of its process.
fn signal_thread() -> io::Result<()> {
    let parent = nix::unistd::getppid().as_raw();
    // SAFETY: the call takes numbers; signal 0 only asks whether it could be sent.
    let failed = unsafe { libc::syscall(libc::SYS_tgkill, parent, parent, 0) } != 0;
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Names the parent as the one who is signalled when something is to be read here; it is asked for no signals.
fn own_by_parent() -> io::Result<()> {
    let parent = nix::unistd::getppid().as_raw();
    let set = |owner: libc::pid_t| {
        // SAFETY: the call takes numbers.
        let failed = unsafe { libc::fcntl(libc::STDIN_FILENO, libc::F_SETOWN, owner) } != 0;
        if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    set(parent).and_then(|()| set(0))
}

/// A page that only this user could attach, removed at once.
fn share_memory() -> io::Result<()> {
    // SAFETY: the calls take numbers, and no memory is attached.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, 0o600) };
    if id < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above; the identifier is the one just given.
    unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
    Ok(())
}
