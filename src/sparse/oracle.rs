//! The reference implementation (oracle): plain float64 SpMM and SpTRSV, with which every kernel must agree.

use super::operand::{round_to_bf16, round_to_half};
use super::{Csr, Triangular};
use crate::domain::{Dtype, Layout, Spmm};
use half::{bf16, f16};
use rayon::prelude::*;

/// The reference output, elementwise in the problem's layout, with the scale by which errors are divided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Product {
    /// The product in float64 of the operands rounded to the problem's dtype.
    pub value: Vec<f64>,
    /// `(|A| |B|)` elementwise: the componentwise error is |c - value| / scale.
    pub scale: Vec<f32>,
}

/// Forward substitution in float64, `rhs` right-hand sides row-major in the matrix's row order, x in the same order.
///
/// # Panics
/// If `b` does not have rows x rhs elements.
pub fn sptrsv(system: &Triangular, b: &[f64], rhs: usize) -> Vec<f64> {
    assert_eq!(b.len(), system.rows() * rhs, "b must be rows x rhs");
    let mut x = vec![0f64; b.len()];
    for s in 0..system.rows() {
        let row = system.original(s);
        let (columns, values) = system.row(s);
        for j in 0..rhs {
            let mut sum = b[row * rhs + j];
            for (&col, &value) in columns.iter().zip(values) {
                sum -= value * x[system.original(col as usize) * rhs + j];
            }
            x[row * rhs + j] = sum / system.diagonal[s];
        }
    }
    x
}

/// An element of a dense operand.
pub trait Element: Copy + Default + Send + Sync {
    /// Converts to float64.
    fn wide(self) -> f64;
}

macro_rules! element {
    ($($type:ty),*) => {$(
        impl Element for $type {
            #[inline(always)]
            fn wide(self) -> f64 {
                self.into()
            }
        }
    )*};
}
element!(bf16, f16, f32, f64);

impl Product {
    /// Turns A B into `alpha A B + beta C0`, where `c0` is the initial C in the layout of the product.
    ///
    /// # Panics
    /// If `c0` has another length.
    pub fn accumulate<T: Element>(&mut self, c0: &[T], alpha: f64, beta: f64) {
        assert_eq!(c0.len(), self.value.len(), "C must be rows x n");
        let elements = self.value.par_iter_mut().zip(&mut self.scale).zip(c0);
        elements.with_min_len(1 << 14).for_each(|((value, scale), c0)| {
            let initial = beta * c0.wide();
            *value = alpha * *value + initial;
            *scale = (alpha.abs() * f64::from(*scale) + initial.abs()) as f32;
        });
    }
}

/// Columns accumulated at a time: four vector registers of f64 for the product and four for its scale.
const WIDTH: usize = 8;

/// Rows per parallel task.
const PANEL: usize = 256;

/// Number of entries above which the columns of a row are distributed among threads.
const LONG_ROW: usize = 1 << 16;

/// Computes `C = A B` and `|A| |B|` with A's values rounded to the problem's dtype and B (cols x n, in the problem's
/// layout) as given; `accumulate` and `tf32` are ignored. Values too large for the dtype become infinite, as on a
/// device.
///
/// # Panics
/// If `b` does not have cols x n elements.
pub fn spmm<T: Element>(matrix: &Csr, b: &[T], problem: &Spmm) -> Product {
    let n = problem.n as usize;
    assert_eq!(b.len(), matrix.cols() * n, "B must be cols x n");
    let len = matrix.rows() * n;
    let mut product = Product { value: vec![0.0; len], scale: vec![0.0; len] };
    if len == 0 || matrix.nnz() == 0 {
        return product;
    }
    let values: Vec<f64> = matrix
        .values()
        .par_iter()
        .with_min_len(1 << 14)
        .map(|&v| round(v, problem.dtype))
        .collect();
    let rounded = Rounded { matrix, values };
    match problem.layout {
        Layout::Row => rounded.by_rows(b, n, &mut product),
        Layout::Col => rounded.by_columns(b, &mut product),
    }
    product
}

/// The matrix with its values rounded as on the device.
struct Rounded<'a> {
    matrix: &'a Csr,
    values: Vec<f64>,
}

