//! The baseline on a CPU: sprs' sparse-times-dense product, which accumulates into C, so zeroing C is part of the call;
//! and its triangular solve, which overwrites b with x, so copying b is part of the call.

use super::element::Element;
use super::kernel::Factors;
use super::operand::SparseOperand;
use super::program::Call;
use crate::domain::{Digest, Layout};
use crate::engine::EngineError;
use crate::sparse::Triangular;
use ndarray::{ArrayView2, ArrayViewMut1, ArrayViewMut2, ShapeBuilder};
use sprs::errors::LinalgError;
use sprs::linalg::trisolve::{lsolve_csr_dense_rhs, usolve_csr_dense_rhs};
use sprs::prod::{csr_mulacc_dense_colmaj, csr_mulacc_dense_rowmaj};
use sprs::{CompressedStorage, CsMatViewI, MulAcc};

/// The name of its only algorithm.
pub const ALGORITHM: &str = "sprs";

/// One call of sprs, which is single-threaded. sprs adds A B to C and has no factors, so a call with factors is its product
/// in the scratch, and a pass of our own that adds it to C, as a program that uses sprs would do it.
pub fn multiply<T: Vendored>(
    operand: &SparseOperand<T>,
    call: Call<'_, T>,
) -> Result<(), EngineError> {
    let Call { b, scratch, c, factors } = call;
    let Some(Factors { alpha, beta }) = factors else {
        return product(operand, b, c);
    };
    product(operand, b, scratch)?;
    if beta == T::ZERO {
        c.iter_mut().zip(scratch).for_each(|(c, sum)| *c = alpha.mul(*sum));
    } else {
        c.iter_mut().zip(scratch).for_each(|(c, sum)| *c = alpha.mul(*sum).add(beta.mul(*c)));
    }
    Ok(())
}

/// C = A B with B (cols x n) and C (rows x n) in the operand's layout.
fn product<T: Vendored>(
    operand: &SparseOperand<T>,
    b: &[T],
    c: &mut [T],
) -> Result<(), EngineError> {
    let (matrix, n) = (&operand.matrix, operand.n);
    let shape = (matrix.rows(), matrix.cols());
    // SAFETY: a `Csr` satisfies sprs' requirements (see `Csr::as_sprs`), and `values` has a value for each entry.
    let a: CsMatViewI<'_, T, u32, usize> = unsafe {
        CsMatViewI::new_unchecked(
            CompressedStorage::CSR,
            shape,
            matrix.indptr(),
            matrix.indices(),
            &operand.values[..],
        )
    };
    c.fill(T::ZERO);
    let misfit =
        |error: ndarray::ShapeError| EngineError::Refused(format!("sprs cannot run it: {error}"));
    match operand.layout {
        Layout::Row => {
            let b = ArrayView2::from_shape((shape.1, n), b).map_err(misfit)?;
            let c = ArrayViewMut2::from_shape((shape.0, n), c).map_err(misfit)?;
            csr_mulacc_dense_rowmaj(a, b, c);
        }
        Layout::Col => {
            let b = ArrayView2::from_shape((shape.1, n).f(), b).map_err(misfit)?;
            let c = ArrayViewMut2::from_shape((shape.0, n).f(), c).map_err(misfit)?;
            csr_mulacc_dense_colmaj(a, b, c);
        }
    }
    Ok(())
}

/// The error for an unknown vendor algorithm.
pub fn unknown(algorithm: &str) -> EngineError {
    EngineError::Refused(format!(
        "unknown vendor algorithm `{algorithm}`: on a CPU the only one is `sprs`"
    ))
}

/// An element type that sprs computes with.
pub trait Vendored: Element + MulAcc {
    fn solve(
        system: CsMatViewI<'_, Self, u32, usize>,
        upper: bool,
        x: ArrayViewMut1<'_, Self>,
    ) -> Result<(), LinalgError>;
}

macro_rules! vendored {
    ($($type:ty),*) => {$(
        impl Vendored for $type {
            fn solve(
                system: CsMatViewI<'_, Self, u32, usize>,
                upper: bool,
                x: ArrayViewMut1<'_, Self>,
            ) -> Result<(), LinalgError> {
                if upper {
                    usolve_csr_dense_rhs(system, x)
                } else {
                    lsolve_csr_dense_rhs(system, x)
                }
            }
        }
    )*};
}
vendored!(f32, f64);

/// A triangular system in the form that sprs requires: CSR in the matrix's row order, including the diagonal.
pub struct System<T> {
    indptr: Vec<usize>,
    indices: Vec<u32>,
    values: Vec<T>,
    upper: bool,
}

impl<T: Vendored> System<T> {
    /// With the pattern of `system`; `values` are those of its strictly lower entries, converted to T.
    pub fn of(system: &Triangular, values: &[T], diagonal: &[f64]) -> Self {
        let (rows, nnz) = (system.rows(), system.nnz() + system.rows());
        let mut indptr = Vec::with_capacity(rows + 1);
        let (mut indices, mut all) = (Vec::with_capacity(nnz), Vec::with_capacity(nnz));
        indptr.push(0);
        for row in 0..rows {
            let s = system.original(row);
            let entries = system.indptr[s]..system.indptr[s + 1];
            let mut put = |column: usize, value: T| {
                indices.push(system.original(column) as u32);
                all.push(value);
            };
            // Columns ascend in solve order, so they descend in the row order of a reversed system.
            if system.reversed {
                put(s, T::of(diagonal[s]));
                entries.rev().for_each(|e| put(system.indices[e] as usize, values[e]));
            } else {
                entries.for_each(|e| put(system.indices[e] as usize, values[e]));
                put(s, T::of(diagonal[s]));
            }
            indptr.push(indices.len());
        }
        Self { indptr, indices, values: all, upper: system.reversed }
    }

    /// One in-place call of sprs for each right-hand side, since it supports only one.
    pub fn solve(&self, b: &[T], x: &mut [T], sides: usize) -> Result<(), EngineError> {
        let rows = self.indptr.len() - 1;
        // SAFETY: `of` built rows with ascending columns below `rows`.
        let system: CsMatViewI<'_, T, u32, usize> = unsafe {
            CsMatViewI::new_unchecked(
                CompressedStorage::CSR,
                (rows, rows),
                &self.indptr[..],
                &self.indices[..],
                &self.values[..],
            )
        };
        x.copy_from_slice(b);
        let refused = |error: &dyn std::fmt::Display| {
            EngineError::Refused(format!("sprs cannot solve it: {error}"))
        };
        let mut x = ArrayViewMut2::from_shape((rows, sides), x).map_err(|error| refused(&error))?;
        let mut columns = x.columns_mut().into_iter();
        columns.try_for_each(|x| T::solve(system, self.upper, x)).map_err(|error| refused(&error))
    }
}

/// Digest of sprs' version, since its source is not part of this program.
pub fn kernel_digest() -> Digest {
    Digest::of(super::host::VENDOR.as_bytes())
}
