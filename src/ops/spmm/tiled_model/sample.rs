//! What Tiled SpMM's model reads of a pattern: evenly spread windows of rows, laid out as the packer would.

use super::super::tiled::arrange::{arrange, scatters};
use super::super::tiled::pack::distinct;
use super::super::tiled::slots::Slot;
use super::footprint::{Footprint, of_panel};
use crate::ops::spmm::family::RowOrder;
use crate::ops::spmm::strips::Strips;
use crate::sparse::Csr;
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// Rows per window: whole panels of every possible height.
pub const WINDOW: usize = 256;
/// Approximate number of entries that are read: of larger windows, strips of columns are read.
const ENTRIES: usize = 1 << 17;
/// Fewest windows, however long their rows are, and most.
const WINDOWS: [usize; 2] = [8, 512];
const WARP: usize = 32;
/// Row lengths below this are counted in a table.
const SHORT: usize = 4096;
/// Panels of segments that one task lays out.
const PANELS_A_TASK: usize = 4;

/// Windows of rows in one row order, and what is exact for the whole matrix.
#[derive(Clone, Debug)]
pub struct Sampled {
    pub rows: u64,
    pub nnz: u64,
    /// Rows of B that any entry reads.
    pub touched_cols: u64,
    /// Mean and standard deviation of the row lengths (mu and sigma of Fig. 6).
    pub mean: f64,
    pub sigma: f64,
    pub longest: u64,
    /// S-ELL's padding per warp if every panel were one stage, exact: a lower bound of Z.
    pub lockstep: f64,
    /// The order of the rows, or of the segments that they are cut into.
    pub order: RowOrder,
    /// Rows of one window after the other: row i has `cols[ptr[i] .. ptr[i + 1]]`, and is the matrix's row `ids[i]`.
    ptr: Arc<[usize]>,
    cols: Arc<[u32]>,
    ids: Arc<[u32]>,
    /// Where each window starts among these rows, and where the last ends.
    windows: Arc<[usize]>,
    /// Entries of the windows that were looked at, over all of them.
    share: f64,
    /// How many rows each row of the windows stands for: only itself in the last window, which holds the longest row.
    weight: u64,
    lone: bool,
    /// Row lengths, rising, and how many rows have each.
    lengths: Arc<[(u64, u64)]>,
    known: Arc<Mutex<Known>>,
}

/// What was measured so far: cuts, and the panels of a cut for any buffer.
#[derive(Debug, Default)]
struct Known {
    footprints: HashMap<Cut, Footprint>,
    laid: HashMap<(u32, Option<u32>), Arc<Vec<Laid>>>,
}

/// The slots of one window's panels, and their distinct columns.
#[derive(Debug)]
struct Laid {
    rows: u64,
    panels: Vec<(Vec<Slot>, Vec<u32>)>,
}

/// How rows become panels and stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Slots per panel, one per thread.
    pub rows: u32,
    /// Most distinct columns per stage.
    pub buffer: u32,
    /// Entries after which a row is cut.
    pub segment: Option<u32>,
}

impl Sampled {
    /// The matrix's own order. `touched_cols` as the inspection counted them.
    pub fn of(matrix: &Csr, touched_cols: u64) -> Self {
        let (rows, nnz) = (matrix.rows(), matrix.nnz());
        let length = |row: usize| matrix.row_nnz(row) as u64;
        let mean = nnz as f64 / rows.max(1) as f64;
        let variance = (0..rows).map(|row| (length(row) as f64 - mean).powi(2)).sum::<f64>();
        let all = Self {
            rows: rows as u64,
            nnz: nnz as u64,
            touched_cols,
            mean,
            sigma: (variance / rows.max(1) as f64).sqrt(),
            longest: (0..rows).map(length).max().unwrap_or(0),
            lockstep: 1.0,
            order: RowOrder::Natural,
            ptr: [0].into(),
            cols: [].into(),
            ids: [].into(),
            windows: [0].into(),
            share: 1.0,
            weight: 1,
            lone: false,
            lengths: distinct_lengths((0..rows).map(length)).into(),
            known: Arc::default(),
        };
        all.looked_at(matrix, None)
    }

    /// The same matrix in another order: `rows` are all of its rows, or stretches of the order.
    pub fn ordered(&self, matrix: &Csr, order: RowOrder, rows: &[u32]) -> Self {
        Self { order, known: Arc::default(), ..self.clone() }.looked_at(matrix, Some(rows))
    }

