//! Lowers a scheme: chains and packs the system (shared results are kept), proves progress, and plans the launch.

use super::pack::{Packed, pack};
use super::prove::prove;
use super::scheme::{Scheme, Shape};
use super::space::legal;
use super::text::{kernel, source};
use crate::domain::Candidate;
use crate::domain::recipe::{Array, ArrayData, CudaProgram, Program, Recipe, Scratch, Step};
use crate::ops::Refusal;
use crate::ops::sptrsv::kept::{Kept, distinct};
use crate::ops::sptrsv::{System, no_candidate};
use std::sync::Arc;
use std::time::Instant;

/// Most bytes of packed systems that are kept for later schemes.
const KEPT_BYTES: u64 = 1 << 30;

/// Keeps each packing of one system for the schemes that share it.
pub struct ChainsLowerer {
    packed: Kept<Shape, Packed>,
}

impl Default for ChainsLowerer {
    fn default() -> Self {
        Self { packed: Kept::at_most(KEPT_BYTES, Packed::bytes) }
    }
}

impl ChainsLowerer {
    pub fn lower(&mut self, candidate: &Candidate, system: &System) -> Result<Recipe, Refusal> {
        let scheme = Scheme::of(candidate).ok_or_else(|| no_candidate(candidate))?;
        legal(&scheme, system).map_err(Refusal)?;
        let packed = self.packed(&scheme.shape, system)?;
        let started = Instant::now();
        let problem = &system.problem;
        let tasks = packed.count();
        let blocks = tasks.div_ceil(scheme.warps).clamp(1, system.device.multiprocessors);
        let step = Step {
            shared_bytes: scheme.block_bytes(problem.dtype) as u32,
            resident: true,
            ..kernel(&scheme, problem, tasks).step(blocks, scheme.warps * 32)
        };
        let program = CudaProgram::of_steps(source(&scheme, problem), vec![step]);
        let bytes = packed.slots as u64 * problem.dtype.bytes();
        let scratch = vec![Scratch { bytes, fill: u32::MAX }; 2];
        let arrays = arrays(&scheme.shape, &packed);
        let bare = Recipe::bare(candidate, Program::Cuda(program));
        let lowering_ms = packed.ms + started.elapsed().as_secs_f64() * 1e3;
        Ok(Recipe { arrays, scratch, lowering_ms, update_ms: Some(packed.ms), ..bare })
    }

    /// Packs what these candidates need, several shapes at once.
    pub fn prepare(&mut self, candidates: &[Candidate], system: &System) {
        let schemes = candidates.iter().filter_map(Scheme::of);
        let legal = schemes.filter(|scheme| legal(scheme, system).is_ok());
        let shapes = distinct(legal.map(|scheme| scheme.shape));
        self.packed.make(&shapes, |shape| proved(shape, system));
    }

    fn packed(&mut self, shape: &Shape, system: &System) -> Result<Arc<Packed>, Refusal> {
        match self.packed.get(shape) {
            Some(packed) => Ok(packed),
            None => Ok(self.packed.put(*shape, proved(shape, system)?)),
        }
    }
}

fn proved(shape: &Shape, system: &System) -> Result<Packed, Refusal> {
    let packed = pack(system, shape)?;
    prove(&packed, shape, system.triangular.rows())?;
    Ok(packed)
}

fn arrays(shape: &Shape, packed: &Packed) -> Vec<Array> {
    let Shape { rows, terms, substitute, staged } = shape;
    let substituted = match (substitute, staged) {
        (_, true) => "_staged",
        (true, false) => "_substituted",
        (false, false) => "",
    };
    let name = |what| format!("chains_{what}_{rows}_{terms}{substituted}");
    let array = |what, data| Array { name: name(what), data };
    vec![
        array("tasks", ArrayData::U32(packed.tasks.clone())),
        array("cols", ArrayData::U32(packed.cols.clone())),
        array("partials", ArrayData::U32(packed.partials.clone())),
        array("vals", packed.vals.clone()),
        array("scale", packed.scale.clone()),
        array("rows", ArrayData::U32(packed.rows.clone())),
    ]
}
