//! cuBLAS's functions, handle and version; opened only when a dense product is requested, since the library is large.

use super::context::Context;
use super::cusparse::Opaque;
use crate::engine::EngineError;
use crate::engine::libraries::installed::PassedOver;
use crate::engine::libraries::symbols::symbols;
use crate::engine::libraries::{Library, LibraryError, Search};
use cudarc::driver::sys::CUstream;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// Numbers of the vendor's enumerations, by the vendor's names (cublas_api.h).
pub(super) const CUBLAS_OP_N: c_uint = 0;
pub(super) const CUBLAS_OP_T: c_uint = 1;
pub(super) const CUBLAS_COMPUTE_32F: c_uint = 68;
pub(super) const CUBLAS_COMPUTE_64F: c_uint = 70;
pub(super) const CUBLAS_COMPUTE_32F_FAST_TF32: c_uint = 77;
pub(super) const CUBLAS_GEMM_DEFAULT: c_int = -1;
const CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: c_uint = 16;
const CUBLAS_STATUS_SUCCESS: u32 = 0;
const CUBLAS_STATUS_ALLOC_FAILED: u32 = 3;

symbols! {
    /// Enumerations are passed as numbers, device arrays as addresses.
    Api {
        property: "cublasGetProperty" (c_uint, *mut c_int);
        create: "cublasCreate_v2" (*mut Opaque);
        destroy: "cublasDestroy_v2" (Opaque);
        set_stream: "cublasSetStream_v2" (Opaque, CUstream);
        set_math_mode: "cublasSetMathMode" (Opaque, c_uint);
        gemm: "cublasGemmEx" (
            Opaque, c_uint, c_uint, c_int, c_int, c_int, *const c_void, u64, c_uint, c_int, u64, c_uint, c_int,
            *const c_void, u64, c_uint, c_int, c_uint, c_int
        );
    }
}

/// The library, before any context.
pub(super) struct Cublas {
    pub(super) api: Api,
}

impl Cublas {
    pub(super) fn open(search: &Search) -> Result<Self, LibraryError> {
        Self::newest(search).0
    }

    /// The newest copy that loads, and why the others were passed over.
    pub(super) fn newest(search: &Search) -> (Result<Self, LibraryError>, Vec<PassedOver>) {
        search.newest(Library::Cublas, |found| {
            let library = Self { api: Api::load(found)? };
            search.check_cuda(Library::Cublas, &library.api.library, &library.version()?)?;
            Ok(library)
        })
    }

    /// `13.1.0`. Needs no device.
    pub(super) fn version(&self) -> Result<String, LibraryError> {
        let part = |which: c_uint| {
            let mut value = 0;
            // SAFETY: out-pointer to a local.
            match unsafe { (self.api.property)(which, &mut value) } {
                CUBLAS_STATUS_SUCCESS => Ok(value.to_string()),
                code => {
                    Err(self.api.library.call_error("cublasGetProperty", format!("code {code}")))
                }
            }
        };
        Ok([part(0)?, part(1)?, part(2)?].join("."))
    }
}

/// A cuBLAS handle on the engine's stream.
pub(super) struct Handle {
    pub(super) api: Api,
    context: Arc<Context>,
    pub(super) raw: Opaque,
}

// SAFETY: the library is thread-safe for distinct calls, the engine makes one at a time, and the context is bound first.
unsafe impl Send for Handle {}
// SAFETY: as above; the handle's state is changed only here, before it is shared.
unsafe impl Sync for Handle {}

impl Handle {
    pub(super) fn new(library: Cublas, context: &Arc<Context>) -> Result<Self, EngineError> {
        let api = library.api;
        let mut handle = Self { api, context: context.clone(), raw: std::ptr::null_mut() };
        let mut raw = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; the context is current.
        handle.check("cublasCreate", unsafe { (handle.api.create)(&mut raw) })?;
        handle.raw = raw;
        handle.set_stream(context.stream)?;
        // Otherwise products of 16 bits may be summed in 16 bits where the sum is split, which no tolerance allows for.
        let mode = CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        // SAFETY: the handle is alive.
        let code = unsafe { (handle.api.set_math_mode)(raw, mode) };
        handle.check("cublasSetMathMode", code)?;
        Ok(handle)
    }

    /// Queues what follows on this stream.
    pub(super) fn set_stream(&self, stream: CUstream) -> Result<(), EngineError> {
        // SAFETY: the handle is alive, and callers pass a live stream.
        let code = unsafe { (self.api.set_stream)(self.raw, stream) };
        self.check("cublasSetStream", code)
    }

    /// Checks a status. A failed execution is looked up in the context, which knows whether it is lost.
    pub(super) fn check(&self, call: &str, status: u32) -> Result<(), EngineError> {
        let meaning = match status {
            CUBLAS_STATUS_SUCCESS => return Ok(()),
            1 => "not initialized",
            CUBLAS_STATUS_ALLOC_FAILED => "allocation failed",
            7 => "invalid value",
            8 => "architecture mismatch",
            11 => "mapping error",
            13 => "execution failed",
            14 => "internal error",
            15 => "not supported",
            16 => "license error",
            _ => "unknown status",
        };
        let message = format!("{call}: {meaning} ({status})");
        if status == CUBLAS_STATUS_ALLOC_FAILED {
            return Err(EngineError::OutOfMemory(message));
        }
        self.context.synchronize()?;
        Err(EngineError::Refused(message))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: created once, destroyed once.
            unsafe { (self.api.destroy)(self.raw) };
        }
    }
}
