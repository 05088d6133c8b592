//! The vendor's SpMM: cuSPARSE on the same buffers, each algorithm set up once so that only the product is timed: on
//! compressed rows, or on the operand in blocks.

use super::baseline::{Descriptor, Factors, NO_TRANSPOSE, Work, compute_type};
use super::bsr::Bsr;
use super::context::{Buffer, Context};
use super::cusparse::{Handle, Opaque};
use super::launch::refused;
use super::overtaking::Separator;
use crate::domain::catalog::vendor::block_size;
use crate::engine::EngineError;
use cudarc::cusparse::sys::cusparseSpMMAlg_t;
use cudarc::driver::sys::CUstream;
use std::ffi::c_void;
use std::sync::Arc;

/// Names of the algorithms in recipes, and the vendor's numbers. Their results need not be identical from call to call.
const ALGORITHMS: [(&str, cusparseSpMMAlg_t); 4] = [
    ("default", cusparseSpMMAlg_t::CUSPARSE_SPMM_ALG_DEFAULT),
    ("csr_alg1", cusparseSpMMAlg_t::CUSPARSE_SPMM_CSR_ALG1),
    ("csr_alg2", cusparseSpMMAlg_t::CUSPARSE_SPMM_CSR_ALG2),
    ("csr_alg3", cusparseSpMMAlg_t::CUSPARSE_SPMM_CSR_ALG3),
];

/// The only algorithm for blocks, which it takes by rows within each. Constants for CUDA 12.0, which this engine's are, lack it.
const CUSPARSE_SPMM_BSR_ALG1: u32 = 14;

/// One algorithm, set up on the loaded operands. The result of `preprocess` belongs to the algorithm's own matrix descriptor.
pub(super) struct Spmm {
    handle: Arc<Handle>,
    a: Descriptor,
    b: Descriptor,
    c: Descriptor,
    compute: u32,
    algorithm: u32,
    workspace: Option<Buffer>,
    /// The operand in blocks, where the algorithm takes it so.
    blocks: Option<Box<Bsr>>,
    /// Follows each call, where the library's calls do not wait for each other.
    separator: Option<Separator>,
}

// SAFETY: see `Handle`; descriptors are plain host memory of the library.
unsafe impl Send for Spmm {}
// SAFETY: as above.
unsafe impl Sync for Spmm {}

impl Spmm {
    /// Creates descriptors and workspace, and runs the algorithm's preprocessing if it has one.
    pub(super) fn new(
        context: &Arc<Context>,
        handle: &Arc<Handle>,
        work: &Work<'_>,
        factors: [f64; 2],
        algorithm: &str,
    ) -> Result<Self, EngineError> {
        let number = number(algorithm).map_err(refused)?;
        let dtype = work.csr.dtype;
        let blocks = match block_size(algorithm) {
            None => None,
            Some(size) => Some(Box::new(Bsr::new(context, &work.csr, size)?)),
        };
        let a = match &blocks {
            None => work.csr.describe(handle)?,
            Some(blocks) => blocks.describe(handle, &work.csr)?,
        };
        let mut spmm = Self {
            handle: handle.clone(),
            a,
            b: work.dense_b().describe(handle)?,
            c: work.dense_c().describe(handle)?,
            compute: compute_type(dtype),
            algorithm: number,
            workspace: None,
            blocks,
            separator: None,
        };
        let factors = Factors::of(factors, dtype);
        let mut bytes = 0;
        // SAFETY: all descriptors are alive; out-pointer to a local.
        let status = unsafe {
            (handle.library.api.spmm_buffer)(
                handle.raw,
                NO_TRANSPOSE,
                NO_TRANSPOSE,
                factors.alpha(),
                spmm.a.raw,
                spmm.b.raw,
                factors.beta(),
                spmm.c.raw,
                spmm.compute,
                spmm.algorithm,
                &mut bytes,
            )
        };
        handle.check("cusparseSpMM_bufferSize", status)?;
        spmm.workspace = Some(Buffer::new(context, bytes)?);
        // It is for compressed rows alone, and optional.
        if spmm.blocks.is_none() {
            spmm.run(&factors, "cusparseSpMM_preprocess", handle.library.api.spmm_preprocess)?;
        }
        context.synchronize()?;
        Ok(spmm)
    }

