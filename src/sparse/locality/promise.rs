//! What the order could gain, seen beforehand on samples: around some rows a ball of rows is gathered through shared columns, and
//! how often its columns recur is compared with windows of as many rows as they stand.

use super::ties::ties;
use super::{common, order_by};
use crate::sparse::Csr;
use crate::sparse::random::mix;
use rayon::prelude::*;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Rows of a ball: about those that share L2 at a time.
const FAR: usize = 2048;
/// Rows around the middle of a ball that are put in order themselves.
const ORDERED: usize = 512;
/// Balls.
const BALLS: usize = 48;
/// Below this the rows that have a column in common have few others in common, so that no order brings them any.
const TIED: f64 = 1.02;
/// Most entries that one ball reads.
const MOST_ENTRIES: usize = 1 << 16;

/// The outcome of the samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Promise {
    /// Some of the rows in the order that they would have, a few hundred from each of many places.
    pub rows: Vec<u32>,
    /// Entries over distinct columns among a few thousand rows, in balls over windows as they stand; at least 1.
    pub far: f64,
}

impl Promise {
    /// Of a matrix whose rows are better left as they stand.
    pub const NONE: Self = Self { rows: Vec::new(), far: 1.0 };
}

/// What an order of all rows would gain. Only where [`ties`] say that there may be something to gain, the matrix is transposed,
/// which the order itself needs too; all else reads a bounded number of entries, however large the matrix.
pub fn promise(matrix: &Csr) -> Promise {
    if ties(matrix) < TIED {
        return Promise::NONE;
    }
    let columns = &matrix.transposed_pattern();
    let (rows, most) = (matrix.rows(), common(matrix.nnz(), matrix.cols()));
    let step = (rows / BALLS).max(1);
    let starts: Vec<usize> = (step / 2..rows).step_by(step).collect();
    let balls: Vec<Vec<u32>> =
        starts.par_iter().map(|&start| around(matrix, columns, most, start as u32)).collect();
    let windows: Vec<Vec<u32>> = starts
        .iter()
        .zip(&balls)
        .map(|(&start, ball)| {
            let first = start.saturating_sub(ball.len() / 2).min(rows - ball.len());
            (first as u32..(first + ball.len()) as u32).collect()
        })
        .collect();
    let reuse = |of: &[Vec<u32>]| {
        let counts: Vec<[usize; 2]> = of.par_iter().map(|rows| recurring(matrix, rows)).collect();
        let [entries, distinct] = [0, 1].map(|at| counts.iter().map(|it| it[at]).sum::<usize>());
        entries.max(1) as f64 / distinct.max(1) as f64
    };
    let mut middle: Vec<u32> =
        balls.iter().flat_map(|ball| ball.iter().take(ORDERED)).copied().collect();
    middle.sort_unstable();
    middle.dedup();
    Promise { rows: ordered(matrix, &middle), far: (reuse(&balls) / reuse(&windows)).max(1.0) }
}

/// A set of rows or columns; what a matrix holds is no secret that hashes must keep.
type Numbers = HashSet<u32, BuildHasherDefault<Mixed>>;

#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = mix(self.0 ^ u64::from(byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = mix(self.0 ^ u64::from(number));
    }
}

/// The rows nearest to one through shared columns, itself first.
fn around(matrix: &Csr, columns: &Csr, most: usize, first: u32) -> Vec<u32> {
    let (mut rows, mut met) = (Numbers::from_iter([first]), Numbers::default());
    let (mut found, mut queue) = (vec![first], VecDeque::from([first]));
    let mut read = 0;
    while let Some(row) = queue.pop_front() {
        for &col in matrix.row(row as usize).0 {
            read += 1;
            if read > MOST_ENTRIES {
                return found;
            }
            if columns.row_nnz(col as usize) > most || !met.insert(col) {
                continue;
            }
            for &other in columns.row(col as usize).0 {
                read += 1;
                if found.len() >= FAR || read > MOST_ENTRIES {
                    return found;
                }
                if rows.insert(other) {
                    found.push(other);
                    queue.push_back(other);
                }
            }
        }
    }
    found
}

/// Entries and distinct columns of some rows, as far as one ball may read.
fn recurring(matrix: &Csr, rows: &[u32]) -> [usize; 2] {
    let cols = rows.iter().flat_map(|&row| matrix.row(row as usize).0);
    let mut cols: Vec<u32> = cols.take(4 * MOST_ENTRIES).copied().collect();
    let entries = cols.len();
    cols.sort_unstable();
    cols.dedup();
    [entries, cols.len()]
}

/// Some rows in the order that they have among themselves, judged by as many entries as all balls may read.
fn ordered(matrix: &Csr, rows: &[u32]) -> Vec<u32> {
    let (mut indices, mut indptr, mut columns) = (Vec::new(), vec![0], Vec::new());
    let each = (BALLS * MOST_ENTRIES / rows.len().max(1)).max(1);
    for &row in rows {
        indices.extend(matrix.row(row as usize).0.iter().take(each));
        indptr.push(indices.len());
    }
    // Numbered anew, so that what follows depends on the sample's size alone.
    columns.extend_from_slice(&indices);
    columns.sort_unstable();
    columns.dedup();
    let number = |col: &u32| columns.partition_point(|known| known < col) as u32;
    let indices: Vec<u32> = indices.par_iter().map(number).collect();
    let values = vec![0.0; indices.len()];
    let Ok(some) = Csr::new(rows.len(), columns.len(), indptr, indices, values) else {
        return rows.to_vec();
    };
    order_by(&some, &some.transposed_pattern()).into_iter().map(|at| rows[at as usize]).collect()
}
