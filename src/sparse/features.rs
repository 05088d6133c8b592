//! Features of a matrix: LO-SpMM's sparse attributes (TACO 2024, section 3.5) and AG-SpTRSV's ten features (TACO 2024,
//! section 4.5 and Equation 1), in O(nnz). All parallel sums are of integers, so the results do not depend on the thread
//! count.

use super::Csr;
use super::digest::{digest, pattern_digest};
use super::levels::lower_levels;
use crate::domain::matrix::{Spread, TriangleFeatures};
use crate::domain::{Digest, Features, Matrix, Timestamp};
use rayon::prelude::*;
use std::cmp::Ordering;

/// Version of the feature set; incremented whenever the meaning of a feature changes.
pub const VERSION: u32 = 1;

/// Most column histograms at a time; each has one element per column.
const HISTOGRAMS: usize = 8;
/// Minimum number of entries per histogram.
const MIN_ENTRIES: usize = 1 << 16;

/// Minimum number of rows per parallel task.
const MIN_ROWS: usize = 1024;

/// All properties of a matrix that the service stores in addition to its entries.
pub fn facts(matrix: &Csr, name: Option<String>) -> Matrix {
    let pattern = pattern_digest(matrix);
    facts_under(matrix, name, pattern, digest(matrix, &pattern))
}

/// [`facts`] of a matrix whose digests are already known.
pub fn facts_under(matrix: &Csr, name: Option<String>, pattern: Digest, digest: Digest) -> Matrix {
    Matrix {
        digest,
        pattern_digest: pattern,
        name,
        rows: matrix.rows() as u64,
        cols: matrix.cols() as u64,
        nnz: matrix.nnz() as u64,
        symmetric: is_symmetric(matrix),
        has_full_diagonal: has_full_diagonal(matrix),
        features: features(matrix),
        created_at: Timestamp::now(),
    }
}

/// Memory in bytes that [`facts_under`] takes beside the matrix, at most: the histograms of columns, and for each row a cursor
/// of the comparison with the transpose, or its level and, while their list grows, that of the widths.
pub fn memory(matrix: &Csr) -> u64 {
    let histograms = histograms(matrix.nnz(), matrix.cols()).min(rayon::current_num_threads());
    let per_row = if matrix.rows() == matrix.cols() { 16 } else { 0 };
    4 * (histograms * matrix.cols()) as u64 + per_row * matrix.rows() as u64
}

/// Computes all fields as defined in `domain::matrix`.
pub fn features(matrix: &Csr) -> Features {
    let cells = matrix.rows() as f64 * matrix.cols() as f64;
    let nnz = matrix.nnz() as f64;
    let columns = column_counts(matrix);
    let row_lengths = || matrix.indptr().windows(2).map(|pair| (pair[1] - pair[0]) as u64);
    let walk = walk_entries(matrix);
    let per_entry = |sum: f64| if matrix.nnz() == 0 { 0.0 } else { sum / nnz };
    Features {
        version: VERSION,
        density: if cells == 0.0 { 0.0 } else { nnz / cells },
        row_nnz: spread(row_lengths()),
        col_nnz: spread(columns.iter().map(|&count| u64::from(count))),
        empty_rows: row_lengths().filter(|&length| length == 0).count() as u64,
        empty_cols: columns.iter().filter(|&&count| count == 0).count() as u64,
        bandwidth: walk.bandwidth,
        mean_offset: per_entry(walk.offsets as f64 / matrix.cols().max(1) as f64),
        // (shared / rows) / (nnz / rows)
        neighbour_overlap: per_entry(walk.shared as f64),
        lower: (matrix.rows() == matrix.cols()).then(|| triangle(matrix)),
    }
}

/// Maximum, mean and population coefficient of variation, from exact integer sums: n sum(x^2) - (sum x)^2 has no
/// cancellation error, even for nearly equal counts.
pub fn spread(counts: impl Iterator<Item = u64>) -> Spread {
    let (mut n, mut sum, mut squares, mut max) = (0u128, 0u128, 0u128, 0u64);
    for count in counts {
        n += 1;
        sum += u128::from(count);
        squares += u128::from(count) * u128::from(count);
        max = max.max(count);
    }
    if sum == 0 {
        return Spread::default();
    }
    let cov = ((n * squares - sum * sum) as f64).sqrt() / sum as f64;
    Spread { max, mean: sum as f64 / n as f64, cov }
}

