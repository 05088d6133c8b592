//! The packed form of `tiled`, row-major: per row block a gather map cut into stages, and entries in groups by stage and row
//! (Tiled SpMM, section 3: the map and its 16-bit places; the S-ELL of one thread a row becomes groups of one subwarp a row).

use super::groups::{GROUP, Stored, bytes};
use crate::domain::Dtype;
use crate::domain::recipe::ArrayData;
use crate::ops::spmm::shared::MOST_KEPT;
use crate::sparse::Csr;
use half::{bf16, f16};
use rayon::prelude::*;
use std::cmp::Reverse;
use std::sync::Arc;

/// Number of columns up to which a task keeps a table of all of them; beyond it, it looks places up among the sorted ones.
const MOST_TABLED: usize = 1 << 24;
/// Tasks per thread, so that long ones even out.
const TASKS: usize = 4;

/// How rows and columns are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of A per block.
    pub rows: usize,
    /// Most distinct columns of a stage, at most 65,536.
    pub buffer: usize,
}

/// The arrays that `kernels/spmm/tiled_row.cuh` walks.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    /// Row block i owns the rows `order[i * rows..(i + 1) * rows]`.
    pub order: ArrayData,
    /// Row block i has the stages `block_stages[i]..block_stages[i + 1]`.
    pub block_stages: ArrayData,
    /// Stage s gathers the B rows `map[stage_map[s]..stage_map[s + 1]]`, rising.
    pub stage_map: ArrayData,
    pub map: ArrayData,
    /// Groups of row r of stage s: `bounds[s * rows + r]..bounds[s * rows + r + 1]`.
    pub bounds: ArrayData,
    /// Position of an entry's column in its stage's map.
    pub places: ArrayData,
    pub values: ArrayData,
    /// Stages of the row block that has the most.
    pub most_stages: u32,
}

impl Packed {
    /// In the order of the kernel's parameters, each with its name.
    pub fn arrays(&self) -> [(&'static str, &ArrayData); 7] {
        [
            ("order", &self.order),
            ("block_stages", &self.block_stages),
            ("stage_map", &self.stage_map),
            ("map", &self.map),
            ("bounds", &self.bounds),
            ("places", &self.places),
            ("values", &self.values),
        ]
    }

    pub fn bytes(&self) -> u64 {
        self.arrays().into_iter().map(|(_, array)| bytes(array)).sum()
    }
}

/// Blocks of consecutive rows of an order, the heaviest first, so that light ones fill the end of the last wave; each block's rows by
/// falling length, so that the subwarps of a warp are alike. The last block stays last where it has fewer rows.
pub fn blockwise(matrix: &Csr, order: &[u32], rows: usize) -> Arc<[u32]> {
    let (whole, rest) = order.split_at(order.len() / rows * rows);
    let mut blocks: Vec<&[u32]> = whole.chunks(rows).collect();
    let length = |row: u32| matrix.row_nnz(row as usize);
    blocks.sort_by_cached_key(|block| Reverse(block.iter().map(|&row| length(row)).sum::<usize>()));
    let mut order = blocks.concat();
    order.extend_from_slice(rest);
    order.chunks_mut(rows).for_each(|block| block.sort_by_key(|&row| Reverse(length(row))));
    order.into()
}

/// Packs the matrix with its rows in an order. `None` if it exceeds 32-bit offsets or `MOST_KEPT` bytes.
pub fn pack(matrix: &Csr, order: Arc<[u32]>, shape: Shape, dtype: Dtype) -> Option<Packed> {
    match dtype {
        Dtype::F16 => pack_as::<f16>(matrix, order, shape),
        Dtype::Bf16 => pack_as::<bf16>(matrix, order, shape),
        Dtype::F32 => pack_as::<f32>(matrix, order, shape),
        Dtype::F64 => pack_as::<f64>(matrix, order, shape),
    }
}

fn pack_as<T: Stored>(matrix: &Csr, order: Arc<[u32]>, shape: Shape) -> Option<Packed> {
    let entry = size_of::<u16>() + size_of::<T::Word>();
    if (matrix.nnz() * entry) as u64 > MOST_KEPT {
        return None;
    }
    let blocks = matrix.rows().div_ceil(shape.rows);
    let a_task = blocks.div_ceil(rayon::current_num_threads() * TASKS).max(1);
    let tasks: Vec<usize> = (0..blocks).step_by(a_task).collect();
    let parts: Vec<Part<T>> = tasks
        .into_par_iter()
        .map(|first| {
            let mut packer = Packer::new(matrix, shape);
            let last = (first + a_task).min(blocks);
            let rows = &order[first * shape.rows..(last * shape.rows).min(order.len())];
            for (block, rows) in (first as u32..).zip(rows.chunks(shape.rows)) {
                packer.block(block, rows);
            }
            packer.part
        })
        .collect();
    join(parts, order)
}

/// What one task packs: offsets count from its own beginning, and have no last one.
struct Part<T: Stored> {
    /// Stages of each row block.
    stages: Vec<u32>,
    /// Columns of each stage.
    columns: Vec<u32>,
    map: Vec<u32>,
    /// Groups of each row of each stage.
    groups: Vec<u32>,
    places: Vec<u16>,
    values: Vec<T::Word>,
}

fn join<T: Stored>(parts: Vec<Part<T>>, order: Arc<[u32]>) -> Option<Packed> {
    let most_stages = parts.iter().flat_map(|part| part.stages.iter().copied()).max().unwrap_or(0);
    let block_stages = offsets(parts.iter().map(|part| &part.stages))?;
    let stage_map = offsets(parts.iter().map(|part| &part.columns))?;
    let bounds = offsets(parts.iter().map(|part| &part.groups))?;
    let entries: usize = parts.iter().map(|part| part.places.len()).sum();
    let mut map = Vec::with_capacity(parts.iter().map(|part| part.map.len()).sum());
    let (mut places, mut values) = (Vec::with_capacity(entries), Vec::with_capacity(entries));
    for part in parts {
        map.extend_from_slice(&part.map);
        places.extend_from_slice(&part.places);
        values.extend_from_slice(&part.values);
    }
    let packed = Packed {
        order: ArrayData::U32(order),
        block_stages: ArrayData::U32(block_stages.into()),
        stage_map: ArrayData::U32(stage_map.into()),
        map: ArrayData::U32(map.into()),
        bounds: ArrayData::U32(bounds.into()),
        places: ArrayData::U16(places.into()),
        values: T::array(values),
        most_stages,
    };
    (packed.bytes() <= MOST_KEPT).then_some(packed)
}

/// Running sums of counts, from 0 to the total; `None` beyond 32 bits.
fn offsets<'a>(counts: impl Iterator<Item = &'a Vec<u32>>) -> Option<Vec<u32>> {
    let (mut all, mut total) = (vec![0], 0u32);
    for &count in counts.flatten() {
        total = total.checked_add(count)?;
        all.push(total);
    }
    Some(all)
}

