//! The sparse operand of a product as the kernels read it, and the packing of column-major B.

use super::element::Element;
use super::schedule::Threads;
use crate::domain::{Layout, Spmm};
use crate::engine::EngineError;
use crate::sparse::Csr;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Rows of B per packing job, so that its part of a column is one page.
const PACK_ROWS: usize = 1024;

/// Rows packed at a time: a few cache lines of each column, suitable for the hardware prefetcher.
const LINE: usize = 64;

/// A in the kernels' element type, and the shape of the dense operands.
pub struct SparseOperand<T> {
    /// The pattern; its values are not used after they have been converted.
    pub matrix: Arc<Csr>,
    pub values: Vec<T>,
    /// Columns of B and C.
    pub n: usize,
    /// The problem's layout, but row-major if n = 1, since a single column is also a row-major matrix.
    pub layout: Layout,
    /// Whether calls have factors alpha and beta.
    pub accumulate: bool,
    /// The copy that was made last, for the next program with the same order.
    ordered: Mutex<Option<Arc<Ordered<T>>>>,
}

/// A copy of A whose rows are in another order: rows that follow each other are next to each other in memory, so that they
/// are read as one run, and what is asked for ahead is that of the next rows.
pub struct Ordered<T> {
    /// The row of the matrix at each place.
    pub order: Arc<[u32]>,
    pub indptr: Vec<usize>,
    pub indices: Vec<u32>,
    pub values: Vec<T>,
}

impl<T: Element> SparseOperand<T> {
    /// Converts the values; refuses problems of another type, and values outside its range.
    pub fn of(matrix: Arc<Csr>, problem: &Spmm, threads: &Threads) -> Result<Self, EngineError> {
        if problem.dtype != T::DTYPE {
            return Err(EngineError::Refused(format!(
                "the problem is in {}, not in {}",
                problem.dtype,
                T::NAME
            )));
        }
        let n = problem.n as usize;
        let fits = |height: usize| height.checked_mul(n).is_some();
        if n == 0 || !fits(matrix.rows()) || !fits(matrix.cols()) {
            return Err(refused("B and C must have at least one column, and fit in memory"));
        }
        let values = threads.install(|| converted(matrix.values()))?;
        let layout = if n == 1 { Layout::Row } else { problem.layout };
        let ordered = Mutex::default();
        Ok(Self { matrix, values, n, layout, accumulate: problem.accumulate, ordered })
    }

    /// Replaces the values, and returns the old; they are those of the same entries in the same order.
    pub fn set_values(&mut self, values: &[f64], threads: &Threads) -> Result<Vec<T>, EngineError> {
        if values.len() != self.matrix.nnz() {
            return Err(EngineError::Refused(format!(
                "there are {} new values, but the matrix has {} entries",
                values.len(),
                self.matrix.nnz()
            )));
        }
        let new = threads.install(|| converted(values))?;
        self.forget_ordered();
        Ok(std::mem::replace(&mut self.values, new))
    }

    /// Puts values back that `set_values` returned.
    pub fn restore_values(&mut self, values: Vec<T>) {
        self.forget_ordered();
        self.values = values;
    }

    fn forget_ordered(&mut self) {
        *self.ordered.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The matrix with its rows in this order, a permutation of them. All programs of an order share one copy.
    pub fn ordered(&self, order: &Arc<[u32]>) -> Result<Arc<Ordered<T>>, EngineError> {
        let mut kept = self.ordered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = kept.as_ref().filter(|kept| kept.order == *order) {
            return Ok(kept.clone());
        }
        // Before there are two.
        *kept = None;
        let (nnz, no_memory) = (self.matrix.nnz(), |_| {
            EngineError::OutOfMemory(
                "there is no memory for the matrix in another order".to_owned(),
            )
        });
        let (mut indptr, mut indices, mut values) = (Vec::new(), Vec::new(), Vec::new());
        indptr.try_reserve_exact(order.len() + 1).map_err(no_memory)?;
        indices.try_reserve_exact(nnz).map_err(no_memory)?;
        values.try_reserve_exact(nnz).map_err(no_memory)?;
        indptr.push(0);
        let starts = self.matrix.indptr();
        for &row in &**order {
            let entries = starts[row as usize]..starts[row as usize + 1];
            indices.extend_from_slice(&self.matrix.indices()[entries.clone()]);
            values.extend_from_slice(&self.values[entries]);
            indptr.push(indices.len());
        }
        let made = Arc::new(Ordered { order: order.clone(), indptr, indices, values });
        *kept = Some(made.clone());
        Ok(made)
    }

    /// Elements of B: cols x n.
    pub fn b_len(&self) -> usize {
        self.matrix.cols() * self.n
    }

    /// Elements of C: rows x n.
    pub fn c_len(&self) -> usize {
        self.matrix.rows() * self.n
    }

    /// Packs column-major B (`from`) into panels of `n1` columns, each a row-major matrix as wide as the panel; the last
    /// may be narrower.
    pub fn pack(&self, from: &[T], to: &mut [T], n1: usize, threads: &Threads) {
        let cols = self.matrix.cols();
        if cols == 0 {
            return;
        }
        assert!(
            from.len() == self.b_len() && to.len() == from.len(),
            "B and its packed form are cols x n"
        );
        let pieces = cols.div_ceil(PACK_ROWS);
        let to = Target(to.as_mut_ptr());
        threads.run(pieces * self.n.div_ceil(n1), |job| {
            let columns = columns(self.n, n1, job / pieces);
            let first = job % pieces * PACK_ROWS;
            let height = PACK_ROWS.min(cols - first);
            let width = columns.len();
            let start = columns.start * cols + first * width;
            // SAFETY: panels and the pieces of a panel follow one another in `to`, which is as long as B, so the jobs'
            // parts are disjoint and inside it.
            let piece = unsafe { std::slice::from_raw_parts_mut(to.at(start), height * width) };
            for (i, rows) in piece.chunks_mut(width * LINE).enumerate() {
                let height = rows.len() / width;
                for (j, column) in columns.clone().enumerate() {
                    let from = &from[column * cols + first + i * LINE..][..height];
                    for (row, &element) in rows.chunks_exact_mut(width).zip(from) {
                        row[j] = element;
                    }
                }
            }
        });
    }
}

/// The columns of panel `at` of `n1` columns.
pub fn columns(n: usize, n1: usize, at: usize) -> Range<usize> {
    at * n1..n.min((at + 1) * n1)
}

/// An address that jobs write disjoint parts of.
pub struct Target<T>(pub *mut T);

impl<T> Clone for Target<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Target<T> {}

// SAFETY: see the uses: each job writes a part of its own.
unsafe impl<T: Send> Sync for Target<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Target<T> {}

impl<T> Target<T> {
    pub fn at(self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }
}

/// Values rounded to T; refuses values that are not finite, or would become infinite.
fn converted<T: Element>(values: &[f64]) -> Result<Vec<T>, EngineError> {
    if values.par_iter().with_min_len(1 << 14).any(|value| !value.is_finite()) {
        return Err(refused("a value of the matrix is not finite"));
    }
    let rounded: Vec<T> =
        values.par_iter().with_min_len(1 << 14).map(|&value| T::of(value)).collect();
    let infinite = |value: &T| -> bool { Into::<f64>::into(*value).is_infinite() };
    if rounded.par_iter().with_min_len(1 << 14).any(infinite) {
        let why = format!("the matrix has values too large for {}", T::NAME);
        return Err(EngineError::Refused(why));
    }
    Ok(rounded)
}

fn refused(why: &str) -> EngineError {
    EngineError::Refused(why.to_owned())
}
