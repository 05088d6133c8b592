//! The loaded product on the CPU: the sparse operand, cache-aligned dense buffers, and the reference.

use super::buffer::Buffer;
use super::operand::SparseOperand;
use super::program::{Call, Prepared};
use super::schedule::Threads;
use crate::domain::{Layout, Problem};
use crate::engine::{EngineError, Operands};
use crate::sparse::oracle::Product;
use rayon::prelude::*;
use std::sync::Arc;

/// Elements copied per parallel task.
const COPY: usize = 1 << 18;

/// Operands in the form that the kernels read.
pub struct Loaded {
    pub sparse: SparseOperand,
    /// B as it was given.
    b: Arc<[f32]>,
    pub reference: Arc<Product>,
    /// B itself, or the buffer to pack it into if the layout is column-major.
    dense: Buffer,
    /// C.
    pub output: Buffer,
}

impl Loaded {
    /// Converts and allocates; refuses problems that no CPU kernel computes.
    pub fn of(operands: Operands, threads: &Threads) -> Result<Self, EngineError> {
        let Problem::Spmm(problem) = operands.problem else {
            return Err(EngineError::Refused("this operation is not a product".to_owned()));
        };
        let sparse = SparseOperand::of(operands.matrix.clone(), &problem, threads)?;
        let (b, reference) = match operands.product() {
            Some((b, reference)) => (b.clone(), reference.clone()),
            None => return Err(EngineError::Refused("B is not in f32".to_owned())),
        };
        if sparse.b_len() != b.len() || sparse.c_len() != reference.value.len() {
            return Err(EngineError::Refused(
                "the sizes of B and the reference do not match the matrix and n".to_owned(),
            ));
        }
        let no_memory =
            || EngineError::OutOfMemory("B and C do not fit into the host's memory".to_owned());
        let mut dense = Buffer::zeroed(b.len()).ok_or_else(no_memory)?;
        let output = Buffer::zeroed(reference.value.len()).ok_or_else(no_memory)?;
        if sparse.layout == Layout::Row {
            let pieces = dense.as_mut_slice().par_chunks_mut(COPY).zip(b.par_chunks(COPY));
            threads.install(|| pieces.for_each(|(to, from)| to.copy_from_slice(from)));
        }
        Ok(Self { sparse, b, reference, dense, output })
    }

    /// One call.
    pub fn run(&mut self, prepared: &Prepared, threads: &Threads) -> Result<(), EngineError> {
        let c = self.output.as_mut_slice();
        let call = match self.sparse.layout {
            Layout::Row => Call { b: self.dense.as_slice(), packed: &mut [], c },
            Layout::Col => Call { b: &self.b, packed: self.dense.as_mut_slice(), c },
        };
        prepared.run(&self.sparse, call, threads)
    }
}
