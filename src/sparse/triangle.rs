//! A triangular system in solve order: every triangle, transpose and diagonal becomes a forward substitution.
//!
//! An upper system is solved from its last row to its first. With reversed row numbers it is a lower system, so schemes
//! are written only once: *solve index* s is row s of a lower system, and row n - 1 - s of an upper one.

use super::Csr;
use super::levels::{Levels, levels_of};
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::{Dtype, Sptrsv};

/// The strictly lower triangle and the diagonal of a system, both in solve order; columns increase in each row.
#[derive(Clone, Debug, PartialEq)]
pub struct Triangular {
    pub indptr: Vec<usize>,
    pub indices: Vec<u32>,
    /// Rounded to the problem's data type.
    pub values: Vec<f64>,
    /// Rounded to the problem's data type and never 0; all ones for a unit diagonal.
    pub diagonal: Vec<f64>,
    /// Whether solve index s is row n - 1 - s of the matrix.
    pub reversed: bool,
}

/// Most rows named in an error about the diagonal.
const NAMED: usize = 10;

/// Why a matrix cannot be solved as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TriangleError {
    #[error("the matrix is {rows} x {cols}, but a triangular solve needs a square matrix")]
    NotSquare { rows: usize, cols: usize },
    /// `rows` are the first few such rows, counted from 0.
    #[error(
        "{count} rows have no diagonal entry, or one that is zero (or that {dtype} rounds to zero), among them {rows:?} (counted from 0): a non-unit diagonal must be complete and nonzero"
    )]
    Diagonal { rows: Vec<usize>, count: usize, dtype: Dtype },
    #[error("a problem with both triangles is two solves, each of one triangle")]
    Both,
    #[error("row {row}, column {col}: the value is outside the range of the problem's data type")]
    Range { row: usize, col: u32 },
}

impl Triangular {
    /// Extracts the triangle that the problem names from the matrix; the other triangle is ignored.
    pub fn of(matrix: &Csr, problem: &Sptrsv) -> Result<Self, TriangleError> {
        let diagonal = diagonal_of(matrix, problem)?;
        let rows = matrix.rows();
        let lower = problem.triangle == Triangle::Lower;
        // The transpose of a lower triangle is an upper one.
        let reversed = lower == problem.transpose;
        let at = |row: usize| if reversed { rows - 1 - row } else { row };
        let inside = |row: usize, col: usize| if lower { col < row } else { col > row };
        let mut indptr = vec![0usize; rows + 1];
        for row in 0..rows {
            for &col in matrix.row(row).0 {
                if inside(row, col as usize) {
                    let to = if problem.transpose { col as usize } else { row };
                    indptr[at(to) + 1] += 1;
                }
            }
        }
        for s in 0..rows {
            indptr[s + 1] += indptr[s];
        }
        let mut next = indptr.clone();
        let mut indices = vec![0u32; indptr[rows]];
        let mut values = vec![0f64; indptr[rows]];
        // In solve order of the source, so that the columns of each row of a transpose increase as well.
        for s in 0..rows {
            let row = at(s);
            let (columns, entries) = matrix.row(row);
            let mut put = |col: u32, value: f64| {
                if !inside(row, col as usize) {
                    return Ok(());
                }
                let (to, from) =
                    if problem.transpose { (col as usize, row) } else { (row, col as usize) };
                let place = &mut next[at(to)];
                indices[*place] = at(from) as u32;
                values[*place] = rounded(value, problem.dtype, row, col)?;
                *place += 1;
                Ok(())
            };
            let entries = columns.iter().copied().zip(entries.iter().copied());
            if reversed && !problem.transpose {
                entries.rev().try_for_each(|(col, value)| put(col, value))?;
            } else {
                entries.into_iter().try_for_each(|(col, value)| put(col, value))?;
            }
        }
        let diagonal = if reversed { diagonal.into_iter().rev().collect() } else { diagonal };
        Ok(Self { indptr, indices, values, diagonal, reversed })
    }

    pub fn rows(&self) -> usize {
        self.diagonal.len()
    }

    /// Entries of the strictly lower triangle.
    pub fn nnz(&self) -> usize {
        self.indices.len()
    }

    /// Columns (solve indices, all below `s`) and values of one row.
    pub fn row(&self, s: usize) -> (&[u32], &[f64]) {
        let range = self.indptr[s]..self.indptr[s + 1];
        (&self.indices[range.clone()], &self.values[range])
    }

    /// The matrix's row of a solve index.
    pub fn original(&self, s: usize) -> usize {
        if self.reversed { self.rows() - 1 - s } else { s }
    }

    /// AG-SpTRSV's Equation 1: the mean over rows of 1 / (row - column of its last entry), which is 0 for rows without
    /// entries.
    pub fn dep_dist(&self) -> f64 {
        let rows = self.indptr.len() - 1;
        let nearness = |row: usize| {
            let columns = &self.indices[self.indptr[row]..self.indptr[row + 1]];
            columns.last().map_or(0.0, |&col| 1.0 / (row - col as usize) as f64)
        };
        (0..rows).map(nearness).sum::<f64>() / rows.max(1) as f64
    }

    pub fn levels(&self) -> Levels {
        levels_of(&self.indptr, &self.indices)
    }
}

