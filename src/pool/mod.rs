//! Spawns, supervises, kills and restarts one evaluator process per device; starts one reader process per upload.
//!
//! The child is not trusted: lines are bounded, sequence numbers must match, and it may send nothing, too much, or die.
//! If a request is not answered by its deadline the child is killed, and the next request starts another, opens its
//! device and loads the last problem again. The result of a candidate is an `Outcome`; a `PoolError` concerns the
//! caller.

mod child;
mod evaluator;
mod exchange;
mod life;
mod oom;
mod reader;
mod requests;
mod spec;

pub use evaluator::{Evaluator, Measured};
pub use reader::{Allowed, Ending, Host, ReaderError, ReaderSpec, Readers};
pub use spec::{Deadlines, EvaluatorSpec, Restarts, set_program};

use crate::domain::DeviceId;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The call was cancelled before the reply arrived.
    #[error("cancelled")]
    Cancelled,
    /// The evaluator works but could not carry out the request; a retry would fail as well.
    #[error("{0}")]
    Failed(String),
    /// The child was killed at its deadline.
    #[error("{0}")]
    TimedOut(String),
    /// The child died, or was killed because of an invalid message.
    #[error("{0}")]
    Crashed(String),
    /// The child was killed from outside: by an operator, or by the kernel because memory was short. What it was asked for need
    /// not be the cause; it was asked a second time and killed again.
    #[error("{0}")]
    Killed(String),
    /// Several evaluators in a row failed to start, or died while loading the problem.
    #[error(
        "device {device} is unavailable: {attempts} evaluators in a row failed; last error: {last}"
    )]
    Unavailable { device: DeviceId, attempts: u32, last: String },
}
