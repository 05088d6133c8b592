//! The vendor's triangular solve: cuSPARSE SpSV for one right-hand side, SpSM for several, analysed once at setup.

use super::baseline::{Csr, Dense, Descriptor, NO_TRANSPOSE, Work, data_type};
use super::context::{Buffer, Context};
use super::cusparse::{Api, Handle, Opaque};
use super::launch::refused;
use crate::domain::problem::{Diagonal, Triangle};
use crate::domain::{Dtype, Sptrsv};
use crate::engine::EngineError;
use cudarc::cusparse::sys::{
    cusparseDiagType_t, cusparseFillMode_t, cusparseOperation_t, cusparseSpMatAttribute_t,
    cusparseSpSMAlg_t, cusparseSpSVAlg_t,
};
use cudarc::driver::sys::CUstream;
use std::ffi::c_void;
use std::sync::Arc;

const TRANSPOSE: u32 = cusparseOperation_t::CUSPARSE_OPERATION_TRANSPOSE as u32;
const SPSV_DEFAULT: u32 = cusparseSpSVAlg_t::CUSPARSE_SPSV_ALG_DEFAULT as u32;
/// `CUSPARSE_SPSV_ALG1` and `CUSPARSE_SPSV_ALG2`, which the bindings do not know yet.
const SPSV_ALG1: u32 = 1;
const SPSV_ALG2: u32 = 2;
/// The first version of the library whose header has them.
const SPSV_ALGORITHMS_SINCE: [i32; 3] = [12, 9, 0];
const SPSM_DEFAULT: u32 = cusparseSpSMAlg_t::CUSPARSE_SPSM_ALG_DEFAULT as u32;

static ONE_F32: f32 = 1.0;
static ONE_F64: f64 = 1.0;

/// Which of the library's two routines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One right-hand side, b and x as vectors, by this algorithm of the library.
    Vector(u32),
    /// Any number of them, b and x as matrices.
    Matrix,
}

/// The routine set up on the loaded operands: x into C, b from B, T from the matrix as the client uploaded it.
pub(super) struct Spsv {
    handle: Arc<Handle>,
    kind: Kind,
    operation: u32,
    dtype: Dtype,
    /// The result of the analysis; it points into the workspace.
    plan: Descriptor,
    matrix: Descriptor,
    b: Descriptor,
    x: Descriptor,
    workspace: Option<Buffer>,
}

// SAFETY: see `Handle`; descriptors are plain host memory of the library.
unsafe impl Send for Spsv {}
// SAFETY: as above.
unsafe impl Sync for Spsv {}

impl Spsv {
    /// Creates descriptors and workspace and completes the analysis, so that the caller's clock includes all of it.
    pub(super) fn new(
        context: &Arc<Context>,
        handle: &Arc<Handle>,
        work: &Work<'_>,
        problem: &Sptrsv,
        algorithm: &str,
    ) -> Result<Self, EngineError> {
        let version = handle.library.version_parts();
        let version = version.map_err(|error| refused(error.to_string()))?;
        let kind = kind(algorithm, work.n, version).map_err(refused)?;
        let mut solve = Self {
            handle: handle.clone(),
            kind,
            operation: if problem.transpose { TRANSPOSE } else { NO_TRANSPOSE },
            dtype: problem.dtype,
            plan: plan(handle, kind)?,
            matrix: triangle(handle, &work.csr, problem)?,
            b: side(handle, kind, work.dense_b())?,
            x: side(handle, kind, work.dense_c())?,
            workspace: None,
        };
        let bytes = solve.workspace_bytes()?;
        // Before the analysis, which keeps pointers into it.
        solve.workspace = Some(Buffer::new(context, bytes)?);
        solve.analyse()?;
        context.synchronize()?;
        Ok(solve)
    }

    fn api(&self) -> &Api {
        &self.handle.library.api
    }

    /// The factor of b: a static host number, as the handle's default pointer mode requires.
    fn one(&self) -> *const c_void {
        match self.dtype {
            Dtype::F64 => std::ptr::from_ref(&ONE_F64).cast(),
            Dtype::F32 | Dtype::F16 | Dtype::Bf16 => std::ptr::from_ref(&ONE_F32).cast(),
        }
    }

