//! A triangular system in solve order: every triangle, transpose and diagonal becomes a forward substitution.
//!
//! An upper system is solved from its last row to its first. With reversed row numbers it is a lower system, so schemes
//! are written only once: *solve index* s is row s of a lower system, and row n - 1 - s of an upper one.

use super::Csr;
use super::levels::{Levels, levels_of};
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::{Dtype, Sptrsv};
use rayon::prelude::*;

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

/// Rows that a task extracts.
const RUN: usize = 4096;

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
        let (indptr, indices, values) = match problem.transpose {
            true => transposed(matrix, problem)?,
            false => as_stored(matrix, problem)?,
        };
        let reversed = is_reversed(problem);
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

/// Row pointers, columns and values of a strictly lower triangle in solve order.
type Rows = (Vec<usize>, Vec<u32>, Vec<f64>);

/// Whether solve indices count the rows of the matrix from the last: the transpose of a lower triangle is an upper one.
fn is_reversed(problem: &Sptrsv) -> bool {
    (problem.triangle == Triangle::Lower) == problem.transpose
}

/// A triangle that is not transposed: runs of rows are copied in parallel.
fn as_stored(matrix: &Csr, problem: &Sptrsv) -> Result<Rows, TriangleError> {
    let (rows, reversed) = (matrix.rows(), is_reversed(problem));
    let at = |row: usize| if reversed { rows - 1 - row } else { row };
    // Of a reversed system the entries after the diagonal, else those before it.
    let inside = |s: usize| {
        let row = at(s);
        let (columns, values) = matrix.row(row);
        let range = match reversed {
            true => columns.partition_point(|&col| col as usize <= row)..columns.len(),
            false => 0..columns.partition_point(|&col| (col as usize) < row),
        };
        (row, &columns[range.clone()], &values[range])
    };
    let lengths = (0..rows).into_par_iter().with_min_len(RUN);
    let lengths: Vec<usize> = lengths.map(|s| inside(s).1.len()).collect();
    let mut indptr = vec![0usize; rows + 1];
    for (s, length) in lengths.into_iter().enumerate() {
        indptr[s + 1] = indptr[s] + length;
    }
    let (mut indices, mut values) = (vec![0u32; indptr[rows]], vec![0f64; indptr[rows]]);
    let (mut rest_indices, mut rest_values) = (&mut indices[..], &mut values[..]);
    let mut runs = Vec::with_capacity(rows.div_ceil(RUN));
    for first in (0..rows).step_by(RUN) {
        let end = (first + RUN).min(rows);
        let length = indptr[end] - indptr[first];
        let (i, after_i) = rest_indices.split_at_mut(length);
        let (v, after_v) = rest_values.split_at_mut(length);
        (rest_indices, rest_values) = (after_i, after_v);
        runs.push((first..end, i, v));
    }
    let failed = runs.into_par_iter().find_map_first(|(run, indices, values)| {
        let mut places = indices.iter_mut().zip(values);
        for s in run {
            let (row, columns, entries) = inside(s);
            let entries = columns.iter().zip(entries);
            let mut put = |(&col, &entry): (&u32, &f64)| {
                let value = rounded(entry, problem.dtype, row, col)?;
                if let Some((index, place)) = places.next() {
                    (*index, *place) = (at(col as usize) as u32, value);
                }
                Ok(())
            };
            let done = match reversed {
                true => entries.rev().try_for_each(&mut put),
                false => { entries }.try_for_each(&mut put),
            };
            if let Err(error) = done {
                return Some(error);
            }
        }
        None
    });
    failed.map_or(Ok((indptr, indices, values)), Err)
}

