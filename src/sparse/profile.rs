//! Distributions of row lengths and level widths, in O(nnz).

use super::Csr;
use super::levels::lower_levels;
use crate::domain::profile::{LengthBin, LevelBin, LevelProfile, MatrixProfile};
use std::collections::BTreeMap;

/// Both distributions of a matrix; levels only if it is square.
pub fn of(matrix: &Csr) -> MatrixProfile {
    let square = matrix.rows() == matrix.cols();
    MatrixProfile {
        row_nnz: row_lengths(matrix),
        lower: square.then(|| level_profile(&lower_levels(matrix).widths)),
        upper: square.then(|| level_profile(&upper_widths(matrix))),
    }
}

/// Up to this length every length has its own bin; above, bins grow with the length.
const SINGLE: u64 = 16;
/// Bins per doubling above [`SINGLE`]; a power of two, so that bin edges are integers.
const PER_DOUBLING: u64 = 8;

/// The bin that a length falls into.
fn bin(length: u64) -> (u64, u64) {
    if length <= SINGLE {
        return (length, length);
    }
    // Lengths 2^k + 1 ..= 2^(k + 1) share eight bins of equal width, so a power of two is the end of a bin.
    let power = 63 - (length - 1).leading_zeros();
    let width = (1u64 << power) / PER_DOUBLING;
    let base = 1u64 << power;
    let step = (length - 1 - base) / width;
    (base + step * width + 1, base + (step + 1) * width)
}

fn row_lengths(matrix: &Csr) -> Vec<LengthBin> {
    // A few hundred bins at most for any matrix.
    let mut bins: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for ends in matrix.indptr().windows(2) {
        *bins.entry(bin((ends[1] - ends[0]) as u64)).or_default() += 1;
    }
    bins.into_iter().map(|((least, most), rows)| LengthBin { least, most, rows }).collect()
}

/// Rows per level of the strict upper triangle, whose last row has no dependencies.
fn upper_widths(matrix: &Csr) -> Vec<u32> {
    let mut level = vec![0u32; matrix.rows()];
    let mut widths: Vec<u32> = Vec::new();
    for row in (0..matrix.rows()).rev() {
        let entries = &matrix.indices()[matrix.indptr()[row]..matrix.indptr()[row + 1]];
        let parents = entries.iter().map(|&col| col as usize).filter(|&col| col > row);
        let own = parents.map(|col| level[col] + 1).max().unwrap_or(0);
        level[row] = own;
        if widths.len() <= own as usize {
            widths.resize(own as usize + 1, 0);
        }
        widths[own as usize] += 1;
    }
    widths
}

fn level_profile(widths: &[u32]) -> LevelProfile {
    let run = widths.len().div_ceil(LevelProfile::MAX_BINS).max(1);
    let bins = widths.chunks(run).enumerate().map(|(at, chunk)| LevelBin {
        first: (at * run) as u64,
        last: (at * run + chunk.len() - 1) as u64,
        mean: chunk.iter().copied().map(f64::from).sum::<f64>() / chunk.len() as f64,
        max: chunk.iter().copied().max().unwrap_or(0).into(),
    });
    LevelProfile {
        levels: widths.len() as u64,
        widest: widths.iter().copied().max().unwrap_or(0).into(),
        bins: bins.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 5 x 5, lower bidiagonal except for row 3, which is empty below the diagonal; row 0 is full.
    fn matrix() -> Csr {
        let rows: [&[u32]; 5] = [&[0, 1, 2, 3, 4], &[0, 1], &[1, 2], &[3], &[3, 4]];
        let indptr = rows.iter().scan(0, |sum, row| {
            *sum += row.len();
            Some(*sum)
        });
        let indptr: Vec<usize> = std::iter::once(0).chain(indptr).collect();
        let indices = rows.concat();
        let values = vec![1.0; indices.len()];
        Csr::new(5, 5, indptr, indices, values).unwrap()
    }

    #[test]
    fn every_row_is_counted_once() {
        let profile = of(&matrix());
        let rows = |n| LengthBin { least: n, most: n, rows: [0, 1, 3, 0, 0, 1][n as usize] };
        assert_eq!(profile.row_nnz, [rows(1), rows(2), rows(5)]);
    }

    #[test]
    fn levels_follow_the_dependencies() {
        let profile = of(&matrix());
        let lower = profile.lower.unwrap();
        // Rows 0 and 3 have no dependencies, 1 and 4 depend on them, and 2 depends on 1.
        let widths: Vec<u64> = lower.bins.iter().map(|bin| bin.max).collect();
        assert_eq!((lower.levels, lower.widest, widths), (3, 2, vec![2, 2, 1]));
        let upper = profile.upper.unwrap();
        // Only row 0 has entries above the diagonal.
        assert_eq!(upper.bins.iter().map(|bin| bin.max).collect::<Vec<_>>(), [4, 1]);
    }

    #[test]
    fn bins_are_contiguous() {
        let mut last = 0;
        let mut length = 1;
        while length < 1 << 20 {
            let (least, most) = bin(length);
            assert_eq!(least, last + 1, "{length}");
            assert!((least..=most).all(|n| bin(n) == (least, most)) || most - least > 4096);
            (last, length) = (most, most + 1);
        }
        assert_eq!(bin(0), (0, 0));
        assert_eq!(bin(17), (17, 18));
        assert_eq!(bin(1 << 40), ((1 << 40) - (1 << 36) + 1, 1 << 40));
    }

    #[test]
    fn rectangular_and_empty_matrices_have_no_levels() {
        let wide = Csr::new(1, 2, vec![0, 1], vec![1], vec![1.0]).unwrap();
        assert_eq!(of(&wide).lower, None);
        let empty = of(&Csr::new(0, 0, vec![0], vec![], vec![]).unwrap());
        assert_eq!((empty.row_nnz.len(), empty.lower.unwrap().levels), (0, 0));
    }

    #[test]
    fn many_levels_share_bins() {
        let profile = level_profile(&[3; 1000]);
        assert!(profile.bins.len() <= LevelProfile::MAX_BINS);
        assert_eq!(profile.bins.last().unwrap().last, 999);
        assert!(profile.bins.iter().all(|bin| bin.mean == 3.0));
    }
}
