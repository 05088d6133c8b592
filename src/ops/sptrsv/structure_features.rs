//! Features that distinguish systems for which the paper's ten numbers are alike: how rows are distributed over narrow and
//! wide levels, dense tails, coefficients that grow when they are substituted, and how far back in levels rows reach.

use super::System;

/// Levels of at most this many rows are narrow, by three measures: a warp's rows, a block's, many blocks'.
pub const WIDTHS: [u32; 3] = [32, 256, 2048];

/// Rows longer than this many times the mean are long.
pub const LONG: [u32; 2] = [4, 32];

/// Replaces a row's sum of coefficients that is larger or not a number.
const MOST_WEIGHT: f64 = 1e9;

/// Shares are fractions of 1; for a system without rows, or with nothing to take a share of, they are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StructureFeatures {
    /// Share of rows in levels of at most `WIDTHS` rows.
    pub rows_in_narrow: [f64; 3],
    /// Share of levels with at most the first of `WIDTHS` rows.
    pub narrow_levels: f64,
    /// The longest run of such levels.
    pub narrow_run: usize,
    /// Entries, including diagonals, in rows of more than `LONG` times the mean row.
    pub entries_in_long: [f64; 2],
    /// Entries, including diagonals, in the last hundredth of the levels: at least one level.
    pub entries_at_end: f64,
    /// Sum of a row's |entries| over its |diagonal|, on average over rows.
    pub weight: f64,
    /// Rows for which that sum is above 1: substituting them makes errors grow, which closes windows.
    pub heavy_rows: f64,
    /// Levels from a row back to a row it depends on, over all entries: the median, and the 90th percentile.
    pub gap_median: usize,
    pub gap_most: usize,
    /// Levels back to the earliest row that a row depends on, on average over rows with dependencies.
    pub gap_earliest: f64,
}

impl StructureFeatures {
    /// One pass over the entries.
    pub fn of(system: &System) -> Self {
        let (triangular, levels) = (&system.triangular, &system.levels);
        let (rows, depth) = (triangular.rows(), levels.widths.len());
        if rows == 0 {
            return Self::default();
        }
        let entries = triangular.nnz() + rows;
        let mean = entries as f64 / rows as f64;
        let last_levels = depth - depth.div_ceil(100);
        // Entries by how many levels back they reach.
        let mut gaps = vec![0usize; depth];
        let mut in_long = [0usize; 2];
        let (mut at_end, mut heavy, mut waiting) = (0, 0, 0usize);
        let (mut weights, mut earliest_sum) = (0.0, 0usize);
        for row in 0..rows {
            let (columns, values) = triangular.row(row);
            let level = levels.level_of_row[row] as usize;
            let length = columns.len() + 1;
            for (sum, times) in in_long.iter_mut().zip(LONG) {
                *sum += if length as f64 > f64::from(times) * mean { length } else { 0 };
            }
            at_end += if level >= last_levels { length } else { 0 };
            let weight: f64 = values.iter().map(|value| value.abs()).sum();
            let weight = weight / triangular.diagonal[row].abs();
            let weight = if weight < MOST_WEIGHT { weight } else { MOST_WEIGHT };
            weights += weight;
            heavy += usize::from(weight > 1.0);
            let mut earliest = 0;
            for &col in columns {
                let gap = level - levels.level_of_row[col as usize] as usize;
                gaps[gap] += 1;
                earliest = gap.max(earliest);
            }
            earliest_sum += earliest;
            waiting += usize::from(earliest > 0);
        }
        let share = |of: usize, all: usize| of as f64 / all.max(1) as f64;
        let narrow = |most: u32| levels.widths.iter().filter(move |&&width| width <= most);
        let rows_in = |most| narrow(most).map(|&width| width as usize).sum();
        Self {
            rows_in_narrow: WIDTHS.map(|most| share(rows_in(most), rows)),
            narrow_levels: share(narrow(WIDTHS[0]).count(), depth),
            narrow_run: longest_run(&levels.widths, WIDTHS[0]),
            entries_in_long: in_long.map(|sum| share(sum, entries)),
            entries_at_end: share(at_end, entries),
            weight: weights / rows as f64,
            heavy_rows: share(heavy, rows),
            gap_median: quantile(&gaps, triangular.nnz().div_ceil(2)),
            gap_most: quantile(&gaps, (triangular.nnz() * 9).div_ceil(10)),
            gap_earliest: share(earliest_sum, waiting),
        }
    }
}

