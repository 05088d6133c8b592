//! The evaluator's stdin: requests and, if it is a socket, the files that come with them.
//!
//! The pool opens a matrix and sends the descriptor with the request, so that the evaluator needs no right to open it.

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Files that have come and were not asked for yet. A request brings one at most, and is read before the next is sent.
#[derive(Clone, Debug, Default)]
pub struct Passed(Arc<Mutex<VecDeque<File>>>);

impl Passed {
    /// The file that came with the last request; those of earlier ones are closed.
    pub(crate) fn take(&self) -> Option<File> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = files.pop_back();
        files.clear();
        last
    }

    fn add(&self, file: File) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody needs more than the last one.
        files.clear();
        files.push_back(file);
    }
}

/// A reader of stdin that keeps the files.
#[derive(Debug)]
pub struct Inbox<F> {
    from: F,
    passed: Passed,
}

impl<F: AsRawFd> Inbox<F> {
    pub fn new(from: F) -> Self {
        Self { from, passed: Passed::default() }
    }

    pub fn passed(&self) -> Passed {
        self.passed.clone()
    }
}

impl<F: AsRawFd + Read> Read for Inbox<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut control = cmsg_space!(RawFd);
        let mut parts = [IoSliceMut::new(buffer)];
        let flags =
            if cfg!(target_os = "linux") { MsgFlags::MSG_CMSG_CLOEXEC } else { MsgFlags::empty() };
        loop {
            let from = self.from.as_raw_fd();
            let (read, files) = match recvmsg::<()>(from, &mut parts, Some(&mut control), flags) {
                Ok(message) => (message.bytes, files(message.cmsgs())?),
                Err(Errno::EINTR) => continue,
                // A pipe, a file or a terminal.
                Err(Errno::ENOTSOCK) => return self.from.read(buffer),
                Err(errno) => return Err(errno.into()),
            };
            files.into_iter().for_each(|file| self.passed.add(file));
            return Ok(read);
        }
    }
}

fn files(
    messages: nix::Result<impl Iterator<Item = ControlMessageOwned>>,
) -> io::Result<Vec<File>> {
    let rights = messages?.filter_map(|message| match message {
        ControlMessageOwned::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    // SAFETY: the kernel has just made these descriptors for this process, and nothing else owns them.
    Ok(rights.flatten().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }.into()).collect())
}
