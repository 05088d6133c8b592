//! Loading a triangular solve: the system, two right-hand sides, and the lower bound of the time by levels and bytes.

use super::load::{LoadError, MOST_ELEMENTS, MOST_NONZEROS, check_count};
use crate::domain::{Device, Dtype, Problem, Sptrsv};
use crate::engine::{Dense, Expected, Solve};
use crate::ops::limit::{self, Least};
use crate::sparse::tolerance::solution_tolerance;
use crate::sparse::{Csr, Triangular, operand, oracle};
use std::sync::Arc;

/// A triangular system extracted from its matrix.
pub(super) struct Loading {
    problem: Sptrsv,
    system: Arc<Triangular>,
    /// Number of dependency levels, which is the length of the longest chain of rows.
    levels: usize,
}

impl Loading {
    /// Whether engines support such a problem.
    pub(super) fn takes(problem: &Sptrsv) -> bool {
        !problem.dtype.is_half() && (1..=Sptrsv::MAX_RHS).contains(&problem.rhs)
    }

    pub(super) fn of(matrix: &Csr, problem: Sptrsv) -> Result<Self, LoadError> {
        check_count("the number of nonzeros", matrix.nnz() as u128, MOST_NONZEROS)?;
        // Kernels also index rows with signed 32-bit integers.
        check_count("the number of rows", matrix.rows() as u128, MOST_NONZEROS)?;
        let elements = matrix.rows() as u128 * u128::from(problem.rhs);
        check_count("the size of b", elements, MOST_ELEMENTS)?;
        let system = Triangular::of(matrix, &problem)?;
        let levels = system.levels().widths.len();
        Ok(Self { problem, system: Arc::new(system), levels })
    }

    /// b, and the second right-hand side with the system that both must satisfy.
    pub(super) fn sides(&self, seed: u64) -> Result<(Dense, Expected), LoadError> {
        let len = self.system.rows() * self.problem.rhs as usize;
        let side = |seed| match self.problem.dtype {
            Dtype::F64 => Dense::from(operand::random_double(len, seed)),
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => Dense::from(operand::random(len, seed)),
        };
        let second = side(seed.wrapping_add(1));
        let first = side(seed);
        self.check_range(&first)?;
        let solve = Solve { system: self.system.clone(), second };
        Ok((first, Expected::Solution(Arc::new(solve))))
    }

    /// Refuses a system whose solution for the first right-hand side is outside the range of the data type, since no
    /// scheme could be correct.
    fn check_range(&self, b: &Dense) -> Result<(), LoadError> {
        let rhs = self.problem.rhs as usize;
        let column: Vec<f64> = match b {
            Dense::F32(b) => b.iter().step_by(rhs).map(|&value| f64::from(value)).collect(),
            Dense::F64(b) => b.iter().step_by(rhs).copied().collect(),
            // Solves in types of 16 bits are not supported.
            Dense::F16(_) | Dense::Bf16(_) => {
                return Err(LoadError::NoOperands(Problem::Sptrsv(self.problem)));
            }
        };
        let most = match self.problem.dtype {
            Dtype::F64 => f64::MAX,
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => f64::from(f32::MAX),
        };
        let x = oracle::sptrsv(&self.system, &column, 1);
        match x.iter().position(|value| value.is_nan() || value.abs() > most) {
            Some(row) => Err(LoadError::Amplified { row, dtype: self.problem.dtype }),
            None => Ok(()),
        }
    }

    pub(super) fn tolerance(&self) -> f64 {
        solution_tolerance(self.problem.dtype)
    }

    /// The lower bound of the time of a solve on this device.
    pub(super) fn least(&self, device: &Device) -> Least {
        limit::solve(&self.system, self.levels, &self.problem, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::problem::{Diagonal, Triangle};

    fn problem(dtype: Dtype, diagonal: Diagonal) -> Sptrsv {
        Sptrsv {
            rhs: 3,
            dtype,
            triangle: Triangle::Lower,
            diagonal,
            transpose: false,
            ..Sptrsv::PLAIN
        }
    }

    /// A chain of four rows, with an entry above the diagonal that a lower solve ignores.
    fn chain() -> Csr {
        let (indptr, indices) = (vec![0, 2, 4, 6, 8], vec![0, 3, 0, 1, 1, 2, 2, 3]);
        Csr::new(4, 4, indptr, indices, vec![2.0, 1e300, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]).unwrap()
    }

    #[test]
    fn a_solution_outside_the_range_of_its_type_is_refused_with_its_row() {
        // x doubles from row to row, 200 times: outside the range of f32, within that of f64.
        let rows = 200usize;
        let mut indptr = vec![0];
        let mut indices = Vec::new();
        for row in 0..rows {
            indices.extend((row.saturating_sub(1)..=row).map(|col| col as u32));
            indptr.push(indices.len());
        }
        let values = indices.iter().enumerate().map(|(e, _)| if e % 2 == 0 { 1.0 } else { -2.0 });
        let matrix = Csr::new(rows, rows, indptr, indices.clone(), values.collect()).unwrap();
        let refused = |dtype| {
            let loading = Loading::of(&matrix, problem(dtype, Diagonal::NonUnit)).unwrap();
            loading.sides(3).err().map(|error| error.to_string())
        };
        assert_eq!(refused(Dtype::F64), None);
        assert!(refused(Dtype::F32).is_some_and(|error| error.contains("range of f32")));
    }

    #[test]
    fn unsolvable_systems_are_refused_with_a_reason() {
        assert!(!Loading::takes(&problem(Dtype::F16, Diagonal::Unit)));
        assert!(!Loading::takes(&problem(Dtype::Bf16, Diagonal::Unit)));
        assert!(!Loading::takes(&Sptrsv { rhs: 65, ..problem(Dtype::F32, Diagonal::Unit) }));
        assert!(!Loading::takes(&Sptrsv { rhs: 0, ..problem(Dtype::F32, Diagonal::Unit) }));
        let error = |matrix: &Csr, problem| match Loading::of(matrix, problem) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("taken"),
        };
        let wide = Csr::new(1, 2, vec![0, 0], vec![], vec![]).unwrap();
        assert!(error(&wide, problem(Dtype::F32, Diagonal::Unit)).contains("square"));
        let hollow = Csr::new(2, 2, vec![0, 1, 1], vec![0], vec![1.0]).unwrap();
        assert!(error(&hollow, problem(Dtype::F32, Diagonal::NonUnit)).contains("[1]"));
        let upper = Sptrsv { triangle: Triangle::Upper, ..problem(Dtype::F32, Diagonal::Unit) };
        assert!(error(&chain(), upper).contains("row 0, column 3"));
    }

    #[test]
    fn both_right_hand_sides_have_the_problems_type() {
        let loading = Loading::of(&chain(), problem(Dtype::F64, Diagonal::NonUnit)).unwrap();
        let (first, expected) = loading.sides(7).unwrap();
        let (Dense::F64(first), Expected::Solution(solve)) = (first, expected) else {
            panic!("unexpected type");
        };
        assert_eq!(Dense::from(operand::random_double(12, 8)), solve.second);
        assert_eq!(first.len(), 12);
    }
}
