//! Row order by similarity: rows that share columns stand next to each other, found by MinHash (Broder, 1997).
//!
//! A row's signature consists of the columns with the least hash under three hashes; two rows agree in each with a
//! probability equal to their Jaccard similarity. Sorting by signatures places similar rows side by side. The signature holds
//! the column itself, not its hash, so the order follows the columns and a band stays a band. Inside a run that agrees in the
//! first hash, rows are chosen greedily, panel by panel. All of it is O(nnz), and the result is the same on any number of
//! threads. `overlap` measures the reuse, which decides whether the order pays off (Tiled SpMM keeps a reordering only then).

use super::strips::Strips;
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
/// Seeds of the three hashes, and of the choice of runs that are sampled.
const SEEDS: [u32; 3] = [0x9e37_79b9, 0x85eb_ca6b, 0xc2b2_ae35];
const SAMPLING: u32 = 0x5bd1_e995;
/// A column that comes first in more than `1 / COMMON` of all rows is too common to tell which rows are alike.
const COMMON: usize = 16;
/// Fewest columns of a row that are used to decide whether it is sampled.
const KEYED: usize = 4;
/// Approximate number of rows that are ordered to estimate the effect of ordering all rows.
const SAMPLED_ROWS: usize = 16_384;
/// Approximate number of entries that one estimate reads, and the fewest and most panels that they are spread over.
const LOOKED_ENTRIES: usize = 1 << 17;
const PANELS: [usize; 2] = [4, 2048];
/// Most entries that are read of a panel: of a larger one, strips of columns are read.
const WHOLE_PANEL: usize = 2048;
/// Factor by which the estimated reuse must exceed that of both other orders.
pub const PAYS: f64 = 1.05;

/// How the rows of panels overlap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overlap {
    /// Entries over distinct columns: how many rows one gathered row of B serves (rho of Tiled SpMM, Table 1).
    pub reuse: f64,
    /// Share of the entries that are alone in their column of the panel.
    pub lone: f64,
}

/// The overlap that ordering all rows would give, estimated on some of the rows, with those rows in their order: of rows that
/// agree in a hash, either all are ordered or none, so that similar rows stay together.
pub fn estimate(matrix: &Csr) -> (Overlap, Vec<u32>) {
    let (rows, nnz) = (matrix.rows(), matrix.nnz());
    let among = (rows / SAMPLED_ROWS).max(nnz / (2 * LOOKED_ENTRIES)).min(rows / (8 * PANEL));
    let most = SAMPLED_ROWS.min(rows / among.max(1));
    let looked = (2 * LOOKED_ENTRIES / rows.max(1)).max(KEYED);
    let mut keys: Vec<(u32, u32)> = (0..rows as u32)
        .into_par_iter()
        .with_min_len(4096)
        .map(|row| {
            let cols = matrix.row(row as usize).0;
            // Similar rows have most of their first columns in common.
            let key = least(cols.iter().take(looked), SEEDS[0]);
            (mix(key ^ SAMPLING), row)
        })
        .filter(|(key, _)| among <= 1 || key.is_multiple_of(among as u32))
        .collect();
    keys.par_sort_unstable();
    let runs = keys.chunk_by(|a, b| a.0 == b.0);
    // A run that exceeds the sample alone (a dense column that all rows share) says nothing about its rows: of these, take
    // the rows whose other columns hash alike.
    let chosen = runs.flat_map(|run| {
        let over = if among <= 1 { 1 } else { run.len().div_ceil(most / 2 + 1) as u32 };
        let key = run[0].0;
        let kept = move |row: u32| {
            let cols = matrix.row(row as usize).0;
            let others = cols.iter().take(looked).filter(|&&col| mix(col ^ SAMPLING) != key);
            over <= 1 || mix(least(others, SEEDS[1]) ^ SAMPLING).is_multiple_of(over)
        };
        run.iter().map(|&(_, row)| row).filter(move |&row| kept(row))
    });
    let chosen: Vec<u32> = chosen.collect();
    let strips = Strips::of(matrix, &chosen, 2 * LOOKED_ENTRIES);
    if !strips.narrow() {
        let ordered = order(&|row| matrix.row(row as usize).0, chosen);
        return (overlap(matrix, &ordered, PANEL), ordered);
    }
    // Long rows are ordered by the columns that are read, and those are counted.
    let Some(narrowed) = narrowed(matrix, &chosen, &strips) else {
        return (Overlap { reuse: 1.0, lone: 1.0 }, Vec::new());
    };
    let ordered = order(&|row| narrowed.row(row as usize).0, (0..narrowed.rows() as u32).collect());
    let overlap = overlap(&narrowed, &ordered, PANEL);
    (overlap, ordered.into_iter().map(|at| chosen[at as usize]).collect())
}

