//! cuSPARSE's functions, handle and versions. Its statuses are classified by their meaning for a candidate.

use super::context::Context;
use crate::engine::EngineError;
use crate::engine::libraries::installed::PassedOver;
use crate::engine::libraries::symbols::symbols;
use crate::engine::libraries::{Library, LibraryError, Search};
use cudarc::driver::sys::CUstream;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

pub(super) type Opaque = *mut c_void;

symbols! {
    /// Enumerations are passed as numbers; cudarc's constants name them at the calls.
    Api {
        property: "cusparseGetProperty" (c_uint, *mut c_int);
        create: "cusparseCreate" (*mut Opaque);
        destroy: "cusparseDestroy" (Opaque);
        set_stream: "cusparseSetStream" (Opaque, CUstream);
        create_csr: "cusparseCreateCsr" (
            *mut Opaque, i64, i64, i64, u64, u64, u64, c_uint, c_uint, c_uint, c_uint
        );
        destroy_sparse: "cusparseDestroySpMat" (Opaque);
        create_dense: "cusparseCreateDnMat" (
            *mut Opaque, i64, i64, i64, u64, c_uint, c_uint
        );
        destroy_dense: "cusparseDestroyDnMat" (Opaque);
        set_dense: "cusparseDnMatSetValues" (Opaque, u64);
        create_vector: "cusparseCreateDnVec" (*mut Opaque, i64, u64, c_uint);
        destroy_vector: "cusparseDestroyDnVec" (Opaque);
        set_vector: "cusparseDnVecSetValues" (Opaque, u64);
        set_attribute: "cusparseSpMatSetAttribute" (Opaque, c_uint, *const c_void, usize);
        spmm_buffer: "cusparseSpMM_bufferSize" (
            Opaque, c_uint, c_uint, *const c_void, Opaque, Opaque, *const c_void, Opaque, c_uint, c_uint,
            *mut usize
        );
        spmm_preprocess: "cusparseSpMM_preprocess" (
            Opaque, c_uint, c_uint, *const c_void, Opaque, Opaque, *const c_void, Opaque, c_uint, c_uint,
            u64
        );
        spmm: "cusparseSpMM" (
            Opaque, c_uint, c_uint, *const c_void, Opaque, Opaque, *const c_void, Opaque, c_uint, c_uint,
            u64
        );
        spsv_create: "cusparseSpSV_createDescr" (*mut Opaque);
        spsv_destroy: "cusparseSpSV_destroyDescr" (Opaque);
        spsv_buffer: "cusparseSpSV_bufferSize" (
            Opaque, c_uint, *const c_void, Opaque, Opaque, Opaque, c_uint, c_uint, Opaque,
            *mut usize
        );
        spsv_analysis: "cusparseSpSV_analysis" (
            Opaque, c_uint, *const c_void, Opaque, Opaque, Opaque, c_uint, c_uint, Opaque, u64
        );
        spsv_solve: "cusparseSpSV_solve" (
            Opaque, c_uint, *const c_void, Opaque, Opaque, Opaque, c_uint, c_uint, Opaque
        );
        spsm_create: "cusparseSpSM_createDescr" (*mut Opaque);
        spsm_destroy: "cusparseSpSM_destroyDescr" (Opaque);
        spsm_buffer: "cusparseSpSM_bufferSize" (
            Opaque, c_uint, c_uint, *const c_void, Opaque, Opaque, Opaque, c_uint, c_uint, Opaque,
            *mut usize
        );
        spsm_analysis: "cusparseSpSM_analysis" (
            Opaque, c_uint, c_uint, *const c_void, Opaque, Opaque, Opaque, c_uint, c_uint, Opaque,
            u64
        );
        spsm_solve: "cusparseSpSM_solve" (
            Opaque, c_uint, c_uint, *const c_void, Opaque, Opaque, Opaque, c_uint, c_uint, Opaque
        );
    }
}

/// `cusparseSpSV_updateMatrix` and `cusparseSpSM_updateMatrix`, which earlier versions lack: the analysis, the new values,
/// and which of them.
pub(super) type UpdateMatrix = unsafe extern "C" fn(Opaque, Opaque, u64, c_uint) -> u32;

/// The library, before any context.
pub(super) struct Cusparse {
    pub(super) api: Api,
}

impl Cusparse {
    pub(super) fn open(search: &Search) -> Result<Self, LibraryError> {
        Self::newest(search, Ok).0
    }

    /// The newest copy that loads and that `accept` takes, and why the others were passed over.
    pub(super) fn newest<T>(
        search: &Search,
        mut accept: impl FnMut(Self) -> Result<T, LibraryError>,
    ) -> (Result<T, LibraryError>, Vec<PassedOver>) {
        search.newest(Library::Cusparse, |found| {
            let library = Self { api: Api::load(found)? };
            search.check_cuda(Library::Cusparse, &library.api.library, &library.version()?)?;
            accept(library)
        })
    }

