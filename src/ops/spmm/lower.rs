//! Lowers an SpMM candidate to a recipe: the vendor's routine by name, a GPU family's kernel, or a host program.

use super::constraints::is_legal;
use super::shared::{Lowered, Shared};
use super::{family, host};
use crate::domain::candidate::VENDOR;
use crate::domain::recipe::{Program, Recipe};
use crate::domain::{Candidate, Device, DeviceKind, Spmm};
use crate::ops::{Lowerer, Refusal};
use crate::sparse::Csr;
use std::sync::Arc;

/// Lowers for one matrix and keeps what candidates share.
pub struct SpmmLowerer {
    shared: Shared,
}

impl SpmmLowerer {
    pub fn new(matrix: Arc<Csr>, problem: Spmm, device: Device) -> Self {
        Self { shared: Shared::new(matrix, problem, device) }
    }
}

impl Lowerer for SpmmLowerer {
    fn lower(&mut self, candidate: &Candidate) -> Result<Recipe, Refusal> {
        let refused = || Refusal(format!("{candidate} is not a candidate of this problem"));
        let lowered = match (candidate.family.as_str(), self.shared.device.kind) {
            (VENDOR, _) => {
                let algorithm = candidate.text("algorithm").ok_or_else(refused)?.to_owned();
                Lowered::bare(Program::Vendor { algorithm })
            }
            (_, DeviceKind::Cuda) => {
                let kernel = family::kernel(candidate, &self.shared.problem).ok_or_else(refused)?;
                if !is_legal(&kernel.tile(), &self.shared.problem) {
                    let why = "its tile cannot be launched for this problem on any device";
                    return Err(Refusal(why.to_owned()));
                }
                kernel.lower(&mut self.shared)?
            }
            (_, DeviceKind::Cpu) => host::lower(candidate, &mut self.shared).ok_or_else(refused)?,
        };
        Ok(Recipe {
            arrays: lowered.arrays,
            scratch: lowered.scratch,
            lowering_ms: lowered.ms,
            update_ms: lowered.update_ms,
            ..Recipe::bare(candidate, lowered.program)
        })
    }
}
