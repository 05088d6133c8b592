//! Packed panels of 8 rows for tensor cores: steps of columns with 8 values each, and a residue of lone entries.
//!
//! A step has `depth` columns, the k of one MMA. Which column is which k is free, so a step's positions are numbered as
//! lanes hold them: position p belongs to lanes t = p / (depth / 4), and their k are, in order, those of the MMA's
//! fragment. Then `values` is plainly 8 rows by `depth` positions, and a lane's fragment lies at 8 bytes times the lane.

use crate::ops::spmm::shared::MOST_KEPT;
use crate::sparse::Csr;
use crate::sparse::operand::{bf16_bits, half_bits};
use half::{bf16, f16};
use rayon::prelude::*;
use std::sync::Arc;

/// Rows of a panel: the n of the MMA.
pub const ROWS: usize = 8;
/// Residual lists of a panel: one for the lanes of each t, which hold rows 2t and 2t + 1.
pub const LISTS: usize = 4;
/// Flag in a residual entry's column: the entry is of row 2t + 1.
pub const ODD: u32 = 1 << 31;
/// Panels packed by one task.
const TASK: usize = 512;

/// How a panel is cut into steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Columns per step: 8 in tf32, 16 in f16 and bf16.
    pub depth: usize,
    /// Columns with fewer entries in their panel go to the residue; with 0 there is none.
    pub residue: usize,
}

/// The matrix as the kernel walks it; V is f32, or the bits of a type of 16.
#[derive(Clone, Debug, PartialEq)]
pub struct Condensed<V> {
    /// Panel i has the steps `step_ptr[i]..step_ptr[i + 1]`.
    pub step_ptr: Arc<[u32]>,
    /// `depth` columns per step; a position without entries names one of the panel's columns.
    pub cols: Arc<[u32]>,
    /// `ROWS x depth` values per step, row by row.
    pub values: Arc<[V]>,
    /// List 4i + t is of rows 2t and 2t + 1 of panel i; empty where no residue is kept.
    pub residue_ptr: Arc<[u32]>,
    /// Two words per entry: the column with `ODD`, and the value as f32.
    pub residue: Arc<[u32]>,
}

impl<V> Condensed<V> {
    pub fn bytes(&self) -> u64 {
        let words = self.step_ptr.len() + self.cols.len() + self.residue_ptr.len();
        (4 * (words + self.residue.len()) + size_of::<V>() * self.values.len()) as u64
    }
}

/// A type of values as a kernel's operands.
pub trait Operand {
    /// How values are stored.
    type Stored: Copy + Default + Send + Sync + 'static;

    fn of(value: f64) -> Self::Stored;
    fn widen(stored: Self::Stored) -> f32;
}

impl Operand for f32 {
    type Stored = Self;

    fn of(value: f64) -> Self {
        value as Self
    }
    fn widen(stored: Self) -> f32 {
        stored
    }
}

/// As its bits.
impl Operand for f16 {
    type Stored = u16;

    fn of(value: f64) -> u16 {
        half_bits(value)
    }
    fn widen(stored: u16) -> f32 {
        Self::from_bits(stored).to_f32()
    }
}

/// As its bits.
impl Operand for bf16 {
    type Stored = u16;

    fn of(value: f64) -> u16 {
        bf16_bits(value)
    }
    fn widen(stored: u16) -> f32 {
        Self::from_bits(stored).to_f32()
    }
}

