//! Row order by similarity: rows that share columns stand next to each other, found by MinHash (Broder, 1997).
//!
//! A row's signature is the columns with the least hash under three hashes: two rows agree in each with a probability of
//! their Jaccard similarity. Sorting by signatures puts likely relatives side by side. The signature holds the column
//! itself, not its hash, so the order follows the columns and a band stays a band. Inside a run that agrees in the first
//! hash, rows are taken greedily, panel by panel. All of it is O(nnz) and the same on any number of threads. Whether the
//! order pays is for the reuse to say (Tiled SpMM keeps a reordering only then): `overlap` counts it.

use crate::sparse::Csr;
use rayon::prelude::*;

/// Rows of the panels that the order is made for.
pub const PANEL: usize = 8;
/// Entries of a row that the greedy choice looks at; longer rows are sampled evenly.
const LOOKED_AT: usize = 64;
/// Rows that the greedy choice compares.
const CHOICE: usize = 16;
/// Marks of a panel's columns, hashed: a power of two whose table stays in a core's nearest cache.
const MARKS: usize = 1 << 12;
/// Rows whose order is made to estimate what the order of all rows gives, about.
const SAMPLED_ROWS: usize = 16_384;
/// How much better than both other orders the estimated reuse must be.
const PAYS: f64 = 1.05;

/// How the rows of panels overlap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// Entries over distinct columns: how many rows one gathered row of B serves (rho of Tiled SpMM, Table 1).
    pub reuse: f64,
    /// Share of the entries that are alone in their column of the panel.
    pub lone: f64,
}

/// Rows by similarity, and the overlap of 8-row panels in natural order and in this one.
#[derive(Clone, Debug, PartialEq)]
pub struct Similarity {
    pub order: Vec<u32>,
    pub before: Overlap,
    pub after: Overlap,
}

impl Similarity {
    /// Orders all rows; the overlaps are counted on evenly spread panels.
    pub fn of(matrix: &Csr) -> Self {
        let natural: Vec<u32> = (0..matrix.rows() as u32).collect();
        let order = order(matrix, natural.clone());
        let [before, after] = [&natural, &order].map(|order| overlap(matrix, order, PANEL));
        Self { order, before, after }
    }
}

/// The overlap that the order of all rows would have, estimated: of every run that agrees in the first hash either all
/// rows are ordered or none.
pub fn estimate(matrix: &Csr) -> Overlap {
    let among = (matrix.rows() / SAMPLED_ROWS).max(1) as u32;
    let rows: Vec<u32> = (0..matrix.rows() as u32)
        .into_par_iter()
        .with_min_len(4096)
        .filter(|&row| {
            let [first, ..] = signature(matrix.row(row as usize).0);
            mix(first ^ 0x5bd1_e995).is_multiple_of(among)
        })
        .collect();
    let order = order(matrix, rows);
    overlap(matrix, &order, PANEL)
}

/// Whether an order by similarity with the overlap `similar` is worth having beside the `others`.
pub fn pays(similar: Overlap, others: &[Overlap]) -> bool {
    others.iter().all(|other| similar.reuse > PAYS * other.reuse)
}

/// The given rows by similarity; rows without entries come last.
pub fn order(matrix: &Csr, rows: Vec<u32>) -> Vec<u32> {
    let mut keys: Vec<([u32; 3], u32)> = rows
        .into_par_iter()
        .with_min_len(1024)
        .map(|row| (signature(matrix.row(row as usize).0), row))
        .collect();
    keys.par_sort_unstable();
    let mut order: Vec<u32> = keys.par_iter().map(|&(_, row)| row).collect();
    let mut runs = Vec::new();
    let (mut rest, mut start) = (order.as_mut_slice(), 0);
    for run in keys.chunk_by(|a, b| a.0[0] == b.0[0]) {
        let (rows, after) = rest.split_at_mut(run.len());
        if run.len() > 2 && run[0].0[0] != u32::MAX {
            runs.push((start, rows));
        }
        (rest, start) = (after, start + run.len());
    }
    runs.into_par_iter().with_min_len(16).for_each_init(Marks::new, |marks, (start, rows)| {
        refine(matrix, start, rows, marks);
    });
    order
}

/// The columns with the least hash, under three hashes; `u32::MAX` for a row without entries.
fn signature(cols: &[u32]) -> [u32; 3] {
    let mut least = [u64::MAX; 3];
    for &col in cols {
        let hash = mix(col);
        // Three windows of the bits of one good hash order columns about independently.
        let hashes = [hash, hash.rotate_left(11), hash.rotate_left(22)];
        for (least, hash) in least.iter_mut().zip(hashes) {
            *least = (*least).min(u64::from(hash) << 32 | u64::from(col));
        }
    }
    least.map(|least| least as u32)
}

/// A bijection of 32-bit words whose every output bit depends on every input bit (Wellons' lowbias32).
fn mix(mut word: u32) -> u32 {
    word ^= word >> 16;
    word = word.wrapping_mul(0x7feb_352d);
    word ^= word >> 15;
    word = word.wrapping_mul(0x846c_a68b);
    word ^ word >> 16
}