/// Entries per column; at most 2^31 - 1, one per row.
fn column_counts(matrix: &Csr) -> Vec<u32> {
    let histograms = histograms(matrix.nnz(), matrix.cols()).min(rayon::current_num_threads());
    let share = matrix.nnz().div_ceil(histograms).max(1);
    let histogram = |indices: &[u32]| {
        let mut counts = vec![0u32; matrix.cols()];
        indices.iter().for_each(|&col| counts[col as usize] += 1);
        counts
    };
    let sum = |mut a: Vec<u32>, b: Vec<u32>| {
        a.iter_mut().zip(&b).for_each(|(a, b)| *a += b);
        a
    };
    let partial = matrix.indices().par_chunks(share).map(histogram);
    partial.reduce_with(sum).unwrap_or_else(|| vec![0; matrix.cols()])
}

/// The number of histograms: together they are at most as long as the list of entries, unless a single one is longer.
fn histograms(nnz: usize, cols: usize) -> usize {
    (nnz / cols.max(MIN_ENTRIES)).clamp(1, HISTOGRAMS)
}

/// Sums over the entries.
#[derive(Default)]
struct Walk {
    bandwidth: u64,
    offsets: u128,
    /// Entries whose column also occurs in the previous row.
    shared: u64,
}

fn walk_entries(matrix: &Csr) -> Walk {
    let rows = (0..matrix.rows()).into_par_iter().with_min_len(MIN_ROWS);
    let one = |mut walk: Walk, row: usize| {
        let columns = matrix.row(row).0;
        for &col in columns {
            let offset = u64::from(col).abs_diff(row as u64);
            walk.bandwidth = walk.bandwidth.max(offset);
            walk.offsets += u128::from(offset);
        }
        if row > 0 {
            walk.shared += shared(matrix.row(row - 1).0, columns);
        }
        walk
    };
    rows.fold(Walk::default, one).reduce(Walk::default, |a, b| Walk {
        bandwidth: a.bandwidth.max(b.bandwidth),
        offsets: a.offsets + b.offsets,
        shared: a.shared + b.shared,
    })
}

/// The number of common elements of two ascending lists.
fn shared(mut a: &[u32], mut b: &[u32]) -> u64 {
    let mut count = 0;
    while let (Some(x), Some(y)) = (a.first(), b.first()) {
        match x.cmp(y) {
            Ordering::Less => a = &a[1..],
            Ordering::Greater => b = &b[1..],
            Ordering::Equal => {
                count += 1;
                (a, b) = (&a[1..], &b[1..]);
            }
        }
    }
    count
}

/// AG-SpTRSV's features of tril(A); each diagonal entry counts, whether stored or not.
fn triangle(matrix: &Csr) -> TriangleFeatures {
    let lower = |row: usize| {
        let columns = matrix.row(row).0;
        &columns[..columns.partition_point(|&col| (col as usize) < row)]
    };
    let lengths = || (0..matrix.rows()).map(|row| lower(row).len() as u64 + 1);
    // Equation 1; summed in row order, since this is the only floating-point sum.
    let nearness =
        |row: usize| lower(row).last().map_or(0.0, |&col| 1.0 / (row - col as usize) as f64);
    let levels = lower_levels(matrix);
    TriangleFeatures {
        nnz: lengths().sum(),
        rnnz: spread(lengths()),
        lnnz: spread(levels.widths.iter().map(|&width| u64::from(width))),
        levels: levels.widths.len() as u64,
        dep_dist: (0..matrix.rows()).map(nearness).sum::<f64>() / matrix.rows().max(1) as f64,
    }
}

fn has_full_diagonal(matrix: &Csr) -> bool {
    matrix.rows() == matrix.cols()
        && (0..matrix.rows()).into_par_iter().with_min_len(MIN_ROWS).all(|row| {
            let (columns, values) = matrix.row(row);
            columns.binary_search(&(row as u32)).is_ok_and(|at| values[at] != 0.0)
        })
}

/// Whether A equals its transpose. Rows are traversed in order, so the mirror images of strictly lower entries occur in
/// the order in which each row stores its strictly upper entries; one cursor per row finds them without a search.
fn is_symmetric(matrix: &Csr) -> bool {
    if matrix.rows() != matrix.cols() {
        return false;
    }
    let first_upper = |row: usize| {
        let columns = matrix.row(row).0;
        matrix.indptr()[row] + columns.partition_point(|&col| col as usize <= row)
    };
    let starts = (0..matrix.rows()).into_par_iter().with_min_len(MIN_ROWS);
    let mut cursors: Vec<usize> = starts.map(first_upper).collect();
    let (indices, values, indptr) = (matrix.indices(), matrix.values(), matrix.indptr());
    for row in 0..matrix.rows() {
        for at in indptr[row]..indptr[row + 1] {
            let col = indices[at] as usize;
            if col >= row {
                break;
            }
            let mirror = cursors[col];
            let found = mirror < indptr[col + 1] && indices[mirror] as usize == row;
            if !found || values[mirror] != values[at] {
                return false;
            }
            cursors[col] += 1;
        }
    }
    cursors.iter().zip(&indptr[1..]).all(|(cursor, end)| cursor == end)
}

