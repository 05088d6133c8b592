//! The child process that reads one upload, a matrix or a bundle: unpacks, parses and makes it canonical, or verifies it, within a fence
//! and with nothing but the descriptors that it is given.
//!
//! The service sends an order and the upload (`domain::reading`). Memory and disk are the service's to grant, since all readers share
//! them, and it opens the files: for what is unpacked if that is much, and for the canonical form. Digests and properties are computed
//! by the service from that form, and of what is said of a bundle all is checked that it relies on, so that nothing a reader says has to
//! be believed.

use crate::bundle::{BundleError, Extract};
use crate::domain::Digest;
use crate::domain::reading::{Answer, MAX_LINE_BYTES, Order, Refusal, Said, Wanted};
use crate::fence::Passed;
use crate::sparse::canonical::{self, CanonicalError};
use crate::sparse::read::{self, Coding, Limits, Pool, ReadError, ReadErrorKind, Spooling};
use std::fs::File;
use std::io::{self, BufRead, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// The order was carried out, or the upload refused; or nothing was ordered, since the service is gone.
pub const EXIT_OK: u8 = 0;
/// Most characters of why a bundle is refused: names in it may be as long as it is.
const LONGEST_REASON: usize = 1000;

/// The service sent what is no order, or stdin or stdout failed (`EX_IOERR`).
pub const EXIT_IO: u8 = 74;

/// Reads the upload that the first line orders, and returns the process's exit code. `passed` has the files that come with `input`.
pub fn run<I, O>(input: I, passed: Passed, output: O) -> u8
where
    I: BufRead + Send + 'static,
    O: Write + Send + 'static,
{
    let service = Service(Arc::new(Mutex::new(Exchange { input, passed, output })));
    match service.serve() {
        Ok(()) => EXIT_OK,
        Err(error) => {
            tracing::error!(%error, "the reader ends");
            EXIT_IO
        }
    }
}

/// The other end: one question and its answer at a time, from any thread.
struct Service<I, O>(Arc<Mutex<Exchange<I, O>>>);

struct Exchange<I, O> {
    input: I,
    passed: Passed,
    output: O,
}

impl<I, O> Clone for Service<I, O> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<I: BufRead, O: Write> Exchange<I, O> {
    fn say(&mut self, said: &Said) -> io::Result<()> {
        let mut line = serde_json::to_vec(said)?;
        line.push(b'\n');
        self.output.write_all(&line)?;
        self.output.flush()
    }

    /// The next line; `None` at the end.
    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        self.input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        match line.last() {
            None => Ok(None),
            Some(b'\n') => Ok(Some(line)),
            Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn ask(&mut self, said: &Said) -> io::Result<Answer> {
        self.say(said)?;
        let line = self.line()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(serde_json::from_slice(&line)?)
    }

    fn file(&mut self, said: &Said) -> io::Result<Option<File>> {
        Ok(match self.ask(said)? {
            Answer::File => self.passed.take(),
            Answer::Granted { .. } | Answer::Denied => None,
        })
    }
}

impl<I, O> Service<I, O>
where
    I: BufRead + Send + 'static,
    O: Write + Send + 'static,
{
    fn with<T>(&self, act: impl FnOnce(&mut Exchange<I, O>) -> io::Result<T>) -> io::Result<T> {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn serve(&self) -> io::Result<()> {
        let Some(line) = self.with(Exchange::line)? else { return Ok(()) };
        let order: Order = serde_json::from_slice(&line)?;
        let upload = self.with(|service| Ok(service.passed.take()))?;
        let upload = upload.ok_or_else(|| io::Error::other("no upload came with the order"))?;
        let said = match self.carry_out(&order, &upload) {
            Ok(name) => Said::Done { name },
            Err(refusal) => Said::Refused(refusal),
        };
        self.with(|service| service.say(&said))
    }

    /// Returns the name that the file declares.
    fn carry_out(&self, order: &Order, upload: &File) -> Result<Option<String>, Refusal> {
        let coding = match &order.coding {
            None => None,
            Some(name) => Some(Coding::named(name).ok_or_else(|| denied("the order's coding"))?),
        };
        let limits = self.limits(order);
        match order.wanted {
            Wanted::Matrix => Ok(self.matrix(upload, coding, &limits)?),
            Wanted::Bundle => {
                let unpacked = self.unpacked(upload, coding, &limits)?;
                let upload = unpacked.as_ref().unwrap_or(upload);
                let json = Extract::of_file(upload, &limits.memory)
                    .and_then(|extract| extract.to_json())
                    .map_err(no_bundle)?;
                let mut file = self.output("what is kept of the bundle", json.len() as u64)?;
                let written = file.write_all(&json);
                written.map_err(|error| failed("writing what is kept of the bundle", &error))?;
                Ok(None)
            }
            Wanted::Unpacked => Ok(self.unpacked(upload, coding, &limits).map(|_| None)?),
        }
    }

    /// The file for what is made of the upload.
    fn output(&self, what: &str, bytes: u64) -> Result<File, ReadError> {
        let file = self.with(|service| service.file(&Said::Output { bytes }));
        let file =
            file.map_err(|error| failed(&format!("asking for a file for {what}"), &error))?;
        file.ok_or_else(|| denied(&format!("a file for {what}")))
    }

    /// What was packed on its way, in the file for that.
    fn unpacked(
        &self,
        upload: &File,
        coding: Option<Coding>,
        limits: &Limits,
    ) -> Result<Option<File>, ReadError> {
        let Some(coding) = coding else { return Ok(None) };
        let file = limits.spool.file();
        let mut file = file.map_err(|error| failed("a file for unpacked bytes", &error))?;
        let disk = limits.disk.open(u64::MAX);
        read::decode_file(upload, coding, limits, (&mut file, &disk))?;
        Ok(Some(file))
    }

    fn matrix(
        &self,
        upload: &File,
        coding: Option<Coding>,
        limits: &Limits,
    ) -> Result<Option<String>, ReadError> {
        let read = read::read_file_coded(upload, coding, limits)?;
        let file = self.output("the matrix", canonical::file_bytes(&read.csr))?;
        let unsigned = Digest::from_bytes([0; 32]);
        match canonical::write(&read.csr, &file, unsigned, unsigned) {
            Err(CanonicalError::Io(error)) => Err(failed("writing the matrix file", &error)),
            Err(error) => Err(failed("writing the matrix file", &io::Error::other(error))),
            Ok(()) => Ok(read.declared_name),
        }
    }

    /// The order's limits, in memory and disk that the service grants.
    fn limits(&self, order: &Order) -> Limits {
        let memory = self.lender(|least, most, place| Said::Memory { least, most, place });
        let disk = self.lender(|least, most, place| Said::Disk { least, most, place });
        let service = self.clone();
        let file = move || {
            let file = service.with(|service| service.file(&Said::Spool))?;
            file.ok_or_else(|| io::Error::other("the service has no file for unpacked bytes"))
        };
        Limits {
            max_rows: order.max_rows,
            max_cols: order.max_cols,
            max_nnz: order.max_nnz,
            max_decompressed_bytes: order.max_decompressed_bytes,
            max_matrix_bytes: u64::MAX,
            memory: Pool::lent_memory(memory),
            disk: Pool::lent_disk(disk),
            max_ratio: order.max_ratio,
            spool: Spooling::Asked(Arc::new(file)),
        }
    }

    fn lender(&self, said: fn(u64, u64, String) -> Said) -> read::Lender {
        let service = self.clone();
        Box::new(move |least, most, place| {
            let said = said(least, most, place.to_owned());
            match service.with(|service| service.ask(&said)) {
                Ok(Answer::Granted { bytes }) => Ok(bytes),
                Ok(Answer::Denied | Answer::File) => Err(denied(place)),
                Err(error) => Err(failed("asking for memory or disk", &error)),
            }
        })
    }
}

fn no_bundle(error: BundleError) -> Refusal {
    match error {
        BundleError::Memory(error) => error.into(),
        BundleError::Io(error) => failed("reading the bundle", &error).into(),
        error => {
            let message = error.to_string().chars().take(LONGEST_REASON).collect();
            ReadError::of(ReadErrorKind::NoBundle, message).into()
        }
    }
}

/// The service knows why, and tells the client that.
fn denied(what: &str) -> ReadError {
    ReadError::of(ReadErrorKind::Busy, format!("the service denied {what}"))
}

fn failed(doing: &str, error: &io::Error) -> ReadError {
    ReadError::of(ReadErrorKind::Io, format!("{doing}: {error}"))
}
