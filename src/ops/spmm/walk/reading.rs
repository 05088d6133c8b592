//! What walks read of A: one value where all are equal, and columns of 16 bits where they are near their rows. Candidates have these
//! parameters by the matrix, so they are in no family's domains.

use super::{Walk, near};
use crate::domain::candidate::{EQUAL, NEAR};
use crate::domain::catalog::family::{Parameter, Values};
use crate::domain::recipe::{Array, ArrayData, EQUAL_VALUES};
use crate::domain::{Candidate, DeviceKind, Op, Param, Spmm};
use crate::ops::Refusal;
use crate::ops::family::{Kernels, Meaning, parameters};
use crate::ops::spmm::phrases;
use crate::ops::spmm::shared::{Shared, array};
use crate::search::domain::Domain;
use crate::sparse::Csr;

/// The parameters of a family of walks: those of its domains, [`EQUAL`] and [`NEAR`].
pub fn described(domains: &[Domain], own: &[Meaning]) -> Vec<Parameter> {
    let mut all = parameters(domains, &[own, &phrases::WALK[..]].concat());
    all.push(Parameter {
        name: EQUAL,
        values: Values::Among(vec![Param::Int(1)]),
        meaning: "1 where all values of the matrix are equal: one of them is read instead of all",
    });
    all.push(Parameter {
        name: NEAR,
        values: Values::Among(vec![Param::Int(1)]),
        meaning: "1 where columns are stored in 16 bits, as distances from the row's own number",
    });
    all
}

/// Walks of `candidates` for a matrix whose values are all equal: each has a word beside the values that says so.
pub fn with_equal(candidates: &mut [Candidate]) {
    let walks = candidates.iter_mut().filter(|candidate| is_walk(candidate));
    walks.for_each(|candidate| *candidate = candidate.clone().with(EQUAL, 1));
}

/// Most columns of C with which near columns pay: with 32 they are worth a fiftieth of the time, with 8 a tenth.
const NEAR_COLUMNS: u32 = 8;

/// Walks of `candidates` with near columns, if these pay and fit the matrix: instead of those without, which remain where they need no
/// preparation, or where `both` says so.
pub fn with_near(candidates: &mut Vec<Candidate>, matrix: &Csr, problem: &Spmm, both: bool) {
    if problem.n > NEAR_COLUMNS || !near::fits(matrix) {
        return;
    }
    let kernels = Kernels { op: Op::Spmm, device: DeviceKind::Cuda };
    let mut near = Vec::new();
    candidates.retain(|candidate| {
        let walks = is_walk(candidate);
        if walks {
            near.push(candidate.clone().with(NEAR, 1));
        }
        both || !walks || kernels.needs_no_preparation(candidate)
    });
    candidates.extend(near);
}

/// Whether a candidate reads near columns.
pub fn is_near(candidate: &Candidate) -> bool {
    candidate.params.contains_key(NEAR)
}

/// No other family has this parameter.
fn is_walk(candidate: &Candidate) -> bool {
    candidate.params.contains_key("fetch")
}

impl Walk {
    /// Adds the word that tells whether all values of the matrix are equal to a program's arrays, and the milliseconds that looking
    /// took, where the walk has it: its place among them.
    pub fn add_equal(
        &self,
        shared: &mut Shared,
        arrays: &mut Vec<Array>,
        ms: &mut f64,
    ) -> Option<usize> {
        self.equal.then(|| {
            let (equal, looked_ms) = shared.has_equal_values();
            *ms += looked_ms;
            arrays.push(array(EQUAL_VALUES, ArrayData::U32([u32::from(equal)].into())));
            arrays.len() - 1
        })
    }