#[cfg(test)]
mod tests {
    use super::{HISTOGRAMS, column_counts, facts, features, histograms};
    use crate::sparse::Csr;

    #[test]
    fn features_of_a_small_matrix_match_the_manual_computation() {
        // [ 1 . 2 ]
        // [ . . . ]
        // [ 2 . 5 ]
        let values = vec![1.0, 2.0, 2.0, 5.0];
        let matrix = Csr::new(3, 3, vec![0, 2, 2, 4], vec![0, 2, 0, 2], values).unwrap();
        let all = facts(&matrix, None);
        assert!(all.symmetric && !all.has_full_diagonal);
        let found = all.features;
        assert_eq!(found.row_nnz.max, 2);
        assert_eq!(found.row_nnz.mean, 4.0 / 3.0);
        assert!((found.row_nnz.cov - 0.5f64.sqrt()).abs() < 1e-15);
        assert_eq!((found.empty_rows, found.empty_cols, found.bandwidth), (1, 1, 2));
        assert_eq!(found.mean_offset, 4.0 / 4.0 / 3.0);
        assert_eq!(found.neighbour_overlap, 0.0);
        let lower = found.lower.unwrap();
        assert_eq!((lower.nnz, lower.levels, lower.lnnz.max), (4, 2, 2));
        assert_eq!(lower.dep_dist, 0.5 / 3.0);
    }

    #[test]
    fn columns_without_entries_are_counted_once() {
        // 32 columns per entry, with enough entries for several tasks if the matrix were not so wide.
        assert_eq!(histograms(1 << 20, 1 << 25), 1);
        assert_eq!(histograms(1 << 20, 1 << 19), 2);
        assert_eq!(histograms(1 << 20, 10), HISTOGRAMS);
        assert_eq!((histograms(0, 0), histograms(0, 1 << 31)), (1, 1));
        for cols in [70_000, 1 << 21] {
            let indices: Vec<u32> = (0..70_000).map(|entry| entry * (cols / 70_000)).collect();
            let nnz = indices.len();
            let indptr = vec![0, nnz, 2 * nnz];
            let wide =
                Csr::new(2, cols as usize, indptr, indices.repeat(2), vec![1.0; 2 * nnz]).unwrap();
            let counts = column_counts(&wide);
            assert_eq!(counts.len(), cols as usize);
            assert!(indices.iter().all(|&col| counts[col as usize] == 2));
            assert_eq!(counts.iter().sum::<u32>(), 140_000);
        }
    }

    #[test]
    fn symmetry_requires_equal_values_in_both_halves() {
        let build = |indptr: &[usize], indices: &[u32], values: &[f64]| {
            facts(
                &Csr::new(2, 2, indptr.to_vec(), indices.to_vec(), values.to_vec()).unwrap(),
                None,
            )
        };
        assert!(!build(&[0, 2, 4], &[0, 1, 0, 1], &[1.0, 2.0, 3.0, 4.0]).symmetric);
        assert!(!build(&[0, 1, 1], &[1], &[1.0]).symmetric, "only an upper entry");
        assert!(!build(&[0, 0, 1], &[0], &[1.0]).symmetric, "only a lower entry");
        let full = build(&[0, 2, 4], &[0, 1, 0, 1], &[1.0, 2.0, 2.0, 4.0]);
        assert!(full.symmetric && full.has_full_diagonal);
        assert_eq!(full.features.neighbour_overlap, 0.5);
        assert!(!build(&[0, 1, 2], &[0, 1], &[1.0, 0.0]).has_full_diagonal, "a stored zero");
    }

    #[test]
    fn shapes_without_entries() {
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        let found = features(&empty);
        assert_eq!((found.density, found.row_nnz.max, found.lower.unwrap().levels), (0.0, 0, 0));
        let hollow = features(&Csr::new(2, 5, vec![0, 0, 0], vec![], vec![]).unwrap());
        assert_eq!((hollow.empty_rows, hollow.empty_cols, hollow.lower), (2, 5, None));
    }
}
