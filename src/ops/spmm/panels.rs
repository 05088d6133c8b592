//! Packed panels: the union of the columns of M1 rows, with M1 values for each (LO-SpMM, section 3.1, A as data).

use super::family::RowOrder;
use super::shared::{MOST_KEPT, Shared, array};
use crate::domain::Dtype;
use crate::domain::recipe::{Array, ArrayData};
use crate::ops::Refusal;
use crate::sparse::{Csr, operand};
use rayon::prelude::*;
use std::sync::Arc;

/// Panels of M1 consecutive rows of an order.
#[derive(Clone, Debug, PartialEq)]
pub struct Panels {
    pub m1: usize,
    /// Panel i has the columns `cols[ptr[i]..ptr[i + 1]]`, rising; its last one stands there again, with zeros, to a whole number.
    pub ptr: Arc<[u32]>,
    pub cols: Arc<[u32]>,
    /// `m1` values per column, zero if a row has no entry there.
    pub values: ArrayData,
}

impl Panels {
    pub fn bytes(&self) -> u64 {
        let element = match self.values {
            ArrayData::U16(_) | ArrayData::F16(_) | ArrayData::Bf16(_) => 2,
            ArrayData::U32(_) | ArrayData::F32(_) => 4,
            ArrayData::F64(_) => 8,
        };
        let values = element * self.m1 * self.cols.len();
        (4 * (self.ptr.len() + self.cols.len()) + values) as u64
    }
}

/// Packed panels of `m1` rows taken in an order, with columns in multiples of `whole`, as the arrays `panel_ptr`, `panel_cols`,
/// `panel_values` and that order, with the milliseconds that the order and the packing took.
pub fn panel_arrays(
    shared: &mut Shared,
    m1: u32,
    order: RowOrder,
    whole: u32,
) -> Result<(Vec<Array>, [f64; 2]), Refusal> {
    let (rows, order_ms) = shared.ordered(order);
    let rows = rows.unwrap_or_else(|| (0..shared.matrix.rows() as u32).collect());
    let kind = match whole {
        1 => format!("{m1}_{}", order.name()),
        _ => format!("{m1}_{}_by_{whole}", order.name()),
    };
    let name = format!("panels_{kind}");
    let (panels, pack_ms) = shared.once(&name, Panels::bytes, |shared| {
        let shape = Shape { m1: m1 as usize, whole: whole as usize };
        pack(&shared.matrix, &rows, shape, shared.problem.dtype).ok_or_else(|| {
            Refusal(format!("panels of {m1} rows take more than {} GiB", MOST_KEPT >> 30))
        })
    })?;
    let named = |part: &str, data| array(format!("{part}_{kind}"), data);
    let arrays = vec![
        named("panel_ptr", ArrayData::U32(panels.ptr.clone())),
        named("panel_cols", ArrayData::U32(panels.cols.clone())),
        named("panel_values", panels.values.clone()),
        order.array(rows),
    ];
    Ok((arrays, [order_ms, pack_ms]))
}

/// Rows of a panel, and what its number of columns is a multiple of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub m1: usize,
    pub whole: usize,
}

/// Packs the matrix. `None` if the packed columns exceed 32-bit offsets, or the arrays exceed `MOST_KEPT` bytes.
pub fn pack(matrix: &Csr, order: &[u32], shape: Shape, dtype: Dtype) -> Option<Panels> {
    match dtype {
        Dtype::F16 => pack_as(matrix, order, shape, operand::half_bits, ArrayData::F16),
        Dtype::Bf16 => pack_as(matrix, order, shape, operand::bf16_bits, ArrayData::Bf16),
        Dtype::F32 => pack_as(matrix, order, shape, |value| value as f32, ArrayData::F32),
        Dtype::F64 => pack_as(matrix, order, shape, |value| value, ArrayData::F64),
    }
}

