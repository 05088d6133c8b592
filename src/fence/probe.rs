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
