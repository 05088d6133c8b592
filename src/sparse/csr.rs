//! Canonical CSR: column indices sorted in each row, duplicates summed, explicit zeros kept, all values finite.

mod transpose;

use rayon::prelude::*;

/// A canonical sparse matrix; every value of this type satisfies the invariants above.
#[derive(Clone, Debug, PartialEq)]
pub struct Csr {
    rows: usize,
    cols: usize,
    indptr: Vec<usize>,
    indices: Vec<u32>,
    values: Vec<f64>,
}

/// Why arrays are not a canonical CSR.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CsrError {
    #[error("the matrix has {value} {what}, which exceeds the maximum of {limit}")]
    TooLarge { what: &'static str, value: u64, limit: u64 },
    #[error(
        "row pointers must start at 0, be non-decreasing, and end at the number of entries (violated at row {row})"
    )]
    RowPointers { row: usize },
    #[error("row {row} has the column index {col}, which is outside 0..{cols}")]
    ColumnRange { row: usize, col: u32, cols: usize },
    #[error("the column indices of row {row} are not strictly increasing")]
    Unsorted { row: usize },
    #[error("row {row}, column {col}: the value is not finite")]
    NotFinite { row: usize, col: u32 },
    #[error("there are {indices} column indices but {values} values")]
    Lengths { indices: usize, values: usize },
}

impl Csr {
    /// A matrix without rows and columns.
    pub fn empty() -> Self {
        Self { rows: 0, cols: 0, indptr: vec![0], indices: Vec::new(), values: Vec::new() }
    }

    /// Largest number of rows or columns, since kernels index both with signed 32-bit integers.
    pub const MAX_DIMENSION: u64 = i32::MAX as u64;

    /// Builds a matrix from arrays that must already be canonical, which is checked in one pass.
    pub fn new(
        rows: usize,
        cols: usize,
        indptr: Vec<usize>,
        indices: Vec<u32>,
        values: Vec<f64>,
    ) -> Result<Self, CsrError> {
        for (what, value) in [("rows", rows as u64), ("columns", cols as u64)] {
            if value > Self::MAX_DIMENSION {
                return Err(CsrError::TooLarge { what, value, limit: Self::MAX_DIMENSION });
            }
        }
        check(rows, cols, &indptr, &indices, &values)?;
        Ok(Self { rows, cols, indptr, indices, values })
    }

    /// Row pointers, column indices and values.
    pub fn into_parts(self) -> (Vec<usize>, Vec<u32>, Vec<f64>) {
        (self.indptr, self.indices, self.values)
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn nnz(&self) -> usize {
        self.indices.len()
    }

    /// Memory of the arrays in bytes.
    pub fn bytes(&self) -> u64 {
        8 * self.indptr.len() as u64 + 12 * self.nnz() as u64
    }

    /// `rows + 1` offsets into `indices` and `values`.
    pub fn indptr(&self) -> &[usize] {
        &self.indptr
    }

    pub fn indices(&self) -> &[u32] {
        &self.indices
    }

    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Columns and values of one row.
    pub fn row(&self, row: usize) -> (&[u32], &[f64]) {
        let range = self.indptr()[row]..self.indptr()[row + 1];
        (&self.indices()[range.clone()], &self.values()[range])
    }

    /// Whether all entries have one value, bit by bit, and there are entries.
    pub fn has_equal_values(&self) -> bool {
        let same =
            |first: &f64| self.values().par_iter().all(|value| value.to_bits() == first.to_bits());
        self.values().first().is_some_and(same)
    }

    pub fn row_nnz(&self, row: usize) -> usize {
        self.indptr()[row + 1] - self.indptr()[row]
    }
}

fn check(
    rows: usize,
    cols: usize,
    indptr: &[usize],
    indices: &[u32],
    values: &[f64],
) -> Result<(), CsrError> {
    if indices.len() != values.len() {
        return Err(CsrError::Lengths { indices: indices.len(), values: values.len() });
    }
    if indptr.len() != rows + 1 || indptr[0] != 0 || indptr[rows] != indices.len() {
        return Err(CsrError::RowPointers { row: 0 });
    }
    if let Some(row) = indptr.windows(2).position(|pair| pair[0] > pair[1]) {
        return Err(CsrError::RowPointers { row });
    }
    // The checks above guarantee that all row ranges are in bounds.
    (0..rows).into_par_iter().with_min_len(4096).try_for_each(|row| {
        let range = indptr[row]..indptr[row + 1];
        check_row(row, cols, &indices[range.clone()], &values[range])
    })
}

fn check_row(row: usize, cols: usize, indices: &[u32], values: &[f64]) -> Result<(), CsrError> {
    let mut above = 0u64;
    for (&col, &value) in indices.iter().zip(values) {
        if col as usize >= cols {
            return Err(CsrError::ColumnRange { row, col, cols });
        }
        if u64::from(col) < above {
            return Err(CsrError::Unsorted { row });
        }
        if !value.is_finite() {
            return Err(CsrError::NotFinite { row, col });
        }
        above = u64::from(col) + 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Csr, CsrError};

    #[test]
    fn refuses_non_canonical_arrays() {
        let new = |indptr: &[usize], indices: &[u32], values: &[f64]| {
            Csr::new(2, 3, indptr.to_vec(), indices.to_vec(), values.to_vec())
        };
        assert!(new(&[0, 1, 3], &[2, 0, 1], &[1.0, 2.0, 3.0]).is_ok());
        assert_eq!(new(&[0, 3, 2], &[2, 0], &[1.0, 2.0]), Err(CsrError::RowPointers { row: 1 }));
        assert_eq!(new(&[0, 2], &[2, 0], &[1.0, 2.0]), Err(CsrError::RowPointers { row: 0 }));
        assert_eq!(new(&[0, 0, 2], &[1, 1], &[1.0, 2.0]), Err(CsrError::Unsorted { row: 1 }));
        assert_eq!(
            new(&[0, 1, 1], &[3], &[1.0]),
            Err(CsrError::ColumnRange { row: 0, col: 3, cols: 3 })
        );
        assert_eq!(new(&[0, 1, 1], &[0], &[f64::NAN]), Err(CsrError::NotFinite { row: 0, col: 0 }));
    }

    #[test]
    fn a_row_is_its_columns_and_values() {
        let csr = Csr::new(2, 3, vec![0, 1, 3], vec![2, 0, 1], vec![1.0, 2.0, 3.0]).unwrap();
        assert_eq!(csr.row(1), (&[0u32, 1][..], &[2.0, 3.0][..]));
    }
}
