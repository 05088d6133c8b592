//! Row order by radix (Tiled SpMM, section 4.2): every row as a binary number with a digit for each column, largest first, so
//! that rows that begin alike stand next to each other.
//!
//! The first column is the leading digit. Comparing two rows reads their columns up to the first that differs. The order is a
//! greedy heuristic and may lose reuse (section 4.2), so Tiled SpMM's model decides whether it is kept.

use crate::sparse::Csr;
use rayon::prelude::*;
use std::cmp::Ordering;

/// Approximate number of rows whose first columns determine which ranges of them are sampled.
const GUIDE: usize = 1 << 14;

/// The given rows by radix, equal ones by number; rows without entries come last. `cols` gives the columns of a row, rising.
pub fn order<'a>(cols: &(impl Fn(u32) -> &'a [u32] + Sync), rows: Vec<u32>) -> Vec<u32> {
    // Two columns decide most comparisons without another look at the pattern.
    let mut keys: Vec<(u64, u32)> =
        rows.into_par_iter().with_min_len(1024).map(|row| (head(cols(row)), row)).collect();
    keys.par_sort_unstable_by(|a, b| {
        let rest = || compare(cols(a.1), cols(b.1)).then(a.1.cmp(&b.1));
        a.0.cmp(&b.0).then_with(rest)
    });
    keys.into_par_iter().map(|(_, row)| row).collect()
}

/// The first two columns; what is missing comes after every column.
fn head(cols: &[u32]) -> u64 {
    let at = |i: usize| u64::from(cols.get(i).copied().unwrap_or(u32::MAX));
    at(0) << 32 | at(1)
}

/// The larger binary number first: at the first difference the lower column, and of two rows that begin alike the longer.
fn compare(a: &[u32], b: &[u32]) -> Ordering {
    let common = a.len().min(b.len());
    a[..common].cmp(&b[..common]).then(b.len().cmp(&a.len()))
}

/// Stretches of the order, about `stretches` of `length` rows each, evenly spread over it: all rows whose first column lies in
/// certain ranges, so that only these are sorted. All rows if they are no more than that.
pub fn sample(matrix: &Csr, stretches: usize, length: usize) -> Vec<u32> {
    let rows = matrix.rows();
    let cols = |row: u32| matrix.row(row as usize).0;
    let first = |row: u32| cols(row).first().copied().unwrap_or(u32::MAX);
    if rows <= stretches * length {
        return order(&cols, (0..rows as u32).collect());
    }
    let mut guide: Vec<u32> = (0..rows as u32).step_by(rows.div_ceil(GUIDE)).map(first).collect();
    guide.par_sort_unstable();
    let wide = length * guide.len() / rows;
    let ranges: Vec<[u32; 2]> = (0..stretches)
        .map(|stretch| {
            let start = (2 * stretch + 1) * guide.len() / (2 * stretches);
            [guide[start], guide[(start + wide).min(guide.len() - 1)]]
        })
        .collect();
    let within = |row: &u32| {
        let first = first(*row);
        ranges[..ranges.partition_point(|[from, _]| *from <= first)]
            .last()
            .is_some_and(|[_, to]| first <= *to)
    };
    order(&cols, (0..rows as u32).into_par_iter().with_min_len(4096).filter(within).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &[&[u32]], cols: usize) -> Csr {
        let indptr = std::iter::once(0)
            .chain(rows.iter().scan(0, |sum, row| {
                *sum += row.len();
                Some(*sum)
            }))
            .collect();
        let indices = rows.concat();
        let values = vec![1.0; indices.len()];
        Csr::new(rows.len(), cols, indptr, indices, values).unwrap()
    }

    #[test]
    fn rows_are_binary_numbers_largest_first() {
        // As in Fig. 7, in four columns: 0101, 1000, none, 1010, 1011, 0101.
        let rows: [&[u32]; 6] = [&[1, 3], &[0], &[], &[0, 2], &[0, 2, 3], &[1, 3]];
        let numbers = [0b0101, 0b1000, 0b0000, 0b1010, 0b1011, 0b0101];
        let matrix = of(&rows, 4);
        let order = order(&|row| matrix.row(row as usize).0, (0..6).collect());
        assert_eq!(order, [4, 3, 1, 0, 5, 2]);
        assert!(order.is_sorted_by_key(|&row| -numbers[row as usize]));
    }

    #[test]
    fn a_sample_is_made_of_stretches_of_the_order() {
        // Row i has the columns of i / 4, shuffled.
        let rows = 20_000u32;
        let group = |row: u32| (row * 7919 % rows) / 4;
        let columns: Vec<[u32; 2]> = (0..rows).map(|row| [group(row), group(row) + 1]).collect();
        let slices: Vec<&[u32]> = columns.iter().map(|row| &row[..]).collect();
        let matrix = of(&slices, rows as usize);
        let sampled = sample(&matrix, 8, 256);
        assert!((8 * 256..8 * 400).contains(&sampled.len()), "{}", sampled.len());
        assert!(sampled.is_sorted_by_key(|&row| group(row)));
        let whole = sampled.chunk_by(|&a, &b| group(a) == group(b)).all(|same| same.len() == 4);
        assert!(whole);
        assert_eq!(sample(&matrix, 80, 256).len(), rows as usize);
    }
}