    /// A function that not every version has.
    pub(super) fn update_matrix(&self, symbol: &str) -> Option<UpdateMatrix> {
        // SAFETY: both symbols have this signature; the pointer is used while `api.library`, its neighbour, is mapped.
        unsafe { self.later(symbol) }.ok()
    }

    /// A function that not every version has, as a reason to do without what needs it.
    ///
    /// # Safety
    /// `F` must be the function-pointer type of the symbol, and the copy must not outlive this library.
    pub(super) unsafe fn later<F: Copy>(&self, symbol: &str) -> Result<F, EngineError> {
        // SAFETY: the caller vouches for the type.
        unsafe { self.api.library.symbol(symbol) }.map_err(|_| {
            let version = self.version().unwrap_or_else(|_| "of this version".to_owned());
            EngineError::Refused(format!("cuSPARSE {version} has no {symbol}"))
        })
    }

    /// `12.6.3`. Needs no device.
    pub(super) fn version(&self) -> Result<String, LibraryError> {
        Ok(self.version_parts()?.map(|part| part.to_string()).join("."))
    }

    /// `[12, 6, 3]`. Needs no device.
    pub(super) fn version_parts(&self) -> Result<[i32; 3], LibraryError> {
        let part = |which: c_uint| {
            let mut value = 0;
            // SAFETY: out-pointer to a local.
            match unsafe { (self.api.property)(which, &mut value) } {
                0 => Ok(value),
                code => {
                    Err(self.api.library.call_error("cusparseGetProperty", format!("code {code}")))
                }
            }
        };
        Ok([part(0)?, part(1)?, part(2)?])
    }
}

/// A cuSPARSE handle on the engine's stream.
pub(super) struct Handle {
    pub(super) library: Cusparse,
    pub(super) context: Arc<Context>,
    pub(super) raw: Opaque,
}

// SAFETY: the library is thread-safe for distinct calls, the engine makes one at a time, and the context is bound first.
unsafe impl Send for Handle {}
// SAFETY: as above; the handle's state is changed only here, before it is shared.
unsafe impl Sync for Handle {}

impl Handle {
    pub(super) fn new(library: Cusparse, context: &Arc<Context>) -> Result<Self, EngineError> {
        let mut handle = Self { library, context: context.clone(), raw: std::ptr::null_mut() };
        let mut raw = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; the context is current.
        handle.check("cusparseCreate", unsafe { (handle.library.api.create)(&mut raw) })?;
        handle.raw = raw;
        handle.set_stream(context.stream)?;
        Ok(handle)
    }

    /// Queues what follows on this stream.
    pub(super) fn set_stream(&self, stream: CUstream) -> Result<(), EngineError> {
        // SAFETY: the handle is alive, and callers pass a live stream.
        let code = unsafe { (self.library.api.set_stream)(self.raw, stream) };
        self.check("cusparseSetStream", code)
    }

    /// Checks a status. A failed execution is looked up in the context, which knows whether it is lost.
    pub(super) fn check(&self, call: &str, status: u32) -> Result<(), EngineError> {
        use cudarc::cusparse::sys::cusparseStatus_t::*;
        if status == CUSPARSE_STATUS_SUCCESS as u32 {
            return Ok(());
        }
        let name = [
            (CUSPARSE_STATUS_NOT_INITIALIZED, "not initialized"),
            (CUSPARSE_STATUS_ALLOC_FAILED, "allocation failed"),
            (CUSPARSE_STATUS_INVALID_VALUE, "invalid value"),
            (CUSPARSE_STATUS_ARCH_MISMATCH, "architecture mismatch"),
            (CUSPARSE_STATUS_EXECUTION_FAILED, "execution failed"),
            (CUSPARSE_STATUS_INTERNAL_ERROR, "internal error"),
            (CUSPARSE_STATUS_NOT_SUPPORTED, "not supported"),
            (CUSPARSE_STATUS_INSUFFICIENT_RESOURCES, "insufficient resources"),
        ]
        .into_iter()
        .find_map(|(known, name)| (known as u32 == status).then_some(name));
        let message = match name {
            Some(name) => format!("{call}: {name}"),
            None => format!("{call}: status {status}"),
        };
        if status == CUSPARSE_STATUS_ALLOC_FAILED as u32 {
            return Err(EngineError::OutOfMemory(message));
        }
        self.context.synchronize()?;
        Err(EngineError::Refused(message))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: created once, destroyed once; descriptors need no handle.
            unsafe { (self.library.api.destroy)(self.raw) };
        }
    }
}
