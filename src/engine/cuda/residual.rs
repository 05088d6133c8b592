//! Judging a triangular solve: one call for each of two right-hand sides, judged by its componentwise backward error.

use super::context::{Buffer, Context};
use super::launch::{Launch, refused};
use super::operands::{Loaded, POISON, in_type, row_pointers};
use super::own::OwnKernels;
use super::timer::Call;
use super::verify::{Findings, THREADS, blocks, call_poisoned};
use crate::domain::problem::Triangle;
use crate::domain::{Dtype, Sptrsv};
use crate::engine::{Check, EngineError};
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
    pub(super) sides: [Buffer; 2],
    /// The operands of the vendor's routine, if there is one. They are uploaded with the rest, not when the routine is first
    /// set up: a client of the routine already has them on the device, so this upload is not preparation.
    pub(super) raw: Option<Raw>,
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
        call: &Call,
    ) -> Result<Check, EngineError> {
        let mut findings = Findings::new(context)?;
        let judged = self.sides.iter().chain(&self.sides).try_for_each(|side| {
            context.copy(&loaded.b, side, side.bytes)?;
            call_poisoned(context, loaded, call, None)?;
            self.judge(context, own, loaded, side, &mut findings)
        });
        // Also if the call was refused or ended early: what is timed next must solve for the first right-hand side.
        let restored = context.copy(&loaded.b, &self.sides[0], self.sides[0].bytes);
        judged.and(restored)?;
        Ok(findings.check)
    }

    fn judge(
        &self,
        context: &Arc<Context>,
        own: &OwnKernels,
        loaded: &Loaded,
        side: &Buffer,
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
        let arguments = vec![
            loaded.row_ptr.pointer,
            loaded.col_idx.pointer,
            loaded.values.pointer,
            diagonal,
            side.pointer,
            loaded.c.pointer,
            loaded.rows as u64,
            loaded.n as u64,
            u64::from(self.reversed),
            u64::from(POISON),
            findings.pointer(),
        ];
        Launch::own(context, kernel, blocks, THREADS, arguments).enqueue()?;
        findings.take(blocks)?;
        findings.look_behind(loaded)
    }
}