/// The diagonal in the matrix's row order, rounded to the problem's data type, or an error with the rows that lack it.
pub fn diagonal_of(matrix: &Csr, problem: &Sptrsv) -> Result<Vec<f64>, TriangleError> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    if rows != cols {
        return Err(TriangleError::NotSquare { rows, cols });
    }
    if problem.triangle == Triangle::Both {
        return Err(TriangleError::Both);
    }
    if problem.diagonal == Diagonal::Unit {
        return Ok(vec![1.0; matrix.rows()]);
    }
    let (mut lacking, mut count) = (Vec::new(), 0);
    let mut diagonal = vec![1.0; matrix.rows()];
    for (row, entry) in diagonal.iter_mut().enumerate() {
        let (columns, values) = matrix.row(row);
        let value = columns.binary_search(&(row as u32)).map_or(0.0, |at| values[at]);
        let value = rounded(value, problem.dtype, row, row as u32)?;
        if value == 0.0 {
            count += 1;
            if lacking.len() < NAMED {
                lacking.push(row);
            }
        } else {
            *entry = value;
        }
    }
    if count > 0 {
        return Err(TriangleError::Diagonal { rows: lacking, count, dtype: problem.dtype });
    }
    Ok(diagonal)
}

fn rounded(value: f64, dtype: Dtype, row: usize, col: u32) -> Result<f64, TriangleError> {
    let value = match dtype {
        Dtype::F64 => value,
        Dtype::F32 | Dtype::F16 | Dtype::Bf16 => f64::from(value as f32),
    };
    if value.is_finite() { Ok(value) } else { Err(TriangleError::Range { row, col }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 . 5
    /// 2 3 .
    /// . 4 6
    fn matrix() -> Csr {
        let indices = vec![0, 2, 0, 1, 1, 2];
        let values = vec![1.0, 5.0, 2.0, 3.0, 4.0, 6.0];
        Csr::new(3, 3, vec![0, 2, 4, 6], indices, values).unwrap()
    }

    /// Equation 1 by hand: rows of a strictly lower part, with the last column before the diagonal.
    #[test]
    fn the_distance_to_the_nearest_dependency() {
        let system = Triangular {
            // Row 0 needs nothing; 1 needs 0; 2 needs 0; 3 needs 0 and 2; 4 needs 1; 5 needs nothing.
            indptr: vec![0, 0, 1, 2, 4, 5, 5],
            indices: vec![0, 0, 0, 2, 1],
            values: vec![1.0; 5],
            diagonal: vec![1.0; 6],
            reversed: false,
        };
        let expected = (0.0 + 1.0 + 1.0 / 2.0 + 1.0 + 1.0 / 3.0 + 0.0) / 6.0;
        assert!((system.dep_dist() - expected).abs() < 1e-15);
    }

    fn problem(triangle: Triangle, transpose: bool) -> Sptrsv {
        let (rhs, dtype, diagonal) = (1, Dtype::F64, Diagonal::NonUnit);
        Sptrsv { rhs, dtype, triangle, diagonal, transpose, ..Sptrsv::PLAIN }
    }

    #[test]
    fn every_triangle_becomes_a_lower_one() {
        let of =
            |triangle, transpose| Triangular::of(&matrix(), &problem(triangle, transpose)).unwrap();
        let lower = of(Triangle::Lower, false);
        assert_eq!((&lower.indptr, &lower.indices), (&vec![0, 0, 1, 2], &vec![0, 1]));
        assert_eq!((&lower.values, lower.reversed), (&vec![2.0, 4.0], false));
        // L^T is upper: rows 2, 1, 0 in solve order; row 1 has 4 in column 2, row 0 has 2 in column 1.
        let transposed = of(Triangle::Lower, true);
        assert_eq!((&transposed.indptr, &transposed.indices), (&vec![0, 0, 1, 2], &vec![0, 1]));
        assert_eq!((&transposed.values, transposed.reversed), (&vec![4.0, 2.0], true));
        assert_eq!(transposed.diagonal, [6.0, 3.0, 1.0]);
        let upper = of(Triangle::Upper, false);
        assert_eq!((&upper.indptr, &upper.indices), (&vec![0, 0, 0, 1], &vec![0]));
        assert_eq!((&upper.values, upper.original(2)), (&vec![5.0], 0));
        let transposed = of(Triangle::Upper, true);
        assert_eq!((&transposed.indptr, &transposed.indices), (&vec![0, 0, 0, 1], &vec![0]));
        assert!(!transposed.reversed);
    }

    #[test]
    fn rows_without_a_diagonal_are_named() {
        let matrix = Csr::new(3, 3, vec![0, 1, 2, 3], vec![0, 1, 0], vec![1.0, 0.0, 2.0]).unwrap();
        let mut lower = problem(Triangle::Lower, false);
        let error = Triangular::of(&matrix, &lower).unwrap_err();
        let (rows, dtype) = (vec![1, 2], Dtype::F64);
        assert_eq!(error, TriangleError::Diagonal { rows, count: 2, dtype });
        lower.diagonal = Diagonal::Unit;
        assert_eq!(Triangular::of(&matrix, &lower).unwrap().diagonal, [1.0; 3]);
        let wide = Csr::new(1, 2, vec![0, 0], vec![], vec![]).unwrap();
        assert!(Triangular::of(&wide, &lower).is_err());
    }
}