    fn workspace_bytes(&self) -> Result<usize, EngineError> {
        let (handle, operation, one) = (self.handle.raw, self.operation, self.one());
        let (t, b, x, plan) = (self.matrix.raw, self.b.raw, self.x.raw, self.plan.raw);
        let (api, dtype, mut bytes) = (self.api(), data_type(self.dtype), 0);
        // SAFETY: all descriptors are alive; out-pointer to a local.
        let status = unsafe {
            match self.kind {
                Kind::Vector(algorithm) => (api.spsv_buffer)(
                    handle, operation, one, t, b, x, dtype, algorithm, plan, &mut bytes,
                ),
                Kind::Matrix => (api.spsm_buffer)(
                    handle,
                    operation,
                    NO_TRANSPOSE,
                    one,
                    t,
                    b,
                    x,
                    dtype,
                    SPSM_DEFAULT,
                    plan,
                    &mut bytes,
                ),
            }
        };
        self.check("bufferSize", status)?;
        Ok(bytes)
    }

    fn analyse(&self) -> Result<(), EngineError> {
        let (handle, operation, one) = (self.handle.raw, self.operation, self.one());
        let (t, b, x, plan) = (self.matrix.raw, self.b.raw, self.x.raw, self.plan.raw);
        let (api, dtype) = (self.api(), data_type(self.dtype));
        let workspace = self.workspace.as_ref().map_or(0, |buffer| buffer.pointer);
        // SAFETY: all descriptors are alive, and the workspace is as large as the library asked for and outlives `plan`.
        let status = unsafe {
            match self.kind {
                Kind::Vector(algorithm) => (api.spsv_analysis)(
                    handle, operation, one, t, b, x, dtype, algorithm, plan, workspace,
                ),
                Kind::Matrix => (api.spsm_analysis)(
                    handle,
                    operation,
                    NO_TRANSPOSE,
                    one,
                    t,
                    b,
                    x,
                    dtype,
                    SPSM_DEFAULT,
                    plan,
                    workspace,
                ),
            }
        };
        self.check("analysis", status)
    }

    /// Queues the solves that follow on this stream, with these addresses of b and x.
    pub(super) fn aim(&self, stream: CUstream, b: u64, x: u64) -> Result<(), EngineError> {
        self.handle.set_stream(stream)?;
        match self.kind {
            Kind::Vector(_) => self.b.set_vector(b).and_then(|()| self.x.set_vector(x)),
            Kind::Matrix => self.b.set_dense(b).and_then(|()| self.x.set_dense(x)),
        }
    }

    /// Takes in new values of the matrix, which are in its array already, in the order of the stream last aimed at. False if
    /// this version of the library cannot: then the routine must be set up again.
    pub(super) fn update(&self, values: u64) -> Result<bool, EngineError> {
        // Of the vendor's two enumerations: all values, not the diagonal alone.
        const GENERAL: u32 = 0;
        let symbol = match self.kind {
            Kind::Vector(_) => "cusparseSpSV_updateMatrix",
            Kind::Matrix => "cusparseSpSM_updateMatrix",
        };
        let Some(update) = self.handle.library.update_matrix(symbol) else { return Ok(false) };
        // SAFETY: handle and analysis are alive, and `values` is the array that was analysed.
        let status = unsafe { update(self.handle.raw, self.plan.raw, values, GENERAL) };
        self.handle.check(symbol, status)?;
        Ok(true)
    }

    /// Queues one solve.
    pub(super) fn enqueue(&self) -> Result<(), EngineError> {
        let (handle, operation, one) = (self.handle.raw, self.operation, self.one());
        let (t, b, x, plan) = (self.matrix.raw, self.b.raw, self.x.raw, self.plan.raw);
        let (api, dtype) = (self.api(), data_type(self.dtype));
        // SAFETY: all descriptors are alive and were analysed together.
        let status = unsafe {
            match self.kind {
                Kind::Vector(algorithm) => {
                    (api.spsv_solve)(handle, operation, one, t, b, x, dtype, algorithm, plan)
                }
                Kind::Matrix => (api.spsm_solve)(
                    handle,
                    operation,
                    NO_TRANSPOSE,
                    one,
                    t,
                    b,
                    x,
                    dtype,
                    SPSM_DEFAULT,
                    plan,
                ),
            }
        };
        self.check("solve", status)
    }

    fn check(&self, stage: &str, status: u32) -> Result<(), EngineError> {
        // A call in a plan must not take memory for a name that nobody reads.
        if status == 0 {
            return Ok(());
        }
        let call = match self.kind {
            Kind::Vector(_) => format!("cusparseSpSV_{stage}"),
            // This order is where it differs from other uses of the routine, so the error of a refusal should name it.
            Kind::Matrix => format!("cusparseSpSM_{stage} with b and x in row order"),
        };
        self.handle.check(&call, status)
    }
}