impl Rounded<'_> {
    fn by_rows<T: Element>(&self, b: &[T], n: usize, product: &mut Product) {
        let value = product.value.par_chunks_mut(n);
        let rows = value.zip(product.scale.par_chunks_mut(n)).enumerate();
        rows.with_min_len(16).for_each(|(row, (value, scale))| {
            if self.matrix.row_nnz(row) > LONG_ROW {
                let blocks = value.par_chunks_mut(WIDTH).zip(scale.par_chunks_mut(WIDTH));
                blocks.enumerate().for_each(|(i, (v, s))| self.block(row, b, n, i * WIDTH, v, s));
            } else {
                let blocks = value.chunks_mut(WIDTH).zip(scale.chunks_mut(WIDTH));
                blocks.enumerate().for_each(|(i, (v, s))| self.block(row, b, n, i * WIDTH, v, s));
            }
        });
    }

    /// Column-major: WIDTH columns of B at a time are packed by rows, so that the product reads complete cache lines;
    /// the results are written to WIDTH columns of C.
    fn by_columns<T: Element>(&self, b: &[T], product: &mut Product) {
        let (rows, cols) = (self.matrix.rows(), self.matrix.cols());
        let values = product.value.par_chunks_mut(rows * WIDTH);
        let blocks = values.zip(product.scale.par_chunks_mut(rows * WIDTH)).enumerate();
        blocks.for_each(|(i, (value, scale))| {
            let first = i * WIDTH * cols;
            let width = value.len() / rows;
            let packed = pack(&b[first..first + width * cols], cols, width);
            let panels: Vec<_> = panels(value, rows).into_iter().zip(panels(scale, rows)).collect();
            panels.into_par_iter().enumerate().for_each(|(panel, (mut value, mut scale))| {
                let (mut v, mut s) = ([0.0; WIDTH], [0.0; WIDTH]);
                for at in 0..value[0].len() {
                    let row = panel * PANEL + at;
                    self.block(row, &packed, width, 0, &mut v[..width], &mut s[..width]);
                    for column in 0..width {
                        value[column][at] = v[column];
                        scale[column][at] = s[column];
                    }
                }
            });
        });
    }

    /// Columns `first..first + value.len()` (at most WIDTH) of one row; `b` has rows of `stride` elements.
    fn block<T: Element>(
        &self,
        row: usize,
        b: &[T],
        stride: usize,
        first: usize,
        value: &mut [f64],
        scale: &mut [f32],
    ) {
        let range = self.matrix.indptr()[row]..self.matrix.indptr()[row + 1];
        let entries = self.matrix.indices()[range.clone()].iter().zip(&self.values[range]);
        let (mut sum, mut size) = ([0f64; WIDTH], [0f64; WIDTH]);
        if value.len() == WIDTH {
            for (&col, &a) in entries {
                let start = col as usize * stride + first;
                accumulate(&b[start..start + WIDTH], a, &mut sum, &mut size);
            }
        } else {
            for (&col, &a) in entries {
                let start = col as usize * stride + first;
                accumulate(&b[start..start + value.len()], a, &mut sum, &mut size);
            }
        }
        value.copy_from_slice(&sum[..value.len()]);
        scale.iter_mut().zip(size).for_each(|(scale, size)| *scale = size as f32);
    }
}

#[inline(always)]
fn accumulate<T: Element>(b: &[T], a: f64, sum: &mut [f64; WIDTH], size: &mut [f64; WIDTH]) {
    for ((&b, sum), size) in b.iter().zip(sum).zip(size) {
        let term = a * b.wide();
        *sum += term;
        *size += term.abs();
    }
}

/// `width` columns of length `cols` as `cols` rows of length `width`.
fn pack<T: Element>(columns: &[T], cols: usize, width: usize) -> Vec<T> {
    let mut packed = vec![T::default(); columns.len()];
    packed.par_chunks_mut(width * 4096).enumerate().for_each(|(i, rows)| {
        for (at, row) in rows.chunks_mut(width).enumerate() {
            let k = i * 4096 + at;
            row.iter_mut().enumerate().for_each(|(j, to)| *to = columns[j * cols + k]);
        }
    });
    packed
}

/// Columns of length `rows`, divided into panels of PANEL rows: for each panel, its part of every column.
fn panels<T>(columns: &mut [T], rows: usize) -> Vec<Vec<&mut [T]>> {
    let mut pieces: Vec<Vec<&mut [T]>> = Vec::new();
    pieces.resize_with(rows.div_ceil(PANEL), Vec::new);
    for column in columns.chunks_mut(rows) {
        pieces
            .iter_mut()
            .zip(column.chunks_mut(PANEL))
            .for_each(|(panel, piece)| panel.push(piece));
    }
    pieces
}