fn longest_run(widths: &[u32], most: u32) -> usize {
    widths.split(|&width| width > most).map(<[u32]>::len).max().unwrap_or(0)
}

/// The least value for which the counts of values up to it reach at least this many.
fn quantile(counts: &[usize], least: usize) -> usize {
    let mut sum = 0;
    let reached = |count: &usize| {
        sum += count;
        sum >= least
    };
    counts.iter().position(reached).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::problem::{Diagonal, Triangle};
    use crate::domain::{Device, Dtype, Sptrsv};
    use crate::sparse::Csr;

    fn structure(rows: usize, lower: impl Fn(usize) -> Vec<(u32, f64)>) -> StructureFeatures {
        let (mut indptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        for row in 0..rows {
            let entries = lower(row).into_iter().chain([(row as u32, -2.0)]);
            let (columns, of_row): (Vec<u32>, Vec<f64>) = entries.unzip();
            indices.extend(columns);
            values.extend(of_row);
            indptr.push(indices.len());
        }
        let matrix = Csr::new(rows, rows, indptr, indices, values).unwrap();
        let (triangle, diagonal) = (Triangle::Lower, Diagonal::NonUnit);
        let problem = Sptrsv {
            rhs: 1,
            dtype: Dtype::F64,
            triangle,
            diagonal,
            transpose: false,
            ..Sptrsv::PLAIN
        };
        StructureFeatures::of(&System::of(&matrix, &problem, &Device::NONE).unwrap())
    }

    #[test]
    fn wide_levels_a_chain_and_a_dense_end_are_told_apart() {
        // 300 rows of no entry; a chain of 99 from the last of them; one row of all but itself.
        let found = structure(400, |row| match row {
            0..300 => Vec::new(),
            399 => (0..399).map(|col| (col, 1.0)).collect(),
            row => vec![(row as u32 - 1, 1.0)],
        });
        let entries = 400.0 + 99.0 + 399.0;
        // 101 levels: of 300 rows, then of one each. The last hundredth of them are two.
        let expected = StructureFeatures {
            rows_in_narrow: [100.0 / 400.0, 100.0 / 400.0, 1.0],
            narrow_levels: 100.0 / 101.0,
            narrow_run: 100,
            entries_in_long: [400.0 / entries; 2],
            entries_at_end: 402.0 / entries,
            weight: (99.0 * 0.5 + 399.0 * 0.5) / 400.0,
            heavy_rows: 1.0 / 400.0,
            // Of 498 entries 100 reach one level back, one each 2 to 99 levels, and 300 to the first level.
            gap_median: 100,
            gap_most: 100,
            gap_earliest: (99.0 + 100.0) / 100.0,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn half_and_nine_tenths_of_the_gaps_are_no_more() {
        // A chain in which every fifth row reaches to the first, too: one gap in six is long.
        let found = structure(51, |row| match row {
            0 => Vec::new(),
            row if row % 5 == 0 => vec![(0, 0.5), (row as u32 - 1, 0.5)],
            row => vec![(row as u32 - 1, 0.5)],
        });
        assert_eq!((found.gap_median, found.gap_most), (1, 20));
        assert_eq!((found.weight, found.heavy_rows), ((40.0 * 0.25 + 10.0 * 0.5) / 51.0, 0.0));
    }

    #[test]
    fn nothing_and_what_overflows_are_numbers() {
        assert_eq!(structure(0, |_| Vec::new()), StructureFeatures::default());
        let found = structure(2, |row| if row == 1 { vec![(0, 1e308)] } else { Vec::new() });
        assert_eq!((found.weight, found.heavy_rows), (MOST_WEIGHT / 2.0, 0.5));
    }
}