/// Some rows, restricted to the columns within the strips.
fn narrowed(matrix: &Csr, rows: &[u32], strips: &Strips) -> Option<Csr> {
    let (mut indices, mut indptr) = (Vec::new(), vec![0]);
    for &row in rows {
        strips.extend(&mut indices, matrix.row(row as usize).0);
        indptr.push(indices.len());
    }
    let values = vec![0.0; indices.len()];
    Csr::new(rows.len(), matrix.cols(), indptr, indices, values).ok()
}

/// The reuse of an order by similarity over the best of the `others`: worth the sorting from [`PAYS`] on.
pub fn gain(similar: Overlap, others: &[Overlap]) -> f64 {
    let best = others.iter().map(|other| other.reuse).fold(1.0, f64::max);
    similar.reuse / best
}

/// The given rows by similarity; rows without entries come last. `cols` gives the columns of a row, rising.
pub fn order<'a>(cols: &(impl Fn(u32) -> &'a [u32] + Sync), rows: Vec<u32>) -> Vec<u32> {
    let mut keys: Vec<([u32; 3], u32)> = rows
        .into_par_iter()
        .with_min_len(1024)
        .map(|row| (signature(cols(row), &[]), row))
        .collect();
    keys.par_sort_unstable();
    let common = common(&keys);
    if !common.is_empty() {
        keys.par_iter_mut().with_min_len(1024).for_each(|(key, row)| {
            if key.iter().any(|col| common.contains(col)) {
                let others = signature(cols(*row), &common);
                *key = if others[0] == u32::MAX { *key } else { others };
            }
        });
        keys.par_sort_unstable();
    }
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
        refine(cols, start, rows, marks);
    });
    order
}

/// Columns that a large part of all rows has: they do not tell which rows are alike. Keys are sorted.
fn common(keys: &[([u32; 3], u32)]) -> Vec<u32> {
    let most = (keys.len() / COMMON).max(8 * PANEL);
    let runs = keys.chunk_by(|a, b| a.0[0] == b.0[0]);
    let firsts = runs.filter(|run| run.len() > most).map(|run| run[0].0[0]);
    firsts.filter(|&col| col != u32::MAX).collect()
}

/// The columns with the least hash under three hashes, ignoring some columns; `u32::MAX` for a row that has no other.
fn signature(cols: &[u32], without: &[u32]) -> [u32; 3] {
    if without.is_empty() {
        return SEEDS.map(|seed| least(cols.iter(), seed));
    }
    SEEDS.map(|seed| least(cols.iter().filter(|col| !without.contains(col)), seed))
}

/// The column with the least hash under a seed. Seeds are not zero: `mix` maps zero to itself, so the first column would be
/// the least of every row that has it.
fn least<'a>(cols: impl Iterator<Item = &'a u32>, seed: u32) -> u32 {
    cols.copied().min_by_key(|&col| mix(col ^ seed)).unwrap_or(u32::MAX)
}

/// A bijection of 32-bit words whose every output bit depends on every input bit (Wellons' lowbias32).
fn mix(mut word: u32) -> u32 {
    word ^= word >> 16;
    word = word.wrapping_mul(0x7feb_352d);
    word ^= word >> 15;
    word = word.wrapping_mul(0x846c_a68b);
    word ^ word >> 16
}

/// Which columns the current panel has, up to collisions: a wrong hit only costs a little reuse.
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

/// Chooses, panel by panel, among the next few rows of a run the row with the most columns in common with the panel. `start`
/// is where the run starts among all rows, which determines where panels are cut.
fn refine<'a>(cols: &impl Fn(u32) -> &'a [u32], start: usize, rows: &mut [u32], marks: &mut Marks) {
    marks.clear();
    for at in 0..rows.len() {
        if (start + at).is_multiple_of(PANEL) {
            marks.clear();
        } else if at > 0 {
            let until = rows.len().min(at + CHOICE);
            // The first of the best, so that the order is deterministic, and stays as sorted if nothing is gained.
            let share = |i: &usize| (marks.share(cols(rows[*i])), std::cmp::Reverse(*i));
            let best = (at..until).max_by_key(share).unwrap_or(at);
            rows[at..=best].rotate_right(1);
        }
        marks.add(cols(rows[at]));
    }
}