    fn looked_at(self, matrix: &Csr, listed: Option<&[u32]>) -> Self {
        let rows = listed.map_or(matrix.rows(), <[u32]>::len);
        let at = |slot: usize| listed.map_or(slot, |listed| listed[slot] as usize);
        let length = |slot: usize| matrix.row_nnz(at(slot)) as u64;
        let in_a_warp = |warp: usize| (warp..rows.min(warp + WARP)).map(length).max().unwrap_or(0);
        let padded = (0..rows).step_by(WARP).map(in_a_warp).sum::<u64>() * WARP as u64;
        let windows = rows.div_ceil(WINDOW);
        let taken = wanted(self.mean).min(windows);
        // The middle of each share: the ends of an order by length are not typical.
        let middle = |sample: usize| (2 * sample + 1) * windows / (2 * taken);
        let starts: Vec<usize> = (0..taken).map(middle).collect();
        let mut ids: Vec<u32> = Vec::new();
        let mut bounds = vec![0];
        for window in starts {
            ids.extend(
                (window * WINDOW..rows.min((window + 1) * WINDOW)).map(|slot| at(slot) as u32),
            );
            bounds.push(ids.len());
        }
        // The window of the longest row, the first of equals: in an order by length that is the first row.
        let whole = rows == matrix.rows();
        let longest = |rows: usize, length: &dyn Fn(usize) -> u64| {
            (0..rows).rev().max_by_key(|&slot| length(slot)).unwrap_or(0) / WINDOW * WINDOW
        };
        let neighbours: Vec<u32> = if whole {
            let first = longest(rows, &length);
            (first..rows.min(first + WINDOW)).map(|slot| at(slot) as u32).collect()
        } else {
            // Where it stands in this order is not known: its neighbours are those it has in the matrix.
            let first = longest(matrix.rows(), &|row| matrix.row_nnz(row) as u64);
            (first as u32..matrix.rows().min(first + WINDOW) as u32).collect()
        };
        let longest =
            |ids: &[u32]| ids.iter().map(|&row| matrix.row_nnz(row as usize) as u64).max();
        let lone = !ids.is_empty() && longest(&ids) < Some(self.longest);
        if lone {
            ids.extend(neighbours);
            bounds.push(ids.len());
        }
        let strips = Strips::of(matrix, &ids, ENTRIES);
        let (mut ptr, mut cols) = (vec![0], Vec::new());
        for &row in &ids {
            strips.extend(&mut cols, matrix.row(row as usize).0);
            ptr.push(cols.len());
        }
        let entries: usize = ids.iter().map(|&row| matrix.row_nnz(row as usize)).sum();
        let exact = whole && self.nnz > 0;
        Self {
            lockstep: if exact { padded as f64 / self.nnz as f64 } else { 1.0 },
            share: if cols.is_empty() { 1.0 } else { cols.len() as f64 / entries as f64 },
            weight: matrix.rows().div_ceil(WINDOW).div_ceil(taken.max(1)) as u64,
            lone,
            ptr: ptr.into(),
            cols: cols.into(),
            ids: ids.into(),
            windows: bounds.into(),
            ..self
        }
    }

    /// Entries that a footprint is measured on.
    pub fn looked(&self) -> usize {
        self.cols.len()
    }

    /// Mean entries of what rows of more than `segment` entries are cut to, exact.
    pub fn mean_part(&self, segment: Option<u32>) -> f64 {
        let all: u64 =
            self.lengths.iter().map(|&(length, rows)| rows * parts(length, segment)).sum();
        self.nnz as f64 / all.max(1) as f64
    }

    /// Partial sums for each column of C that a second step adds up: at most so many where an order parts segments, else exact.
    pub fn partials(&self, segment: Option<u32>) -> u64 {
        let of_row = |length: u64| match parts(length, segment) {
            1 => 0,
            parts if scatters(self.order) => parts,
            parts if parts > WARP as u64 => parts.div_ceil(WARP as u64),
            _ => 0,
        };
        self.lengths.iter().map(|&(length, rows)| rows * of_row(length)).sum()
    }

    /// The footprint of a cut, measured once for all that ask.
    pub fn footprint(&self, cut: Cut) -> Footprint {
        // A thread that panics leaves the map consistent: entries are inserted, never changed.
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(footprint) = known().footprints.get(&cut) {
            return *footprint;
        }
        let key = (cut.rows, cut.segment);
        let laid = known().laid.get(&key).cloned();
        let laid = laid.unwrap_or_else(|| {
            let laid = Arc::new(self.lay(cut));
            known().laid.insert(key, laid.clone());
            laid
        });
        let footprint = self.measure(&laid, cut);
        known().footprints.insert(cut, footprint);
        footprint
    }

    fn row(&self, row: u32) -> &[u32] {
        &self.cols[self.ptr[row as usize]..self.ptr[row as usize + 1]]
    }

    /// A count of entries or columns in what is looked at.
    fn narrowed(&self, count: u32) -> u32 {
        ((f64::from(count) * self.share).round() as u32).max(1)
    }

