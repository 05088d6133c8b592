//! The sparse operand of a problem as kernels and vendors' routines read it, under the names that bundles give its arrays.

use crate::domain::problem::Triangle;
use crate::domain::recipe::{Array, ArrayData};
use crate::domain::{Dtype, Problem, Sptrsv};
use crate::ops;
use crate::sparse::operand::half_bits;
use crate::sparse::{Csr, TriangleError, Triangular};
use rayon::prelude::*;
use std::sync::Arc;

/// Row pointers, columns and values; for a solve the strictly lower triangle in solve order.
pub const ROW_PTR: &str = "row_ptr";
pub const COL_IDX: &str = "col_idx";
pub const VALUES: &str = "values";
/// A solve's diagonal in solve order.
pub const DIAGONAL: &str = "diagonal";
/// The pattern of the matrix as it was uploaded.
pub const MATRIX_ROW_PTR: &str = "matrix.row_ptr";
pub const MATRIX_COL_IDX: &str = "matrix.col_idx";

/// The form in which the operand is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As our kernels read it.
    Kernel,
    /// As a vendor's routine takes it: for a solve the named triangle with its diagonal, in the matrix's own order.
    Vendor,
}

/// The arrays of the operand, made from the matrix as it was uploaded.
///
/// # Errors
/// The matrix has no such triangle.
pub fn arrays(
    matrix: &Arc<Csr>,
    problem: &Problem,
    form: Form,
) -> Result<Vec<Array>, TriangleError> {
    match (problem, form) {
        (Problem::Spmm(spmm), _) => {
            let operand = ops::shared_operand(matrix, problem);
            Ok(csr(operand.indptr(), operand.indices(), operand.values(), spmm.dtype))
        }
        (Problem::Sptrsv(solve), Form::Kernel) => {
            let system = Triangular::of(matrix, solve)?;
            let mut all = csr(&system.indptr, &system.indices, &system.values, solve.dtype);
            all.push(array(DIAGONAL, in_type(&system.diagonal, solve.dtype)));
            Ok(all)
        }
        (Problem::Sptrsv(solve), Form::Vendor) => Ok(triangle(matrix, solve)),
    }
}

/// The pattern of the matrix as it was uploaded.
pub fn pattern(matrix: &Csr) -> [Array; 2] {
    let columns = ArrayData::U32(matrix.indices().into());
    [array(MATRIX_ROW_PTR, pointers(matrix.indptr())), array(MATRIX_COL_IDX, columns)]
}

fn triangle(matrix: &Csr, solve: &Sptrsv) -> Vec<Array> {
    let lower = solve.triangle == Triangle::Lower;
    let (mut indptr, mut indices, mut values) = (vec![0usize], Vec::new(), Vec::new());
    for row in 0..matrix.rows() {
        let (columns, entries) = matrix.row(row);
        for (&col, &value) in columns.iter().zip(entries) {
            if if lower { col as usize <= row } else { col as usize >= row } {
                indices.push(col);
                values.push(value);
            }
        }
        indptr.push(indices.len());
    }
    csr(&indptr, &indices, &values, solve.dtype)
}

fn csr(indptr: &[usize], indices: &[u32], values: &[f64], dtype: Dtype) -> Vec<Array> {
    vec![
        array(ROW_PTR, pointers(indptr)),
        array(COL_IDX, ArrayData::U32(indices.into())),
        array(VALUES, in_type(values, dtype)),
    ]
}

fn array(name: &str, data: ArrayData) -> Array {
    Array { name: name.to_owned(), data }
}

/// Row pointers fit 32 bits: only matrices with fewer than 2^31 entries are tuned.
fn pointers(indptr: &[usize]) -> ArrayData {
    ArrayData::U32(indptr.par_iter().map(|&pointer| pointer as u32).collect::<Vec<_>>().into())
}

/// Values rounded to the problem's type.
pub fn in_type(values: &[f64], dtype: Dtype) -> ArrayData {
    let values = values.par_iter().with_min_len(1 << 14);
    match dtype {
        Dtype::F64 => ArrayData::F64(values.copied().collect::<Vec<_>>().into()),
        Dtype::F32 => ArrayData::F32(values.map(|&it| it as f32).collect::<Vec<_>>().into()),
        Dtype::F16 => ArrayData::F16(values.map(|&it| half_bits(it)).collect::<Vec<_>>().into()),
    }
}
