//! The CPU kernels for SpMM: tiles of M1 rows by N1 columns as in LO-SpMM (TACO 2024, section 3.1), and one row at a
//! time; both accumulate in vector registers.
//!
//! A kernel multiplies some rows of A with one *panel*: at most N1 adjacent columns of B, whose rows are contiguous.
//! Row-major operands already have this form. Column-major ones are packed into it within the timed call, and C is
//! written through a small tile, 16 rows of one column at a time: gathering directly from N1 columns would use only one
//! element per cache line, whereas a packed panel uses complete lines.

// Register arrays are indexed by compile-time constants; indexed loops mirror the tiles and are unrolled.
#![allow(clippy::needless_range_loop)]

use super::element::Element;
use super::simd::Simd;
use crate::domain::Layout;
use std::ops::Range;

/// Rows of C that are transposed together: one cache line of a column. A multiple of every M1.
const GROUP: usize = 16;

/// Widest panel of all kernels.
pub const WIDEST: usize = 64;

/// One panel of the product. The arrays of A are those of a canonical matrix whose columns are below the rows of B.
pub struct Panel<'a, T> {
    pub indptr: &'a [usize],
    pub indices: &'a [u32],
    pub values: &'a [T],
    /// First element of the panel; row k of it starts at `b + k * ldb`.
    pub b: *const T,
    pub ldb: usize,
    /// First element of the panel's columns of C.
    pub c: *mut T,
    /// Distance between rows of C if `layout` is row-major, between columns if it is column-major.
    pub ldc: usize,
    pub layout: Layout,
    /// Columns of the panel, at most VECS registers.
    pub width: usize,
    /// Absent for C = A B.
    pub factors: Option<Factors<T>>,
}

/// C = alpha A B + beta C; with beta = 0, C is not read.
#[derive(Clone, Copy)]
pub struct Factors<T> {
    pub alpha: T,
    pub beta: T,
}

// SAFETY: threads that share a panel write disjoint rows of C.
unsafe impl<T: Element> Sync for Panel<'_, T> {}

/// Buffers the rows of a group until they can be written to columns.
#[repr(align(64))]
struct Tile<T>([T; GROUP * WIDEST]);

impl<T: Element> Panel<'_, T> {
    /// The address where a kernel writes its row: in C or in the tile.
    #[inline(always)]
    fn target(&self, row: usize, position: usize, tile: &mut Tile<T>) -> *mut T {
        match self.layout {
            // SAFETY: row is a row of the matrix, so this is within C.
            Layout::Row => unsafe { self.c.add(row * self.ldc) },
            Layout::Col => tile.0[position * WIDEST..].as_mut_ptr(),
        }
    }

    /// Writes a finished group to the columns of C; does nothing if rows were written directly.
    ///
    /// # Safety
    /// `rows` are rows of the matrix that no other thread writes.
    #[inline(always)]
    unsafe fn flush(&self, rows: impl Iterator<Item = usize> + Clone, tile: &Tile<T>) {
        if self.layout == Layout::Row {
            return;
        }
        for column in 0..self.width {
            for (position, row) in rows.clone().enumerate() {
                let sum = tile.0[position * WIDEST + column];
                // SAFETY: row < ldc, the length of a column.
                unsafe {
                    let c = self.c.add(column * self.ldc + row);
                    *c = match self.factors {
                        None => sum,
                        Some(Factors { alpha, beta }) if beta == T::ZERO => alpha.mul(sum),
                        Some(Factors { alpha, beta }) => alpha.mul(sum).add(beta.mul(*c)),
                    };
                }
            }
        }
    }

    /// Start of row `indices[entry]` of the panel, and the entry's value.
    #[inline(always)]
    unsafe fn entry(&self, entry: usize) -> (*const T, T) {
        // SAFETY: the caller has the entry from indptr, and its column is a row of B.
        unsafe {
            let col = *self.indices.get_unchecked(entry) as usize;
            (self.b.add(col * self.ldb), *self.values.get_unchecked(entry))
        }
    }
}

/// Accumulation registers of one row of the panel, with masks of the existing columns.
#[derive(Clone, Copy)]
struct Columns<S: Simd, const VECS: usize, const MASKED: bool>([S::Mask; VECS]);

impl<S: Simd, const VECS: usize, const MASKED: bool> Columns<S, VECS, MASKED> {
    #[inline(always)]
    unsafe fn of(width: usize) -> Self {
        // SAFETY: the caller guarantees the instruction set.
        Self(std::array::from_fn(|v| unsafe { S::mask(width.saturating_sub(v * S::LANES)) }))
    }

    #[inline(always)]
    unsafe fn accumulate(&self, sums: &mut [S; VECS], from: *const S::Element, value: S::Element) {
        // SAFETY: the caller guarantees the panel's row at `from`.
        unsafe {
            let value = S::splat(value);
            for v in 0..VECS {
                let at = from.wrapping_add(v * S::LANES);
                let b = if MASKED { S::load_masked(at, self.0[v]) } else { S::load(at) };
                sums[v] = value.mul_add(b, sums[v]);
            }
        }
    }

