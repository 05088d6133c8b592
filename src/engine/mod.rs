//! Engines run recipes on a device and know no paper: CUDA, the host CPU, and a replay of recorded outcomes.

pub mod cpu;
pub mod cuda;
pub mod replay;

use crate::domain::protocol::{Effort, Exported};
use crate::domain::recipe::{Compiled, Recipe};
use crate::domain::{Device, L2Policy, Problem, Timing};
use crate::sparse::Csr;
use crate::sparse::oracle::Product;
use std::sync::Arc;

/// The loaded problem: the matrix, the dense operand, and what the result must be.
#[derive(Clone)]
pub struct Operands {
    pub matrix: Arc<Csr>,
    pub problem: Problem,
    pub l2_policy: L2Policy,
    /// B, cols x n in the problem's layout.
    pub b: Arc<[f32]>,
    pub reference: Arc<Product>,
}

/// How one verified call compared with the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// Largest |c - value| / scale; NaN in the output counts as infinity.
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

    /// One call on a poisoned output buffer, compared with the reference.
    fn verify(&mut self, recipe: &Recipe) -> Result<Check, EngineError>;

    /// Warm-up, then samples of single calls, with all that each call needs inside the timer.
    fn time(&mut self, recipe: &Recipe, effort: &Effort) -> Result<Timing, EngineError>;

    /// Samples taken in turn, A B C A B C ..., `rounds` each.
    fn pair(&mut self, recipes: &[Recipe], rounds: u32) -> Result<Vec<Timing>, EngineError>;

    /// What a plan keeps of the recipe's program.
    fn export(&mut self, recipe: &Recipe) -> Result<Exported, EngineError>;
}
