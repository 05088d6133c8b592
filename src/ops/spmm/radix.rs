//! Row order by radix (Tiled SpMM, section 4.2): every row as a binary number with a digit for each column, largest first, so
//! that rows that begin alike stand next to each other.
//!
//! The first column is the leading digit. Comparing two rows reads their columns up to the first that differs. The order is a
//! greedy heuristic and may lose reuse (section 4.2), so Tiled SpMM's model decides whether it is kept.

use crate::sparse::Csr;
use rayon::prelude::*;
use std::cmp::Ordering;

/// Approximate number of rows that determine where the sampled stretches of the order begin and end.
const GUIDE: usize = 1 << 14;
/// First columns of a row by which its place among the stretches is found. Rows that agree in all of them (a block of dense
/// columns, rows without entries) are told apart by number, so that no stretch takes all of them.
const LOOKED_AT: usize = 64;

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

/// Stretches of the order, about `stretches` of `length` rows each, evenly spread over it. All rows if they are no more than
/// that. Rows that begin alike stay together as long as they are no more than `length`. Only what is returned is sorted; every
/// other row is looked up among the stretches.
pub fn sample(matrix: &Csr, stretches: usize, length: usize) -> Vec<u32> {
    let rows = matrix.rows();
    let cols = |row: u32| matrix.row(row as usize).0;
    if rows <= stretches * length {
        return order(&cols, (0..rows as u32).collect());
    }
    // At least every `length`-th row, so that a stretch can be as short as that.
    let step = rows.div_ceil(GUIDE).min(length.max(1));
    let mut guide: Vec<Place> =
        (0..rows as u32).step_by(step).map(|row| Place::of(row, cols(row))).collect();
    guide.par_sort_unstable_by(|a, b| a.cmp(b, usize::MAX, true));
    let (wide, alike) = (length * guide.len() / rows, length / step);
    let ranges: Vec<[Bound; 2]> = (0..stretches)
        .map(|stretch| {
            let start = (2 * stretch + 1) * guide.len() / (2 * stretches);
            let end = (start + wide).min(guide.len() - 1);
            [start, end].map(|at| Bound::of(&guide, at, alike))
        })
        .collect();
    let within = |row: &u32| {
        let place = Place::of(*row, cols(*row));
        ranges[..ranges.partition_point(|[from, _]| from.cmp(&place).is_le())]
            .last()
            .is_some_and(|[_, to]| to.cmp(&place).is_ge())
    };
    order(&cols, (0..rows as u32).into_par_iter().with_min_len(4096).filter(within).collect())
}

/// Where a row stands in the order, by its first columns.
#[derive(Clone, Copy)]
struct Place<'a> {
    head: u64,
    cols: &'a [u32],
    row: u32,
}

impl<'a> Place<'a> {
    fn of(row: u32, cols: &'a [u32]) -> Self {
        Self { head: head(cols), cols: &cols[..cols.len().min(LOOKED_AT)], row }
    }

    /// Compares by the first `depth` columns, and then, if `numbered`, by the row's number.
    fn cmp(&self, other: &Self, depth: usize, numbered: bool) -> Ordering {
        let shift = if depth == 1 { 32 } else { 0 };
        let first = |cols: &'a [u32]| &cols[..cols.len().min(depth)];
        (self.head >> shift)
            .cmp(&(other.head >> shift))
            .then_with(|| compare(first(self.cols), first(other.cols)))
            .then_with(|| if numbered { self.row.cmp(&other.row) } else { Ordering::Equal })
    }
}

/// An end of a stretch: a place with all rows that share its first `depth` columns, or that one row if it is `numbered`.
struct Bound<'a> {
    place: Place<'a>,
    depth: usize,
    numbered: bool,
}

impl<'a> Bound<'a> {
    /// At one place of the sorted `guide`, as few columns as tell it apart from others so that at most `alike` share them.
    fn of(guide: &[Place<'a>], at: usize, alike: usize) -> Self {
        let mut bound = Self { place: guide[at], depth: 1, numbered: false };
        // Of a sorted run, the first and the last have least in common.
        for first in at.saturating_sub(alike)..=at {
            let Some(last) = guide.get(first + alike) else { break };
            let (a, b) = (guide[first].cols, last.cols);
            let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
            bound.depth = bound.depth.max(common + 1);
            bound.numbered |= a == b;
        }
        if bound.numbered {
            bound.depth = usize::MAX;
        }
        bound
    }

    fn cmp(&self, place: &Place<'a>) -> Ordering {
        self.place.cmp(place, self.depth, self.numbered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::spmm::similarity;

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
    #[test]
    fn rows_that_begin_alike_are_not_all_sorted() {
        let rows = 40_000u32;
        let group = |row: u32| (row * 7919 % rows) / 8;
        let of_all = |columns: &dyn Fn(u32) -> Vec<u32>| {
            let columns: Vec<Vec<u32>> = (0..rows).map(columns).collect();
            let slices: Vec<&[u32]> = columns.iter().map(Vec::as_slice).collect();
            of(&slices, rows as usize + 100)
        };
        let kinds: [(&str, Csr); 5] = [
            ("one dense first column", of_all(&|row| vec![0, 1 + group(row), 2 + group(row)])),
            (
                "three dense first columns",
                of_all(&|row| vec![0, 1, 2, 3 + group(row), 4 + group(row)]),
            ),
            (
                "mostly empty rows",
                of_all(&|row| if row % 8 == 0 { vec![group(row), 1 + group(row)] } else { vec![] }),
            ),
            ("all rows alike", of_all(&|_| (0..100).collect())),
            ("no entry at all", of_all(&|_| Vec::new())),
        ];
        for (name, matrix) in &kinds {
            let sampled = sample(matrix, 8, 256);
            assert!((8 * 128..8 * 400).contains(&sampled.len()), "{name}: {}", sampled.len());
            let reuse = |rows: &[u32]| similarity::overlap(matrix, rows, similarity::PANEL).reuse;
            let cols = |row: u32| matrix.row(row as usize).0;
            let all = reuse(&order(&cols, (0..rows).collect()));
            let estimated = reuse(&sampled);
            assert!((estimated / all - 1.0).abs() < 0.1, "{name}: {estimated} of {all}");
        }
    }
}
