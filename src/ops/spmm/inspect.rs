//! Pattern statistics for constraints and model: tile balance, imbalance within warps, and the reuse of rows of B in panels.

mod caches;
mod groups;

use super::family::RowOrder;
use super::kept_rows::windows::Estimates;
use super::radix;
use super::similarity::{self, Overlap};
use super::tiled_model::sample::{self, Sampled};
use crate::sparse::Csr;
pub use caches::{LOCALITY_PAYS, Locality};
use caches::{NEAR_ROWS, locality, promise};
pub use groups::Groups;
use groups::{all_groups, of_size};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Panel heights for which reuse is computed.
pub const PANEL_ROWS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Lengths are sorted by counting up to four times the number of rows plus this.
const COUNTED: usize = 1 << 16;

/// Reuse of B within panels of M1 rows taken by falling length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Panel {
    /// Number of distinct columns of all panels, estimated.
    pub union: f64,
    /// Entries over distinct columns: how many rows one loaded B row serves (rho of Tiled SpMM, Table 1).
    pub reuse: f64,
    /// Stored values, zeros included, over entries (Z of Tiled SpMM, Table 1).
    pub fill: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    pub rows: u64,
    pub cols: u64,
    pub nnz: u64,
    pub mean_row: f64,
    pub longest_row: u64,
    /// Distinct columns that any entry touches.
    pub touched_cols: u64,
    /// Mean distance between the columns of consecutive entries of a row, at least 1.
    pub mean_gap: f64,
    /// For natural order, and for the order by length.
    locality: [Locality; 2],
    natural: BTreeMap<u32, Groups>,
    by_length: BTreeMap<u32, Groups>,
    /// By similarity, by radix and by locality, estimated on the rows that the estimate of `overlap` orders.
    sampled_groups: [BTreeMap<u32, Groups>; 3],
    panels: BTreeMap<u32, Panel>,
    /// Every length that a row has, rising, with the number of such rows.
    pub row_lengths: Vec<(u32, u64)>,
    /// Overlap of 8-row panels in natural order, by length, by similarity, by radix and by locality (the last three estimated).
    overlap: [Overlap; 5],
    /// In the same orders.
    tiled: [Sampled; 5],
    /// How many times as often columns recur among a few thousand rows by locality as in natural order.
    far_gain: f64,
    /// What blocks of rows need of a column of B, estimated.
    pub windows: Estimates,
}

impl Inspection {
    /// Reads the pattern once, and its row lengths a few times.
    pub fn of(matrix: &Csr) -> Self {
        let lengths: Vec<u32> = (0..matrix.rows()).map(|row| matrix.row_nnz(row) as u32).collect();
        let order = rows_by_length(matrix);
        let natural: Vec<u32> = (0..matrix.rows() as u32).collect();
        let sorted: Vec<u32> = order.iter().map(|&row| lengths[row as usize]).collect();
        let touched_cols = touched(matrix);
        let (similar, similar_rows) = similarity::estimate(matrix);
        let tiled = Sampled::of(matrix, touched_cols);
        let radix_rows = radix::sample(matrix, sample::wanted(tiled.mean), sample::WINDOW);
        let sampled = |order, rows: &[u32]| tiled.ordered(matrix, order, rows);
        let locality = [&natural, &order].map(|order| locality(matrix, order));
        let promise = promise(matrix, touched_cols, locality[0]);
        let by_locality = if promise.rows.is_empty() { &natural } else { &promise.rows };
        Self {
            rows: matrix.rows() as u64,
            cols: matrix.cols() as u64,
            nnz: matrix.nnz() as u64,
            mean_row: matrix.nnz() as f64 / matrix.rows().max(1) as f64,
            longest_row: sorted.first().copied().unwrap_or(0).into(),
            touched_cols,
            mean_gap: mean_gap(matrix),
            locality,
            natural: all_groups(&lengths),
            by_length: all_groups(&sorted),
            sampled_groups: [&similar_rows, &radix_rows, by_locality].map(|rows| {
                let lengths: Vec<u32> = rows.iter().map(|&row| lengths[row as usize]).collect();
                all_groups(&lengths)
            }),
            row_lengths: by_length(&sorted),
            panels: PANEL_ROWS.iter().map(|&m1| (m1, panel(matrix, &order, m1))).collect(),
            overlap: [
                similarity::overlap(matrix, &natural, similarity::PANEL),
                similarity::overlap(matrix, &order, similarity::PANEL),
                similar,
                similarity::overlap(matrix, &radix_rows, similarity::PANEL),
                similarity::overlap(matrix, by_locality, similarity::PANEL),
            ],
            tiled: [
                tiled.clone(),
                sampled(RowOrder::Length, &order),
                sampled(RowOrder::Similarity, &similar_rows),
                sampled(RowOrder::Radix, &radix_rows),
                sampled(RowOrder::Locality, by_locality),
            ],
            far_gain: promise.far,
            windows: Estimates::of(matrix),
        }
    }

