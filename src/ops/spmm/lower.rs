//! Lowers an SpMM candidate to a recipe: the vendor's routine by name, a GPU family's kernel, or a host program.

use super::constraints::is_legal;
use super::family;
use super::shared::{Lowered, Shared, array};
use crate::domain::recipe::{ArrayData, HostProgram, Program, Recipe};
use crate::domain::{Candidate, Device, DeviceKind, Spmm};
use crate::ops::Refusal;
use crate::sparse::Csr;
use std::sync::Arc;

/// Lowers for one matrix and keeps what candidates share.
pub struct Lowerer {
    shared: Shared,
}

impl Lowerer {
    pub fn new(matrix: Arc<Csr>, problem: Spmm, device: Device) -> Self {
        Self { shared: Shared::new(matrix, problem, device) }
    }

    pub fn lower(&mut self, candidate: &Candidate) -> Result<Recipe, Refusal> {
        let refused = || Refusal(format!("{candidate} is not a candidate of this problem"));
        let lowered = match (candidate.family.as_str(), self.shared.device.kind) {
            ("vendor", _) => {
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
            (_, DeviceKind::Cpu) => self.host(candidate).ok_or_else(refused)?,
        };
        Ok(Recipe {
            arrays: lowered.arrays,
            scratch: lowered.scratch,
            lowering_ms: lowered.ms,
            update_ms: lowered.update_ms,
            ..Recipe::bare(candidate, lowered.program)
        })
    }

    fn host(&mut self, candidate: &Candidate) -> Option<Lowered> {
        let n1 = family::count(candidate, "n1")?;
        match candidate.family.as_str() {
            "row_panel" => {
                let m1 = family::count(candidate, "m1")?;
                let (order, ms) = self.shared.by_length();
                let arrays = vec![array("rows_by_length", ArrayData::U32(order))];
                let program = Program::Host(HostProgram::RowPanel { m1, n1 });
                Some(Lowered { arrays, ms, ..Lowered::bare(program) })
            }
            "row_split" => {
                let rows_per_task = family::count(candidate, "rows_per_task")?;
                Some(Lowered::bare(Program::Host(HostProgram::RowSplit { n1, rows_per_task })))
            }
            _ => None,
        }
    }
}
