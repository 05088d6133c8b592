//! Tuning: a worker claims jobs for its device and turns each into a plan, trial by trial, recording every step.

mod answer;
mod contenders;
mod device_lock;
mod exported;
mod finals;
mod keep;
mod learned;
mod loading;
mod measure;
mod predicted;
mod recorder;
mod search_context;
mod second;
mod sentinel;
mod session;
mod watch;
mod worker;

pub use worker::{OpenError, Worker};

use crate::domain::Clock;
use crate::domain::protocol::Effort;

/// Timing effort of trials and finals; the clock of both is the job's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measuring {
    pub effort: Effort,
    /// The effort per trial if there are many, as in `halving` and `sampled`.
    pub brief: Effort,
    /// Number of finalists in addition to the best vendor routine.
    pub finalists: usize,
    /// The rungs of `halving`: how many candidates are timed alternately with few rounds, and how many of them become
    /// finalists.
    pub rungs: [usize; 2],
    /// Minimum and maximum number of rounds of the first rung.
    pub rung_rounds: [u32; 2],
    /// Minimum and maximum number of rounds of the paired finals; fewer if a round takes long.
    pub rounds: [u32; 2],
    /// Planned measured time of the finals, in milliseconds.
    pub finals_ms: f64,
    /// Minimum and maximum number of rounds by the clock that did not decide.
    pub other_rounds: [u32; 2],
    /// Planned measured time of these, in milliseconds.
    pub other_ms: f64,
}

impl Default for Measuring {
    fn default() -> Self {
        Self {
            effort: Effort {
                warmups: 3,
                min_samples: 6,
                max_samples: 40,
                budget_ms: 60.0,
                give_up_us: None,
                clock: Clock::Pipelined,
                left_ms: None,
                needed: false,
            },
            brief: Effort {
                warmups: 1,
                min_samples: 3,
                max_samples: 9,
                budget_ms: 15.0,
                give_up_us: None,
                clock: Clock::Pipelined,
                left_ms: None,
                needed: false,
            },
            finalists: 3,
            rungs: [16, 4],
            rung_rounds: [6, 25],
            rounds: [15, 101],
            finals_ms: 400.0,
            other_rounds: [6, 101],
            other_ms: 100.0,
        }
    }
}
