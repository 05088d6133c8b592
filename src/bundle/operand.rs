//! The sparse operand of a problem as kernels and vendors' routines read it, under the names that bundles give its arrays.

use crate::domain::bundle::{Call, DenseOperand};
use crate::domain::candidate::is_dense_product;
use crate::domain::catalog::vendor;
use crate::domain::element::Element;
use crate::domain::problem::Triangle;
use crate::domain::recipe::{Array, ArrayData};
use crate::domain::{DeviceKind, Dtype, Layout, Plan, Problem, Sptrsv};
use crate::ops;
use crate::sparse::operand::{bf16_bits, half_bits};
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

/// What dense operands on a GPU must be aligned to: the widest load of our kernels.
const ALIGNMENT: u32 = 16;

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
        Dtype::Bf16 => ArrayData::Bf16(values.map(|&it| bf16_bits(it)).collect::<Vec<_>>().into()),
    }
}

/// The dense operands of a plan's call, for a matrix of this shape.
pub fn call(plan: &Plan, rows: u64, cols: u64) -> Call {
    let columns = u64::from(plan.problem.columns());
    let [element, result] = [plan.problem.dtype(), plan.problem.result()].map(Element::from);
    let alignment = match plan.device.kind {
        DeviceKind::Cpu => element.bytes() as u32,
        DeviceKind::Cuda => ALIGNMENT,
    };
    let dense = |rows, layout| DenseOperand { rows, cols: columns, element, layout, alignment };
    let written = |rows, layout| DenseOperand { element: result, ..dense(rows, layout) };
    let (b, c, accumulate) = match &plan.problem {
        Problem::Spmm(spmm) => {
            let (c_rows, b_rows) = if spmm.transpose { (cols, rows) } else { (rows, cols) };
            (dense(b_rows, spmm.layout), written(c_rows, spmm.layout), spmm.accumulate)
        }
        Problem::Sptrsv(_) => (dense(rows, Layout::Row), written(rows, Layout::Row), false),
    };
    Call { b, c, accumulate, b_must_be_finite: plan.validity.dense_must_be_finite }
}

/// How to call a vendor's routine, named as in candidates, on the arrays: for people.
pub fn instructions(problem: &Problem, kind: DeviceKind, routine: &str) -> &'static str {
    match (problem, kind) {
        (Problem::Spmm(_), _) if is_dense_product(routine) => {
            "Make the matrix of row_ptr, col_idx and values dense, and multiply it with B."
        }
        (Problem::Spmm(_), _) if vendor::block_size(routine).is_some() => {
            "Store the matrix of row_ptr, col_idx and values in square blocks of the size that the algorithm names, by rows \
             within each block, and pass these as a BSR matrix, not transposed, with B and C as dense matrices."
        }
        (Problem::Spmm(_), _) if vendor::takes_vector(routine) => {
            "Pass row_ptr, col_idx and values as a CSR matrix, not transposed, with B and C as vectors."
        }
        (Problem::Spmm(_), _) => {
            "Pass row_ptr, col_idx and values as a CSR matrix, not transposed, with B and C as dense matrices."
        }
        (Problem::Sptrsv(_), DeviceKind::Cpu) => {
            "Solve the strictly lower triangle of row_ptr, col_idx and values with diagonal, in solve order."
        }
        (Problem::Sptrsv(_), DeviceKind::Cuda) => {
            "Pass row_ptr, col_idx and values as a CSR matrix with the problem's fill mode and diagonal type; transpose in \
             the call where the problem does."
        }
    }
}
