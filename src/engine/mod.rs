//! Engines run recipes on a device: CUDA, the host CPU, and a replay of recorded outcomes. They do not know how recipes
//! are made.

pub mod cpu;
pub mod cuda;
pub mod libraries;
pub mod replay;

use crate::domain::protocol::{Effort, Exported};
use crate::domain::recipe::{Compiled, Recipe};
use crate::domain::{Clock, Device, L2Policy, Problem, Timing};
use crate::sparse::oracle::Product;
use crate::sparse::{Csr, Triangular};
use std::sync::Arc;

/// The coefficients with which `accumulate` is tuned and verified: `C = ALPHA A B + BETA C`. They are exact in every
/// type, so they add no rounding error, and C stays bounded over repeated calls, since |BETA| < 1.
pub const ALPHA: f64 = 1.25;
pub const BETA: f64 = -0.5;

/// The loaded problem: the matrix, the dense operand, and the expected result.
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

/// The files and arrays of a bundle, for the engines that run its plan on a caller's buffers.
pub trait PlanFiles {
    /// A member of the bundle by its path.
    fn member(&self, path: &str) -> Option<&[u8]>;

    /// The bytes of an array of the manifest; absent if it was left out.
    fn array(&self, name: &str) -> Option<&[u8]>;
}

/// A dense operand in the problem's data type.
#[derive(Clone, Debug, PartialEq)]
pub enum Dense {
    /// Bits of IEEE 754 binary16.
    F16(Arc<[u16]>),
    /// Bits of bf16, the upper halves of binary32.
    Bf16(Arc<[u16]>),
    F32(Arc<[f32]>),
    F64(Arc<[f64]>),
}

impl Dense {
    pub fn len(&self) -> usize {
        match self {
            Self::F16(data) | Self::Bf16(data) => data.len(),
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

/// The reference that a result is checked against.
#[derive(Clone)]
pub enum Expected {
    /// SpMM: the product, compared elementwise.
    Product(Arc<Product>),
    /// SpTRSV: x must satisfy the system, for two right-hand sides.
    Solution(Arc<Solve>),
}

/// A triangular system and the second right-hand side that a scheme is verified with.
pub struct Solve {
    pub system: Arc<Triangular>,
    /// In the same form as `Operands::b`, with other values.
    pub second: Dense,
}

/// The result of comparing a call with the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// SpMM: largest |c - value| / scale. SpTRSV: largest componentwise backward error |T x - b| / (|T||x| + |b|) over
    /// both right-hand sides, each row's divided by its weight (row_nnz + 8) / 8; of an approximate recipe the largest |T x - b|
    /// beside the largest |b| of that side. NaN in the output counts as infinity.
    pub rel_error: f64,
    /// Number of elements that still hold the poison.
    pub unwritten: u64,
    /// Index of the element with the largest error.
    pub worst: u64,
}

/// Why an engine could not carry out a call.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// The kernel source does not compile.
    #[error("{0}")]
    Compile(String),
    /// Valid source, but the device or the library refuses it (resources, an unsupported algorithm).
    #[error("{0}")]
    Refused(String),
    /// The device failed in a way that leaves its context unusable; the caller must end the process.
    #[error("{0}")]
    Lost(String),
    /// A plan was made for another device: of another kind, or with more than this one has.
    #[error("{0}")]
    OtherDevice(String),
    /// The operands do not fit into the device's memory.
    #[error("{0}")]
    OutOfMemory(String),
    /// The kernel's own watchdog stopped a call; the device is intact.
    #[error("{0}")]
    Watchdog(String),
}

/// One device that can run recipes. Used only in the evaluator process.
pub trait Engine {
    fn device(&self) -> &Device;

    /// Uploads the operands, replacing the previously loaded problem.
    fn load(&mut self, operands: Operands) -> Result<(), EngineError>;

    /// Starts compiling in the background; errors surface at `compile`.
    fn prepare(&mut self, recipes: &[Recipe]);

    /// Waits for the recipe's binary and uploads its arrays.
    fn compile(&mut self, recipe: &Recipe) -> Result<Compiled, EngineError>;

    /// One call on a poisoned output buffer, compared with the reference. SpTRSV is called once for each right-hand
    /// side; SpMM with `accumulate` is called with an initial C, and a second time with beta = 0. A kernel with a
    /// watchdog stops itself after `give_up_us` (plus the additional cost of a first call), or after a second.
    fn verify(&mut self, recipe: &Recipe, give_up_us: Option<f64>) -> Result<Check, EngineError>;

    /// Warms up, then takes samples by the effort's clock, including everything that a call needs. The timing says by which
    /// clock it was taken: under [`L2Policy::Cold`] always the isolated one.
    fn time(&mut self, recipe: &Recipe, effort: &Effort) -> Result<Timing, EngineError>;

    /// Takes samples alternately, A B C A B C ..., `rounds` of each, where a turn is what one sample of this clock spans. A kernel with a watchdog stops itself after
    /// `give_up_us`, or after a second.
    fn pair(
        &mut self,
        recipes: &[Recipe],
        rounds: u32,
        clock: Clock,
        give_up_us: Option<f64>,
    ) -> Result<Vec<Timing>, EngineError>;

    /// The recipe's program in the form that is stored in a plan.
    fn export(&mut self, recipe: &Recipe) -> Result<Exported, EngineError>;
}
