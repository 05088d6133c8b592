//! What a panel moves, counted as the packer packs it: gathers with their lines, S-ELL with its padding, the rows of C.

use super::super::tiled::pack::end_of_stage;
use super::super::tiled::slots::{NO_ROW, PARTIAL, Slot};

const WARP: usize = 32;
/// A line of device memory in the paper's abstract machine: two sectors (section 2.4, feature 7).
const LINE: u64 = 64;
const SECTOR: u64 = 32;
/// Bytes of an element that lines and sectors are counted for.
pub const ELEMENTS: [u64; 3] = [2, 4, 8];

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
    /// Rows of C that panels store, and bytes of the sectors of one column of C that they lie in, for the same elements.
    pub outputs: u64,
    pub sector_bytes: [u64; 3],
}

impl Footprint {
    /// rho: entries per distinct column of a panel; 1 where nothing was looked at.
    pub fn reuse(&self) -> f64 {
        if self.distinct == 0 { 1.0 } else { self.entries as f64 / self.distinct as f64 }
    }

    /// Ratio of stored to real entries.
    pub fn padding(&self) -> f64 {
        if self.entries == 0 { 1.0 } else { self.stored as f64 / self.entries as f64 }
    }

    /// As often as that.
    pub fn times(self, times: u64) -> Self {
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
            outputs: self.outputs * times,
            sector_bytes: self.sector_bytes.map(|bytes| bytes * times),
        }
    }

    /// What all columns give where only a share of them was looked at.
    pub fn widened(self, share: f64) -> Self {
        let wide = |count: u64| (count as f64 / share).round() as u64;
        Self {
            entries: wide(self.entries),
            stored: wide(self.stored),
            distinct: wide(self.distinct),
            line_bytes: self.line_bytes.map(wide),
            ..self
        }
    }

    pub fn and(self, other: Self) -> Self {
        let both = |a: [u64; 3], b: [u64; 3]| [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
        Self {
            rows: self.rows + other.rows,
            entries: self.entries + other.entries,
            slots: self.slots + other.slots,
            parts: self.parts + other.parts,
            stored: self.stored + other.stored,
            distinct: self.distinct + other.distinct,
            panels: self.panels + other.panels,
            stages: self.stages + other.stages,
            line_bytes: both(self.line_bytes, other.line_bytes),
            outputs: self.outputs + other.outputs,
            sector_bytes: both(self.sector_bytes, other.sector_bytes),
        }
    }
}

/// One panel, whose distinct columns are `map`, in stages of at most `buffer` of them. `row` gives a row's columns, rising, and
/// its number in the matrix.
pub fn of_panel<'a>(
    slots: &[Slot],
    map: &[u32],
    buffer: usize,
    row: &impl Fn(u32) -> (&'a [u32], u32),
) -> Footprint {
    let cols = |at| row(at).0;
    let mut next: Vec<usize> = slots.iter().map(|slot| slot.begin as usize).collect();
    let mut steps = 0;
    for &last in map.chunks(buffer).filter_map(<[u32]>::last) {
        for (slots, next) in slots.chunks(WARP).zip(next.chunks_mut(WARP)) {
            let mut longest = 0;
            for (slot, next) in slots.iter().zip(next) {
                let end = end_of_stage(slot, *next, last, &cols);
                longest = longest.max(end - *next);
                *next = end;
            }
            steps += longest;
        }
    }
    // Rows that leave partial sums are stored by the second step.
    let keyed = slots.iter().filter(|slot| slot.key & PARTIAL == 0);
    let mut stored: Vec<u32> = keyed.map(|slot| row(slot.row).1).collect();
    stored.sort_unstable();
    stored.dedup();
    Footprint {
        rows: 0,
        entries: slots.iter().map(|slot| u64::from(slot.end - slot.begin)).sum(),
        slots: slots.len() as u64,
        parts: slots.iter().filter(|slot| slot.key != NO_ROW).count() as u64,
        stored: (steps * WARP) as u64,
        distinct: map.len() as u64,
        panels: 1,
        stages: map.len().div_ceil(buffer) as u64,
        line_bytes: ELEMENTS
            .map(|element| map.chunks(buffer).map(|stage| touched(stage, element)).sum()),
        outputs: stored.len() as u64,
        sector_bytes: ELEMENTS.map(|element| sectors(&stored, element)),
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

/// Bytes of the sectors of a column that these rows lie in; rows rise.
fn sectors(rows: &[u32], element: u64) -> u64 {
    let sector = |row: u32| u64::from(row) * element / SECTOR;
    SECTOR * rows.chunk_by(|&a, &b| sector(a) == sector(b)).count() as u64
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
    fn rows_that_stand_apart_take_sectors_of_their_own() {
        let slot = |row| Slot { key: row, row, begin: 0, end: 1 };
        let of = |rows: [u32; 4]| {
            let slots: Vec<Slot> = (0..4).map(slot).collect();
            of_panel(&slots, &[0], 32, &|at| (&[0], rows[at as usize]))
        };
        let together = of([3, 1, 0, 2]);
        assert_eq!((together.outputs, together.sector_bytes), (4, [32, 32, 32]));
        assert_eq!(of([0, 100, 8, 16]).sector_bytes, [3 * 32, 4 * 32, 4 * 32]);
        let slots = [Slot { key: PARTIAL, ..slot(0) }, slot(1), slot(1), Slot::EMPTY];
        assert_eq!(of_panel(&slots, &[0], 32, &|at| (&[0], at)).outputs, 1);
    }
}
