//! Tuning: a worker claims jobs for its device and turns each into a plan, trial by trial, every step recorded.

mod answer;
mod finals;
mod keep;
mod learned;
mod lease;
mod measure;
mod predicted;
mod recorder;
mod search_context;
mod session;
mod watch;
mod worker;

pub use worker::{OpenError, Worker};

use crate::domain::protocol::Effort;

/// How hard one trial is timed, and how the finals are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measuring {
    pub effort: Effort,
    /// Likewise where many candidates get little each, as in `halving` and `sampled`.
    pub brief: Effort,
    /// Finalists besides the best of the vendor's routines.
    pub finalists: usize,
    /// The rungs of `halving`: how many are timed in turn with few rounds, and how many of them stay to be finalists.
    pub rungs: [usize; 2],
    /// Rounds of the first rung.
    pub rung_rounds: [u32; 2],
    /// Rounds of the paired finals; fewer where a round takes long.
    pub rounds: [u32; 2],
    /// Measured time that the finals aim at, milliseconds.
    pub finals_ms: f64,
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
            },
            brief: Effort {
                warmups: 1,
                min_samples: 3,
                max_samples: 9,
                budget_ms: 15.0,
                give_up_us: None,
            },
            finalists: 3,
            rungs: [16, 4],
            rung_rounds: [6, 25],
            rounds: [15, 101],
            finals_ms: 400.0,
        }
    }
}
