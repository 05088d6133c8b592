//! Packed tiles of panels of 128 rows: the panel's distinct columns, gathered into tiles 128 bytes wide, and each tile's entries
//! as places in the tile and values, in an order that spreads their stores over the banks of shared memory.

use crate::ops::spmm::condensed_tc::pack::Operand;
use crate::ops::spmm::shared::MOST_KEPT;
use crate::sparse::Csr;
use rayon::prelude::*;
use std::sync::Arc;

/// Rows of a panel.
pub const ROWS: usize = 128;
/// Rows that one warp expands: a quarter of a panel.
const WARP_ROWS: usize = 32;
const QUARTERS: usize = ROWS / WARP_ROWS;
/// Entries that a lane takes at once.
const EIGHT: usize = 8;
/// Entries that a warp takes at once: each lane eight.
const AT_ONCE: usize = 32 * EIGHT;
/// Banks of shared memory, 4 bytes wide.
const BANKS: usize = 32;
/// In the list of a tile's columns: there is no such column.
pub const NONE: u32 = u32::MAX;

/// The matrix as the kernel reads it; V is f32, or the bits of a type of 16.
#[derive(Clone, Debug, PartialEq)]
pub struct Expanded<V> {
    /// Panel i has the tiles `panel_ptr[i]..panel_ptr[i + 1]`.
    pub panel_ptr: Arc<[u32]>,
    /// Tile t has the entries `8 * entry_ptr[t]..8 * entry_ptr[t + 1]`.
    pub entry_ptr: Arc<[u32]>,
    /// Of each tile: the number of eights of the first one, two, three and four quarters of its rows, four times nothing, its
    /// columns as words of two, low half first, and the place of each entry.
    pub places: Arc<[u16]>,
    /// The value of each entry.
    pub values: Arc<[V]>,
    /// Eights of the tile that has most.
    pub most: u32,
}

impl<V> Expanded<V> {
    pub fn bytes(&self) -> u64 {
        let words = self.panel_ptr.len() + self.entry_ptr.len();
        (4 * words + 2 * self.places.len() + size_of::<V>() * self.values.len()) as u64
    }
}

/// Halfwords of a tile's record before the places of its entries.
pub fn record(depth: usize) -> usize {
    2 * QUARTERS + 2 * depth
}

/// Columns of A in a tile of elements of so many bytes.
pub fn depth(element: usize) -> usize {
    128 / element
}

/// Place of an entry in a tile in the swizzle of 128 bytes, in elements.
pub fn place(row: usize, col: usize, element: usize) -> usize {
    let (chunk, at) = (col * element / 16, col % (16 / element));
    (row * 128 + ((chunk ^ (row % 8)) << 4)) / element + at
}

/// Packs all rows as they come. `None` if it exceeds 32-bit offsets or `MOST_KEPT` bytes.
pub fn pack<V: Operand>(matrix: &Csr) -> Option<Expanded<V::Stored>> {
    let element = size_of::<V::Stored>();
    // What the entries alone take, before anything is packed.
    if matrix.nnz() as u64 * (2 + element as u64) > MOST_KEPT {
        return None;
    }
    let panels = matrix.rows().div_ceil(ROWS);
    let work = Work::<V::Stored>::default;
    let packed: Vec<Panel<V::Stored>> = (0..panels)
        .into_par_iter()
        .map_init(work, |work, panel| work.panel::<V>(matrix, panel * ROWS))
        .collect();
    let bytes =
        |panel: &Panel<V::Stored>| (2 * panel.places.len() + element * panel.values.len()) as u64;
    if packed.iter().map(bytes).sum::<u64>() > MOST_KEPT {
        return None;
    }
    let (mut panel_ptr, mut entry_ptr, mut most) = (vec![0u32], vec![0u32], 0);
    for panel in &packed {
        for &eights in &panel.eights {
            most = most.max(eights);
            entry_ptr.push(entry_ptr.last()?.checked_add(eights)?);
        }
        panel_ptr.push(u32::try_from(entry_ptr.len() - 1).ok()?);
    }
    let places: Vec<&[u16]> = packed.iter().map(|panel| &panel.places[..]).collect();
    let values: Vec<&[V::Stored]> = packed.iter().map(|panel| &panel.values[..]).collect();
    Some(Expanded {
        panel_ptr: panel_ptr.into(),
        entry_ptr: entry_ptr.into(),
        places: places.concat().into(),
        values: values.concat().into(),
        most,
    })
}

/// One panel's tiles.
struct Panel<S> {
    eights: Vec<u32>,
    places: Vec<u16>,
    values: Vec<S>,
}