    /// Writes finished sums to C, or to the tile, where the factors are applied by `flush`.
    #[inline(always)]
    unsafe fn store(
        &self,
        panel: &Panel<'_, S::Element>,
        sums: &mut [S; VECS],
        to: *mut S::Element,
    ) {
        // SAFETY: the caller guarantees the panel's row of C (or of the tile) at `to`.
        unsafe {
            if let (Some(factors), Layout::Row) = (panel.factors, panel.layout) {
                self.scale(factors, sums, to);
            }
            for v in 0..VECS {
                let at = to.wrapping_add(v * S::LANES);
                if MASKED {
                    sums[v].store_masked(at, self.0[v]);
                } else {
                    sums[v].store(at);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn scale(
        &self,
        factors: Factors<S::Element>,
        sums: &mut [S; VECS],
        c: *const S::Element,
    ) {
        // SAFETY: the caller guarantees the panel's row of C at `c`, which is initialised unless beta is 0.
        unsafe {
            let (alpha, beta) = (S::splat(factors.alpha), S::splat(factors.beta));
            for v in 0..VECS {
                sums[v] = alpha.mul(sums[v]);
                if factors.beta != S::Element::ZERO {
                    let at = c.wrapping_add(v * S::LANES);
                    let c = if MASKED { S::load_masked(at, self.0[v]) } else { S::load(at) };
                    sums[v] = beta.mul_add(c, sums[v]);
                }
            }
        }
    }
}

/// Computes the rows of `order`, M1 at a time: their entries are processed alternately, so that M1 independent sums are
/// in flight and a tile of rows with equal lengths (as after sorting) has no remainder.
///
/// # Safety
/// The host has S's instructions; `order` are rows of the matrix that no other thread writes; the panel is valid.
#[inline(always)]
pub unsafe fn row_panel<S: Simd, const M1: usize, const VECS: usize, const MASKED: bool>(
    panel: &Panel<'_, S::Element>,
    order: &[u32],
) {
    let mut tile = Tile([S::Element::ZERO; GROUP * WIDEST]);
    for group in order.chunks(GROUP) {
        // SAFETY: the requirements are the caller's.
        unsafe {
            for (i, rows) in group.chunks(M1).enumerate() {
                if let Ok(rows) = <&[u32; M1]>::try_from(rows) {
                    many_rows::<S, M1, VECS, MASKED>(panel, rows, i * M1, &mut tile);
                } else {
                    for (j, &row) in rows.iter().enumerate() {
                        let position = i * M1 + j;
                        one_row::<S, VECS, 1, MASKED>(panel, row as usize, position, &mut tile);
                    }
                }
            }
            panel.flush(group.iter().map(|&row| row as usize), &tile);
        }
    }
}

#[inline(always)]
unsafe fn many_rows<S: Simd, const M1: usize, const VECS: usize, const MASKED: bool>(
    panel: &Panel<'_, S::Element>,
    rows: &[u32; M1],
    position: usize,
    tile: &mut Tile<S::Element>,
) {
    // SAFETY: rows are rows of the matrix, so entries come from its row pointers.
    unsafe {
        let columns = Columns::<S, VECS, MASKED>::of(panel.width);
        let mut sums = [[S::zero(); VECS]; M1];
        let starts = rows.map(|row| *panel.indptr.get_unchecked(row as usize));
        let ends = rows.map(|row| *panel.indptr.get_unchecked(row as usize + 1));
        let mut shortest = usize::MAX;
        for m in 0..M1 {
            shortest = shortest.min(ends[m] - starts[m]);
        }
        for step in 0..shortest {
            for m in 0..M1 {
                let (from, value) = panel.entry(starts[m] + step);
                columns.accumulate(&mut sums[m], from, value);
            }
        }
        for m in 0..M1 {
            for entry in starts[m] + shortest..ends[m] {
                let (from, value) = panel.entry(entry);
                columns.accumulate(&mut sums[m], from, value);
            }
            let to = panel.target(rows[m] as usize, position + m, tile);
            columns.store(panel, &mut sums[m], to);
        }
    }
}

/// Computes consecutive rows one at a time, with UNROLL entries of a row in flight.
///
/// # Safety
/// As for `row_panel`, of the rows in `rows`.
#[inline(always)]
pub unsafe fn row_split<S: Simd, const VECS: usize, const UNROLL: usize, const MASKED: bool>(
    panel: &Panel<'_, S::Element>,
    rows: Range<usize>,
) {
    let mut tile = Tile([S::Element::ZERO; GROUP * WIDEST]);
    for first in rows.clone().step_by(GROUP) {
        let group = first..rows.end.min(first + GROUP);
        // SAFETY: the requirements are the caller's.
        unsafe {
            for row in group.clone() {
                one_row::<S, VECS, UNROLL, MASKED>(panel, row, row - first, &mut tile);
            }
            panel.flush(group, &tile);
        }
    }
}

#[inline(always)]
unsafe fn one_row<S: Simd, const VECS: usize, const UNROLL: usize, const MASKED: bool>(
    panel: &Panel<'_, S::Element>,
    row: usize,
    position: usize,
    tile: &mut Tile<S::Element>,
) {
    // SAFETY: row is a row of the matrix, so entries come from its row pointers.
    unsafe {
        let columns = Columns::<S, VECS, MASKED>::of(panel.width);
        let mut sums = [[S::zero(); VECS]; UNROLL];
        let mut entry = *panel.indptr.get_unchecked(row);
        let end = *panel.indptr.get_unchecked(row + 1);
        while end - entry >= UNROLL {
            for u in 0..UNROLL {
                let (from, value) = panel.entry(entry + u);
                columns.accumulate(&mut sums[u], from, value);
            }
            entry += UNROLL;
        }
        // Into fixed registers, because a run-time index would spill the sums to memory.
        for u in 0..UNROLL {
            if entry + u < end {
                let (from, value) = panel.entry(entry + u);
                columns.accumulate(&mut sums[u], from, value);
            }
        }
        for u in 1..UNROLL {
            for v in 0..VECS {
                sums[0][v] = sums[0][v].add(sums[u][v]);
            }
        }
        let to = panel.target(row, position, tile);
        columns.store(panel, &mut sums[0], to);
    }
}