/// The routine of an algorithm's name in recipes, in this version of the library.
fn kind(algorithm: &str, rhs: usize, version: [i32; 3]) -> Result<Kind, String> {
    let vector = match algorithm {
        "spsm" => return Ok(Kind::Matrix),
        "spsv" => SPSV_DEFAULT,
        "spsv_alg1" => SPSV_ALG1,
        "spsv_alg2" => SPSV_ALG2,
        other => {
            return Err(format!(
                "cuSPARSE has no algorithm `{other}` for a solve; it has spsv, spsv_alg1, spsv_alg2 and spsm"
            ));
        }
    };
    if rhs != 1 {
        return Err(format!("cuSPARSE SpSV solves for one right-hand side, not {rhs}"));
    }
    if vector != SPSV_DEFAULT && version < SPSV_ALGORITHMS_SINCE {
        let version = version.map(|part| part.to_string()).join(".");
        return Err(format!("cuSPARSE has {algorithm} since version 12.9, and this is {version}"));
    }
    Ok(Kind::Vector(vector))
}

fn plan(handle: &Arc<Handle>, kind: Kind) -> Result<Descriptor, EngineError> {
    let api = &handle.library.api;
    let (create, destroy, call) = match kind {
        Kind::Vector(_) => (api.spsv_create, api.spsv_destroy, "cusparseSpSV_createDescr"),
        Kind::Matrix => (api.spsm_create, api.spsm_destroy, "cusparseSpSM_createDescr"),
    };
    let mut raw: Opaque = std::ptr::null_mut();
    // SAFETY: out-pointer to a local.
    handle.check(call, unsafe { create(&mut raw) })?;
    Ok(Descriptor { raw, destroy, handle: handle.clone() })
}

/// The matrix with the triangle and the diagonal of the problem; the library does not read the other triangle, nor a unit
/// diagonal.
fn triangle(
    handle: &Arc<Handle>,
    csr: &Csr<'_>,
    problem: &Sptrsv,
) -> Result<Descriptor, EngineError> {
    let matrix = csr.describe(handle)?;
    let fill = match problem.triangle {
        Triangle::Lower => cusparseFillMode_t::CUSPARSE_FILL_MODE_LOWER,
        Triangle::Upper => cusparseFillMode_t::CUSPARSE_FILL_MODE_UPPER,
        Triangle::Both => {
            return Err(EngineError::Refused(
                "cuSPARSE solves with one triangle at a time.".to_owned(),
            ));
        }
    };
    let diagonal = match problem.diagonal {
        Diagonal::NonUnit => cusparseDiagType_t::CUSPARSE_DIAG_TYPE_NON_UNIT,
        Diagonal::Unit => cusparseDiagType_t::CUSPARSE_DIAG_TYPE_UNIT,
    };
    let attributes = [
        (cusparseSpMatAttribute_t::CUSPARSE_SPMAT_FILL_MODE, fill as u32),
        (cusparseSpMatAttribute_t::CUSPARSE_SPMAT_DIAG_TYPE, diagonal as u32),
    ];
    for (attribute, value) in attributes {
        let set = handle.library.api.set_attribute;
        let from = std::ptr::from_ref(&value).cast();
        // SAFETY: both attributes are 32-bit enumerations, copied during the call.
        let status = unsafe { set(matrix.raw, attribute as u32, from, size_of::<u32>()) };
        handle.check("cusparseSpMatSetAttribute", status)?;
    }
    Ok(matrix)
}

/// b or x.
fn side(handle: &Arc<Handle>, kind: Kind, dense: Dense) -> Result<Descriptor, EngineError> {
    match kind {
        Kind::Matrix => dense.describe(handle),
        Kind::Vector(_) => dense.describe_vector(handle),
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, kind};

    #[test]
    fn algorithms_are_known_by_name_and_side() {
        assert_eq!(kind("spsv", 1, [12, 6, 3]), Ok(Kind::Vector(0)));
        assert_eq!(kind("spsv_alg2", 1, [12, 9, 4]), Ok(Kind::Vector(2)));
        assert_eq!(kind("spsm", 33, [12, 6, 3]), Ok(Kind::Matrix));
        assert!(kind("spsv", 2, [12, 9, 4]).unwrap_err().contains("one right-hand side"));
        assert!(kind("spsv_alg1", 1, [12, 6, 3]).unwrap_err().ends_with("and this is 12.6.3"));
        assert!(kind("csr_alg2", 1, [12, 9, 4]).unwrap_err().contains("it has spsv, "));
    }
}
