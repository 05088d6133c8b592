//! Label propagation between rows and columns: each takes the label that most of its members have.

use super::common;
use crate::sparse::Csr;
use crate::sparse::random::mix;
use rayon::prelude::*;

/// Rounds: groups of a few dozen rows after four; more rounds hardly change what windows of 64 rows share.
const ROUNDS: usize = 4;
/// Entries that a vote looks at; longer lists are sampled evenly.
const VOTES: usize = 64;

/// The label of each row, which is the number of a column; `u32::MAX` for a row without an entry that counts.
pub fn labels(matrix: &Csr, columns: &Csr) -> Vec<u32> {
    let most = common(matrix.nnz(), matrix.cols());
    let counts = |col: u32| columns.row_nnz(col as usize) <= most;
    let own: Vec<u32> = (0..matrix.cols() as u32).collect();
    let mut of_rows = votes(matrix, &own, counts);
    for _ in 1..ROUNDS {
        let of_columns = votes(columns, &of_rows, |_| true);
        of_rows = votes(matrix, &of_columns, counts);
    }
    of_rows
}

/// For each list the label that most of its members have, of several the one with the least hash; `u32::MAX` if no member
/// counts or has a label.
fn votes(lists: &Csr, labels: &[u32], counts: impl Fn(u32) -> bool + Sync) -> Vec<u32> {
    (0..lists.rows())
        .into_par_iter()
        .with_min_len(1024)
        .map_init(Vec::new, |found: &mut Vec<u32>, list| {
            let members = lists.row(list).0;
            let step = members.len().div_ceil(VOTES).max(1);
            let counted = members.iter().step_by(step).filter(|&&member| counts(member));
            found.clear();
            found.extend(counted.map(|&member| labels[member as usize]));
            found.retain(|&label| label != u32::MAX);
            found.sort_unstable();
            let best =
                found.chunk_by(|a, b| a == b).max_by_key(|run| (run.len(), !mix(run[0].into())));
            best.map_or(u32::MAX, |run| run[0])
        })
        .collect()
}
