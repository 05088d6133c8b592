//! What a tiled kernel walks: gather maps per stage, and S-ELL with 16-bit local indices (Tiled SpMM, section 2.5).

use super::slots::Slot;
use crate::sparse::Csr;
use rayon::prelude::*;

const WARP: usize = 32;

/// The packed matrix. Panels are `panel` consecutive slots, stages at most `buffer` of a panel's distinct columns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tiles {
    /// Panel i has the stages `stage_ptr[i] .. stage_ptr[i + 1]`.
    pub stage_ptr: Vec<u32>,
    /// Stage s stages the rows `map[map_ptr[s] .. map_ptr[s + 1]]` of B, rising.
    pub map_ptr: Vec<u32>,
    pub map: Vec<u32>,
    /// Warp w of stage s walks the steps `ell_ptr[s * warps + w] .. [+ 1]`.
    pub ell_ptr: Vec<u32>,
    /// 32 entries per step, one per lane: the place in the stage, or `buffer` if there is no entry.
    pub ell_index: Vec<u16>,
    /// Like `ell_index`; zero if there is no entry.
    pub ell_value: Vec<f64>,
}

impl Tiles {
    /// Bytes with values of `element` bytes.
    pub fn bytes(&self, element: u64) -> u64 {
        let words = self.stage_ptr.len() + self.map_ptr.len() + self.map.len() + self.ell_ptr.len();
        4 * words as u64 + self.ell_index.len() as u64 * (2 + element)
    }
}

/// One panel: the same, counted from its own start.
#[derive(Default)]
pub struct Panel {
    /// Distinct columns, rising; stages are its chunks of `buffer`.
    pub map: Vec<u32>,
    /// Steps of each warp in each stage.
    pub steps: Vec<u32>,
    pub index: Vec<u16>,
    pub value: Vec<f64>,
}

/// Lays out one panel. `row` gives a row's columns, rising, and `value` the value of its i-th entry.
pub fn panel<'a>(
    slots: &[Slot],
    panel_rows: usize,
    buffer: usize,
    row: impl Fn(u32) -> &'a [u32],
    value: impl Fn(u32, usize) -> f64,
) -> Panel {
    let map = distinct(slots, &row);
    let (stages, warps) = (map.len().div_ceil(buffer), panel_rows / WARP);
    let mut packed = Panel { map, ..Panel::default() };
    // Position of each slot in its row, and in the map.
    let mut next: Vec<usize> = slots.iter().map(|slot| slot.begin as usize).collect();
    for stage in 0..stages {
        let staged = &packed.map[stage * buffer..packed.map.len().min((stage + 1) * buffer)];
        let Some(&last) = staged.last() else { continue };
        for warp in 0..warps {
            let lanes = warp * WARP..((warp + 1) * WARP).min(slots.len());
            let lanes = lanes.start.min(lanes.end)..lanes.end;
            let ends: Vec<usize> =
                lanes.clone().map(|at| end_of_stage(&slots[at], next[at], last, &row)).collect();
            let counts = lanes.clone().zip(&ends).map(|(at, end)| end - next[at]);
            let steps = counts.max().unwrap_or(0);
            packed.steps.push(steps as u32);
            let start = packed.index.len();
            packed.index.resize(start + steps * WARP, buffer as u16);
            packed.value.resize(start + steps * WARP, 0.0);
            for (lane, (at, end)) in lanes.zip(ends).enumerate() {
                let (cols, mut local) = (row(slots[at].row), 0);
                for (step, entry) in (next[at]..end).enumerate() {
                    local += staged[local..].partition_point(|&col| col < cols[entry]);
                    packed.index[start + step * WARP + lane] = local as u16;
                    packed.value[start + step * WARP + lane] = value(slots[at].row, entry);
                }
                next[at] = end;
            }
        }
    }
    packed
}

/// The distinct columns of a panel, rising.
pub fn distinct<'a>(slots: &[Slot], row: &impl Fn(u32) -> &'a [u32]) -> Vec<u32> {
    let filled = slots.iter().filter(|slot| slot.begin < slot.end);
    let mut columns: Vec<u32> = filled
        .flat_map(|slot| &row(slot.row)[slot.begin as usize..slot.end as usize])
        .copied()
        .collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}

/// The first of a slot's entries that lies past the column `last`.
pub fn end_of_stage<'a>(
    slot: &Slot,
    next: usize,
    last: u32,
    row: &impl Fn(u32) -> &'a [u32],
) -> usize {
    if next >= slot.end as usize {
        return next;
    }
    next + row(slot.row)[next..slot.end as usize].partition_point(|&col| col <= last)
}

/// Packs the matrix; `None` where a table's offsets would leave 32 bits, or all of it take more than `most` bytes with
/// values of `element` bytes.
pub fn pack(
    matrix: &Csr,
    slots: &[Slot],
    panel_rows: usize,
    buffer: usize,
    (element, most): (u64, u64),
) -> Option<Tiles> {
    let (indptr, values) = (matrix.indptr(), matrix.values());
    let mut tiles =
        Tiles { stage_ptr: vec![0], map_ptr: vec![0], ell_ptr: vec![0], ..Tiles::default() };
    // Some thousand panels at a time, so that what is packed exists twice only for those.
    for some in slots.chunks(panel_rows * 2048) {
        let panels: Vec<Panel> = some
            .par_chunks(panel_rows)
            .map(|slots| {
                let row = |row: u32| matrix.row(row as usize).0;
                let value = |row: u32, entry: usize| values[indptr[row as usize] + entry];
                panel(slots, panel_rows, buffer, row, value)
            })
            .collect();
        for panel in panels {
            append(&mut tiles, panel, buffer)?;
        }
        if tiles.bytes(element) > most {
            return None;
        }
    }
    Some(tiles)
}

fn append(tiles: &mut Tiles, panel: Panel, buffer: usize) -> Option<()> {
    for stage in panel.map.chunks(buffer) {
        tiles.map.extend_from_slice(stage);
        tiles.map_ptr.push(u32::try_from(tiles.map.len()).ok()?);
    }
    let mut steps = *tiles.ell_ptr.last()?;
    for more in panel.steps {
        steps = steps.checked_add(more)?;
        tiles.ell_ptr.push(steps);
    }
    tiles.stage_ptr.push(u32::try_from(tiles.map_ptr.len() - 1).ok()?);
    tiles.ell_index.extend(panel.index);
    tiles.ell_value.extend(panel.value);
    Some(())
}