    /// Groups of `size` rows, a power of two up to 256 (larger sizes get the figures of 256).
    pub fn groups(&self, size: u32, by_length: bool) -> Groups {
        of_size(if by_length { &self.by_length } else { &self.natural }, size)
    }

    /// LO-SpMM's COV_row: how unequal tiles of `size` rows are that are cut from an order, as the coefficient of variation of
    /// their entries. Exact in natural order and by length; that of the ordered sample in the other orders, which are made only
    /// for a candidate that runs.
    pub fn imbalance(&self, size: u32, order: RowOrder) -> f64 {
        let groups = match order {
            // Single rows are the same in every order, and a sample of them must not look better than all of them.
            _ if size <= 1 => &self.natural,
            RowOrder::Natural => &self.natural,
            RowOrder::Length => &self.by_length,
            RowOrder::Similarity => &self.sampled_groups[0],
            RowOrder::Radix => &self.sampled_groups[1],
            RowOrder::Locality => &self.sampled_groups[2],
        };
        of_size(groups, size).cov
    }

    /// The share of all entries that are in rows of more than `lower` and at most `upper` entries.
    pub fn share_within(&self, lower: u32, upper: u32) -> f64 {
        let within = self.row_lengths.iter().filter(|row| (lower + 1..=upper).contains(&row.0));
        within.map(|row| f64::from(row.0) * row.1 as f64).sum::<f64>() / self.nnz.max(1) as f64
    }

    /// Rows above `threshold` cut into segments of at most `chunk` entries, roughly: lengths are taken to a power of two.
    pub fn cut(&self, threshold: u64, chunk: u64) -> Cut {
        let mut cut = Cut { segments: 0.0, short_rows: 0.0 };
        for (rows, entries) in by_power(&self.row_lengths) {
            if entries > chunk * rows {
                cut.segments += entries as f64 / chunk as f64 + rows as f64 / 2.0;
            } else if entries > threshold * rows {
                cut.segments += rows as f64;
            } else {
                cut.short_rows += rows as f64;
            }
        }
        cut
    }

    pub fn locality(&self, by_length: bool) -> Locality {
        self.locality[usize::from(by_length)]
    }

    /// In any order. Orders by columns are sampled: the gain of windows of 64 rows is measured, those of 8192 lose nothing.
    pub fn locality_in(&self, order: RowOrder) -> Locality {
        let natural = self.locality(false);
        match order {
            RowOrder::Natural => natural,
            RowOrder::Length => self.locality(true),
            RowOrder::Similarity | RowOrder::Radix | RowOrder::Locality => {
                let near = natural.near * self.rho(order) / self.rho(RowOrder::Natural);
                let far = match order {
                    RowOrder::Locality => natural.far * self.far_gain,
                    _ => natural.far,
                };
                Locality { near, far: far.max(near) }
            }
        }
    }

    /// rho of Tiled SpMM (Table 1) for panels of 64 rows cut from an order: entries over distinct columns, counted on a sample.
    pub fn rho(&self, order: RowOrder) -> f64 {
        let cut =
            sample::Cut { rows: NEAR_ROWS as u32, buffer: u32::from(u16::MAX), segment: None };
        self.tiled(order).footprint(cut).reuse()
    }

