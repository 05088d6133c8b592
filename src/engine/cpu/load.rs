//! The loaded product on the CPU: values in f32, cache-aligned dense buffers, and the packing of column-major B.

use super::buffer::Buffer;
use super::schedule::Threads;
use crate::domain::{Dtype, Layout, Problem};
use crate::engine::{EngineError, Operands};
use crate::sparse::oracle::Product;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Rows of B per packing job, so that its part of a column is one page.
const PACK_ROWS: usize = 1024;

/// Elements copied per parallel task.
const COPY: usize = 1 << 18;

/// Rows packed at a time: a few cache lines of each column, suitable for the hardware prefetcher.
const LINE: usize = 64;

/// Operands in the form that the kernels read.
pub struct Loaded {
    pub operands: Operands,
    /// B as it was given.
    pub b: Arc<[f32]>,
    pub reference: Arc<Product>,
    /// A's values in f32.
    pub values: Vec<f32>,
    pub n: usize,
    /// The problem's layout, but row-major if n = 1, since a single column is also a row-major matrix.
    pub layout: Layout,
    /// B itself, or the buffer to pack it into if the layout is column-major.
    pub dense: Buffer,
    /// C.
    pub output: Buffer,
}

impl Loaded {
    /// Converts and allocates; refuses problems that no CPU kernel computes.
    pub fn of(operands: Operands, threads: &Threads) -> Result<Self, EngineError> {
        let Problem::Spmm(problem) = operands.problem else {
            return Err(EngineError::Refused("this operation is not a product".to_owned()));
        };
        if problem.dtype != Dtype::F32 {
            return Err(EngineError::Refused(format!(
                "the CPU engine supports f32 only, not {}",
                problem.dtype
            )));
        }
        if problem.accumulate {
            let why = "the CPU engine computes C = A B only, not alpha A B + beta C";
            return Err(EngineError::Refused(why.to_owned()));
        }
        let (b, reference) = match operands.product() {
            Some((b, reference)) => (b.clone(), reference.clone()),
            None => return Err(EngineError::Refused("B is not in f32".to_owned())),
        };
        let matrix = &operands.matrix;
        let n = problem.n as usize;
        let [b_len, c_len] = [matrix.cols(), matrix.rows()].map(|height| height.checked_mul(n));
        if n == 0 || b_len != Some(b.len()) || c_len != Some(reference.value.len()) {
            return Err(EngineError::Refused(
                "the sizes of B and the reference do not match the matrix and n".to_owned(),
            ));
        }
        let values = threads.install(|| in_f32(matrix.values()))?;
        let no_memory =
            || EngineError::OutOfMemory("B and C do not fit into the host's memory".to_owned());
        let mut dense = Buffer::zeroed(b.len()).ok_or_else(no_memory)?;
        let output = Buffer::zeroed(reference.value.len()).ok_or_else(no_memory)?;
        let layout = if n == 1 { Layout::Row } else { problem.layout };
        if layout == Layout::Row {
            let pieces = dense.as_mut_slice().par_chunks_mut(COPY).zip(b.par_chunks(COPY));
            threads.install(|| pieces.for_each(|(to, from)| to.copy_from_slice(from)));
        }
        Ok(Self { operands, b, reference, values, n, layout, dense, output })
    }

    /// Packs column-major B into panels, each a row-major matrix as wide as the panel; does nothing if B is row-major.
    pub fn pack(&mut self, threads: &Threads, panels: impl Iterator<Item = Range<usize>>) {
        if self.layout == Layout::Row {
            return;
        }
        let cols = self.operands.matrix.cols();
        let b = &self.b;
        let mut rest = self.dense.as_mut_slice();
        let mut jobs = Vec::new();
        for panel in panels {
            let (packed, after) = rest.split_at_mut(panel.len() * cols);
            rest = after;
            let pieces = packed.chunks_mut(panel.len() * PACK_ROWS).enumerate();
            jobs.extend(pieces.map(|(i, piece)| (panel.clone(), i * PACK_ROWS, piece)));
        }
        threads.install(|| {
            jobs.into_par_iter().with_max_len(1).for_each(|(panel, first, piece)| {
                for (i, rows) in piece.chunks_mut(panel.len() * LINE).enumerate() {
                    let height = rows.len() / panel.len();
                    for (j, column) in panel.clone().enumerate() {
                        let from = &b[column * cols + first + i * LINE..][..height];
                        for (row, &element) in rows.chunks_exact_mut(panel.len()).zip(from) {
                            row[j] = element;
                        }
                    }
                }
            });
        });
    }
}

/// A's values rounded to f32; refuses values that would become infinite.
fn in_f32(values: &[f64]) -> Result<Vec<f32>, EngineError> {
    let rounded: Vec<f32> =
        values.par_iter().with_min_len(1 << 14).map(|&value| value as f32).collect();
    if rounded.par_iter().with_min_len(1 << 14).any(|value| value.is_infinite()) {
        return Err(EngineError::Refused("the matrix has values too large for f32".to_owned()));
    }
    Ok(rounded)
}