    /// The operand in blocks, where the algorithm takes it so.
    pub(super) fn blocks(&self) -> Option<&Bsr> {
        self.blocks.as_deref()
    }

    /// Queues the products that follow on this stream, with these addresses of B and C.
    pub(super) fn aim(&self, stream: CUstream, b: u64, c: u64) -> Result<(), EngineError> {
        self.handle.set_stream(stream)?;
        if let Some(separator) = &self.separator {
            separator.aim(stream);
        }
        self.b.set_dense(b)?;
        self.c.set_dense(c)
    }

    /// From now on something follows each call that the next call cannot pass.
    pub(super) fn separate(&mut self, context: &Arc<Context>) -> Result<(), EngineError> {
        self.separator = Some(Separator::new(context)?);
        Ok(())
    }

    /// Queues one product.
    pub(super) fn enqueue(&self, factors: &Factors) -> Result<(), EngineError> {
        self.run(factors, "cusparseSpMM", self.handle.library.api.spmm)?;
        self.separator.as_ref().map_or(Ok(()), Separator::enqueue)
    }

    fn run(
        &self,
        factors: &Factors,
        call: &str,
        function: SpmmFunction,
    ) -> Result<(), EngineError> {
        let workspace = self.workspace.as_ref().map_or(0, |buffer| buffer.pointer);
        // SAFETY: all descriptors are alive, alpha and beta are host numbers of the compute type (the handle's default pointer mode),
        // and the workspace is as large as the library asked for.
        let status = unsafe {
            function(
                self.handle.raw,
                NO_TRANSPOSE,
                NO_TRANSPOSE,
                factors.alpha(),
                self.a.raw,
                self.b.raw,
                factors.beta(),
                self.c.raw,
                self.compute,
                self.algorithm,
                workspace,
            )
        };
        self.handle.check(call, status)
    }
}

type SpmmFunction = unsafe extern "C" fn(
    Opaque,
    u32,
    u32,
    *const c_void,
    Opaque,
    Opaque,
    *const c_void,
    Opaque,
    u32,
    u32,
    u64,
) -> u32;

/// Whether a version of the library is known whose calls of this algorithm do not wait for each other; see `overtaking`.
pub(super) fn may_overtake(algorithm: &str) -> bool {
    matches!(algorithm, "csr_alg3" | "default")
}

/// The vendor's number of an algorithm's name in recipes.
fn number(algorithm: &str) -> Result<u32, String> {
    if block_size(algorithm).is_some() {
        return Ok(CUSPARSE_SPMM_BSR_ALG1);
    }
    let known = ALGORITHMS.into_iter().find(|(name, _)| *name == algorithm);
    known.map(|(_, number)| number as u32).ok_or_else(|| {
        let names = ALGORITHMS.map(|(name, _)| name).join(", ");
        format!(
            "cuSPARSE has no algorithm `{algorithm}`; it has {names}, and bsr with a block's size"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::number;
    use crate::domain::catalog::vendor::{Library, takes_vector};

    #[test]
    fn every_routine_for_a_matrix_has_its_number() {
        let names = Library::CusparseProduct.routines().filter(|name| !takes_vector(name));
        let numbers: Vec<u32> = names.map(|name| number(name).unwrap()).collect();
        assert_eq!(numbers, [4, 6, 12, 0, 14, 14, 14, 14]);
        assert!(number("csr_alg9").unwrap_err().contains("csr_alg9"));
        assert!(number("spmv_alg1").is_err());
    }
}
