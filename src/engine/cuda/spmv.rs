//! The vendor's SpMV: cuSPARSE on the same buffers, for a product with one column.

use super::baseline::{Descriptor, Factors, NO_TRANSPOSE, Work, compute_type};
use super::context::{Buffer, Context};
use super::cusparse::{Handle, Opaque};
use super::launch::refused;
use crate::engine::EngineError;
use cudarc::cusparse::sys::cusparseSpMVAlg_t;
use cudarc::driver::sys::CUstream;
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

/// Names of the algorithms in recipes, and the vendor's numbers.
const ALGORITHMS: [(&str, cusparseSpMVAlg_t); 2] = [
    ("spmv_alg1", cusparseSpMVAlg_t::CUSPARSE_SPMV_CSR_ALG1),
    ("spmv_alg2", cusparseSpMVAlg_t::CUSPARSE_SPMV_CSR_ALG2),
];

/// `cusparseSpMV` and `cusparseSpMV_preprocess`: handle, operation, alpha, the matrix, x, beta, y, the type of sums, the
/// algorithm, the workspace.
type Call = unsafe extern "C" fn(
    Opaque,
    c_uint,
    *const c_void,
    Opaque,
    Opaque,
    *const c_void,
    Opaque,
    c_uint,
    c_uint,
    u64,
) -> u32;

/// As above, with a place for the workspace's bytes.
type BufferSize = unsafe extern "C" fn(
    Opaque,
    c_uint,
    *const c_void,
    Opaque,
    Opaque,
    *const c_void,
    Opaque,
    c_uint,
    c_uint,
    *mut usize,
) -> u32;

/// One algorithm, set up on the loaded operands. The result of a preprocessing belongs to the algorithm's own matrix
/// descriptor.
pub(super) struct Spmv {
    handle: Arc<Handle>,
    a: Descriptor,
    x: Descriptor,
    y: Descriptor,
    compute: u32,
    algorithm: u32,
    call: Call,
    workspace: Option<Buffer>,
}

// SAFETY: see `Handle`; descriptors are plain host memory of the library.
unsafe impl Send for Spmv {}
// SAFETY: as above.
unsafe impl Sync for Spmv {}

impl Spmv {
    /// Creates descriptors and workspace, and runs the algorithm's preprocessing where the library has one (from 12.4 on).
    pub(super) fn new(
        context: &Arc<Context>,
        handle: &Arc<Handle>,
        work: &Work<'_>,
        factors: [f64; 2],
        algorithm: &str,
    ) -> Result<Self, EngineError> {
        let number = number(algorithm, work.n).map_err(refused)?;
        let library = &handle.library;
        // SAFETY: the signatures are those that the vendor's header gives for these symbols.
        let (size, call): (BufferSize, Call) =
            unsafe { (library.later("cusparseSpMV_bufferSize")?, library.later("cusparseSpMV")?) };
        // SAFETY: as above.
        let prepare: Option<Call> = unsafe { library.later("cusparseSpMV_preprocess") }.ok();
        let dtype = work.csr.dtype;
        let mut spmv = Self {
            handle: handle.clone(),
            a: work.csr.describe(handle)?,
            x: work.dense_b().describe_vector(handle)?,
            y: work.dense_c().describe_vector(handle)?,
            compute: compute_type(dtype),
            algorithm: number,
            call,
            workspace: None,
        };
        let factors = Factors::of(factors, dtype);
        let mut bytes = 0;
        // SAFETY: all descriptors are alive; out-pointer to a local.
        let status = unsafe {
            size(
                handle.raw,
                NO_TRANSPOSE,
                factors.alpha(),
                spmv.a.raw,
                spmv.x.raw,
                factors.beta(),
                spmv.y.raw,
                spmv.compute,
                spmv.algorithm,
                &mut bytes,
            )
        };
        handle.check("cusparseSpMV_bufferSize", status)?;
        spmv.workspace = Some(Buffer::new(context, bytes)?);
        if let Some(prepare) = prepare {
            spmv.run(&factors, "cusparseSpMV_preprocess", prepare)?;
        }
        context.synchronize()?;
        Ok(spmv)
    }

    /// Queues the products that follow on this stream, with these addresses of x and y.
    pub(super) fn aim(&self, stream: CUstream, x: u64, y: u64) -> Result<(), EngineError> {
        self.handle.set_stream(stream)?;
        self.x.set_vector(x)?;
        self.y.set_vector(y)
    }

    /// Queues one product.
    pub(super) fn enqueue(&self, factors: &Factors) -> Result<(), EngineError> {
        self.run(factors, "cusparseSpMV", self.call)
    }

    fn run(&self, factors: &Factors, name: &str, function: Call) -> Result<(), EngineError> {
        let workspace = self.workspace.as_ref().map_or(0, |buffer| buffer.pointer);
        // SAFETY: all descriptors are alive, alpha and beta are host numbers of the compute type (the handle's default pointer
        // mode), and the workspace is as large as the library asked for. `handle` keeps the function's library mapped.
        let status = unsafe {
            function(
                self.handle.raw,
                NO_TRANSPOSE,
                factors.alpha(),
                self.a.raw,
                self.x.raw,
                factors.beta(),
                self.y.raw,
                self.compute,
                self.algorithm,
                workspace,
            )
        };
        self.handle.check(name, status)
    }
}

/// The vendor's number of an algorithm's name in recipes, for a product with this many columns.
fn number(algorithm: &str, columns: usize) -> Result<u32, String> {
    let known = ALGORITHMS.into_iter().find(|(name, _)| *name == algorithm);
    let Some((_, number)) = known else {
        let names = ALGORITHMS.map(|(name, _)| name).join(", ");
        return Err(format!("cuSPARSE SpMV has no algorithm `{algorithm}`; it has {names}"));
    };
    match columns {
        1 => Ok(number as u32),
        _ => Err(format!("cuSPARSE SpMV multiplies one column, not {columns}")),
    }
}

#[cfg(test)]
mod tests {
    use super::number;
    use crate::domain::catalog::vendor::{Library, takes_vector};

    #[test]
    fn every_routine_for_a_vector_has_its_number() {
        let names = Library::CusparseProduct.routines().filter(|name| takes_vector(name));
        let numbers: Vec<_> = names.map(|name| number(name, 1)).collect();
        assert_eq!(numbers, [Ok(2), Ok(3)]);
        assert!(number("spmv_alg1", 2).unwrap_err().contains("one column, not 2"));
        assert!(number("spmv_alg9", 1).unwrap_err().contains("it has spmv_alg1, spmv_alg2"));
    }
}
