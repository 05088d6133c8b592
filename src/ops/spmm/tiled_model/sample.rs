//! What Tiled SpMM's model reads of a pattern: evenly spread windows of rows, laid out as the packer would.

use super::super::tiled::pack::{distinct, end_of_stage};
use super::super::tiled::slots::{self, Slot};
use crate::ops::spmm::strips::Strips;
use crate::sparse::Csr;
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// Rows per window: whole panels of every possible height.
const WINDOW: usize = 256;
/// Approximate number of entries that are read: of larger windows, strips of columns are read.
const ENTRIES: usize = 1 << 17;
/// Fewest windows, however long their rows are, and most.
const WINDOWS: [usize; 2] = [8, 512];
const WARP: usize = 32;
/// Row lengths below this are counted in a table.
const SHORT: usize = 4096;
/// A line of device memory in the paper's abstract machine: two sectors (section 2.4, feature 7).
pub const LINE: u64 = 64;
/// Bytes of an element that lines are counted for.
pub const ELEMENTS: [u64; 3] = [2, 4, 8];

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
    /// Whether rows are not in the matrix's own order, so that C is stored through a permutation.
    pub permuted: bool,
    /// Rows of one window after the other: row i has `cols[ptr[i] .. ptr[i + 1]]`.
    ptr: Arc<[usize]>,
    cols: Arc<[u32]>,
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

/// Sums over the sampled windows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Footprint {
    pub rows: u64,
    pub entries: u64,
    /// Threads: rows, or their segments and the slots that pad warps.
    pub slots: u64,
    /// Rows and segments of rows.
    pub parts: u64,
    /// Values that S-ELL stores, including padding.
    pub stored: u64,
    /// Distinct columns of every panel.
    pub distinct: u64,
    pub panels: u64,
    pub stages: u64,
    /// Bytes of lines that the warps' gathers touch, for elements of 2, 4 and 8 bytes; a gather of consecutive columns
    /// counts as coalesced.
    pub line_bytes: [u64; 3],
}

impl Sampled {
    /// `order` permutes the rows; `None` is the matrix's own order. `touched_cols` as the inspection counted them.
    pub fn of(matrix: &Csr, order: Option<&[u32]>, touched_cols: u64) -> Self {
        let (rows, nnz) = (matrix.rows(), matrix.nnz());
        let at = |slot: usize| order.map_or(slot, |order| order[slot] as usize);
        let length = |slot: usize| matrix.row_nnz(at(slot)) as u64;
        let mean = nnz as f64 / rows.max(1) as f64;
        let variance = (0..rows).map(|row| (length(row) as f64 - mean).powi(2)).sum::<f64>();
        let in_a_warp = |warp: usize| (warp..rows.min(warp + WARP)).map(length).max().unwrap_or(0);
        let padded = (0..rows).step_by(WARP).map(in_a_warp).sum::<u64>() * WARP as u64;
        let windows = rows.div_ceil(WINDOW);
        let wanted = ENTRIES / (mean * WINDOW as f64).ceil().max(1.0) as usize;
        let taken = wanted.clamp(WINDOWS[0], WINDOWS[1]).min(windows);
        // The middle of each share: the ends of an order by length are not typical.
        let middle = |sample: usize| (2 * sample + 1) * windows / (2 * taken);
        let mut starts: Vec<usize> = (0..taken).map(middle).collect();
        let weight = windows.div_ceil(taken.max(1)) as u64;
        // The first of equals: in an order by length that is the first row.
        let longest_slot = (0..rows).rev().max_by_key(|&slot| length(slot)).unwrap_or(0);
        let lone = taken < windows && !starts.contains(&(longest_slot / WINDOW));
        starts.extend(lone.then_some(longest_slot / WINDOW));
        let looked: Vec<u32> = starts
            .iter()
            .flat_map(|window| window * WINDOW..rows.min((window + 1) * WINDOW))
            .map(|slot| at(slot) as u32)
            .collect();
        let strips = Strips::of(matrix, &looked, ENTRIES);
        let (mut ptr, mut cols) = (vec![0], Vec::new());
        for &row in &looked {
            strips.extend(&mut cols, matrix.row(row as usize).0);
            ptr.push(cols.len());
        }
        let entries: usize = looked.iter().map(|&row| matrix.row_nnz(row as usize)).sum();
        Self {
            rows: rows as u64,
            nnz: nnz as u64,
            touched_cols,
            mean,
            sigma: (variance / rows.max(1) as f64).sqrt(),
            longest: (0..rows).map(length).max().unwrap_or(0),
            lockstep: if nnz == 0 { 1.0 } else { padded as f64 / nnz as f64 },
            permuted: order.is_some(),
            share: if cols.is_empty() { 1.0 } else { cols.len() as f64 / entries as f64 },
            weight,
            lone,
            lengths: distinct_lengths((0..rows).map(length)).into(),
            ptr: ptr.into(),
            cols: cols.into(),
            known: Arc::default(),
        }
    }

    /// Entries that a footprint is measured on.
    pub fn looked(&self) -> usize {
        self.cols.len()
    }

