//! Columns of 16 bits, as signed distances from the row's own number (`ColumnOf` in `kernels/spmm/walk.cuh`).

use crate::domain::recipe::{Array, ArrayData};
use crate::ops::Refusal;
use crate::ops::spmm::shared::{Shared, array};
use crate::sparse::Csr;
use rayon::prelude::*;
use std::convert::Infallible;
use std::sync::Arc;

/// Rows of one task.
const ROWS: usize = 4096;

/// A column as its distance from a row; `None` where 16 bits do not hold it.
fn distance(row: usize, column: u32) -> Option<u16> {
    i16::try_from(i64::from(column) - row as i64).ok().map(i16::cast_unsigned)
}

/// Whether every column is near its row. Columns rise along a row, so its ends decide.
pub fn fits(matrix: &Csr) -> bool {
    (0..matrix.rows()).into_par_iter().with_min_len(ROWS).all(|row| {
        let columns = matrix.row(row).0;
        [columns.first(), columns.last()]
            .into_iter()
            .flatten()
            .all(|&column| distance(row, column).is_some())
    })
}

/// The columns of all entries as distances from their rows, with the milliseconds that this took.
pub fn columns(shared: &mut Shared) -> Result<(Array, f64), Refusal> {
    const NAME: &str = "near_columns";
    let bytes = |made: &Option<Arc<[u16]>>| made.as_ref().map_or(0, |it| 2 * it.len() as u64);
    let made = shared.once(NAME, bytes, |shared| Ok::<_, Infallible>(distances(&shared.matrix)));
    let Ok((columns, ms)) = made;
    let far = || Refusal("columns lie too far from their rows for 16 bits".to_owned());
    let columns = columns.as_ref().clone().ok_or_else(far)?;
    Ok((array(NAME, ArrayData::U16(columns)), ms))
}

fn distances(matrix: &Csr) -> Option<Arc<[u16]>> {
    let mut all = vec![0; matrix.nnz()];
    let mut tasks = Vec::with_capacity(matrix.rows().div_ceil(ROWS));
    let mut left = all.as_mut_slice();
    for first in (0..matrix.rows()).step_by(ROWS) {
        let last = (first + ROWS).min(matrix.rows());
        let (own, rest) = left.split_at_mut(matrix.indptr()[last] - matrix.indptr()[first]);
        left = rest;
        tasks.push((first..last, own));
    }
    tasks.into_par_iter().try_for_each(|(rows, own)| {
        let entries = rows.flat_map(|row| matrix.row(row).0.iter().map(move |&col| (row, col)));
        own.iter_mut().zip(entries).try_for_each(|(own, (row, column))| {
            *own = distance(row, column)?;
            Some(())
        })
    })?;
    Some(all.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, entries: &[(usize, u32)]) -> Csr {
        let mut indptr = vec![0; rows + 1];
        entries.iter().for_each(|&(row, _)| indptr[row + 1] += 1);
        (0..rows).for_each(|row| indptr[row + 1] += indptr[row]);
        let columns: Vec<u32> = entries.iter().map(|&(_, column)| column).collect();
        let values = vec![1.0; columns.len()];
        Csr::new(rows, 100_000, indptr, columns, values).unwrap()
    }

    #[test]
    fn distances_are_signed_and_of_16_bits() {
        let near =
            [(0, 0), (0, 32_767), (1, 0), (40_000, 7_232), (40_000, 40_001), (40_000, 72_767)];
        let near = matrix(40_001, &near);
        assert!(fits(&near));
        let expected: [i16; 6] = [0, 32_767, -1, -32_768, 1, 32_767];
        assert_eq!(distances(&near).unwrap()[..], expected.map(i16::cast_unsigned));
        for far in [(0, 32_768), (40_000, 7_231), (40_000, 72_768)] {
            let far = matrix(40_001, &[far]);
            assert!(!fits(&far) && distances(&far).is_none());
        }
        assert!(fits(&Csr::empty()));
    }
}
