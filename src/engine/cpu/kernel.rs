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
use std::mem::MaybeUninit;
use std::ops::Range;

/// Rows of C that are transposed together: one cache line of a column. A multiple of every M1.
const GROUP: usize = 16;

/// Widest panel of all kernels.
pub const WIDEST: usize = 128;

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

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
    /// The row of C that belongs to each row of A, if A's are in another order.
    pub rows: Option<&'a [u32]>,
    /// Entries from one that is multiplied to the one whose row of B is asked for; 0 if none is.
    pub ahead: usize,
    /// Whether rows of C are written past the caches. They are whole cache lines then.
    pub streamed: bool,
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
struct Tile<T>(MaybeUninit<[T; GROUP * WIDEST]>);

impl<T> Tile<T> {
    /// Nothing is written: most products need no tile, and a task may be short.
    #[inline(always)]
    const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// The row of the group at a position.
    #[inline(always)]
    fn row(&mut self, position: usize) -> *mut T {
        self.0.as_mut_ptr().cast::<T>().wrapping_add(position * WIDEST)
    }
}

impl<T: Element> Panel<'_, T> {
    /// The address where a kernel writes its row: in C or in the tile.
    #[inline(always)]
    fn target(&self, row: usize, position: usize, tile: &mut Tile<T>) -> *mut T {
        match self.layout {
            // SAFETY: row is a row of the matrix, so this is within C.
            Layout::Row => unsafe { self.c.add(row * self.ldc) },
            Layout::Col => tile.row(position),
        }
    }

    /// Writes a finished group to the columns of C; does nothing if rows were written directly.
    ///
    /// # Safety
    /// `rows` are rows of the matrix that no other thread writes, at most as many as a group has, and each was written to the
    /// tile.
    #[inline(always)]
    unsafe fn flush(&self, rows: impl Iterator<Item = usize> + Clone, tile: &mut Tile<T>) {
        if self.layout == Layout::Row {
            return;
        }
        for column in 0..self.width {
            for (position, row) in rows.clone().enumerate() {
                // SAFETY: the row was written to the tile as wide as the panel, and row < ldc, the length of a column.
                unsafe {
                    let sum = *tile.row(position).add(column);
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

    /// The row of C that belongs to a row of A.
    #[inline(always)]
    fn row(&self, at: usize) -> usize {
        self.rows.map_or(at, |rows| rows[at] as usize)
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

    /// Asks for the row of B that an entry a few further on needs. Rows are short where this pays: the processor looks ahead
    /// by itself, but not beyond a row's end that it did not foresee.
    ///
    /// # Safety
    /// There is at least one entry.
    #[inline(always)]
    unsafe fn ask(&self, panel: &Panel<'_, S::Element>, entry: usize) {
        let last = panel.indices.len() - 1;
        // SAFETY: at most the last entry, whose column is a row of B.
        let (from, _) = unsafe { panel.entry((entry + panel.ahead).min(last)) };
        for v in 0..VECS {
            let first = v * S::LANES;
            let begins_a_line = (first * size_of::<S::Element>()).is_multiple_of(LINE_BYTES);
            if begins_a_line && (!MASKED || first < panel.width) {
                S::prefetch(from.wrapping_add(first));
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
                } else if panel.streamed {
                    sums[v].stream(at);
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
    let mut tile = Tile::new();
    for group in order.chunks(GROUP) {
        // SAFETY: the requirements are the caller's.
        unsafe {
            for (i, rows) in group.chunks(M1).enumerate() {
                if let Ok(rows) = <&[u32; M1]>::try_from(rows) {
                    many_rows::<S, M1, VECS, MASKED>(panel, rows, i * M1, &mut tile);
                } else {
                    for (j, &row) in rows.iter().enumerate() {
                        let position = i * M1 + j;
                        one_row::<S, VECS, 1, MASKED, false>(
                            panel,
                            row as usize,
                            position,
                            &mut tile,
                        );
                    }
                }
            }
            panel.flush(group.iter().map(|&row| row as usize), &mut tile);
        }
    }
    if panel.streamed {
        // SAFETY: the host has S's instructions.
        unsafe { S::fence() };
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

/// Computes consecutive rows of A one at a time, with UNROLL entries of a row in flight.
///
/// # Safety
/// As for `row_panel`, of the rows of A in `rows` and the rows of C that belong to them.
#[inline(always)]
pub unsafe fn row_split<S: Simd, const VECS: usize, const UNROLL: usize, const MASKED: bool>(
    panel: &Panel<'_, S::Element>,
    rows: Range<usize>,
) {
    let mut tile = Tile::new();
    for first in rows.clone().step_by(GROUP) {
        let group = first..rows.end.min(first + GROUP);
        // SAFETY: the requirements are the caller's.
        unsafe {
            if panel.ahead == 0 {
                for row in group.clone() {
                    one_row::<S, VECS, UNROLL, MASKED, false>(panel, row, row - first, &mut tile);
                }
            } else {
                for row in group.clone() {
                    one_row::<S, VECS, UNROLL, MASKED, true>(panel, row, row - first, &mut tile);
                }
            }
            panel.flush(group.map(|row| panel.row(row)), &mut tile);
        }
    }
    if panel.streamed {
        // SAFETY: the host has S's instructions.
        unsafe { S::fence() };
    }
}

#[inline(always)]
unsafe fn one_row<
    S: Simd,
    const VECS: usize,
    const UNROLL: usize,
    const MASKED: bool,
    const AHEAD: bool,
>(
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
                if AHEAD {
                    columns.ask(panel, entry + u);
                }
                let (from, value) = panel.entry(entry + u);
                columns.accumulate(&mut sums[u], from, value);
            }
            entry += UNROLL;
        }
        // Into fixed registers, because a run-time index would spill the sums to memory.
        for u in 0..UNROLL {
            if entry + u < end {
                if AHEAD {
                    columns.ask(panel, entry + u);
                }
                let (from, value) = panel.entry(entry + u);
                columns.accumulate(&mut sums[u], from, value);
            }
        }
        for u in 1..UNROLL {
            for v in 0..VECS {
                sums[0][v] = sums[0][v].add(sums[u][v]);
            }
        }
        let to = panel.target(panel.row(row), position, tile);
        columns.store(panel, &mut sums[0], to);
    }
}
