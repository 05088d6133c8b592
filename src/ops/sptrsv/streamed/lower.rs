//! Lowers a scheme: packs the system (packings are kept), proves progress, and plans the launch.

use super::pack::{Packed, pack};
use super::prove::prove;
use super::scheme::{Scheme, WARPS_A_BLOCK};
use super::space::legal;
use super::text::{kernel, source};
use crate::domain::Candidate;
use crate::domain::recipe::{Array, ArrayData, CudaProgram, Program, Recipe, Scratch, Step};
use crate::ops::Refusal;
use crate::ops::sptrsv::kept::{Kept, distinct};
use crate::ops::sptrsv::slices::equations::Equations;
use crate::ops::sptrsv::slices::unrewritten::Unrewritten;
use crate::ops::sptrsv::{System, no_candidate};
use std::time::Instant;

/// Most bytes of packed systems that are kept for later schemes.
const KEPT_BYTES: u64 = 1 << 30;

/// Keeps what schemes of one system share: the equations by their longest row, and the packings by the most terms of a run.
pub struct StreamedLowerer {
    equations: Unrewritten,
    packed: Kept<u32, Packed>,
}

impl Default for StreamedLowerer {
    fn default() -> Self {
        Self { equations: Unrewritten::default(), packed: Kept::at_most(KEPT_BYTES, Packed::bytes) }
    }
}

impl StreamedLowerer {
    pub fn lower(&mut self, candidate: &Candidate, system: &System) -> Result<Recipe, Refusal> {
        let scheme = Scheme::of(candidate).ok_or_else(|| no_candidate(candidate))?;
        legal(&scheme, system).map_err(Refusal)?;
        let most = scheme.run_terms();
        let equations = self.equations.of(longest_row(most, system), system);
        let packed = match self.packed.get(&most) {
            Some(packed) => packed,
            None => self.packed.put(most, proved(most, &equations, system)?),
        };
        let started = Instant::now();
        let problem = &system.problem;
        let most_blocks = scheme.blocks() * system.device.multiprocessors;
        let blocks = packed.count().div_ceil(WARPS_A_BLOCK).clamp(1, most_blocks.max(1));
        let step = Step {
            shared_bytes: scheme.block_bytes(problem.dtype) as u32,
            resident: true,
            ..kernel(&scheme, problem, packed.count()).step(blocks, WARPS_A_BLOCK * 32)
        };
        let program = CudaProgram::of_steps(source(&scheme, problem), vec![step]);
        let bytes = packed.slots() as u64 * problem.dtype.bytes();
        let scratch = vec![Scratch { bytes, fill: u32::MAX }; 2];
        let bare = Recipe::bare(candidate, Program::Cuda(program));
        let values_ms = equations.ms + packed.ms;
        let lowering_ms = values_ms + started.elapsed().as_secs_f64() * 1e3;
        let arrays = arrays(most, &packed);
        Ok(Recipe { arrays, scratch, lowering_ms, update_ms: Some(values_ms), ..bare })
    }

    /// Packs what these candidates need, several packings at once.
    pub fn prepare(&mut self, candidates: &[Candidate], system: &System) {
        let schemes = candidates.iter().filter_map(Scheme::of);
        let legal = schemes.filter(|scheme| legal(scheme, system).is_ok());
        let runs = distinct(legal.map(|scheme| scheme.run_terms()));
        for longest in distinct(runs.iter().map(|&most| longest_row(most, system))) {
            let equations = self.equations.of(longest, system);
            let such = runs.iter().filter(|most| longest_row(**most, system) == longest);
            let such: Vec<u32> = such.copied().collect();
            self.packed.make(&such, |&most| proved(most, &equations, system));
        }
    }
}

/// Terms in unknowns of the longest row: those of more than a run may have are summed in parts. Each row has one term in b beside.
fn longest_row(most: u32, system: &System) -> usize {
    let rows = system.triangular.indptr.windows(2).map(|ends| ends[1] - ends[0]);
    rows.max().unwrap_or(0).min(most as usize - 1)
}

fn proved(most: u32, equations: &Equations, system: &System) -> Result<Packed, Refusal> {
    let packed = pack(equations, system.problem.dtype, most as usize)?;
    prove(&packed, most as usize, system.triangular.rows())?;
    Ok(packed)
}

