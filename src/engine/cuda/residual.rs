//! Judging a triangular solve: one call for each of two right-hand sides, each by its componentwise backward error.

use super::context::{Buffer, Context};
use super::launch::{Launch, refused};
use super::operands::{Loaded, POISON, in_type, row_pointers};
use super::own::OwnKernels;
use super::timer::Call;
use super::verify::{Findings, THREADS, blocks, call_poisoned};
use crate::domain::{Dtype, Sptrsv};
use crate::engine::{Check, EngineError};
use crate::sparse::Csr;
use std::sync::Arc;

/// `kResidualWarps` of kernels/engine/residual.cuh: rows that a block takes at a time.
const ROWS_PER_BLOCK: usize = 8;

/// What a solution must satisfy, beside the system that kernels read.
pub(super) struct Solution {
    pub(super) problem: Sptrsv,
    /// Solve index s is row n - 1 - s of b and x.
    pub(super) reversed: bool,
    /// Both right-hand sides as they came; `Loaded::b`, which kernels could spoil, holds a copy of one.
    pub(super) sides: [Buffer; 2],
    /// What the vendor's routine takes, where there is one. It is brought to the device with the rest, not when the
    /// routine is first set up: a client of the routine has it there, so it is no preparation to be counted.
    pub(super) raw: Option<Raw>,
}

/// The matrix as the client uploaded it, both triangles, in the problem's type.
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
        dtype: Dtype,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            nnz: matrix.nnz(),
            row_ptr: Buffer::of(context, &row_pointers(matrix.indptr())?)?,
            col_idx: Buffer::of(context, matrix.indices())?,
            values: in_type(context, matrix.values(), dtype)?,
        })
    }
}

impl Solution {
    /// One call for each right-hand side on a poisoned x; the worse of both. Afterwards b holds the first again.
    pub(super) fn verify(
        &self,
        context: &Arc<Context>,
        own: &OwnKernels,
        loaded: &Loaded,
        call: &Call,
    ) -> Result<Check, EngineError> {
        let mut findings = Findings::new(context)?;
        let judged = self.sides.iter().try_for_each(|side| {
            context.copy(&loaded.b, side, side.bytes)?;
            call_poisoned(context, loaded, call)?;
            self.judge(context, own, loaded, side, &mut findings)
        });
        // Also where the call was refused or cut short: what is timed next must solve for the first.
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
            Dtype::F16 => return Err(refused("there is no solve in f16".to_owned())),
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