/// A value of A rounded as on the device.
pub fn round(value: f64, dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F64 => value,
        Dtype::F32 => f64::from(value as f32),
        Dtype::F16 => round_to_half(value),
        Dtype::Bf16 => round_to_bf16(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sparse::operand::random;

    /// The definition as three loops.
    fn plain(matrix: &Csr, b: &[f32], n: usize, layout: Layout) -> Product {
        let at = |row, col, height| match layout {
            Layout::Row => row * n + col,
            Layout::Col => col * height + row,
        };
        let len = matrix.rows() * n;
        let mut product = Product { value: vec![0.0; len], scale: vec![0.0; len] };
        for row in 0..matrix.rows() {
            for j in 0..n {
                let (mut sum, mut size) = (0.0, 0.0);
                for (&col, &a) in matrix.row(row).0.iter().zip(matrix.row(row).1) {
                    let term =
                        f64::from(a as f32) * f64::from(b[at(col as usize, j, matrix.cols())]);
                    sum += term;
                    size += term.abs();
                }
                product.value[at(row, j, matrix.rows())] = sum;
                product.scale[at(row, j, matrix.rows())] = size as f32;
            }
        }
        product
    }

    #[test]
    fn agrees_with_the_product_of_sprs() {
        let lengths = [3, 0, 1, 5, 2, 0, 4];
        let (mut indptr, mut indices) = (vec![0], Vec::new());
        for (row, &length) in lengths.iter().enumerate() {
            indices.extend((0..length).map(|e| (e * 2 + row % 2) as u32));
            indptr.push(indices.len());
        }
        let values: Vec<f64> = random(indices.len(), 5).into_iter().map(f64::from).collect();
        let matrix = Csr::new(lengths.len(), 11, indptr, indices, values).unwrap();
        let (n, rows, cols) = (3, matrix.rows(), matrix.cols());
        let b: Vec<f64> = random(cols * n, 6).into_iter().map(f64::from).collect();
        // SAFETY: a `Csr` has ascending columns in range, and row pointers that end at its entries.
        let a: sprs::CsMatViewI<'_, f64, u32, usize> = unsafe {
            let (indptr, indices) = (matrix.indptr(), matrix.indices());
            let csr = sprs::CompressedStorage::CSR;
            sprs::CsMatViewI::new_unchecked(csr, (rows, cols), indptr, indices, matrix.values())
        };
        let mut c = ndarray::Array2::<f64>::zeros((rows, n));
        let dense = ndarray::ArrayView2::from_shape((cols, n), &b).unwrap();
        sprs::prod::csr_mulacc_dense_rowmaj(a, dense, c.view_mut());
        let product = spmm(&matrix, &b, &Spmm::new(n as u32, Dtype::F64, Layout::Row));
        for (theirs, ours) in c.iter().zip(&product.value) {
            assert!((theirs - ours).abs() < 1e-14, "{theirs} {ours}");
        }
    }

    #[test]
    fn equals_the_definition_in_both_layouts() {
        let rows = 2 * PANEL + 3;
        let indptr: Vec<usize> = (0..=rows).map(|row| row / 2 * 3).collect();
        let nnz = indptr[rows];
        let indices: Vec<u32> = (0..nnz).map(|e| [0u32, 3, 4][e % 3]).collect();
        let values: Vec<f64> = (0..nnz).map(|e| e as f64 * 0.37 - 1.0).collect();
        let matrix = Csr::new(rows, 5, indptr, indices, values).unwrap();
        for n in [1, 3, 8, 21] {
            for layout in [Layout::Row, Layout::Col] {
                let b = random(5 * n, 1);
                let problem = Spmm::new(n as u32, Dtype::F32, layout);
                assert!(
                    spmm(&matrix, &b, &problem) == plain(&matrix, &b, n, layout),
                    "{n} {layout}"
                );
            }
        }
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        let problem = Spmm::new(4, Dtype::F64, Layout::Col);
        assert_eq!(spmm::<f64>(&empty, &[], &problem), Product::default());
    }

    #[test]
    fn values_are_rounded_to_the_problems_type() {
        // 1/3 is rounded to the type of the problem; B is used as given.
        let matrix = Csr::new(2, 2, vec![0, 2, 2], vec![0, 1], vec![1.0 / 3.0, -2.0]).unwrap();
        let third = |dtype| round(1.0 / 3.0, dtype);
        let problem = |dtype, layout| Spmm::new(1, dtype, layout);
        for layout in [Layout::Row, Layout::Col] {
            let half = [f16::from_f32(0.1), f16::from_f32(3.0)];
            let product = spmm(&matrix, &half, &problem(Dtype::F16, layout));
            let first = third(Dtype::F16) * half[0].to_f64();
            assert_eq!(product.value, [first - 6.0, 0.0]);
            assert_eq!(product.scale, [(first + 6.0) as f32, 0.0]);
            let product = spmm(&matrix, &[0.1, 3.0], &problem(Dtype::F64, layout));
            assert_eq!(product.value, [1.0 / 3.0 * 0.1 - 6.0, 0.0]);
            let product = spmm(&matrix, &[0.1f32, 3.0], &problem(Dtype::F32, layout));
            assert_eq!(product.value, [third(Dtype::F32) * f64::from(0.1f32) - 6.0, 0.0]);
        }
    }

    #[test]
    fn accumulation_includes_the_initial_output() {
        let mut product = Product { value: vec![-2.0, 0.0], scale: vec![4.0, 0.0] };
        product.accumulate(&[3.0f32, -8.0], 1.25, -0.5);
        assert_eq!(product.value, [-4.0, 4.0]);
        assert_eq!(product.scale, [6.5, 4.0]);
    }
}