fn arrays(most: u32, packed: &Packed) -> Vec<Array> {
    let array = |what, data| Array { name: format!("streamed_{what}_{most}"), data };
    vec![
        array("runs", ArrayData::U32(packed.runs.clone())),
        array("ends", ArrayData::U16(packed.ends.clone())),
        array("cols", ArrayData::U32(packed.cols.clone())),
        array("vals", packed.vals.clone()),
        array("rows", ArrayData::U32(packed.rows.clone())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Device, DeviceKind, Dtype, Sptrsv};
    use crate::sparse::generate::Spec;
    use crate::sparse::oracle;

    fn system(spec: &str, dtype: Dtype) -> System {
        let matrix = Spec::parse(spec).unwrap().generate().unwrap();
        let device = Device {
            kind: DeviceKind::Cuda,
            compute_capability: "9.0".into(),
            multiprocessors: 132,
            shared_bytes_per_block: 232_448,
            shared_bytes_per_multiprocessor: 233_472,
            ..Device::NONE
        };
        System::of(&matrix, &Sptrsv { dtype, ..Sptrsv::PLAIN }, &device).unwrap()
    }

    /// What the kernel does, run by run.
    fn solved(packed: &Packed, b: &[f64]) -> Vec<f64> {
        let ArrayData::F64(vals) = &packed.vals else { panic!("not of f64") };
        let (mut work, mut x) = (vec![f64::NAN; packed.slots()], vec![f64::NAN; b.len()]);
        for run in packed.runs.chunks_exact(4) {
            let mut at = run[1] as usize;
            for slot in run[0] as usize..(run[0] + run[3]) as usize {
                let end = run[1] as usize + usize::from(packed.ends[slot]);
                let term = |at: usize| {
                    let col = packed.cols[at];
                    let of_b = col & super::super::pack::OF_B != 0;
                    let from = (col & !super::super::pack::OF_B) as usize;
                    vals[at] * if of_b { b[from] } else { work[from] }
                };
                work[slot] = (at..end).map(term).sum();
                at = end;
                if packed.rows[slot] != u32::MAX {
                    x[packed.rows[slot] as usize] = work[slot];
                }
            }
        }
        x
    }

    #[test]
    fn runs_give_the_solution_whatever_the_rows() {
        for spec in [
            "lower_levels:n=3000,levels=7,per_row=9,seed=1",
            "ilu0_poisson2d:nx=40,ny=30,seed=1",
            // A row of all columns, which is summed in parts; dense rows; one row; rows of the diagonal alone.
            "lower:tail=2,of=road:nx=40,ny=30,seed=1",
            "cholesky_banded:n=500,half=300",
            "banded:n=1,half=0",
            "banded:n=70,half=0",
        ] {
            let system = system(spec, Dtype::F64);
            let b: Vec<f64> =
                (0..system.triangular.rows()).map(|row| (row % 17) as f64 / 4.0 - 2.0).collect();
            let expected = oracle::sptrsv(&system.triangular, &b, 1);
            for most in [128, 192, 256] {
                let equations = Unrewritten::default().of(longest_row(most, &system), &system);
                let packed = proved(most, &equations, &system).unwrap();
                for (got, expected) in solved(&packed, &b).iter().zip(&expected) {
                    let error = (got - expected).abs();
                    assert!(error <= 1e-9 * (1.0 + expected.abs()), "{spec} {got} {expected}");
                }
            }
        }
    }

    #[test]
    fn what_is_prepared_is_lowered_alike_and_its_blocks_fit() {
        let system = system("lower_levels:n=9000,levels=3,per_row=9,seed=1", Dtype::F32);
        let schemes = [(4, 32), (6, 24), (8, 16)].map(|(entries, warps)| Scheme { entries, warps });
        let candidates = schemes.map(|scheme| scheme.candidate());
        let mut together = StreamedLowerer::default();
        together.prepare(&candidates, &system);
        for (scheme, candidate) in schemes.iter().zip(&candidates) {
            let recipe = together.lower(candidate, &system).unwrap();
            let alone = StreamedLowerer::default().lower(candidate, &system).unwrap();
            assert_eq!(recipe.arrays, alone.arrays);
            let Program::Cuda(program) = &recipe.program else { panic!("not for a GPU") };
            let step = &program.steps[0];
            assert!(step.resident && step.block == [256, 1, 1], "{step:?}");
            let bytes = u64::from(step.shared_bytes);
            assert_eq!(bytes, 8 * 2 * 32 * u64::from(scheme.entries) * 8);
            assert!((bytes + 1024) * u64::from(scheme.blocks()) <= 228 << 10);
        }
    }
}
