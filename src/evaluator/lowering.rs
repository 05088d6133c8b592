//! The promise of whoever turns candidates into recipes, and the lowering of candidates that need none.

use crate::domain::recipe::{Program, Recipe};
use crate::domain::{Candidate, Device, Problem};
use crate::sparse::Csr;
use std::sync::Arc;

/// Why a candidate cannot be lowered for this matrix, problem and device; becomes the outcome `refused`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Makes one lowerer for each loaded problem.
pub trait Lowering {
    fn begin(&self, matrix: Arc<Csr>, problem: Problem, device: &Device) -> Box<dyn Lowerer>;
}

/// Lowers candidates for one loaded problem; keeps what they share (the order of the rows by length).
pub trait Lowerer {
    fn lower(&mut self, candidate: &Candidate) -> Result<Recipe, Refusal>;
}

/// Passes candidates through by name. `vendor{algorithm=...}` needs no more than that on any engine, and the replay
/// engine looks at nothing but the candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlowered {
    VendorOnly,
    Everything,
}

impl Lowering for Unlowered {
    fn begin(&self, _: Arc<Csr>, _: Problem, _: &Device) -> Box<dyn Lowerer> {
        Box::new(*self)
    }
}

impl Lowerer for Unlowered {
    fn lower(&mut self, candidate: &Candidate) -> Result<Recipe, Refusal> {
        let algorithm = match (candidate.text("algorithm"), self) {
            (Some(algorithm), _) if candidate.family == "vendor" => algorithm.to_owned(),
            (_, Self::Everything) => candidate.family.clone(),
            _ => return Err(Refusal(format!("nothing here knows how to lower {candidate}"))),
        };
        Ok(Recipe {
            candidate: candidate.clone(),
            program: Program::Vendor { algorithm },
            arrays: Vec::new(),
            lowering_ms: 0.0,
        })
    }
}
