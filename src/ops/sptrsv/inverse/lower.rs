//! Lowers a scheme: computes the approximate inverse (those of one map are kept), and plans a launch for each product.

use super::compute::{Inverse, Rows};
use super::scheme::{Map, Scheme, THREADS};
use super::text::{Product, kernel, source};
use crate::domain::recipe::{Arg, Array, ArrayData, CudaProgram, Program, Recipe, Scratch, Step};
use crate::domain::{Candidate, Dtype};
use crate::ops::Refusal;
use crate::ops::sptrsv::approximate::lacking;
use crate::ops::sptrsv::kept::{Kept, distinct};
use crate::ops::sptrsv::{System, no_candidate};
use std::time::Instant;

/// Most bytes of inverses that are kept for later schemes.
const KEPT_BYTES: u64 = 1 << 30;

/// Arrays of a matrix: row pointers, columns, values.
const ARRAYS: usize = 3;

/// Keeps what schemes of one system share, by the map that they compute.
pub struct InverseLowerer {
    made: Kept<Map, Made>,
}

impl Default for InverseLowerer {
    fn default() -> Self {
        Self { made: Kept::at_most(KEPT_BYTES, Made::bytes) }
    }
}

/// An inverse as the kernels read it, in the order of the system's matrix.
struct Made {
    /// M, and what it leaves of the identity if there are two steps.
    arrays: Vec<Array>,
    by_columns: bool,
    ms: f64,
}

impl Made {
    fn of(map: Map, system: &System) -> Result<Self, Refusal> {
        let started = Instant::now();
        let dtype = system.problem.dtype;
        let inverse = Inverse::of(&system.triangular, dtype, map).map_err(|denied| {
            Refusal(format!("no approximate inverse with power={}: {denied}", map.power))
        })?;
        let reversed = system.triangular.reversed;
        let power = map.power;
        let mut arrays = arrays(&format!("inverse_{power}"), &inverse.map, reversed, dtype)?;
        if let Some(rest) = &inverse.rest {
            arrays.extend(self::arrays(&format!("inverse_rest_{power}"), rest, reversed, dtype)?);
        }
        let ms = started.elapsed().as_secs_f64() * 1e3;
        Ok(Self { arrays, by_columns: inverse.by_columns, ms })
    }

    fn bytes(&self) -> u64 {
        self.arrays.iter().map(|array| array.data.bytes().len() as u64).sum()
    }
}

impl InverseLowerer {
    pub fn lower(&mut self, candidate: &Candidate, system: &System) -> Result<Recipe, Refusal> {
        let scheme = Scheme::of(candidate).ok_or_else(|| no_candidate(candidate))?;
        if let Some(why) = lacking(system) {
            return Err(Refusal(why.to_owned()));
        }
        let made = match self.made.get(&scheme.map) {
            Some(made) => made,
            None => self.made.put(scheme.map, Made::of(scheme.map, system)?),
        };
        let started = Instant::now();
        let problem = &system.problem;
        let rows = u32::try_from(system.triangular.rows())
            .map_err(|_| Refusal("the system has 2^32 rows or more".to_owned()))?;
        let step = |product: Product| -> Step {
            kernel(problem, &product).step(rows.div_ceil(scheme.rows()), THREADS)
        };
        let product = |adds, from, to| {
            let array = if adds { ARRAYS } else { 0 };
            step(Product { adds, array, from, to, rows })
        };
        let (b, x, between) = (Arg::B, Arg::C, Arg::Scratch(0));
        let steps = match (scheme.map.steps, made.by_columns) {
            (1, _) => vec![product(false, b, x)],
            (_, false) => vec![product(false, b, between), product(true, between, x)],
            (_, true) => vec![product(true, b, between), product(false, between, x)],
        };
        let bytes = u64::from(rows) * problem.dtype.bytes();
        let scratch = vec![Scratch { bytes, fill: 0 }; steps.len() - 1];
        let program = CudaProgram::of_steps(source(&scheme, problem), steps);
        let bare = Recipe::bare(candidate, Program::Cuda(program));
        let lowering_ms = made.ms + started.elapsed().as_secs_f64() * 1e3;
        let arrays = made.arrays.clone();
        Ok(Recipe { arrays, scratch, lowering_ms, update_ms: Some(made.ms), ..bare })
    }

    /// Computes what these candidates need.
    pub fn prepare(&mut self, candidates: &[Candidate], system: &System) {
        if lacking(system).is_some() {
            return;
        }
        let maps = distinct(candidates.iter().filter_map(Scheme::of).map(|scheme| scheme.map));
        self.made.make(&maps, |&map| Made::of(map, system));
    }
}

