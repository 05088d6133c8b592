//! Turns candidates into recipes: `ops` does it for real devices; a recording replays candidates by name without
//! lowering.

use crate::domain::recipe::{Program, Recipe};
use crate::domain::{Candidate, Device, Problem};
use crate::ops::{self, Lowerer, Refusal, Unsupported};
use crate::sparse::Csr;
use std::sync::Arc;

/// Makes one lowerer for each loaded problem.
pub trait Lowering: Sync {
    fn begin(
        &self,
        matrix: Arc<Csr>,
        problem: &Problem,
        device: &Device,
    ) -> Result<Box<dyn Lowerer>, Unsupported>;
}

/// Lowers what the service can tune.
#[derive(Clone, Copy, Debug)]
pub struct Ops;

impl Lowering for Ops {
    fn begin(
        &self,
        matrix: Arc<Csr>,
        problem: &Problem,
        device: &Device,
    ) -> Result<Box<dyn Lowerer>, Unsupported> {
        ops::of(problem).lowerer(matrix, device)
    }
}

/// Passes every candidate through, since the replay engine only uses its name.
#[derive(Clone, Copy, Debug)]
pub struct Unlowered;

impl Lowering for Unlowered {
    fn begin(&self, _: Arc<Csr>, _: &Problem, _: &Device) -> Result<Box<dyn Lowerer>, Unsupported> {
        Ok(Box::new(Self))
    }
}

impl Lowerer for Unlowered {
    fn lower(&mut self, candidate: &Candidate) -> Result<Recipe, Refusal> {
        let program = Program::Vendor { algorithm: candidate.family.clone() };
        Ok(Recipe::bare(candidate, program))
    }
}
