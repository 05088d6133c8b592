//! Spawns, times out, kills and restarts one evaluator process per device.
//!
//! The child is not trusted: its lines are bounded, its sequence numbers must match, it may say nothing, too much, or
//! die. A request that is not answered by its deadline costs the child its life, and the next request starts another,
//! opens its device and loads the last problem again. What became of a candidate is an `Outcome`; a `PoolError` is
//! something that concerns the caller.

mod child;
mod evaluator;
mod exchange;
mod life;
mod spec;

pub use evaluator::{Evaluator, Measured};
pub use spec::{Deadlines, EvaluatorSpec, Restarts};

use crate::domain::DeviceId;

/// Why a call did not come to its answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The caller's token was cancelled before the answer came.
    #[error("cancelled")]
    Cancelled,
    /// The evaluator is well but could not carry out the request; it would not another time either.
    #[error("{0}")]
    Failed(String),
    /// The child was killed at its deadline.
    #[error("{0}")]
    TimedOut(String),
    /// The child died, or was killed for talking nonsense.
    #[error("{0}")]
    Crashed(String),
    /// Several evaluators in a row did not come up, or died loading the problem.
    #[error(
        "device {device} is unavailable: {attempts} evaluators in a row failed, the last: {last}"
    )]
    Unavailable { device: DeviceId, attempts: u32, last: String },
}
