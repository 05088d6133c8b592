//! Makes rows canonical in place: sorts by column and sums duplicates in stored order.

use rayon::prelude::*;

/// Sorts rows and sums duplicates. `ends[r]` is the end of row r in `indices` and `values`, with consecutive rows from
/// 0; on return the rows are compacted at the front and `ends` is updated. Returns the number of entries.
///
/// Sorted rows need only one check. Additional memory, if a row is not sorted: 8 bytes for each of `longest` entries, as many
/// as the longest row has.
pub(super) fn canonicalise(
    ends: &mut [usize],
    indices: &mut [u32],
    values: &mut [f64],
    longest: usize,
) -> usize {
    let mut keys = Vec::new();
    let (mut start, mut kept) = (0, 0);
    for end in ends {
        let row = start..*end;
        start = *end;
        let packed = kept == row.start;
        if !rising(&indices[row.clone()]) {
            // Once and for all, since growing step by step would take more than the longest row.
            if keys.capacity() == 0 {
                keys.reserve_exact(longest);
            }
            sort(&mut indices[row.clone()], &mut values[row.clone()], &mut keys);
            kept = merge(row, kept, indices, values);
        } else if packed {
            kept = row.end;
        } else {
            indices.copy_within(row.clone(), kept);
            values.copy_within(row.clone(), kept);
            kept += row.len();
        }
        *end = kept;
    }
    kept
}

fn rising(cols: &[u32]) -> bool {
    cols.windows(2).all(|pair| pair[0] < pair[1])
}

/// Rows longer than this are sorted in parallel.
const LONG: usize = 1 << 17;

/// Sorts one row by column, stably. The keys include each entry's position, so they are unique and the result does not
/// depend on the number of threads; after a key has been read, its memory is reused for the value that belongs there.
fn sort(cols: &mut [u32], values: &mut [f64], keys: &mut Vec<u64>) {
    keys.clear();
    keys.extend(cols.iter().zip(0u64..).map(|(&col, place)| u64::from(col) << 32 | place));
    if keys.len() > LONG {
        keys.par_sort_unstable();
    } else {
        keys.sort_unstable();
    }
    for (key, col) in keys.iter_mut().zip(cols) {
        *col = (*key >> 32) as u32;
        *key = values[*key as u32 as usize].to_bits();
    }
    for (value, bits) in values.iter_mut().zip(keys) {
        *value = f64::from_bits(*bits);
    }
}

/// Moves a sorted row to `to`, summing equal columns; returns its end.
fn merge(
    row: std::ops::Range<usize>,
    mut to: usize,
    indices: &mut [u32],
    values: &mut [f64],
) -> usize {
    let begin = to;
    for from in row {
        if to > begin && indices[to - 1] == indices[from] {
            values[to - 1] += values[from];
        } else {
            indices[to] = indices[from];
            values[to] = values[from];
            to += 1;
        }
    }
    to
}

#[cfg(test)]
mod tests {
    use super::canonicalise;

    #[test]
    fn sorts_sums_and_compacts() {
        let mut ends = [3, 3, 5, 9, 10];
        let mut indices = [2, 0, 2, 1, 4, 5, 1, 5, 0, 3];
        let mut values = [1.0, 2.0, 10.0, 3.0, 4.0, 5.0, 6.0, 50.0, 7.0, 8.0];
        let kept = canonicalise(&mut ends, &mut indices, &mut values, 4);
        assert_eq!((kept, ends), (8, [2, 2, 4, 7, 8]));
        assert_eq!(indices[..kept], [0, 2, 1, 4, 0, 1, 5, 3]);
        assert_eq!(values[..kept], [2.0, 11.0, 3.0, 4.0, 7.0, 6.0, 55.0, 8.0]);
    }

    #[test]
    fn duplicates_are_summed_in_stored_order() {
        let mut values = [1.0, 1e16, 5.0, -1e16];
        canonicalise(&mut [4], &mut [3, 3, 0, 3], &mut values, 4);
        assert_eq!(values[..2], [5.0, (1.0 + 1e16) - 1e16]);
    }
}
