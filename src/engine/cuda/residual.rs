//! Judging a triangular solve: one call for each of two right-hand sides, judged by its componentwise backward error, or by
//! its residual beside b.

use super::context::{Buffer, Context};
use super::launch::{Launch, refused};
use super::operands::{Loaded, POISON, dense, in_type, row_pointers};
use super::own::OwnKernels;
use super::timer::Call;
use super::verify::{Findings, THREADS, blocks, call_poisoned};
use crate::domain::problem::Triangle;
use crate::domain::{Dtype, Sptrsv};
use crate::engine::{Check, Dense, EngineError};
use crate::sparse::Csr;
use std::sync::Arc;

/// `kResidualWarps` of kernels/engine/residual.cuh: rows that a block takes at a time.
const ROWS_PER_BLOCK: usize = 8;

/// What a solution is judged by, besides the system that kernels read.
pub(super) struct Solution {
    pub(super) problem: Sptrsv,
    /// Solve index s is row n - 1 - s of b and x.
    pub(super) reversed: bool,
    /// Both right-hand sides as generated; `Loaded::b`, which kernels could overwrite, holds a copy of one of them.
    pub(super) sides: [Side; 2],
    /// The operands of the vendor's routine, if there is one. They are uploaded with the rest, not when the routine is first
    /// set up: a client of the routine already has them on the device, so this upload is not preparation.
    pub(super) raw: Option<Raw>,
}

/// A right-hand side.
pub(super) struct Side {
    pub(super) b: Buffer,
    /// The size of its largest element.
    pub(super) largest: f64,
}

impl Side {
    pub(super) fn upload(
        context: &Arc<Context>,
        b: &Dense,
        dtype: Dtype,
    ) -> Result<Self, EngineError> {
        let largest = match b {
            Dense::F32(b) => b.iter().fold(0.0, |most: f64, b| most.max(f64::from(*b).abs())),
            Dense::F64(b) => b.iter().fold(0.0, |most: f64, b| most.max(b.abs())),
            Dense::F16(_) | Dense::Bf16(_) => 0.0,
        };
        Ok(Self { b: dense(context, b, dtype)?, largest })
    }
}

/// The triangle of the matrix that the problem names, with its diagonal, in the matrix's own order and the problem's type:
/// what a client of the vendor's routine would pass to it.
pub(super) struct Raw {
    pub(super) nnz: usize,
    pub(super) row_ptr: Buffer,
    pub(super) col_idx: Buffer,
    pub(super) values: Buffer,
}

impl Raw {
    pub(super) fn upload(
        context: &Arc<Context>,
        matrix: &Csr,
        problem: &Sptrsv,
    ) -> Result<Self, EngineError> {
        let lower = problem.triangle == Triangle::Lower;
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
        Ok(Self {
            nnz: indices.len(),
            row_ptr: Buffer::of(context, &row_pointers(&indptr)?)?,
            col_idx: Buffer::of(context, &indices)?,
            values: in_type(context, &values, problem.dtype)?,
        })
    }
}

impl Solution {
    /// Two calls for each right-hand side on a poisoned x, alternating; the worst of all counts. Afterwards b holds the first
    /// again.
    ///
    /// The two work arrays of a scheme alternate and each call resets the other call's array: only the third and fourth calls
    /// use what an earlier call should have reset.
    pub(super) fn verify(
        &self,
        context: &Arc<Context>,
        own: &OwnKernels,
        loaded: &Loaded,
        (call, approximate): (&Call, bool),
    ) -> Result<Check, EngineError> {
        let mut findings = Findings::new(context)?;
        let copied = |side: &Side| context.copy(&loaded.b, &side.b, side.b.bytes);
        let judged = self.sides.iter().chain(&self.sides).try_for_each(|side| {
            copied(side)?;
            call_poisoned(context, loaded, call, None)?;
            self.judge(context, own, loaded, (side, approximate), &mut findings)
        });
        // Also if the call was refused or ended early: what is timed next must solve for the first right-hand side.
        let restored = copied(&self.sides[0]);
        judged.and(restored)?;
        Ok(findings.check)
    }

    fn judge(
        &self,
        context: &Arc<Context>,
        own: &OwnKernels,
        loaded: &Loaded,
        (side, approximate): (&Side, bool),
        findings: &mut Findings,
    ) -> Result<(), EngineError> {
        let kernel = match loaded.dtype {
            Dtype::F32 => &own.residual_f32,
            Dtype::F64 => &own.residual_f64,
            Dtype::F16 | Dtype::Bf16 => {
                return Err(refused(format!("there is no solve in {}", loaded.dtype)));
            }
        };
        let diagonal = loaded.diagonal.as_ref().map_or(0, |diagonal| diagonal.pointer);
        let blocks = blocks(loaded.rows.div_ceil(ROWS_PER_BLOCK));
        // Of a b of zeros any residual is too large.
        let beside = if approximate { side.largest.max(f64::MIN_POSITIVE) } else { 0.0 };
        let arguments = vec![
            loaded.row_ptr.pointer,
            loaded.col_idx.pointer,
            loaded.values.pointer,
            diagonal,
            side.b.pointer,
            loaded.c.pointer,
            loaded.rows as u64,
            loaded.n as u64,
            u64::from(self.reversed),
            beside.to_bits(),
            u64::from(POISON),
            findings.pointer(),
        ];
        Launch::own(context, kernel, blocks, THREADS, arguments).enqueue()?;
        findings.take(blocks)?;
        findings.look_behind(loaded)
    }
}
