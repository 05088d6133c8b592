//! Rows of A in groups of four entries: 16-bit places and values that a lane fetches with one load each.

use crate::domain::Dtype;
use crate::domain::recipe::ArrayData;
use crate::sparse::{Csr, operand};
use half::{bf16, f16};
use rayon::prelude::*;

/// Entries per group; rows are padded with value 0 at place 0, so B must be finite.
pub const GROUP: usize = 4;
/// Rows packed by one task.
const ROWS: usize = 256;

/// A type of values of A, and how the device stores them.
pub trait Stored: 'static {
    type Word: Copy + Default + Send + Sync;

    fn of(value: f64) -> Self::Word;
    fn array(values: Vec<Self::Word>) -> ArrayData;
}

impl Stored for f32 {
    type Word = Self;

    fn of(value: f64) -> Self {
        value as Self
    }
    fn array(values: Vec<Self>) -> ArrayData {
        ArrayData::F32(values.into())
    }
}

impl Stored for f64 {
    type Word = Self;

    fn of(value: f64) -> Self {
        value
    }
    fn array(values: Vec<Self>) -> ArrayData {
        ArrayData::F64(values.into())
    }
}

/// As its bits.
impl Stored for f16 {
    type Word = u16;

    fn of(value: f64) -> u16 {
        operand::half_bits(value)
    }
    fn array(values: Vec<u16>) -> ArrayData {
        ArrayData::F16(values.into())
    }
}

/// As its bits.
impl Stored for bf16 {
    type Word = u16;

    fn of(value: f64) -> u16 {
        operand::bf16_bits(value)
    }
    fn array(values: Vec<u16>) -> ArrayData {
        ArrayData::Bf16(values.into())
    }
}

/// Bytes of an array.
pub fn bytes(array: &ArrayData) -> u64 {
    match array {
        ArrayData::U16(data) | ArrayData::F16(data) | ArrayData::Bf16(data) => {
            2 * data.len() as u64
        }
        ArrayData::U32(data) => 4 * data.len() as u64,
        ArrayData::F32(data) => 4 * data.len() as u64,
        ArrayData::F64(data) => 8 * data.len() as u64,
    }
}

/// The whole matrix, row by row, its columns as they are: at most 65,536 of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// Row i has the groups `ptr[i]..ptr[i + 1]`.
    pub ptr: ArrayData,
    pub cols: ArrayData,
    pub values: ArrayData,
}

impl Rows {
    pub fn bytes(&self) -> u64 {
        [&self.ptr, &self.cols, &self.values].into_iter().map(bytes).sum()
    }
}

/// Groups of each row, as offsets; `None` where 32 bits do not hold them.
pub fn row_groups(matrix: &Csr) -> Option<Vec<u32>> {
    let mut ptr = Vec::with_capacity(matrix.rows() + 1);
    let mut total = 0u32;
    ptr.push(0);
    for row in 0..matrix.rows() {
        total = total.checked_add(u32::try_from(matrix.row_nnz(row).div_ceil(GROUP)).ok()?)?;
        ptr.push(total);
    }
    Some(ptr)
}

/// Packs whole rows. `None` where places do not fit 16 bits or offsets 32.
pub fn pack(matrix: &Csr, dtype: Dtype) -> Option<Rows> {
    match dtype {
        Dtype::F16 => pack_as::<f16>(matrix),
        Dtype::Bf16 => pack_as::<bf16>(matrix),
        Dtype::F32 => pack_as::<f32>(matrix),
        Dtype::F64 => pack_as::<f64>(matrix),
    }
}

fn pack_as<T: Stored>(matrix: &Csr) -> Option<Rows> {
    if matrix.cols() > 1 << 16 {
        return None;
    }
    let ptr = row_groups(matrix)?;
    let entries = ptr.last().copied().unwrap_or(0) as usize * GROUP;
    let (mut cols, mut values) = (vec![0u16; entries], vec![T::Word::default(); entries]);
    let (mut cols_left, mut values_left) = (cols.as_mut_slice(), values.as_mut_slice());
    let mut tasks = Vec::new();
    for start in (0..matrix.rows()).step_by(ROWS) {
        let rows = start..(start + ROWS).min(matrix.rows());
        let here = (ptr[rows.end] - ptr[rows.start]) as usize * GROUP;
        let (cols_here, cols_rest) = cols_left.split_at_mut(here);
        let (values_here, values_rest) = values_left.split_at_mut(here);
        tasks.push((rows, cols_here, values_here));
        (cols_left, values_left) = (cols_rest, values_rest);
    }
    tasks.into_par_iter().for_each(|(rows, cols, values)| {
        let base = ptr[rows.start];
        for row in rows {
            let start = (ptr[row] - base) as usize * GROUP;
            let (from, of) = matrix.row(row);
            for (i, (&col, &value)) in from.iter().zip(of).enumerate() {
                cols[start + i] = col as u16;
                values[start + i] = T::of(value);
            }
        }
    });
    Some(Rows {
        ptr: ArrayData::U32(ptr.into()),
        cols: ArrayData::U16(cols.into()),
        values: T::array(values),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fill_up_to_groups() {
        let matrix =
            Csr::new(3, 9, vec![0, 5, 5, 6], vec![0, 2, 3, 7, 8, 1], vec![1.0; 6]).unwrap();
        let rows = pack(&matrix, Dtype::F16).unwrap();
        assert_eq!(rows.ptr, ArrayData::U32([0, 2, 2, 3].into()));
        assert_eq!(rows.cols, ArrayData::U16([0, 2, 3, 7, 8, 0, 0, 0, 1, 0, 0, 0].into()));
        let one = half::f16::ONE.to_bits();
        let values = [one, one, one, one, one, 0, 0, 0, one, 0, 0, 0];
        assert_eq!(rows.values, ArrayData::F16(values.into()));
        let wide = Csr::new(1, 70_000, vec![0, 1], vec![69_999], vec![1.0]).unwrap();
        assert_eq!(pack(&wide, Dtype::F32), None);
    }
}