/// One task's tables and what it has packed so far.
struct Packer<'a, T: Stored> {
    matrix: &'a Csr,
    shape: Shape,
    /// The row block, counted from 1, that a column was last seen in; empty where columns are too many for a table.
    seen: Vec<u32>,
    /// Where the columns of the current block are placed: stage and place in it, by column, or by rank without a table.
    placed: Vec<(u32, u16)>,
    /// The distinct columns of the current block, rising.
    distinct: Vec<u32>,
    part: Part<T>,
}

impl<'a, T: Stored> Packer<'a, T> {
    fn new(matrix: &'a Csr, shape: Shape) -> Self {
        let tabled = if matrix.cols() <= MOST_TABLED { matrix.cols() } else { 0 };
        Self {
            matrix,
            shape,
            seen: vec![0; tabled],
            placed: vec![(0, 0); tabled],
            distinct: Vec::new(),
            part: Part {
                stages: Vec::new(),
                columns: Vec::new(),
                map: Vec::new(),
                groups: Vec::new(),
                places: Vec::new(),
                values: Vec::new(),
            },
        }
    }

    fn block(&mut self, block: u32, rows: &[u32]) {
        self.find_distinct(block + 1, rows);
        let stages = self.place();
        self.part.stages.push(stages as u32);
        self.part.map.extend_from_slice(&self.distinct);
        self.fill(stages, rows);
    }

    fn find_distinct(&mut self, stamp: u32, rows: &[u32]) {
        self.distinct.clear();
        for &row in rows {
            let cols = self.matrix.row(row as usize).0;
            if self.seen.is_empty() {
                self.distinct.extend_from_slice(cols);
                continue;
            }
            for &col in cols {
                if std::mem::replace(&mut self.seen[col as usize], stamp) != stamp {
                    self.distinct.push(col);
                }
            }
        }
        self.distinct.sort_unstable();
        if self.seen.is_empty() {
            self.distinct.dedup();
        }
    }

    /// Cuts the distinct columns into as few stages as the buffer allows, about equal ones. Returns how many.
    fn place(&mut self) -> usize {
        let stages = self.distinct.len().div_ceil(self.shape.buffer);
        if self.seen.is_empty() {
            self.placed.resize(self.placed.len().max(self.distinct.len()), (0, 0));
        }
        let mut rank = 0;
        for stage in 0..stages {
            let end = (stage + 1) * self.distinct.len() / stages;
            self.part.columns.push((end - rank) as u32);
            for (place, &col) in self.distinct[rank..end].iter().enumerate() {
                let at = if self.seen.is_empty() { rank + place } else { col as usize };
                self.placed[at] = (stage as u32, place as u16);
            }
            rank = end;
        }
        stages
    }