    /// How the rows of 8-row panels cut from an order overlap.
    pub fn overlap(&self, order: RowOrder) -> Overlap {
        self.overlap[place(order)]
    }

    /// How many times the columns that rows share in the better of the two other orders they share in order of similarity.
    pub fn similarity_gain(&self) -> f64 {
        similarity::gain(self.overlap[2], &self.overlap[..2])
    }

    /// How many times as often columns recur by locality among the rows that share a cache, L1 or L2, as in the better of
    /// natural order and order by length; at least 1.
    pub fn locality_gain(&self) -> f64 {
        let ordered = self.locality_in(RowOrder::Locality);
        let better = |of: fn(Locality) -> f64| of(self.locality[0]).max(of(self.locality[1]));
        let near = ordered.near / better(|it| it.near);
        near.max(ordered.far / better(|it| it.far)).max(1.0)
    }

    /// What Tiled SpMM's model reads, in an order of the rows.
    pub fn tiled(&self, order: RowOrder) -> &Sampled {
        &self.tiled[place(order)]
    }

    pub fn panel(&self, m1: u32) -> Panel {
        self.panels.get(&m1).copied().unwrap_or(Panel {
            union: self.nnz as f64,
            reuse: 1.0,
            fill: f64::from(m1),
        })
    }
}

/// Where figures of an order stand.
fn place(order: RowOrder) -> usize {
    match order {
        RowOrder::Natural => 0,
        RowOrder::Length => 1,
        RowOrder::Similarity => 2,
        RowOrder::Radix => 3,
        RowOrder::Locality => 4,
    }
}

/// Rows above a length cut into parts of at most that length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    pub segments: f64,
    /// Rows that are left whole.
    pub short_rows: f64,
}

/// Rows by falling length, rows of equal length in natural order (they are likelier to share columns).
pub fn rows_by_length(matrix: &Csr) -> Vec<u32> {
    let rows = matrix.rows();
    let longest = (0..rows).map(|row| matrix.row_nnz(row)).max().unwrap_or(0);
    if longest > 4 * rows + COUNTED {
        let mut order: Vec<u32> = (0..rows as u32).collect();
        order.par_sort_by_key(|&row| std::cmp::Reverse(matrix.row_nnz(row as usize)));
        return order;
    }
    // Place `longest - length` counts the rows before the next shorter length.
    let mut next = vec![0u32; longest + 2];
    (0..rows).for_each(|row| next[longest - matrix.row_nnz(row) + 1] += 1);
    (1..next.len()).for_each(|at| next[at] += next[at - 1]);
    let mut order = vec![0u32; rows];
    for row in 0..rows {
        let place = &mut next[longest - matrix.row_nnz(row)];
        order[*place as usize] = row as u32;
        *place += 1;
    }
    order
}