/// Overlap of panels of `size` consecutive rows of an order, on evenly spread panels with about `LOOKED_ENTRIES` entries.
pub fn overlap(matrix: &Csr, order: &[u32], size: usize) -> Overlap {
    let panels = order.len().div_ceil(size);
    let most = (SAMPLED_ROWS / size).clamp(PANELS[0], PANELS[1]);
    let rows = (most.min(panels) * size).max(1);
    let mean = (matrix.nnz() / matrix.rows().max(1)).max(1);
    let fewer = most * LOOKED_ENTRIES / (rows * mean).max(LOOKED_ENTRIES);
    let most = fewer.clamp(PANELS[0].min(most), most).max(1);
    let step = panels.div_ceil(most).max(1);
    let each = (2 * LOOKED_ENTRIES / panels.div_ceil(step).max(1)).max(WHOLE_PANEL);
    let seen: Vec<[f64; 3]> = (0..panels)
        .into_par_iter()
        .step_by(step)
        .map_init(Vec::new, |columns: &mut Vec<u32>, panel| {
            let rows = &order[panel * size..order.len().min((panel + 1) * size)];
            columns.clear();
            let strips = Strips::of(matrix, rows, each);
            rows.iter().for_each(|&row| strips.extend(columns, matrix.row(row as usize).0));
            columns.sort_unstable();
            let runs = columns.chunk_by(|a, b| a == b);
            let (distinct, lone) = runs.fold((0u64, 0u64), |(distinct, lone), run| {
                (distinct + 1, lone + u64::from(run.len() == 1))
            });
            // A panel is weighted by its entries, however few of them were read.
            let entries: usize = rows.iter().map(|&row| matrix.row_nnz(row as usize)).sum();
            let scale = entries as f64 / columns.len().max(1) as f64;
            [columns.len() as f64, distinct as f64, lone as f64].map(|count| count * scale)
        })
        .collect();
    // In sequence, so that the sums are the same on any number of threads.
    let [entries, distinct, lone] = [0, 1, 2].map(|at| seen.iter().map(|it| it[at]).sum::<f64>());
    if distinct == 0.0 {
        return Overlap { reuse: 1.0, lone: 1.0 };
    }
    Overlap { reuse: entries / distinct, lone: lone / entries }
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

    /// The order of all rows, and the overlaps without and with it.
    fn ordered(matrix: &Csr) -> (Vec<u32>, Overlap, Overlap) {
        let natural: Vec<u32> = (0..matrix.rows() as u32).collect();
        let order = order(&|row| matrix.row(row as usize).0, natural.clone());
        let [before, after] = [&natural, &order].map(|order| overlap(matrix, order, PANEL));
        (order, before, after)
    }

    #[test]
    fn equal_rows_meet_again() {
        let matrix = shuffled(500);
        let (order, before, after) = ordered(&matrix);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().enumerate().all(|(at, &row)| at as u32 == row));
        assert!(before.reuse < 1.1 && after.reuse == 8.0, "{before:?} {after:?}");
        assert_eq!((after.lone, estimate(&matrix).0.reuse), (0.0, 8.0));
        assert!(gain(after, &[before]) > PAYS && gain(after, &[before, after]) == 1.0);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(pool.install(|| ordered(&matrix)).0, order);
    }

    #[test]
    fn an_arrow_does_not_hide_what_its_rows_share() {
        // The same groups behind a column that every row has.
        for groups in [500, 6000] {
            let inner = shuffled(groups);
            let (mut indices, mut indptr) = (Vec::new(), vec![0]);
            for row in 0..inner.rows() {
                indices.push(0);
                indices.extend(inner.row(row).0.iter().map(|col| col + 1));
                indptr.push(indices.len());
            }
            let values = vec![1.0; indices.len()];
            let arrow = Csr::new(inner.rows(), inner.cols() + 1, indptr, indices, values).unwrap();
            let (_, before, after) = ordered(&arrow);
            assert!(before.reuse < 1.5 && after.reuse > 7.0, "{before:?} {after:?}");
            let estimated = estimate(&arrow).0.reuse;
            assert!((estimated / after.reuse - 1.0).abs() < 0.15, "{estimated} {after:?}");
        }
    }

    #[test]
    fn rows_without_entries_come_last() {
        let matrix = Csr::new(4, 2, vec![0, 0, 1, 1, 2], vec![1, 0], vec![1.0; 2]).unwrap();
        assert_eq!(ordered(&matrix).0[2..], [0, 2]);
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        assert_eq!(ordered(&empty).2, Overlap { reuse: 1.0, lone: 1.0 });
        assert_eq!(estimate(&empty), (Overlap { reuse: 1.0, lone: 1.0 }, vec![]));
    }
}
