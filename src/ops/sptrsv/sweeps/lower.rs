//! Lowers a scheme: a launch for each sweep. The kernels read the system as it was loaded, so that nothing is packed, and new values
//! cost nothing.

use super::scheme::Scheme;
use super::text::{Bound, Place, kernel, source};
use crate::domain::Candidate;
use crate::domain::recipe::{CudaProgram, Program, Recipe, Scratch, Step};
use crate::ops::Refusal;
use crate::ops::sptrsv::approximate::lacking;
use crate::ops::sptrsv::{System, no_candidate};

pub fn lower(candidate: &Candidate, system: &System) -> Result<Recipe, Refusal> {
    let scheme = Scheme::of(candidate).ok_or_else(|| no_candidate(candidate))?;
    if let Some(why) = lacking(system) {
        return Err(Refusal(why.to_owned()));
    }
    let problem = &system.problem;
    let rows = u32::try_from(system.triangular.rows())
        .map_err(|_| Refusal("the system has 2^32 rows or more".to_owned()))?;
    let reversed = system.triangular.reversed;
    let step = |at: u32| {
        // Two vectors take turns.
        let (before, after) = ((at as usize + 1) % 2, at as usize % 2);
        let bound = Bound { rows, reversed, before, after };
        let blocks = rows.div_ceil(scheme.blocking.rows);
        kernel(&scheme, problem, Place::of(at, scheme.sweeps), bound).step(blocks, scheme.threads())
    };
    let steps: Vec<Step> = (0..scheme.sweeps).map(step).collect();
    let program = CudaProgram::of_steps(source(&scheme, problem), steps);
    let bytes = u64::from(rows) * problem.dtype.bytes();
    let scratch = vec![Scratch { bytes, fill: 0 }; (scheme.sweeps as usize - 1).min(2)];
    Ok(Recipe { scratch, ..Recipe::bare(candidate, Program::Cuda(program)) })
}