/// Columns that any entry touches: one bit per column, and no further reading once all are set.
fn touched(matrix: &Csr) -> u64 {
    let words: Vec<AtomicU64> =
        (0..matrix.cols().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
    let count = AtomicU64::new(0);
    matrix.indices().par_chunks(1 << 16).for_each(|cols| {
        if count.load(Relaxed) == matrix.cols() as u64 {
            return;
        }
        let mut new = 0;
        for &col in cols {
            let (word, bit) = (&words[col as usize / 64], 1 << (col % 64));
            if word.load(Relaxed) & bit == 0 {
                new += u64::from(word.fetch_or(bit, Relaxed) & bit == 0);
            }
        }
        count.fetch_add(new, Relaxed);
    });
    count.into_inner()
}

#[cfg(test)]
impl Inspection {
    /// With groups of each of these sizes in natural order, in place of the powers of two.
    pub fn with_groups(mut self, lengths: &[u32], sizes: impl Iterator<Item = u32>) -> Self {
        let of = |size: u32| (size, groups::of_consecutive(lengths, size));
        self.natural = sizes.map(of).collect();
        self
    }
}

/// Lengths in rising order with how often each occurs, from falling ones.
fn by_length(falling: &[u32]) -> Vec<(u32, u64)> {
    let runs = falling.chunk_by(|a, b| a == b).rev();
    runs.map(|run| (run[0], run.len() as u64)).collect()
}

/// Rows and their entries by the power of two that their length reaches.
fn by_power(lengths: &[(u32, u64)]) -> [(u64, u64); 33] {
    let mut powers = [(0, 0); 33];
    for &(length, count) in lengths {
        let (rows, entries) = &mut powers[(u32::BITS - length.leading_zeros()) as usize];
        *rows += count;
        *entries += u64::from(length) * count;
    }
    powers
}

fn mean_gap(matrix: &Csr) -> f64 {
    let step = matrix.rows().div_ceil(65_536).max(1);
    let (mut sum, mut pairs) = (0.0, 0u64);
    for row in (0..matrix.rows()).step_by(step) {
        let (cols, _) = matrix.row(row);
        if let (Some(first), Some(last)) = (cols.first(), cols.last()) {
            sum += f64::from(last - first);
            pairs += cols.len() as u64 - 1;
        }
    }
    if pairs == 0 { 1.0 } else { (sum / pairs as f64).max(1.0) }
}

fn panel(matrix: &Csr, order: &[u32], m1: u32) -> Panel {
    let reuse = reuse(matrix, order, m1 as usize);
    let union = matrix.nnz() as f64 / reuse;
    Panel { union, reuse, fill: f64::from(m1) / reuse }
}

/// Entries over distinct columns in windows of `size` consecutive rows of an order, on evenly spread samples.
fn reuse(matrix: &Csr, order: &[u32], size: usize) -> f64 {
    similarity::overlap(matrix, order, size).reuse
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> Csr {
        // Rows of 1, 3, 1 and 3 entries; the long ones are equal, and so are the short ones.
        Csr::new(4, 4, vec![0, 1, 4, 5, 8], vec![3, 0, 1, 2, 3, 0, 1, 2], vec![1.0; 8]).unwrap()
    }

    #[test]
    fn orders_and_groups() {
        let inspection = Inspection::of(&matrix());
        assert_eq!(rows_by_length(&matrix()), [1, 3, 0, 2]);
        assert_eq!(inspection.groups(2, false).cov, 0.0);
        assert_eq!(inspection.groups(2, true).cov, 0.5);
        assert_eq!(inspection.groups(2, false).lockstep, 1.5);
        assert_eq!(inspection.groups(2, true).lockstep, 1.0);
        assert_eq!(inspection.groups(1, false).heaviest, 3);
        assert_eq!(inspection.row_lengths, [(1, 2), (3, 2)]);
        assert_eq!((inspection.longest_row, inspection.touched_cols), (3, 4));
    }

    #[test]
    fn one_huge_row_does_not_hide_what_the_others_share() {
        // 2000 rows of the same 40 columns, and one with all 100,000.
        let shared: Vec<u32> = (0..40).map(|i| i * 2500).collect();
        let mut indices: Vec<u32> = (0..100_000).collect();
        (0..2000).for_each(|_| indices.extend(&shared));
        let ptr = std::iter::once(0).chain((0..=2000).map(|row| 100_000 + row * 40)).collect();
        let values = vec![1.0; indices.len()];
        let matrix = Csr::new(2001, 100_000, ptr, indices, values).unwrap();
        let near = Inspection::of(&matrix).locality(false).near;
        // 80,000 entries met 64 times each, and 100,000 once.
        assert!((1.7..1.85).contains(&near), "{near}");
    }

    #[test]
    fn equal_rows_share_their_panel() {
        let panel = Inspection::of(&matrix()).panel(2);
        assert_eq!((panel.union, panel.reuse, panel.fill), (4.0, 2.0, 1.0));
    }

    #[test]
    fn an_empty_matrix_is_inspected_too() {
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        let inspection = Inspection::of(&empty);
        assert_eq!((inspection.nnz, inspection.groups(32, true).count), (0, 0));
    }
}