/// Work space of one task.
struct Work<S> {
    /// The panel's columns, rising.
    cols: Vec<u32>,
    /// Entries of each tile so far.
    tiles: Vec<Tile<S>>,
}

impl<S> Default for Work<S> {
    fn default() -> Self {
        Self { cols: Vec::new(), tiles: Vec::new() }
    }
}

struct Tile<S> {
    entries: Vec<(u16, S)>,
    /// Entries of the quarter at hand by bank, and as they will be stored.
    sorted: Vec<(u16, S)>,
    ends: [u16; QUARTERS],
}

impl<S: Copy + Default> Work<S> {
    fn panel<V: Operand<Stored = S>>(&mut self, matrix: &Csr, first: usize) -> Panel<S> {
        let element = size_of::<S>();
        let depth = depth(element);
        let rows = first..matrix.rows().min(first + ROWS);
        self.cols.clear();
        rows.clone().for_each(|row| self.cols.extend_from_slice(matrix.row(row).0));
        self.cols.sort_unstable();
        self.cols.dedup();
        let count = self.cols.len().div_ceil(depth);
        self.tiles.truncate(count);
        for tile in &mut self.tiles {
            tile.entries.clear();
        }
        let empty = || Tile { entries: Vec::new(), sorted: Vec::new(), ends: [0; QUARTERS] };
        self.tiles.resize_with(count, empty);
        for quarter in 0..QUARTERS {
            let starts: Vec<usize> = self.tiles.iter().map(|tile| tile.entries.len()).collect();
            let from = first + quarter * WARP_ROWS;
            for row in from.min(rows.end)..rows.end.min(from + WARP_ROWS) {
                let (cols, values) = matrix.row(row);
                let mut local = 0;
                for (&col, &value) in cols.iter().zip(values) {
                    local = found(&self.cols, local, col);
                    let place = place(row - first, local % depth, element) as u16;
                    self.tiles[local / depth].entries.push((place, V::of(value)));
                }
            }
            for (tile, start) in self.tiles.iter_mut().zip(starts) {
                tile.close(quarter, start, element);
            }
        }
        self.written(depth)
    }

    fn written(&self, depth: usize) -> Panel<S> {
        let entries: usize = self.tiles.iter().map(|tile| tile.entries.len()).sum();
        let mut panel = Panel {
            eights: Vec::with_capacity(self.tiles.len()),
            places: Vec::with_capacity(entries + self.tiles.len() * record(depth)),
            values: Vec::with_capacity(entries),
        };
        for (tile, cols) in self.tiles.iter().zip(self.cols.chunks(depth)) {
            panel.eights.push((tile.entries.len() / EIGHT) as u32);
            panel.places.extend(tile.ends);
            panel.places.extend([0; QUARTERS]);
            let missing = std::iter::repeat_n(NONE, depth - cols.len());
            for col in cols.iter().copied().chain(missing) {
                panel.places.extend([col as u16, (col >> 16) as u16]);
            }
            panel.places.extend(tile.entries.iter().map(|entry| entry.0));
            panel.values.extend(tile.entries.iter().map(|entry| entry.1));
        }
        panel
    }
}

/// Where a column stands that is at or after a place: in steps that double, since it is mostly near.
fn found(cols: &[u32], from: usize, col: u32) -> usize {
    let (mut low, mut step) = (from, 1);
    while cols.get(low + step).is_some_and(|&next| next <= col) {
        low += step;
        step *= 2;
    }
    let end = cols.len().min(low + step);
    low + cols[low..end].partition_point(|&at| at < col)
}

