//! Plain kernels, the baseline where MKL is not installed: what a careful programmer writes in an afternoon, compiled for
//! this host's instructions.

use super::element::Element;
use super::kernel::Factors;
use super::operand::{SparseOperand, Target};
use super::program::Call;
use super::schedule::{Threads, by_nonzeros};
use super::simd::Isa;
use crate::domain::{Digest, Layout};
use crate::sparse::Triangular;
use std::ops::Range;

/// C = A B on all threads: each computes as many rows as have its share of the entries, one after the other.
pub fn multiply<T: Element>(
    operand: &SparseOperand<T>,
    call: Call<'_, T>,
    isa: Isa,
    threads: &Threads,
) {
    let parts = by_nonzeros(operand.matrix.indptr(), threads.count());
    let (c, rows) = (Target(call.c.as_mut_ptr()), operand.matrix.rows());
    let part = |part: Range<usize>| match isa {
        // SAFETY: the host has these instructions; parts do not overlap.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512(operand, call.b, c, call.factors, part) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2(operand, call.b, c, call.factors, part) },
        // SAFETY: parts do not overlap.
        Isa::Scalar => unsafe { compute::<T, false>(operand, call.b, c, call.factors, part) },
    };
    debug_assert_eq!(call.c.len(), rows * operand.n);
    threads.run(parts.len(), |at| part(parts[at].clone()));
}

/// # Safety
/// As for `compute`, and the host has AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn avx512<T: Element>(
    operand: &SparseOperand<T>,
    b: &[T],
    c: Target<T>,
    factors: Option<Factors<T>>,
    rows: Range<usize>,
) {
    // SAFETY: the requirements are the caller's.
    unsafe { compute::<T, true>(operand, b, c, factors, rows) }
}

/// # Safety
/// As for `compute`, and the host has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<T: Element>(
    operand: &SparseOperand<T>,
    b: &[T],
    c: Target<T>,
    factors: Option<Factors<T>>,
    rows: Range<usize>,
) {
    // SAFETY: the requirements are the caller's.
    unsafe { compute::<T, true>(operand, b, c, factors, rows) }
}

/// Some rows of C: in row-major layout by adding multiples of rows of B, else column by column by dot products.
///
/// # Safety
/// `c` are all rows of C, of which no other thread touches these.
#[inline(always)]
unsafe fn compute<T: Element, const FUSED: bool>(
    operand: &SparseOperand<T>,
    b: &[T],
    c: Target<T>,
    factors: Option<Factors<T>>,
    rows: Range<usize>,
) {
    let (matrix, n) = (&operand.matrix, operand.n);
    let Factors { alpha, beta } = factors.unwrap_or(Factors { alpha: T::of(1.0), beta: T::ZERO });
    let entries = |row: usize| {
        let range = matrix.indptr()[row]..matrix.indptr()[row + 1];
        matrix.indices()[range.clone()].iter().zip(&operand.values[range])
    };
    match operand.layout {
        Layout::Row => {
            for row in rows {
                // SAFETY: the row is this thread's, and has n elements.
                let c = unsafe { std::slice::from_raw_parts_mut(c.at(row * n), n) };
                if beta == T::ZERO {
                    c.fill(T::ZERO);
                } else {
                    c.iter_mut().for_each(|c| *c = beta.mul(*c));
                }
                for (&col, &value) in entries(row) {
                    let (value, b) = (alpha.mul(value), &b[col as usize * n..][..n]);
                    c.iter_mut().zip(b).for_each(|(c, &b)| *c = value.mul_add::<FUSED>(b, *c));
                }
            }
        }
        Layout::Col => {
            for column in 0..n {
                let b = &b[column * matrix.cols()..][..matrix.cols()];
                for row in rows.clone() {
                    let add = |sum: T, (&col, &value): (&u32, &T)| {
                        value.mul_add::<FUSED>(b[col as usize], sum)
                    };
                    let sum = alpha.mul(entries(row).fold(T::ZERO, add));
                    let at = c.at(column * matrix.rows() + row);
                    // SAFETY: the element is this thread's; with a beta of 0 it is not read.
                    unsafe { *at = if beta == T::ZERO { sum } else { sum.add(beta.mul(*at)) } };
                }
            }
        }
    }
}

/// T x = b on one thread, row after row: b and x are rows x sides, row-major, in the matrix's row order. `values` are those of
/// the strictly lower entries and `diagonal` all of the diagonal, in solve order.
pub fn solve<T: Element>(
    system: &Triangular,
    (values, diagonal): (&[T], &[T]),
    b: &[T],
    x: &mut [T],
    sides: usize,
) {
    let of = |s: usize| {
        let entries = system.indptr[s]..system.indptr[s + 1];
        let columns = system.indices[entries.clone()].iter();
        columns.map(|&column| system.original(column as usize)).zip(&values[entries])
    };
    if sides == 1 {
        for (s, &pivot) in diagonal.iter().enumerate() {
            let row = system.original(s);
            let without =
                |sum: T, (column, &value): (usize, &T)| sum.sub_mul::<false>(value, x[column]);
            x[row] = of(s).fold(b[row], without).div(pivot);
        }
        return;
    }
    x.copy_from_slice(b);
    let mut sums = vec![T::ZERO; sides];
    for (s, &pivot) in diagonal.iter().enumerate() {
        let row = system.original(s) * sides;
        sums.copy_from_slice(&x[row..][..sides]);
        for (column, &value) in of(s) {
            let known = &x[column * sides..][..sides];
            sums.iter_mut().zip(known).for_each(|(sum, &x)| *sum = sum.sub_mul::<false>(value, x));
        }
        x[row..][..sides].iter_mut().zip(&sums).for_each(|(x, sum)| *x = sum.div(pivot));
    }
}

/// The digest of this text.
pub fn digest() -> Digest {
    Digest::of(include_str!("plain.rs").as_bytes())
}