/// Like `pack`, with values of one type: rounded by `narrow`, stored by `keep`.
fn pack_as<V: Copy + Default + Send + Sync>(
    matrix: &Csr,
    order: &[u32],
    Shape { m1, whole }: Shape,
    narrow: impl Fn(f64) -> V + Sync,
    keep: impl FnOnce(Arc<[V]>) -> ArrayData,
) -> Option<Panels> {
    let tiles: Vec<Tile> = order.par_chunks(m1).map(|rows| Tile::of(matrix, rows, whole)).collect();
    let mut ptr = Vec::with_capacity(tiles.len() + 1);
    let mut total = 0u32;
    ptr.push(0);
    for tile in &tiles {
        total = total.checked_add(u32::try_from(tile.cols.len()).ok()?)?;
        ptr.push(total);
    }
    if u64::from(total) * (4 + size_of::<V>() as u64 * m1 as u64) > MOST_KEPT {
        return None;
    }
    let mut cols = vec![0u32; total as usize];
    let mut values = vec![V::default(); total as usize * m1];
    let mut parts = Vec::with_capacity(tiles.len());
    let (mut cols_left, mut values_left) = (cols.as_mut_slice(), values.as_mut_slice());
    for (tile, rows) in tiles.into_iter().zip(order.chunks(m1)) {
        let (cols_here, cols_rest) = cols_left.split_at_mut(tile.cols.len());
        let (values_here, values_rest) = values_left.split_at_mut(tile.cols.len() * m1);
        parts.push((tile, rows, cols_here, values_here));
        (cols_left, values_left) = (cols_rest, values_rest);
    }
    parts.into_par_iter().for_each(|(tile, rows, cols, values)| {
        cols.copy_from_slice(&tile.cols);
        tile.scatter(matrix, rows, m1, &narrow, values);
    });
    Some(Panels { m1, ptr: ptr.into(), cols: cols.into(), values: keep(values.into()) })
}

/// The distinct columns of a few rows, rising, the last one as often as their number needs.
struct Tile {
    cols: Vec<u32>,
}

impl Tile {
    fn of(matrix: &Csr, rows: &[u32], whole: usize) -> Self {
        let mut cols: Vec<u32> =
            rows.iter().flat_map(|&row| matrix.row(row as usize).0.iter().copied()).collect();
        if rows.len() > 1 {
            cols.sort_unstable();
            cols.dedup();
        }
        if let Some(&last) = cols.last() {
            cols.resize(cols.len().next_multiple_of(whole), last);
        }
        Self { cols }
    }

    /// Both sides rise, so one walk along the union places a whole row.
    fn scatter<V>(
        &self,
        matrix: &Csr,
        rows: &[u32],
        m1: usize,
        narrow: &impl Fn(f64) -> V,
        values: &mut [V],
    ) {
        for (m, &row) in rows.iter().enumerate() {
            let (cols, row_values) = matrix.row(row as usize);
            let mut at = 0;
            for (col, value) in cols.iter().zip(row_values) {
                while self.cols[at] != *col {
                    at += 1;
                }
                values[at * m1 + m] = narrow(*value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ArrayData, Dtype, Shape, pack};
    use crate::sparse::Csr;

    #[test]
    fn packs_unions_in_order() {
        let matrix =
            Csr::new(3, 4, vec![0, 2, 3, 5], vec![0, 2, 3, 0, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0])
                .unwrap();
        let pairs = Shape { m1: 2, whole: 1 };
        let panels = pack(&matrix, &[2, 0, 1], pairs, Dtype::F32).unwrap();
        assert_eq!(*panels.ptr, [0, 3, 4]);
        assert_eq!(*panels.cols, [0, 2, 3, 3]);
        assert_eq!(panels.values, ArrayData::F32([4.0, 1.0, 0.0, 2.0, 5.0, 0.0, 3.0, 0.0].into()));
        let halves = pack(&matrix, &[2, 0, 1], pairs, Dtype::F16).unwrap().values;
        assert!(matches!(halves, ArrayData::F16(bits) if bits[0] == 0x4400));
        let bytes = |dtype| pack(&matrix, &[2, 0, 1], pairs, dtype).unwrap().bytes();
        let brains = pack(&matrix, &[2, 0, 1], pairs, Dtype::Bf16).unwrap().values;
        assert!(matches!(brains, ArrayData::Bf16(bits) if bits[0] == 0x4080));
        assert_eq!([Dtype::F16, Dtype::F32, Dtype::F64].map(bytes), [28 + 16, 28 + 32, 28 + 64]);
    }

    #[test]
    fn columns_are_filled_up_with_the_last_one_and_zeros() {
        let indptr = vec![0, 2, 2, 2, 5];
        let matrix =
            Csr::new(4, 9, indptr, vec![1, 4, 2, 4, 8], vec![1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let panels = pack(&matrix, &[0, 1, 2, 3], Shape { m1: 1, whole: 4 }, Dtype::F32).unwrap();
        assert_eq!(*panels.ptr, [0, 4, 4, 4, 8], "empty panels stay empty");
        assert_eq!(*panels.cols, [1, 4, 4, 4, 2, 4, 8, 8]);
        assert_eq!(panels.values, ArrayData::F32([1.0, 2.0, 0.0, 0.0, 3.0, 4.0, 5.0, 0.0].into()));
    }
}
