//! The pool's end of a child's stdin: a socket, so that an open file can go with a request.

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

#[derive(Debug)]
pub(super) struct Requests(UnixStream);

impl Requests {
    /// Both ends; the second is the child's.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, childs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        Ok((Self(UnixStream::from_std(ours)?), childs.into()))
    }

    /// Writes the line, whose first bytes bring the file.
    pub(super) async fn send(&mut self, line: &[u8], file: Option<&File>) -> io::Result<()> {
        let sent = match file {
            Some(file) => self.pass(line, file).await?,
            None => 0,
        };
        self.0.write_all(line.get(sent..).unwrap_or_default()).await
    }

    /// Sends the file with as much of the line as fits; returns how much that was.
    async fn pass(&self, line: &[u8], file: &File) -> io::Result<usize> {
        let descriptors = [file.as_raw_fd()];
        let send = || {
            let (parts, rights) = ([IoSlice::new(line)], [ControlMessage::ScmRights(&descriptors)]);
            // A child that is gone is an error of this call, not a signal to this process.
            let flags = MsgFlags::MSG_NOSIGNAL;
            Ok(sendmsg::<()>(self.0.as_raw_fd(), &parts, &rights, flags, None)?)
        };
        self.0.async_io(Interest::WRITABLE, send).await
    }
}