impl<S: Copy> Tile<S> {
    /// Orders the entries of a quarter, from `start` on, and fills up its last eight. A lane stores eight neighbours one after
    /// the other and the lanes of a warp store side by side, so neighbours should be of one bank, and what is eight apart of
    /// different ones: by bank. Where a warp takes several turns, each gets its share of every bank.
    fn close(&mut self, quarter: usize, start: usize, element: usize) {
        let bank = |place: u16| usize::from(place) * element / 4 % BANKS;
        let count = self.entries.len() - start;
        let turns = count.div_ceil(AT_ONCE).max(1);
        self.sorted.clear();
        self.sorted.extend_from_slice(&self.entries[start..]);
        self.sorted.sort_by_key(|entry| bank(entry.0));
        self.entries.truncate(start);
        for turn in 0..turns {
            self.entries.extend(self.sorted.iter().skip(turn).step_by(turns));
        }
        if let Some(&last) = self.entries.last() {
            self.entries.resize(self.entries.len().next_multiple_of(EIGHT), last);
        }
        self.ends[quarter] = (self.entries.len() / EIGHT) as u16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::generate::Spec;

    /// Every entry of the matrix stands in exactly one place, with its value, and what fills up repeats an entry.
    fn unpacked<V: Operand>(matrix: &Csr) -> Vec<(usize, u32, f32)> {
        let element = size_of::<V::Stored>();
        let depth = depth(element);
        let packed = pack::<V>(matrix).expect("fits");
        let mut found = Vec::new();
        for (panel, tiles) in packed.panel_ptr.windows(2).enumerate() {
            for tile in tiles[0] as usize..tiles[1] as usize {
                let (from, to) =
                    (packed.entry_ptr[tile] as usize, packed.entry_ptr[tile + 1] as usize);
                assert!(to - from <= packed.most as usize);
                let at = EIGHT * from + record(depth) * tile;
                let head = &packed.places[at..at + record(depth)];
                assert_eq!(usize::from(head[3]), to - from);
                let col = |k: usize| u32::from(head[8 + 2 * k]) | u32::from(head[9 + 2 * k]) << 16;
                let mut seen = std::collections::BTreeMap::new();
                let places = &packed.places[at + record(depth)..][..EIGHT * (to - from)];
                for (i, (&place, &value)) in
                    places.iter().zip(&packed.values[EIGHT * from..EIGHT * to]).enumerate()
                {
                    let (row, inside) =
                        (usize::from(place) * element / 128, usize::from(place) * element % 128);
                    let k = ((inside / 16) ^ (row % 8)) * (16 / element) + inside % 16 / element;
                    assert_eq!(super::place(row, k, element), usize::from(place));
                    let quarter =
                        head[..4].iter().filter(|&&end| usize::from(end) <= i / EIGHT).count();
                    assert_eq!(quarter, row / WARP_ROWS);
                    assert_ne!(col(k), NONE);
                    let value = V::widen(value);
                    let before = seen.insert(place, value);
                    assert!(before.is_none_or(|before| before == value));
                    if before.is_none() {
                        found.push((panel * ROWS + row, col(k), value));
                    }
                }
            }
        }
        found.sort_by_key(|&(row, col, _)| (row, col));
        found
    }

    #[test]
    fn all_entries_are_packed_once() {
        for spec in [
            "uniform:rows=300,cols=1000,nnz=30000,seed=1",
            "uniform:rows=1,cols=1,nnz=1,seed=1",
            "blocks:rows=129,cols=70,block=70,density=1,seed=1",
            "rmat:scale=9,edge_factor=8,seed=2",
            "long_row:rows=257,cols=900,per_row=2,seed=1",
        ] {
            let spec = Spec::parse(spec).expect("a generator");
            let matrix = spec.generate().expect("a matrix");
            let entries = |round: fn(f64) -> f32| -> Vec<(usize, u32, f32)> {
                (0..matrix.rows())
                    .flat_map(|row| {
                        let (cols, values) = matrix.row(row);
                        cols.iter().zip(values).map(move |(&col, &value)| (row, col, round(value)))
                    })
                    .collect()
            };
            assert_eq!(unpacked::<f32>(&matrix), entries(|value| value as f32));
            let half = |value: f64| {
                half::f16::from_bits(crate::sparse::operand::half_bits(value)).to_f32()
            };
            assert_eq!(unpacked::<half::f16>(&matrix), entries(half));
        }
    }

    #[test]
    fn stores_of_a_warp_are_spread_over_the_banks() {
        let spec = Spec::parse("uniform:rows=128,cols=640,nnz=10240,seed=1").expect("a generator");
        let matrix = spec.generate().expect("a matrix");
        let packed = pack::<half::f16>(&matrix).expect("fits");
        let (mut stores, mut passes) = (0, 0);
        for tile in 0..packed.entry_ptr.len() - 1 {
            let at = EIGHT * packed.entry_ptr[tile] as usize + record(64) * tile;
            let mut from = 0;
            for end in &packed.places[at..at + 4] {
                let eights = &packed.places[at + record(64) + EIGHT * from..]
                    [..EIGHT * (usize::from(*end) - from)];
                for i in 0..EIGHT {
                    let mut banks = [0; BANKS];
                    for eight in eights.chunks(EIGHT) {
                        banks[usize::from(eight[i]) / 2 % BANKS] += 1;
                    }
                    stores += 1;
                    passes += banks.iter().max().copied().unwrap_or(0);
                }
                from = usize::from(*end);
            }
        }
        // Stores in the order of rows take 3.5 passes.
        // A bank that has nine entries stands twice in one of the stores.
        assert!(f64::from(passes) < 2.2 * f64::from(stores), "{passes} passes of {stores} stores");
    }
}
