//! The process that reads an upload, with a service that answers whatever it likes.

use super::readers::file_of;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use sparsetune::bundle::Extract;
use sparsetune::domain::reading::{Order, Said, Wanted};
use sparsetune::fence::Inbox;
use sparsetune::reader::{EXIT_IO, EXIT_OK, run};
use sparsetune::sparse::canonical;
use sparsetune::sparse::read::Pool;
use std::fs::File;
use std::io::{BufReader, IoSlice, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// Lines that are sent; they wait in the socket until they are read.
const LINES: usize = 24;
/// Rows, columns and entries that an order may permit here.
const SIDE: u64 = 1 << 14;

/// Lines of the service, an empty one, and the upload. A file comes with each line.
pub fn lines(data: &[u8]) {
    let end = data.windows(2).position(|pair| pair == b"\n\n").map_or(data.len(), |at| at + 1);
    let (lines, upload) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    let first = lines.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let order = serde_json::from_slice::<Order>(first);
    let large = |order: &Order| {
        [order.max_rows, order.max_cols, order.max_nnz].iter().any(|most| *most > SIDE)
            || order.max_decompressed_bytes > 1 << 20
    };
    if lines.len() > 1 << 14 || order.as_ref().is_ok_and(large) {
        return;
    }
    let (theirs, mut ours) = UnixStream::pair().expect("a pair of sockets");
    let (bytes, upload) = (upload.len() as u64, file_of(upload));
    // Whichever line brings the file for what is made of it: it is the same one.
    let mut made = tempfile::tempfile().expect("a temporary file");
    for (at, line) in lines.split_inclusive(|byte| *byte == b'\n').take(LINES).enumerate() {
        send(&mut ours, line, if at == 0 { upload.as_file() } else { &made });
    }
    drop(ours);
    let inbox = Inbox::new(theirs);
    let passed = inbox.passed();
    let output = Shared::default();
    let code = run(BufReader::new(inbox), passed, output.clone());
    let output = output.0.lock().unwrap_or_else(PoisonError::into_inner);
    let said: Vec<Said> = output
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| serde_json::from_slice(line).expect("the reader keeps to its protocol"))
        .collect();
    assert!(code == EXIT_OK || code == EXIT_IO);
    let ends = |said: &Said| matches!(said, Said::Done { .. } | Said::Refused(_));
    let ended = said.iter().filter(|said| ends(said)).count();
    assert!(ended <= 1 && said.last().is_none_or(|last| (ended == 1) == ends(last)));
    let Some(Said::Done { .. }) = said.last() else { return };
    let asked = said.iter().find_map(|said| match said {
        Said::Output { bytes } => Some(*bytes),
        _ => None,
    });
    // What was unpacked may have gone to the same file.
    let spooled = said.iter().any(|said| matches!(said, Said::Spool));
    if !spooled {
        let length = made.metadata().expect("an open file").len();
        assert_eq!(asked.unwrap_or(0), length, "it writes as much as it said");
        match order.expect("an order that was carried out").wanted {
            Wanted::Matrix => {
                let read = canonical::read_in(&made, &Pool::memory(64 << 20));
                read.expect("what it wrote is a matrix");
            }
            Wanted::Bundle => {
                let mut json = vec![0; length as usize];
                made.seek(SeekFrom::Start(0)).expect("an open file");
                made.read_exact(&mut json).expect("an open file");
                Extract::read(&json, bytes).expect("what it wrote is of a bundle");
            }
            Wanted::Unpacked => assert_eq!(length, 0),
        }
    }
}

fn send(socket: &mut UnixStream, line: &[u8], file: &File) {
    let mut file = file;
    file.seek(SeekFrom::Start(0)).expect("an open file");
    let descriptors = [file.as_raw_fd()];
    let with = [ControlMessage::ScmRights(&descriptors)];
    let sent =
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(line)], &with, MsgFlags::empty(), None);
    let sent = sent.expect("the socket has room");
    socket.write_all(&line[sent..]).expect("the socket has room");
}

/// What the reader writes.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
