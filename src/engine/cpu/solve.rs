//! The row kernel of the triangular solve on a CPU: all right-hand sides of a row in vector registers, with A read
//! once.
//!
//! Columns are stored in the matrix's row order, so that x is addressed equally in both solve directions. Right-hand
//! sides are processed in blocks of W, a power of two; the last block ends at the last right-hand side and may overlap
//! the previous block. Computing those elements twice is cheaper than several narrower blocks.

// Register arrays are indexed by compile-time constants; indexed loops mirror the sums and are unrolled.
#![allow(clippy::needless_range_loop)]

use super::element::Element;
use super::simd::Isa;
use crate::domain::Sptrsv;
use std::ops::Range;

/// Most right-hand sides of a solve.
pub const MOST_SIDES: usize = Sptrsv::MAX_RHS as usize;

/// The system, b and x in the form that the kernels read. The columns of row s are solved before it.
pub struct View<'a, T> {
    pub indptr: &'a [usize],
    /// Columns as rows of x, not as solve indices.
    pub columns: &'a [u32],
    pub values: &'a [T],
    /// Reciprocals of the diagonal, or the diagonal itself if `divide` is set.
    pub pivots: &'a [T],
    /// Set if some reciprocal is not a normal number.
    pub divide: bool,
    pub reversed: bool,
    /// Rows x sides, row-major, as x.
    pub b: *const T,
    pub x: *mut T,
    pub sides: usize,
}

// SAFETY: threads that share a view write disjoint rows of x, and read a row of x only after its writer released it (by
// a barrier or a counter of finished groups).
unsafe impl<T: Element> Sync for View<'_, T> {}

/// The rows that a call solves, in order, as solve indices.
pub enum Rows<'a> {
    Run(Range<usize>),
    Listed(&'a [u32]),
}

/// Solves rows of a view.
///
/// # Safety
/// The host has the kernel's instructions; the rows exist, no other thread writes them, and all rows that they depend on are
/// already solved, visibly to this thread, or precede them in the list.
pub type Kernel<T> = unsafe fn(&View<'_, T>, Rows<'_>);