/// A matrix in the order of the system's own.
fn arrays(name: &str, rows: &Rows, reversed: bool, dtype: Dtype) -> Result<Vec<Array>, Refusal> {
    let count = rows.indptr.len() - 1;
    // Lanes look beyond the end of a row before they know it.
    if rows.indices.len() >= 1 << 31 {
        return Err(Refusal("the approximate inverse has 2^31 entries or more".to_owned()));
    }
    let mut row_ptr = vec![0u32];
    let mut cols = Vec::with_capacity(rows.indices.len());
    let mut vals = Vec::with_capacity(rows.indices.len());
    for row in 0..count {
        let (columns, values) = rows.row(if reversed { count - 1 - row } else { row });
        if reversed {
            cols.extend(columns.iter().rev().map(|&col| (count - 1) as u32 - col));
            vals.extend(values.iter().rev());
        } else {
            cols.extend_from_slice(columns);
            vals.extend_from_slice(values);
        }
        row_ptr.push(cols.len() as u32);
    }
    let vals = match dtype {
        Dtype::F64 => ArrayData::F64(vals.into()),
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => {
            ArrayData::F32(vals.into_iter().map(|value| value as f32).collect())
        }
    };
    let array = |what: &str, data| Array { name: format!("{name}_{what}"), data };
    let (row_ptr, cols) = (ArrayData::U32(row_ptr.into()), ArrayData::U32(cols.into()));
    Ok(vec![array("row_ptr", row_ptr), array("cols", cols), array("vals", vals)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Device, DeviceKind, Sptrsv};
    use crate::sparse::generate::Spec;
    use crate::sparse::operand;

    fn system(transpose: bool) -> System {
        let spec = "ilu0_poisson2d:nx=13,ny=9,seed=1";
        let matrix = Spec::parse(spec).unwrap().generate().unwrap();
        let device = Device { kind: DeviceKind::Cuda, ..Device::NONE };
        let problem = Sptrsv { transpose, approximate: true, ..Sptrsv::PLAIN };
        System::of(&matrix, &problem, &device).unwrap()
    }

    /// What the launches do, in the order of the matrix.
    fn run(recipe: &Recipe, b: &[f64]) -> Vec<f64> {
        let Program::Cuda(program) = &recipe.program else { panic!("not for a GPU") };
        let mut x = b.to_vec();
        for step in &program.steps {
            let Arg::Array(first) = step.args[0] else { panic!("{step:?}") };
            let data = |at: usize| &recipe.arrays[first + at].data;
            let (ArrayData::U32(ptr), ArrayData::U32(cols), ArrayData::F64(vals)) =
                (data(0), data(1), data(2))
            else {
                panic!("{:?}", recipe.arrays)
            };
            let row = |row: usize| -> f64 {
                let entries = ptr[row] as usize..ptr[row + 1] as usize;
                let own = if step.entry == "correct" { x[row] } else { 0.0 };
                own + entries.map(|at| vals[at] * x[cols[at] as usize]).sum::<f64>()
            };
            x = (0..b.len()).map(row).collect();
        }
        x
    }

    #[test]
    fn launches_compute_what_the_host_computes() {
        for transpose in [false, true] {
            let system = system(transpose);
            let triangular = &system.triangular;
            let rows = triangular.rows();
            let b = operand::random_double(rows, 3);
            let ordered: Vec<f64> = (0..rows).map(|s| b[triangular.original(s)]).collect();
            let mut lowerer = InverseLowerer::default();
            let schemes: Vec<Scheme> =
                Scheme::every().into_iter().filter(|scheme| scheme.lanes == 4).collect();
            let candidates: Vec<Candidate> = schemes.iter().map(Scheme::candidate).collect();
            lowerer.prepare(&candidates, &system);
            for (scheme, candidate) in schemes.iter().zip(&candidates) {
                let recipe = lowerer.lower(candidate, &system).unwrap();
                let alone = InverseLowerer::default().lower(candidate, &system).unwrap();
                assert_eq!(recipe.arrays, alone.arrays);
                assert!(recipe.approximate && recipe.update_ms.is_some());
                assert_eq!(recipe.scratch.len() as u32, scheme.map.steps - 1);
                let inverse = Inverse::of(triangular, Dtype::F64, scheme.map).unwrap();
                let (once, twice) = inverse.approximations(&ordered);
                let expected = twice.unwrap_or(once);
                let x = run(&recipe, &b);
                for (s, expected) in expected.iter().enumerate() {
                    let off = (x[triangular.original(s)] - expected).abs();
                    assert!(off <= 1e-13 * expected.abs().max(1.0), "{candidate} {s}");
                }
            }
        }
    }

    #[test]
    fn an_exact_problem_has_none() {
        let consenting = system(false);
        let problem = Sptrsv { approximate: false, ..consenting.problem };
        let system = System { problem, ..consenting };
        let candidate = Scheme { map: Map { power: 1, steps: 1 }, lanes: 4 }.candidate();
        let refused = InverseLowerer::default().lower(&candidate, &system).unwrap_err();
        assert!(refused.0.contains("`approximate`"), "{refused:?}");
    }
}
