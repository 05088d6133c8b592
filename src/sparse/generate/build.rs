//! Builds CSR in place and in parallel: first the row lengths, then each row directly in the final arrays.

use super::{GenerateError, MAX_NNZ};
use crate::sparse::Csr;
use rayon::prelude::*;

/// Minimum number of rows per parallel task.
const MIN_ROWS: usize = 256;

/// A matrix whose row `r` has `length(r)` entries, written by `fill(r, columns, values)` with increasing columns. Both
/// must depend only on the row, so that the result is independent of the number of threads.
pub fn build(
    rows: usize,
    cols: usize,
    length: impl Fn(usize) -> usize + Sync + Send,
    fill: impl Fn(usize, &mut [u32], &mut [f64]) + Sync,
) -> Result<Csr, GenerateError> {
    let mut indptr: Vec<usize> = Vec::with_capacity(rows + 1);
    indptr.push(0);
    indptr.par_extend((0..rows).into_par_iter().with_min_len(MIN_ROWS).map(length));
    let mut nnz = 0;
    for pointer in &mut indptr {
        nnz += *pointer;
        *pointer = nnz;
    }
    bounded(nnz as u64)?;
    let mut indices = vec![0u32; nnz];
    let mut values = vec![0f64; nnz];
    fill_rows(&indptr, 0, &mut indices, &mut values, &fill);
    Ok(Csr::new(rows, cols, indptr, indices, values)?)
}

/// Refuses a number of entries above the bound.
pub fn bounded(nnz: u64) -> Result<(), GenerateError> {
    if nnz > MAX_NNZ { Err(GenerateError::TooManyEntries { nnz }) } else { Ok(()) }
}

/// Splits the rows recursively until a run is small, so that each piece owns its part of the arrays.
fn fill_rows(
    indptr: &[usize],
    first: usize,
    indices: &mut [u32],
    values: &mut [f64],
    fill: &(impl Fn(usize, &mut [u32], &mut [f64]) + Sync),
) {
    let rows = indptr.len() - 1;
    if rows > MIN_ROWS {
        let middle = rows / 2;
        let cut = indptr[middle] - indptr[0];
        let (low_indices, high_indices) = indices.split_at_mut(cut);
        let (low_values, high_values) = values.split_at_mut(cut);
        rayon::join(
            || fill_rows(&indptr[..=middle], first, low_indices, low_values, fill),
            || fill_rows(&indptr[middle..], first + middle, high_indices, high_values, fill),
        );
        return;
    }
    for row in 0..rows {
        let range = indptr[row] - indptr[0]..indptr[row + 1] - indptr[0];
        fill(first + row, &mut indices[range.clone()], &mut values[range]);
    }
}