/// Packs the rows in an order. `None` if steps or residue exceed 32-bit offsets, or all of it exceeds `MOST_KEPT` bytes.
pub fn pack<V: Operand>(matrix: &Csr, order: &[u32], shape: Shape) -> Option<Condensed<V::Stored>> {
    let tasks: Vec<Part<V::Stored>> = order
        .par_chunks(ROWS * TASK)
        .map(|rows| {
            let mut part = Part::default();
            let (mut entries, mut lists) = (Vec::new(), Default::default());
            let panels = rows.chunks(ROWS);
            panels.for_each(|panel| part.add::<V>(matrix, panel, shape, &mut entries, &mut lists));
            part
        })
        .collect();
    let bytes = |part: &Part<V::Stored>| {
        4 * (part.cols.len() + part.residue.len()) + size_of::<V::Stored>() * part.values.len()
    };
    if tasks.iter().map(|part| bytes(part) as u64).sum::<u64>() > MOST_KEPT {
        return None;
    }
    let residue_ptr = match shape.residue {
        0 => Vec::new(),
        _ => offsets(tasks.iter().flat_map(|part| &part.lists))?,
    };
    Some(Condensed {
        step_ptr: offsets(tasks.iter().flat_map(|part| &part.steps))?.into(),
        cols: joined(&tasks, |part| &part.cols),
        values: joined(&tasks, |part| &part.values),
        residue_ptr: residue_ptr.into(),
        residue: joined(&tasks, |part| &part.residue),
    })
}

/// Running sums of lengths, from 0.
fn offsets<'a>(lengths: impl Iterator<Item = &'a u32>) -> Option<Vec<u32>> {
    let mut all = vec![0u32];
    let mut total = 0u32;
    for &length in lengths {
        total = total.checked_add(length)?;
        all.push(total);
    }
    Some(all)
}

fn joined<V: Send + Sync, T: Copy + Send + Sync>(
    parts: &[Part<V>],
    of: impl Fn(&Part<V>) -> &Vec<T> + Sync,
) -> Arc<[T]> {
    let pieces: Vec<&[T]> = parts.iter().map(|part| of(part).as_slice()).collect();
    pieces.concat().into()
}

/// The panels of one task.
#[derive(Default)]
struct Part<S> {
    steps: Vec<u32>,
    cols: Vec<u32>,
    values: Vec<S>,
    lists: Vec<u32>,
    residue: Vec<u32>,
}

/// An entry of a panel: its column, its row of the panel, its place in the matrix.
type Entry = (u32, u8, usize);

impl<S: Copy + Default> Part<S> {
    /// Adds one panel. `entries` and `lists` are work space; the lists are empty before and after.
    fn add<V: Operand<Stored = S>>(
        &mut self,
        matrix: &Csr,
        rows: &[u32],
        shape: Shape,
        entries: &mut Vec<Entry>,
        lists: &mut [Vec<u32>; LISTS],
    ) {
        entries.clear();
        for (m, &row) in rows.iter().enumerate() {
            let start = matrix.indptr()[row as usize];
            let cols = matrix.row(row as usize).0.iter().enumerate();
            entries.extend(cols.map(|(at, &col)| (col, m as u8, start + at)));
        }
        if rows.len() > 1 {
            entries.sort_unstable();
        }
        let runs = || entries.chunk_by(|a, b| a.0 == b.0);
        let dense = runs().filter(|run| run.len() >= shape.residue).count();
        // The last step has room, so lone columns cost nothing there.
        let mut room = dense.next_multiple_of(shape.depth) - dense;
        let (first, mut at) = (self.cols.len(), 0);
        let value = |entry: &Entry| V::of(matrix.values()[entry.2]);
        for run in runs() {
            let lone = run.len() < shape.residue;
            if lone && room == 0 {
                for entry in run {
                    let (col, odd) = (entry.0, if entry.1 % 2 == 1 { ODD } else { 0 });
                    lists[usize::from(entry.1 / 2)]
                        .extend([col | odd, V::widen(value(entry)).to_bits()]);
                }
                continue;
            }
            room -= usize::from(lone);
            if at % shape.depth == 0 {
                // Unused positions repeat a column of the step, with values of zero.
                self.cols.resize(self.cols.len() + shape.depth, run[0].0);
                self.values.resize(self.values.len() + ROWS * shape.depth, S::default());
            }
            self.cols[first + at] = run[0].0;
            let step = (first + at) / shape.depth * shape.depth * ROWS;
            for entry in run {
                let place = usize::from(entry.1) * shape.depth + at % shape.depth;
                self.values[step + place] = value(entry);
            }
            at += 1;
        }
        self.steps.push(at.div_ceil(shape.depth) as u32);
        if shape.residue > 0 {
            for list in lists {
                self.lists.push((list.len() / 2) as u32);
                self.residue.append(list);
            }
        }
    }
}