    /// Adds the columns as distances from their rows to a program's arrays, and the milliseconds that they took, where the walk reads
    /// them: their place among the arrays.
    pub fn add_near(
        &self,
        shared: &mut Shared,
        arrays: &mut Vec<Array>,
        ms: &mut f64,
    ) -> Result<Option<usize>, Refusal> {
        if !self.near {
            return Ok(None);
        }
        let (columns, made_ms) = near::columns(shared)?;
        *ms += made_ms;
        arrays.push(columns);
        Ok(Some(arrays.len() - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::recipe::{Arg, Program};
    use crate::domain::{Device, Dtype, Layout};
    use crate::ops::Lowerer as _;
    use crate::ops::spmm::{SpmmLowerer, space};
    use crate::sparse::generate::Spec;
    use std::sync::Arc;

    fn generated(spec: &str) -> Csr {
        Spec::parse(spec).unwrap().generate().unwrap()
    }

    fn walks(matrix: &Csr, n: u32, both: bool) -> [usize; 2] {
        let problem = Spmm::new(n, Dtype::F32, Layout::Row);
        let mut all = space::enumerate(&problem, DeviceKind::Cuda);
        with_near(&mut all, matrix, &problem, both);
        let near = all.iter().filter(|candidate| is_near(candidate)).count();
        [all.iter().filter(|candidate| is_walk(candidate)).count() - near, near]
    }

    #[test]
    fn near_columns_are_read_where_they_pay_and_fit() {
        let grid = generated("poisson2d:nx=40,ny=30,seed=1");
        let [plain, near] = walks(&grid, 8, false);
        assert!(plain > 0 && near > 2 * plain, "{plain} {near}");
        let [both, same] = walks(&grid, 8, true);
        assert_eq!([both, same], [near, near], "each walk has both forms");
        assert_eq!(walks(&grid, 9, false)[1], 0);
        let far = Csr::new(2, 40_000, vec![0, 1, 2], vec![0, 39_999], vec![1.0; 2]).unwrap();
        assert_eq!(walks(&far, 8, false), [near, 0]);
    }

    /// Beside an order of the rows, the arrays of segments and the word of equal values.
    #[test]
    fn kernels_get_the_array_of_near_columns() {
        // Rows of 1 to 60 entries of one value.
        let (mut indptr, mut indices) = (vec![0], Vec::new());
        for row in 0..600u32 {
            indices.extend(0..row % 60 + 1);
            indptr.push(indices.len());
        }
        let values = vec![2.0; indices.len()];
        let matrix = Csr::new(600, 64, indptr, indices, values).unwrap();
        let problem = Spmm::new(8, Dtype::F32, Layout::Row);
        let mut all = space::enumerate(&problem, DeviceKind::Cuda);
        with_equal(&mut all);
        with_near(&mut all, &matrix, &problem, false);
        let device = Device { kind: DeviceKind::Cuda, memory_bytes: 1 << 36, ..Device::NONE };
        let mut lowerer = SpmmLowerer::new(Arc::new(matrix.clone()), problem, device);
        let mut seen = std::collections::BTreeSet::new();
        for candidate in all.iter().filter(|candidate| is_near(candidate)).step_by(5) {
            let Ok(recipe) = lowerer.lower(candidate) else { continue };
            let Program::Cuda(program) = &recipe.program else { panic!("{candidate}") };
            let step = program.steps.iter().find(|step| step.entry == "spmm").unwrap();
            // After the row pointers, instead of the matrix's own columns.
            let Arg::Array(at) = step.args[1] else { panic!("{candidate}: {:?}", step.args) };
            assert!(!step.args.contains(&Arg::ColIdx), "{candidate}");
            let ArrayData::U16(columns) = &recipe.arrays[at].data else { panic!("{candidate}") };
            let of = |row: usize| matrix.row(row).0.iter().map(move |&col| col as i16 - row as i16);
            let expected = (0..600).flat_map(of).map(i16::cast_unsigned);
            assert!(columns.iter().copied().eq(expected), "{candidate}");
            seen.insert((candidate.family.clone(), recipe.arrays.len()));
        }
        assert!(seen.len() > 3, "{seen:?}");
    }
}
