//! The vendor's routines in a form that can be queued, and the descriptors through which they see the loaded operands.

use super::context::{Buffer, Context};
use super::cusparse::{Handle, Opaque};
use super::gemm::Gemm;
use super::launch::refused;
use super::operands::{Judge, Loaded};
use super::spmm::Spmm;
use super::spsv::Spsv;
use crate::domain::candidate::is_dense_product;
use crate::domain::{Dtype, Layout};
use crate::engine::EngineError;
use cudarc::cusparse::sys::{
    cudaDataType_t, cusparseIndexBase_t, cusparseIndexType_t, cusparseOperation_t, cusparseOrder_t,
};
use std::ffi::c_void;
use std::sync::Arc;

pub(super) const NO_TRANSPOSE: u32 = cusparseOperation_t::CUSPARSE_OPERATION_NON_TRANSPOSE as u32;

/// One routine, set up on the loaded operands.
pub(super) enum Routine {
    Product(Spmm),
    Dense(Gemm),
    Solve(Spsv),
}

impl Routine {
    /// Sets the algorithm up; all preparation is complete on return.
    pub(super) fn new(
        context: &Arc<Context>,
        handle: &Arc<Handle>,
        loaded: &Loaded,
        algorithm: &str,
    ) -> Result<Self, EngineError> {
        match &loaded.judge {
            Judge::Product(_) => Spmm::new(context, handle, loaded, algorithm).map(Self::Product),
            Judge::Solution(solution) => {
                Spsv::new(context, handle, loaded, solution, algorithm).map(Self::Solve)
            }
        }
    }

    /// Queues one call; a solve has no factors.
    pub(super) fn enqueue(&self, factors: &Factors) -> Result<(), EngineError> {
        match self {
            Self::Product(spmm) => spmm.enqueue(factors),
            Self::Dense(gemm) => gemm.enqueue(factors),
            Self::Solve(spsv) => spsv.enqueue(),
        }
    }

    /// Milliseconds that new values of the same pattern require again, if the routine keeps the matrix in its own form.
    pub(super) fn update_ms(&self) -> Option<f64> {
        match self {
            Self::Dense(gemm) => Some(gemm.densify_ms()),
            Self::Product(_) | Self::Solve(_) => None,
        }
    }

    /// The library's function.
    pub(super) fn name(algorithm: &str) -> &'static str {
        match algorithm {
            "spsv" => "cusparseSpSV_solve",
            "spsm" => "cusparseSpSM_solve",
            dense if is_dense_product(dense) => "cublasGemmEx",
            _ => "cusparseSpMM",
        }
    }
}

/// The vendor's number of an element type.
pub(super) fn data_type(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F16 => cudaDataType_t::CUDA_R_16F as u32,
        Dtype::F32 => cudaDataType_t::CUDA_R_32F as u32,
        Dtype::F64 => cudaDataType_t::CUDA_R_64F as u32,
    }
}

/// The vendor's number of the type in which such elements are summed, which is also the type of alpha and beta.
pub(super) fn compute_type(dtype: Dtype) -> u32 {
    data_type(if dtype == Dtype::F16 { Dtype::F32 } else { dtype })
}

/// alpha and beta in host memory, in the compute type: the libraries read them when a call is queued.
pub(super) struct Factors {
    dtype: Dtype,
    single: [f32; 2],
    double: [f64; 2],
}

impl Factors {
    pub(super) fn of(double: [f64; 2], dtype: Dtype) -> Self {
        Self { dtype, single: double.map(|factor| factor as f32), double }
    }

    pub(super) fn alpha(&self) -> *const c_void {
        self.at(0)
    }

    pub(super) fn beta(&self) -> *const c_void {
        self.at(1)
    }

    fn at(&self, which: usize) -> *const c_void {
        match self.dtype {
            Dtype::F16 | Dtype::F32 => std::ptr::from_ref(&self.single[which]).cast(),
            Dtype::F64 => std::ptr::from_ref(&self.double[which]).cast(),
        }
    }
}

/// A descriptor, destroyed on drop.
pub(super) struct Descriptor {
    pub(super) raw: Opaque,
    pub(super) destroy: unsafe extern "C" fn(Opaque) -> u32,
    /// Keeps the library mapped until the descriptor is gone.
    pub(super) _handle: Arc<Handle>,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// A CSR matrix on the device: row pointers, column indices (both u32, used as signed) and values.
pub(super) struct Csr<'a> {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) nnz: usize,
    pub(super) arrays: [&'a Buffer; 3],
    pub(super) dtype: Dtype,
}

impl Csr<'_> {
    pub(super) fn describe(&self, handle: &Arc<Handle>) -> Result<Descriptor, EngineError> {
        const INDEX: u32 = cusparseIndexType_t::CUSPARSE_INDEX_32I as u32;
        if i32::try_from(self.nnz).is_err() {
            let message = format!("{} nonzeros; cuSPARSE indexes with signed 32 bits", self.nnz);
            return Err(refused(message));
        }
        let [row_ptr, col_idx, values] = self.arrays.map(|buffer| buffer.pointer);
        let api = &handle.library.api;
        let mut raw = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; the arrays are as long as the shape says and outlive the descriptor's use.
        let status = unsafe {
            (api.create_csr)(
                &mut raw,
                self.rows as i64,
                self.cols as i64,
                self.nnz as i64,
                row_ptr,
                col_idx,
                values,
                INDEX,
                INDEX,
                cusparseIndexBase_t::CUSPARSE_INDEX_BASE_ZERO as u32,
                data_type(self.dtype),
            )
        };
        handle.check("cusparseCreateCsr", status)?;
        Ok(Descriptor { raw, destroy: api.destroy_sparse, _handle: handle.clone() })
    }
}

/// A dense matrix on the device with a tight leading dimension.
pub(super) struct Dense<'a> {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) layout: Layout,
    pub(super) buffer: &'a Buffer,
    pub(super) dtype: Dtype,
}

impl Dense<'_> {
    pub(super) fn describe(&self, handle: &Arc<Handle>) -> Result<Descriptor, EngineError> {
        let (leading, order) = match self.layout {
            Layout::Row => (self.cols, cusparseOrder_t::CUSPARSE_ORDER_ROW),
            Layout::Col => (self.rows, cusparseOrder_t::CUSPARSE_ORDER_COL),
        };
        let api = &handle.library.api;
        let mut raw = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; the array is rows x cols and outlives the descriptor's use.
        let status = unsafe {
            (api.create_dense)(
                &mut raw,
                self.rows as i64,
                self.cols as i64,
                leading as i64,
                self.buffer.pointer,
                data_type(self.dtype),
                order as u32,
            )
        };
        handle.check("cusparseCreateDnMat", status)?;
        Ok(Descriptor { raw, destroy: api.destroy_dense, _handle: handle.clone() })
    }
}