#[inline(always)]
unsafe fn rows<T: Element, const W: usize, const UNROLL: usize, const FUSED: bool>(
    view: &View<'_, T>,
    rows: Rows<'_>,
) {
    // SAFETY: the requirements are the caller's.
    unsafe {
        match rows {
            Rows::Run(range) => {
                for s in range {
                    one_row::<T, W, UNROLL, FUSED>(view, s);
                }
            }
            Rows::Listed(list) => {
                for &s in list {
                    one_row::<T, W, UNROLL, FUSED>(view, s as usize);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn one_row<T: Element, const W: usize, const UNROLL: usize, const FUSED: bool>(
    view: &View<'_, T>,
    s: usize,
) {
    // SAFETY: s is a row of the system, and W at most `sides`.
    unsafe {
        let mut first = 0;
        while first + W <= view.sides {
            block::<T, W, UNROLL, FUSED>(view, s, first);
            first += W;
        }
        // The smallest compiled width that covers the remainder; it is below W, since W is the largest that fits.
        match view.sides - first {
            0 => {}
            1 if W > 1 => block::<T, 1, 4, FUSED>(view, s, first),
            2 if W > 2 => block::<T, 2, 4, FUSED>(view, s, first),
            left if left <= 4 && W > 4 => block::<T, 4, 4, FUSED>(view, s, view.sides - 4),
            left if left <= 8 && W > 8 => block::<T, 8, 2, FUSED>(view, s, view.sides - 8),
            left if left <= 16 && W > 16 => block::<T, 16, 1, FUSED>(view, s, view.sides - 16),
            _ => block::<T, W, UNROLL, FUSED>(view, s, view.sides - W),
        }
    }
}

/// W right-hand sides of one row, from `first` on, with UNROLL entries in flight. The last entry is processed at the
/// end: its column is the nearest, so it was most likely solved last, and little work should depend on it.
#[inline(always)]
unsafe fn block<T: Element, const W: usize, const UNROLL: usize, const FUSED: bool>(
    view: &View<'_, T>,
    s: usize,
    first: usize,
) {
    // SAFETY: s is a row of the system and the columns of its entries are rows of x; first + W <= sides.
    unsafe {
        let row = if view.reversed { view.pivots.len() - 1 - s } else { s };
        let at = row * view.sides + first;
        let mut sums = [[T::ZERO; W]; UNROLL];
        sums[0] = *view.b.add(at).cast::<[T; W]>();
        let (mut entry, end) = (*view.indptr.get_unchecked(s), *view.indptr.get_unchecked(s + 1));
        while entry + UNROLL < end {
            for (u, sum) in sums.iter_mut().enumerate() {
                subtract::<T, W, FUSED>(view, entry + u, first, sum);
            }
            entry += UNROLL;
        }
        for u in 1..UNROLL {
            for j in 0..W {
                sums[0][j] = sums[0][j].add(sums[u][j]);
            }
        }
        let mut sum = sums[0];
        while entry < end {
            subtract::<T, W, FUSED>(view, entry, first, &mut sum);
            entry += 1;
        }
        let pivot = *view.pivots.get_unchecked(s);
        let divide = view.divide;
        let solved = sum.map(|sum| if divide { sum.div(pivot) } else { sum.mul(pivot) });
        *view.x.add(at).cast::<[T; W]>() = solved;
    }
}

#[inline(always)]
unsafe fn subtract<T: Element, const W: usize, const FUSED: bool>(
    view: &View<'_, T>,
    entry: usize,
    first: usize,
    sum: &mut [T; W],
) {
    // SAFETY: the caller has the entry from indptr, and its column is a solved row of x.
    unsafe {
        let column = *view.columns.get_unchecked(entry) as usize;
        let value = *view.values.get_unchecked(entry);
        let x = *view.x.add(column * view.sides + first).cast::<[T; W]>();
        for j in 0..W {
            sum[j] = sum[j].sub_mul::<FUSED>(value, x[j]);
        }
    }
}

/// The kernel for a number of right-hand sides on this host. 512-bit registers have no advantage here, because the
/// latency of entries of x dominates.
pub fn kernel<T: Element>(isa: Isa, sides: usize) -> Kernel<T> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => fused::kernel(sides),
        Isa::Scalar => plain::kernel(sides),
    }
}

/// The name of the instruction set that `kernel` selects.
pub fn instructions(isa: Isa) -> &'static str {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => Isa::Avx2.name(),
        Isa::Scalar => isa.name(),
    }
}

/// One module per instruction set: the generic kernel inlined into functions compiled for it.
macro_rules! compiled_for {
    ($module:ident, $fused:expr $(, $features:literal)?) => {
        mod $module {
            use super::{Element, Kernel, Rows, View};

            $(#[target_feature(enable = $features)])?
            unsafe fn of<T: Element, const W: usize, const UNROLL: usize>(
                view: &View<'_, T>,
                rows: Rows<'_>,
            ) {
                // SAFETY: the requirements are the caller's.
                unsafe { super::rows::<T, W, UNROLL, { $fused }>(view, rows) }
            }

            /// The widest block that is not wider than `sides`.
            pub fn kernel<T: Element>(sides: usize) -> Kernel<T> {
                match sides {
                    0 | 1 => of::<T, 1, 4>,
                    2..4 => of::<T, 2, 4>,
                    4..8 => of::<T, 4, 4>,
                    8..16 => of::<T, 8, 2>,
                    16..32 => of::<T, 16, 1>,
                    _ => of::<T, 32, 1>,
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
compiled_for!(fused, true, "avx2,fma");
// aarch64 has the fused multiply-add in its baseline.
compiled_for!(plain, cfg!(target_arch = "aarch64"));