/// The transpose of a triangle.
fn transposed(matrix: &Csr, problem: &Sptrsv) -> Result<Rows, TriangleError> {
    let (rows, reversed) = (matrix.rows(), is_reversed(problem));
    let lower = problem.triangle == Triangle::Lower;
    let at = |row: usize| if reversed { rows - 1 - row } else { row };
    let inside = |row: usize, col: usize| if lower { col < row } else { col > row };
    let mut indptr = vec![0usize; rows + 1];
    for row in 0..rows {
        for &col in matrix.row(row).0.iter().filter(|&&col| inside(row, col as usize)) {
            indptr[at(col as usize) + 1] += 1;
        }
    }
    for s in 0..rows {
        indptr[s + 1] += indptr[s];
    }
    let mut next = indptr.clone();
    let (mut indices, mut values) = (vec![0u32; indptr[rows]], vec![0f64; indptr[rows]]);
    // In solve order of the source, so that the columns of each row of the transpose increase as well.
    for s in 0..rows {
        let row = at(s);
        let (columns, entries) = matrix.row(row);
        for (&col, &entry) in columns.iter().zip(entries) {
            if inside(row, col as usize) {
                let place = &mut next[at(col as usize)];
                indices[*place] = s as u32;
                values[*place] = rounded(entry, problem.dtype, row, col)?;
                *place += 1;
            }
        }
    }
    Ok((indptr, indices, values))
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
    let value = |row: usize| {
        let (columns, values) = matrix.row(row);
        let value = columns.binary_search(&(row as u32)).map_or(0.0, |at| values[at]);
        rounded(value, problem.dtype, row, row as u32)
    };
    let rows = (0..matrix.rows()).into_par_iter().with_min_len(RUN);
    let diagonal: Vec<f64> = rows.map(|row| value(row).unwrap_or(f64::NAN)).collect();
    if let Some(row) = diagonal.iter().position(|value| value.is_nan()) {
        value(row)?;
    }
    let lacking = diagonal.iter().enumerate().filter(|(_, value)| **value == 0.0);
    let count = lacking.clone().count();
    if count > 0 {
        let rows = lacking.map(|(row, _)| row).take(NAMED).collect();
        return Err(TriangleError::Diagonal { rows, count, dtype: problem.dtype });
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

    /// More rows than a task extracts.
    #[test]
    fn runs_of_rows_are_extracted_as_the_transpose_of_the_transpose() {
        let rows = 2 * RUN + 77;
        let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in 0..rows {
            let near = [row.saturating_sub(3), row, (row + 5).min(rows - 1), rows - 1 - row];
            let cols: std::collections::BTreeSet<usize> = near.into_iter().collect();
            values.extend(cols.iter().map(|&col| 1.0 + row as f64 + col as f64 / rows as f64));
            indices.extend(cols.into_iter().map(|col| col as u32));
            indptr.push(indices.len());
        }
        let matrix = Csr::new(rows, rows, indptr, indices, values).unwrap();
        for (triangle, other) in
            [(Triangle::Lower, Triangle::Upper), (Triangle::Upper, Triangle::Lower)]
        {
            let stored = Triangular::of(&matrix, &problem(triangle, false)).unwrap();
            let turned = Triangular::of(&matrix.transposed(), &problem(other, true)).unwrap();
            assert!(stored == turned, "{triangle:?}");
        }
        // Of several values outside the range the first one in solve order is told.
        let large = |row: usize| if row == RUN + 9 || row == 2 * RUN + 9 { 1e300 } else { 1.0 };
        let of = |row: usize| {
            matrix.row(row).0.iter().map(move |&col| match col as usize == row {
                true => 1.0,
                false => large(row),
            })
        };
        let values = (0..rows).flat_map(of).collect();
        let (indptr, indices) = (matrix.indptr().to_vec(), matrix.indices().to_vec());
        let matrix = Csr::new(rows, rows, indptr, indices, values).unwrap();
        for (triangle, first) in [(Triangle::Lower, RUN + 9), (Triangle::Upper, 2 * RUN + 9)] {
            let single = Sptrsv { dtype: Dtype::F32, ..problem(triangle, false) };
            let error = Triangular::of(&matrix, &single).unwrap_err();
            assert!(matches!(error, TriangleError::Range { row, .. } if row == first), "{error}");
        }
    }
}
