//! A bounded sample of some rows of a matrix: if they have too many entries, the same strips of columns are read of every
//! row, which preserves what rows share and which columns lie side by side.

use crate::sparse::Csr;

/// Most strips that the columns are cut into.
const STRIPS: usize = 16;
/// Approximate number of entries that determine the strips.
const GUIDE: usize = 4096;

/// Which columns are read.
#[derive(Clone, Debug)]
pub struct Strips {
    /// Half-open ranges, rising; `None` means all columns.
    ranges: Option<Vec<[u32; 2]>>,
}

impl Strips {
    /// Strips that hold about `most` entries of the rows: quantiles of their columns, so that each has about as many.
    pub fn of(matrix: &Csr, rows: &[u32], most: usize) -> Self {
        let entries: usize = rows.iter().map(|&row| matrix.row_nnz(row as usize)).sum();
        if entries <= most {
            return Self { ranges: None };
        }
        let mut guide: Vec<u32> = Vec::with_capacity(2 * GUIDE);
        // Every k-th entry of all rows in sequence.
        let (step, mut skip) = (entries.div_ceil(GUIDE), 0);
        for &row in rows {
            let cols = matrix.row(row as usize).0;
            guide.extend(cols.iter().skip(skip).step_by(step));
            let past = cols.len().saturating_sub(skip).div_ceil(step) * step + skip;
            skip = past.saturating_sub(cols.len());
        }
        guide.sort_unstable();
        let wide = most as f64 / entries as f64 * guide.len() as f64;
        let strips = (wide as usize).clamp(1, STRIPS);
        let mut ranges: Vec<[u32; 2]> = (0..strips)
            .map(|strip| {
                let start = (2 * strip + 1) * guide.len() / (2 * strips);
                let end = start + (wide / strips as f64) as usize;
                let from: u32 = guide[start.min(guide.len() - 1)];
                [from, guide.get(end).map_or(u32::MAX, |&to| to.max(from + 1))]
            })
            .collect();
        ranges.dedup_by(|next, last| {
            let joined = next[0] < last[1];
            if joined {
                last[1] = last[1].max(next[1]);
            }
            joined
        });
        Self { ranges: Some(ranges) }
    }

    /// Whether some columns are left out.
    pub fn narrow(&self) -> bool {
        self.ranges.is_some()
    }

    /// Appends those columns of a row that are read.
    pub fn extend(&self, to: &mut Vec<u32>, cols: &[u32]) {
        let Some(ranges) = &self.ranges else { return to.extend_from_slice(cols) };
        let mut rest = cols;
        for [from, end] in ranges {
            rest = &rest[rest.partition_point(|col| col < from)..];
            let inside = rest.partition_point(|col| col < end);
            to.extend_from_slice(&rest[..inside]);
            rest = &rest[inside..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_are_the_same_of_every_row_and_hold_about_what_was_asked() {
        let rows = 64usize;
        let indices: Vec<u32> = (0..rows).flat_map(|_| 0..10_000u32).collect();
        let ptr = (0..=rows).map(|row| row * 10_000).collect();
        let values = vec![1.0; indices.len()];
        let matrix = Csr::new(rows, 10_000, ptr, indices, values).unwrap();
        let all: Vec<u32> = (0..rows as u32).collect();
        let strips = Strips::of(&matrix, &all, 1 << 14);
        let looked = |row: usize| {
            let mut columns = Vec::new();
            strips.extend(&mut columns, matrix.row(row).0);
            columns
        };
        assert!(strips.narrow() && looked(0) == looked(63) && looked(0).is_sorted());
        let entries = rows * looked(0).len();
        assert!((1 << 13..1 << 15).contains(&entries), "{entries}");
        assert!(!Strips::of(&matrix, &all[..1], 1 << 14).narrow());
    }
}