    /// Mean entries of what rows of more than `segment` entries are cut to, exact.
    pub fn mean_part(&self, segment: Option<u32>) -> f64 {
        let parts = |length: u64| segment.map_or(1, |most| length.div_ceil(most.into()).max(1));
        let all: u64 = self.lengths.iter().map(|&(length, rows)| rows * parts(length)).sum();
        self.nnz as f64 / all.max(1) as f64
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

    fn lay(&self, cut: Cut) -> Vec<Laid> {
        let rows: Vec<u32> = (0..self.ptr.len() as u32 - 1).collect();
        let windows = rows.par_chunks(WINDOW).map(|rows| {
            let lengths = rows.iter().map(|&at| (at, self.row(at).len() as u32));
            let slots = match cut.segment {
                Some(segment) => slots::cut(lengths, self.narrowed(segment), WARP).0,
                None => slots::whole(lengths),
            };
            let panels = slots.chunks(cut.rows.max(1) as usize);
            let panels =
                panels.map(|slots| (slots.to_vec(), distinct(slots, &|row| self.row(row))));
            Laid { rows: rows.len() as u64, panels: panels.collect() }
        });
        windows.collect()
    }

    fn measure(&self, laid: &[Laid], cut: Cut) -> Footprint {
        let buffer = self.narrowed(cut.buffer) as usize;
        let windows_laid = laid.len();
        let windows = laid.par_iter().enumerate().map(|(window, laid)| {
            let start = Footprint { rows: laid.rows, ..Footprint::default() };
            let panels = laid.panels.iter();
            let all = panels
                .map(|(slots, map)| of_panel(slots, map, buffer, &|row| self.row(row)))
                .fold(start, Footprint::and);
            let alone = self.lone && window + 1 == windows_laid;
            all.times(if alone { 1 } else { self.weight })
        });
        windows.reduce(Footprint::default, Footprint::and).widened(self.share)
    }
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

impl Footprint {
    /// As often as that.
    fn times(self, times: u64) -> Self {
        Self {
            rows: self.rows * times,
            entries: self.entries * times,
            slots: self.slots * times,
            parts: self.parts * times,
            stored: self.stored * times,
            distinct: self.distinct * times,
            panels: self.panels * times,
            stages: self.stages * times,
            line_bytes: self.line_bytes.map(|bytes| bytes * times),
        }
    }

    /// What all columns give where only a share of them was looked at.
    fn widened(self, share: f64) -> Self {
        let wide = |count: u64| (count as f64 / share).round() as u64;
        Self {
            entries: wide(self.entries),
            stored: wide(self.stored),
            distinct: wide(self.distinct),
            line_bytes: self.line_bytes.map(wide),
            ..self
        }
    }

    fn and(self, other: Self) -> Self {
        let lines = |i: usize| self.line_bytes[i] + other.line_bytes[i];
        Self {
            rows: self.rows + other.rows,
            entries: self.entries + other.entries,
            slots: self.slots + other.slots,
            parts: self.parts + other.parts,
            stored: self.stored + other.stored,
            distinct: self.distinct + other.distinct,
            panels: self.panels + other.panels,
            stages: self.stages + other.stages,
            line_bytes: [lines(0), lines(1), lines(2)],
        }
    }
}

fn of_panel<'a>(
    slots: &[Slot],
    map: &[u32],
    buffer: usize,
    row: &impl Fn(u32) -> &'a [u32],
) -> Footprint {
    let mut next: Vec<usize> = slots.iter().map(|slot| slot.begin as usize).collect();
    let mut steps = 0;
    for &last in map.chunks(buffer).filter_map(<[u32]>::last) {
        for (slots, next) in slots.chunks(WARP).zip(next.chunks_mut(WARP)) {
            let mut longest = 0;
            for (slot, next) in slots.iter().zip(next) {
                let end = end_of_stage(slot, *next, last, row);
                longest = longest.max(end - *next);
                *next = end;
            }
            steps += longest;
        }
    }
    Footprint {
        rows: 0,
        entries: slots.iter().map(|slot| u64::from(slot.end - slot.begin)).sum(),
        slots: slots.len() as u64,
        parts: slots.iter().filter(|slot| slot.key != slots::NO_ROW).count() as u64,
        stored: (steps * WARP) as u64,
        distinct: map.len() as u64,
        panels: 1,
        stages: map.len().div_ceil(buffer) as u64,
        line_bytes: ELEMENTS
            .map(|element| map.chunks(buffer).map(|stage| touched(stage, element)).sum()),
    }
}

/// Bytes of lines that a stage's gathers touch, a warp of columns at a time (section 3.0.2, Fig. 4).
fn touched(stage: &[u32], element: u64) -> u64 {
    let gathers = stage.chunks(WARP).map(|cols| match cols {
        // Coalesced or misaligned: what a gather leaves of a line, its neighbour uses.
        [first, .., last] if (last - first) as usize + 1 == cols.len() => {
            cols.len() as u64 * element
        }
        _ => {
            let line = |col: &u32| u64::from(*col) * element / LINE;
            let changes = cols.windows(2).filter(|pair| line(&pair[0]) != line(&pair[1])).count();
            (changes as u64 + 1) * LINE
        }
    });
    gathers.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_a_warp() {
        let consecutive: Vec<u32> = (5..37).collect();
        assert_eq!(touched(&consecutive, 4), 128);
        // Every 16th float has a line of its own; every 8th shares it with one other.
        let spread = |gap: u32| (0..32).map(|i| i * gap).collect::<Vec<u32>>();
        assert_eq!((touched(&spread(16), 4), touched(&spread(8), 4)), (32 * 64, 16 * 64));
        assert_eq!((touched(&spread(16), 8), touched(&spread(16), 2)), (32 * 64, 16 * 64));
        // 33 columns are two gathers.
        let more: Vec<u32> = (0..33).map(|i| i * 16).collect();
        assert_eq!(touched(&more, 4), 33 * 64);
    }

    #[test]
    fn panels_count_as_the_packer_packs() {
        // 64 rows: row i holds the columns i and i + 1, so a panel of 32 rows has 33.
        let indices = (0..64u32).flat_map(|row| [row, row + 1]).collect();
        let ptr = (0..=64).map(|row| 2 * row).collect();
        let matrix = Csr::new(64, 65, ptr, indices, vec![1.0; 128]).unwrap();
        let sampled = Sampled::of(&matrix, None, 65);
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
