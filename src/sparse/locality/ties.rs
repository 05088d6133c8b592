//! Whether rows that have a column in common have further ones in common, more of them than rows that follow each other: seen
//! from a few columns, without the transpose. Of a random pattern they have not, of one in a good order no more of them.

use super::common;
use crate::sparse::Csr;
use rayon::prelude::*;

/// Approximate number of entries whose columns are sampled.
const SAMPLED: usize = 1 << 14;
/// Entries that one task looks through, and as many of them as are looked at together.
const A_TASK: usize = 1 << 17;
const A_LOOK: usize = 32;
/// Most columns that are looked at, rows of each, and entries of those together.
const COLUMNS: usize = 192;
const ROWS: usize = 16;
const ENTRIES: usize = 1 << 10;

/// Entries over distinct columns among rows that have a column in common, which does not count itself, over those of as many
/// rows that follow each other; 1 if nothing can be said. Each entry is looked at once; what is kept of them is bounded.
pub fn ties(matrix: &Csr) -> f64 {
    let groups = rows_of_columns(matrix);
    let step = groups.len().div_ceil(COLUMNS).max(1);
    let counted: Vec<[Counts; 2]> = groups
        .par_iter()
        .step_by(step)
        .map(|rows| {
            let first = (rows[0] as usize).min(matrix.rows() - rows.len()) as u32;
            let following: Vec<u32> = (first..first + rows.len() as u32).collect();
            let tied = counts(matrix, rows);
            // The column in common.
            let tied = Counts {
                entries: tied.entries.saturating_sub(rows.len()),
                distinct: tied.distinct.saturating_sub(1),
            };
            [tied, counts(matrix, &following)]
        })
        .collect();
    let reuse = |which: usize| {
        let sum = |of: fn(&Counts) -> usize| counted.iter().map(|it| of(&it[which])).sum::<usize>();
        sum(|it| it.entries).max(1) as f64 / sum(|it| it.distinct).max(1) as f64
    };
    reuse(0) / reuse(1)
}

/// Rows of some columns that two rows at least have, and no more rows than tell something.
fn rows_of_columns(matrix: &Csr) -> Vec<Vec<u32>> {
    let nnz = matrix.nnz();
    let tasks = nnz.div_ceil(A_TASK).max(1);
    // One column of a power of two, told by shifts alone: a product of words takes longer than all else here.
    let among = u32::try_from(nnz / SAMPLED).unwrap_or(u32::MAX / 2).max(1).next_power_of_two();
    let picked = 0x5555_5555 & (among - 1);
    let sampled = |col: u32| (col ^ (col >> 7) ^ (col >> 15)) & (among - 1) == picked;
    // A column that very many rows have would leave no room.
    let most = (4 * SAMPLED).div_ceil(tasks);
    let found = |(task, cols): (usize, &[u32])| {
        let mut found = Vec::new();
        for (part, cols) in cols.chunks(A_LOOK).enumerate() {
            // Most parts have none, which is found out for all of a part at a time.
            if cols.iter().fold(false, |any, &col| any | sampled(col)) {
                let first = task * A_TASK + part * A_LOOK;
                let entries = (first..).zip(cols).filter(|&(_, &col)| sampled(col));
                found.extend(entries.map(|(entry, &col)| {
                    let row = matrix.indptr().partition_point(|&start| start <= entry) - 1;
                    (col, row as u32)
                }));
            }
            if found.len() >= most {
                break;
            }
        }
        found
    };
    let tasks = matrix.indices().par_chunks(A_TASK).enumerate();
    let mut entries: Vec<(u32, u32)> = tasks.flat_map_iter(found).collect();
    entries.par_sort_unstable();
    let most = common(nnz, matrix.cols());
    let columns = entries.chunk_by(|a, b| a.0 == b.0).filter(|it| (2..=most).contains(&it.len()));
    let rows = |column: &[(u32, u32)]| {
        let step = column.len().div_ceil(ROWS).max(1);
        column.iter().step_by(step).map(|&(_, row)| row).collect()
    };
    columns.map(rows).collect()
}

#[derive(Clone, Copy)]
struct Counts {
    entries: usize,
    distinct: usize,
}

/// Entries and distinct columns of some rows; of long rows the first entries.
fn counts(matrix: &Csr, rows: &[u32]) -> Counts {
    let each = ENTRIES / rows.len().max(1);
    let cols = rows.iter().flat_map(|&row| matrix.row(row as usize).0.iter().take(each));
    let mut cols: Vec<u32> = cols.copied().collect();
    let entries = cols.len();
    cols.sort_unstable();
    cols.dedup();
    Counts { entries, distinct: cols.len() }
}