    fn placed(&self, col: u32) -> (u32, u16) {
        if self.seen.is_empty() {
            self.placed[self.distinct.partition_point(|&have| have < col)]
        } else {
            self.placed[col as usize]
        }
    }

    /// Counts the groups of every stage and row, then puts each row's entries into its groups: columns rise along a row,
    /// and so do its stages.
    fn fill(&mut self, stages: usize, rows: &[u32]) {
        let first = self.part.groups.len();
        let mut starts = vec![0u32; stages * self.shape.rows];
        for (r, &row) in rows.iter().enumerate() {
            for &col in self.matrix.row(row as usize).0 {
                starts[self.placed(col).0 as usize * self.shape.rows + r] += 1;
            }
        }
        self.part.groups.extend(starts.iter().map(|count| count.div_ceil(GROUP as u32)));
        let mut total = 0;
        for (start, groups) in starts.iter_mut().zip(&self.part.groups[first..]) {
            *start = total;
            total += groups * GROUP as u32;
        }
        let base = self.part.places.len();
        self.part.places.resize(base + total as usize, 0);
        self.part.values.resize(base + total as usize, T::Word::default());
        for (r, &row) in rows.iter().enumerate() {
            let (cols, values) = self.matrix.row(row as usize);
            let (mut stage, mut at) = (u32::MAX, 0);
            for (&col, &value) in cols.iter().zip(values) {
                let (here, place) = self.placed(col);
                if here != stage {
                    stage = here;
                    at = base + starts[here as usize * self.shape.rows + r] as usize;
                }
                self.part.places[at] = place;
                self.part.values[at] = T::of(value);
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_stages_and_fills_groups() {
        let matrix =
            Csr::new(3, 10, vec![0, 3, 3, 5], vec![1, 4, 9, 0, 4], vec![1.0, 2.0, 3.0, 4.0, 5.0])
                .unwrap();
        let packed =
            pack(&matrix, [1, 0, 2].into(), Shape { rows: 2, buffer: 2 }, Dtype::F64).unwrap();
        // Columns 1, 4 and 9 of the first block make two stages of one and two; 0 and 4 of the second make one.
        assert_eq!(packed.block_stages, ArrayData::U32([0, 2, 3].into()));
        assert_eq!(packed.stage_map, ArrayData::U32([0, 1, 3, 5].into()));
        assert_eq!(packed.map, ArrayData::U32([1, 4, 9, 0, 4].into()));
        assert_eq!(packed.bounds, ArrayData::U32([0, 0, 1, 1, 2, 3, 3].into()));
        assert_eq!(packed.places, ArrayData::U16([0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0].into()));
        let values = [1.0, 0.0, 0.0, 0.0, 2.0, 3.0, 0.0, 0.0, 4.0, 5.0, 0.0, 0.0];
        assert_eq!(packed.values, ArrayData::F64(values.into()));
        assert_eq!(packed.most_stages, 2);
    }

    #[test]
    fn heavy_blocks_come_first_and_long_rows_first_in_them() {
        let lengths = [1, 0, 2, 4, 1, 1, 3];
        let mut indptr = vec![0];
        lengths.iter().for_each(|length| indptr.push(indptr[indptr.len() - 1] + length));
        let indices = lengths.iter().flat_map(|&length| 0..length as u32).collect();
        let matrix = Csr::new(7, 4, indptr, indices, vec![1.0; 12]).unwrap();
        assert_eq!(blockwise(&matrix, &[0, 1, 2, 3, 4, 5, 6], 2)[..], [3, 2, 4, 5, 0, 1, 6]);
        assert_eq!(blockwise(&matrix, &[6, 5, 4, 3, 2, 1, 0], 2)[..], [3, 4, 6, 5, 2, 1, 0]);
    }

    #[test]
    fn columns_beyond_the_table_are_placed_alike() {
        let (rows, cols) = (70, MOST_TABLED + 5);
        let step = cols / 40;
        let indptr: Vec<usize> = (0..=rows).map(|row| row * 30).collect();
        let indices = |shift: usize| -> Vec<u32> {
            (0..rows * 30).map(|i| ((i % 30 + i / 30 % 7) * step - shift) as u32).collect()
        };
        let packed = |cols, indices: Vec<u32>| {
            let matrix = Csr::new(rows, cols, indptr.clone(), indices, vec![1.5; rows * 30]);
            let order = (0..rows as u32).rev().collect();
            pack(&matrix.unwrap(), order, Shape { rows: 64, buffer: 16 }, Dtype::F32).unwrap()
        };
        let (sorted, tabled) = (packed(cols, indices(0)), packed(MOST_TABLED, indices(0)));
        assert_eq!(sorted, tabled);
    }
}
