//! The child process that owns a device: reads requests, lowers, runs and verifies candidates, and replies.
//!
//! Requests are JSON lines on stdin and messages JSON lines on stdout (`domain::protocol`); stdout is reserved for the
//! protocol, and logs go to stderr. A request that cannot be carried out is answered with `failed`, and the process
//! continues. It ends only on `close` or the end of stdin (the parent is gone), on a lost device, and on a closed
//! stdout.

mod arrays;
mod engines;
mod hostile;
mod lines;
mod load;
mod lowering;
mod product;
mod session;
mod solve;
#[cfg(test)]
mod tests;
mod trial;

pub use engines::{DeviceSelector, EngineOpenError, SelectorError, readable};
pub use hostile::{FAMILY as HOSTILE_FAMILY, SOURCE as HOSTILE_SOURCE};
pub use lowering::{Lowering, Ops, Unlowered};

use crate::domain::protocol::{Reply, Request};
use crate::fence::{Folders, Passed};
use lines::Line;
use session::{Next, Session};
use std::io::{BufRead, Write};
use std::path::PathBuf;

/// The process ended by request, or because stdin was closed.
pub const EXIT_OK: u8 = 0;
/// The device failed and its context is unusable (`EX_SOFTWARE`); a new process may succeed.
pub const EXIT_LOST: u8 = 70;
/// stdin or stdout failed (`EX_IOERR`).
pub const EXIT_IO: u8 = 74;

/// Options of the process.
#[derive(Debug)]
pub struct EvaluatorOptions {
    pub device: DeviceSelector,
    /// The folders that it writes to. That for compiled kernels is shared with other processes, and required for GPUs.
    pub folders: Folders,
    /// Folders that are searched for CUDA libraries before the system's.
    pub library_paths: Vec<PathBuf>,
    /// Accept the `hostile` family, which deliberately hangs and faults.
    pub allow_hostile: bool,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EvaluatorError {
    #[error("the request is invalid: {0}")]
    Malformed(serde_json::Error),
    #[error("the line is longer than {0} bytes")]
    TooLong(u64),
    #[error("the pool uses protocol version {theirs}, but this evaluator uses {ours}")]
    Version { ours: u32, theirs: u32 },
    #[error("the device is not open yet")]
    NotOpen,
    #[error("no matrix is loaded yet")]
    NotLoaded,
    #[error(transparent)]
    Device(#[from] EngineOpenError),
    #[error(transparent)]
    Load(#[from] load::LoadError),
    #[error("{candidate}: {why}")]
    Candidate { candidate: String, why: String },
    #[error("the candidates could not be timed alternately: {0}")]
    Pair(String),
    /// Ends the process.
    #[error("the device is lost: {0}")]
    Lost(String),
    /// Ends the process.
    #[error("the reply cannot be written: {0}")]
    Output(#[from] std::io::Error),
}

/// Serves requests until the process must end, and returns its exit code. `passed` has the files that come with `input`.
pub fn run(
    options: &EvaluatorOptions,
    lowering: &dyn Lowering,
    mut input: impl BufRead,
    passed: Passed,
    output: impl Write,
) -> u8 {
    let mut session = Session::new(options, lowering, passed, output);
    let mut buffer = Vec::new();
    loop {
        let served = match lines::read(&mut input, &mut buffer) {
            Ok(Line::End) => return EXIT_OK,
            Ok(Line::TooLong { limit }) => session.fail(0, &EvaluatorError::TooLong(limit)),
            Ok(Line::Text(line)) => serve(&mut session, line),
            Err(error) => {
                tracing::error!(%error, "stdin cannot be read");
                return EXIT_IO;
            }
        };
        match served {
            Ok(Next::Request) => {}
            Ok(Next::End) => return EXIT_OK,
            Err(error @ EvaluatorError::Output(_)) => {
                tracing::error!(%error, "stdout is closed");
                return EXIT_IO;
            }
            Err(error) => {
                tracing::error!(%error, "the evaluator terminates");
                return EXIT_LOST;
            }
        }
    }
}

/// Handles one request line. Errors returned here end the process.
fn serve<W: Write>(session: &mut Session<'_, W>, line: &[u8]) -> Result<Next, EvaluatorError> {
    let request: Request = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(error) => return session.fail(lines::seq_of(line), &EvaluatorError::Malformed(error)),
    };
    match session.carry_out(request.seq, request.body) {
        Ok(reply) => {
            let next = if reply == Reply::Closed { Next::End } else { Next::Request };
            let lost = trial::lost(&reply);
            session.reply(request.seq, reply)?;
            lost.map_or(Ok(next), |detail| Err(EvaluatorError::Lost(detail)))
        }
        Err(error @ (EvaluatorError::Lost(_) | EvaluatorError::Output(_))) => Err(error),
        Err(error) => session.fail(request.seq, &error),
    }
}