/// Which columns the panel at hand has, up to collisions: a wrong hit costs a little reuse and nothing else.
struct Marks {
    stamp: u32,
    stamps: Vec<u32>,
}

impl Marks {
    fn new() -> Self {
        Self { stamp: 0, stamps: vec![0; MARKS] }
    }

    fn clear(&mut self) {
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.stamps.fill(0);
            self.stamp = 1;
        }
    }

    fn at(col: u32) -> usize {
        col.wrapping_mul(0x9e37_79b1) as usize >> 20 & (MARKS - 1)
    }

    fn add(&mut self, cols: &[u32]) {
        looked_at(cols).for_each(|&col| self.stamps[Self::at(col)] = self.stamp);
    }

    /// Share of a row's columns that the panel has, in 1024ths.
    fn share(&self, cols: &[u32]) -> u32 {
        let (hits, all) = looked_at(cols).fold((0, 0), |(hits, all), &col| {
            (hits + u32::from(self.stamps[Self::at(col)] == self.stamp), all + 1)
        });
        hits * 1024 / all.max(1)
    }
}

fn looked_at(cols: &[u32]) -> impl Iterator<Item = &u32> {
    cols.iter().step_by(cols.len().div_ceil(LOOKED_AT).max(1))
}

/// Takes, panel by panel, of the next few rows of a run the one whose columns the panel has the most of. `start` is where
/// the run starts among all rows, since that is where panels are cut.
fn refine(matrix: &Csr, start: usize, rows: &mut [u32], marks: &mut Marks) {
    marks.clear();
    for at in 0..rows.len() {
        if (start + at).is_multiple_of(PANEL) {
            marks.clear();
        } else if at > 0 {
            let until = rows.len().min(at + CHOICE);
            let cols = |row: u32| matrix.row(row as usize).0;
            // The first of the best, so that the order is the same each time and as sorted where nothing is gained.
            let share = |i: &usize| (marks.share(cols(rows[*i])), std::cmp::Reverse(*i));
            let best = (at..until).max_by_key(share).unwrap_or(at);
            rows[at..=best].rotate_right(1);
        }
        marks.add(matrix.row(rows[at] as usize).0);
    }
}

/// Overlap of panels of `size` consecutive rows of an order, on evenly spread panels.
pub fn overlap(matrix: &Csr, order: &[u32], size: usize) -> Overlap {
    let panels = order.len().div_ceil(size);
    let step = panels.div_ceil(SAMPLED_ROWS / size).max(1);
    let (entries, distinct, lone) = (0..panels)
        .into_par_iter()
        .step_by(step)
        .map_init(Vec::new, |columns: &mut Vec<u32>, panel| {
            let rows = &order[panel * size..order.len().min((panel + 1) * size)];
            columns.clear();
            rows.iter().for_each(|&row| columns.extend_from_slice(matrix.row(row as usize).0));
            columns.sort_unstable();
            let runs = columns.chunk_by(|a, b| a == b);
            runs.fold((columns.len(), 0, 0), |(entries, distinct, lone), run| {
                (entries, distinct + 1, lone + usize::from(run.len() == 1))
            })
        })
        .reduce(|| (0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
    if entries == 0 {
        return Overlap { reuse: 1.0, lone: 1.0 };
    }
    Overlap { reuse: entries as f64 / distinct as f64, lone: lone as f64 / entries as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `groups` groups of 8 rows with the same few columns, the rows of all groups shuffled.
    fn shuffled(groups: usize) -> Csr {
        let mut rows: Vec<usize> = (0..groups * PANEL).collect();
        for i in (1..rows.len()).rev() {
            rows.swap(i, mix(i as u32) as usize % (i + 1));
        }
        let mut indices = Vec::new();
        let mut indptr = vec![0];
        for row in rows {
            let group = (row / PANEL) as u32;
            indices.extend((0..5).map(|i| group * 5 + i));
            indptr.push(indices.len());
        }
        let values = vec![1.0; indices.len()];
        Csr::new(groups * PANEL, groups * 5, indptr, indices, values).unwrap()
    }

    #[test]
    fn equal_rows_meet_again() {
        let matrix = shuffled(500);
        let similar = Similarity::of(&matrix);
        let mut sorted = similar.order.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().enumerate().all(|(at, &row)| at as u32 == row));
        assert!(similar.before.reuse < 1.1 && similar.after.reuse == 8.0, "{similar:?}");
        assert_eq!((similar.after.lone, estimate(&matrix).reuse), (0.0, 8.0));
        assert!(pays(similar.after, &[similar.before]) && !pays(similar.after, &[similar.after]));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(pool.install(|| Similarity::of(&matrix)), similar);
    }

    #[test]
    fn rows_without_entries_come_last() {
        let matrix = Csr::new(4, 2, vec![0, 0, 1, 1, 2], vec![1, 0], vec![1.0; 2]).unwrap();
        assert_eq!(Similarity::of(&matrix).order, [3, 1, 0, 2]);
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        assert_eq!(Similarity::of(&empty).after, Overlap { reuse: 1.0, lone: 1.0 });
    }
}