    /// The windows' panels. Segments that are ordered by their columns are ordered over all windows but the lone one.
    fn lay(&self, cut: Cut) -> Vec<Laid> {
        let segment = cut.segment.map(|segment| self.narrowed(segment));
        let rows = |from: usize, to: usize| {
            (self.windows[from] as u32..self.windows[to] as u32).collect::<Vec<u32>>()
        };
        let arranged =
            |rows: Vec<u32>, order| arrange(rows, &|row| self.row(row), order, segment).0;
        let windows = self.windows.len() - 1;
        if segment.is_none() || !scatters(self.order) {
            let all = (0..windows).into_par_iter().map(|window| {
                let rows = rows(window, window + 1);
                Laid {
                    rows: rows.len() as u64,
                    panels: self.panels(&arranged(rows, self.order), cut),
                }
            });
            return all.collect();
        }
        let ordered = windows - usize::from(self.lone);
        let together = rows(0, ordered);
        let count = together.len() as u64;
        let slots = arranged(together, self.order);
        let shares = slots.par_chunks(PANELS_A_TASK * cut.rows.max(1) as usize);
        let mut laid: Vec<Laid> =
            shares.map(|slots| Laid { rows: 0, panels: self.panels(slots, cut) }).collect();
        if let Some(first) = laid.first_mut() {
            first.rows = count;
        }
        if self.lone {
            let rows = rows(ordered, windows);
            let count = rows.len() as u64;
            let panels = self.panels(&arranged(rows, RowOrder::Natural), cut);
            laid.push(Laid { rows: count, panels });
        }
        laid
    }

    fn panels(&self, slots: &[Slot], cut: Cut) -> Vec<(Vec<Slot>, Vec<u32>)> {
        let panels = slots.chunks(cut.rows.max(1) as usize);
        panels.map(|slots| (slots.to_vec(), distinct(slots, &|row| self.row(row)))).collect()
    }

    fn measure(&self, laid: &[Laid], cut: Cut) -> Footprint {
        let buffer = self.narrowed(cut.buffer) as usize;
        let windows_laid = laid.len();
        let windows = laid.par_iter().enumerate().map(|(window, laid)| {
            let start = Footprint { rows: laid.rows, ..Footprint::default() };
            let panels = laid.panels.iter();
            let all = panels
                .map(|(slots, map)| {
                    of_panel(slots, map, buffer, &|row| (self.row(row), self.ids[row as usize]))
                })
                .fold(start, Footprint::and);
            let alone = self.lone && window + 1 == windows_laid;
            all.times(if alone { 1 } else { self.weight })
        });
        windows.reduce(Footprint::default, Footprint::and).widened(self.share)
    }
}

/// Windows that hold about as many entries as are read, of rows with `mean` entries each.
pub fn wanted(mean: f64) -> usize {
    let wanted = ENTRIES / (mean * WINDOW as f64).ceil().max(1.0) as usize;
    wanted.clamp(WINDOWS[0], WINDOWS[1])
}

/// What a row of `length` entries is cut into.
fn parts(length: u64, segment: Option<u32>) -> u64 {
    segment.map_or(1, |most| length.div_ceil(most.into()).max(1))
}

/// Each length, rising, with how often it occurs.
fn distinct_lengths(lengths: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let (mut short, mut long) = (vec![0u64; SHORT], BTreeMap::new());
    for length in lengths {
        match short.get_mut(length as usize) {
            Some(count) => *count += 1,
            None => *long.entry(length).or_insert(0) += 1,
        }
    }
    let short = short.into_iter().enumerate().map(|(length, count)| (length as u64, count));
    short.chain(long).filter(|(_, count)| *count > 0).collect()
}

/// Sampled windows say all; what was measured on them follows.
impl PartialEq for Sampled {
    fn eq(&self, other: &Self) -> bool {
        let of = |sampled: &Self| (sampled.rows, sampled.nnz, sampled.touched_cols);
        of(self) == of(other) && self.ptr == other.ptr && self.cols == other.cols
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_count_as_the_packer_packs() {
        // 64 rows: row i holds the columns i and i + 1, so a panel of 32 rows has 33.
        let indices = (0..64u32).flat_map(|row| [row, row + 1]).collect();
        let ptr = (0..=64).map(|row| 2 * row).collect();
        let matrix = Csr::new(64, 65, ptr, indices, vec![1.0; 128]).unwrap();
        let sampled = Sampled::of(&matrix, 65);
        let seen = sampled.footprint(Cut { rows: 32, buffer: 512, segment: None });
        assert_eq!((seen.entries, seen.distinct, seen.panels, seen.stages), (128, 66, 2, 2));
        assert_eq!((seen.stored, seen.slots, seen.parts), (128, 64, 64));
        // In stages of 32 columns the last column of a panel is a stage of its own, for one of 32 lanes.
        let seen = sampled.footprint(Cut { rows: 32, buffer: 32, segment: None });
        assert_eq!((seen.stages, seen.stored), (4, 2 * (2 + 1) * 32));
        // Cut after every entry, a row is two slots of a warp.
        let seen = sampled.footprint(Cut { rows: 32, buffer: 512, segment: Some(1) });
        assert_eq!((seen.parts, seen.slots, seen.panels, seen.distinct), (128, 128, 4, 4 * 17));
    }
}
