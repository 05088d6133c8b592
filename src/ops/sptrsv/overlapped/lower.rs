//! Lowers a scheme: groups and packs the system (shared results are kept), proves progress, and plans the launch.

use super::pack::{Packed, pack};
use super::prove::prove;
use super::scheme::{Scheme, Shape};
use super::space::legal;
use super::text::{kernel, source};
use crate::domain::Candidate;
use crate::domain::recipe::{Array, ArrayData, CudaProgram, Program, Recipe, Scratch, Step};
use crate::ops::Refusal;
use crate::ops::sptrsv::kept::{Kept, distinct};
use crate::ops::sptrsv::slices::equations::Equations;
use crate::ops::sptrsv::slices::unrewritten::Unrewritten;
use crate::ops::sptrsv::{System, no_candidate};
use std::sync::Arc;
use std::time::Instant;

/// Most bytes of packed systems that are kept for later schemes.
const KEPT_BYTES: u64 = 1 << 30;

/// Keeps what schemes of one system share: the equations by their longest row, and each packing.
pub struct OverlappedLowerer {
    equations: Unrewritten,
    packed: Kept<Shape, Packed>,
}

impl Default for OverlappedLowerer {
    fn default() -> Self {
        let packed = Kept::at_most(KEPT_BYTES, Packed::bytes);
        Self { equations: Unrewritten::default(), packed }
    }
}

impl OverlappedLowerer {
    pub fn lower(&mut self, candidate: &Candidate, system: &System) -> Result<Recipe, Refusal> {
        let scheme = Scheme::of(candidate).ok_or_else(|| no_candidate(candidate))?;
        legal(&scheme, system).map_err(Refusal)?;
        let (equations_ms, packed) = self.packed(&scheme.shape, system)?;
        let started = Instant::now();
        let problem = &system.problem;
        let groups = packed.count();
        let blocks = groups.div_ceil(scheme.warps).clamp(1, system.device.multiprocessors);
        let step = Step {
            shared_bytes: (u64::from(scheme.warps) * scheme.shape.warp_bytes(problem.dtype)) as u32,
            resident: true,
            ..kernel(&scheme, problem, groups).step(blocks, scheme.warps * 32)
        };
        let program = CudaProgram::of_steps(source(&scheme, problem), vec![step]);
        let bytes = packed.slots as u64 * problem.dtype.bytes();
        let scratch = vec![Scratch { bytes, fill: u32::MAX }; 2];
        let arrays = arrays(&scheme.shape, &packed);
        let bare = Recipe::bare(candidate, Program::Cuda(program));
        let values_ms = equations_ms + packed.ms;
        let lowering_ms = values_ms + started.elapsed().as_secs_f64() * 1e3;
        Ok(Recipe { arrays, scratch, lowering_ms, update_ms: Some(values_ms), ..bare })
    }

    /// Packs what these candidates need, several shapes at once.
    pub fn prepare(&mut self, candidates: &[Candidate], system: &System) {
        let schemes = candidates.iter().filter_map(Scheme::of);
        let legal = schemes.filter(|scheme| legal(scheme, system).is_ok());
        let shapes = distinct(legal.map(|scheme| scheme.shape));
        for longest in distinct(shapes.iter().map(Shape::row_terms)) {
            let equations = self.equations.of(longest as usize, system);
            let such: Vec<Shape> =
                shapes.iter().filter(|shape| shape.row_terms() == longest).copied().collect();
            self.packed.make(&such, |shape| proved(shape, &equations, system));
        }
    }

    fn packed(&mut self, shape: &Shape, system: &System) -> Result<(f64, Arc<Packed>), Refusal> {
        let equations = self.equations.of(shape.row_terms() as usize, system);
        let packed = match self.packed.get(shape) {
            Some(packed) => packed,
            None => self.packed.put(*shape, proved(shape, &equations, system)?),
        };
        Ok((equations.ms, packed))
    }
}

fn proved(shape: &Shape, equations: &Equations, system: &System) -> Result<Packed, Refusal> {
    let packed = pack(equations, system.problem.dtype, shape)?;
    prove(&packed, shape, system.triangular.rows())?;
    Ok(packed)
}

fn arrays(shape: &Shape, packed: &Packed) -> Vec<Array> {
    let Shape { levels, lanes, unroll, awaited } = shape;
    let name = |what| format!("overlapped_{what}_{levels}_{lanes}_{unroll}_{awaited}");
    let array = |what, data| Array { name: name(what), data };
    vec![
        array("groups", ArrayData::U32(packed.groups.clone())),
        array("passes", ArrayData::U32(packed.passes.clone())),
        array("awaited", ArrayData::U32(packed.awaited.clone())),
        array("cols", ArrayData::U16(packed.cols.clone())),
        array("vals", packed.vals.clone()),
        array("scale", packed.scale.clone()),
        array("rows", ArrayData::U32(packed.rows.clone())),
    ]
}
