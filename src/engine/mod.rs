//! Engines run recipes on a device and know no paper: CUDA, the host CPU, and a replay of recorded outcomes.

pub mod cpu;
pub mod cuda;
pub mod replay;

use crate::domain::protocol::{Effort, Exported};
use crate::domain::recipe::{Compiled, Recipe};
use crate::domain::{Device, L2Policy, Problem, Timing};
use crate::sparse::oracle::Product;
use crate::sparse::{Csr, Triangular};
use std::sync::Arc;

/// What `accumulate` is tuned and verified with: `C = ALPHA A B + BETA C`. Exact in every type, so that their rounding does
/// not count, and a C that call after call is fed back to itself stays bounded, since |BETA| < 1.
pub const ALPHA: f64 = 1.25;
pub const BETA: f64 = -0.5;

/// The loaded problem: the matrix, the dense operand, and what the result must be.
#[derive(Clone)]
pub struct Operands {
    pub matrix: Arc<Csr>,
    pub problem: Problem,
    pub l2_policy: L2Policy,
    /// B, cols x n in the problem's layout; for SpTRSV rows x rhs, row-major.
    pub b: Dense,
    /// SpMM with `accumulate`: C before the verified call, rows x n in the problem's layout.
    pub c0: Option<Dense>,
    pub expected: Expected,
}

/// A dense operand of the problem's type.
#[derive(Clone, Debug, PartialEq)]
pub enum Dense {
    /// Bits of IEEE 754 binary16.
    F16(Arc<[u16]>),
    F32(Arc<[f32]>),
    F64(Arc<[f64]>),
}

impl Dense {
    pub fn len(&self) -> usize {
        match self {
            Self::F16(data) => data.len(),
            Self::F32(data) => data.len(),
            Self::F64(data) => data.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Vec<f32>> for Dense {
    fn from(data: Vec<f32>) -> Self {
        Self::F32(data.into())
    }
}

impl From<Vec<f64>> for Dense {
    fn from(data: Vec<f64>) -> Self {
        Self::F64(data.into())
    }
}

impl Operands {
    /// B and the product of an SpMM in f32; none for another problem.
    pub fn product(&self) -> Option<(&Arc<[f32]>, &Arc<Product>)> {
        match (&self.b, &self.expected) {
            (Dense::F32(b), Expected::Product(product)) => Some((b, product)),
            _ => None,
        }
    }
}

/// How a result is judged.
#[derive(Clone)]
pub enum Expected {
    /// SpMM: the product itself, elementwise.
    Product(Arc<Product>),
    /// SpTRSV: x must satisfy the system, for two right-hand sides.
    Solution(Arc<Solve>),
}

/// A triangular system and the second right-hand side that a scheme is verified with.
pub struct Solve {
    pub system: Arc<Triangular>,
    /// As `Operands::b`, other numbers.
    pub second: Dense,
}

/// How one verified call compared with the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// SpMM: largest |c - value| / scale. SpTRSV: largest componentwise backward error |T x - b| / (|T||x| + |b|) over
    /// both right-hand sides, each row's divided by its weight (row_nnz + 8) / 8. NaN in the output counts as infinity.
    pub rel_error: f64,
    /// Elements that still hold the poison.
    pub unwritten: u64,
    /// Index of the worst element.
    pub worst: u64,
}

/// Why an engine could not carry out a call. What ends the process (a lost context) is not here: the process ends.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// The kernel text does not compile.
    #[error("{0}")]
    Compile(String),
    /// Legal text, but the device or the library declines (resources, an unsupported algorithm).
    #[error("{0}")]
    Refused(String),
    /// The device failed in a way that leaves its context unusable; the caller must end the process.
    #[error("{0}")]
    Lost(String),
    /// The operands do not fit the device.
    #[error("{0}")]
    OutOfMemory(String),
    /// The kernel's own watchdog ended a call; the device is well.
    #[error("{0}")]
    Watchdog(String),
}

/// One device that can run recipes. Lives in the evaluator process alone.
pub trait Engine {
    fn device(&self) -> &Device;

    /// Uploads the operands; replaces what was loaded before.
    fn load(&mut self, operands: Operands) -> Result<(), EngineError>;

    /// Starts compiling in the background; errors surface at `compile`.
    fn prepare(&mut self, recipes: &[Recipe]);

    /// Waits for the recipe's binary and uploads its arrays.
    fn compile(&mut self, recipe: &Recipe) -> Result<Compiled, EngineError>;

    /// One call on a poisoned output buffer, compared with the reference; for SpTRSV one for each right-hand side, and for
    /// an SpMM with `accumulate`, whose first call begins with an initial C, a second one with a beta of 0. A
    /// kernel with a watchdog ends itself after `give_up_us` (a first call's own cost added), or after a second.
    fn verify(&mut self, recipe: &Recipe, give_up_us: Option<f64>) -> Result<Check, EngineError>;

    /// Warm-up, then samples of single calls, with all that each call needs inside the timer.
    fn time(&mut self, recipe: &Recipe, effort: &Effort) -> Result<Timing, EngineError>;

    /// Samples taken in turn, A B C A B C ..., `rounds` each. A kernel with a watchdog ends itself after `give_up_us`, or
    /// after a second.
    fn pair(
        &mut self,
        recipes: &[Recipe],
        rounds: u32,
        give_up_us: Option<f64>,
    ) -> Result<Vec<Timing>, EngineError>;

    /// What a plan keeps of the recipe's program.
    fn export(&mut self, recipe: &Recipe) -> Result<Exported, EngineError>;
}
