//! The vendor's routines in a form that can be queued, and the descriptors through which they see the loaded operands.

use super::bsr::Bsr;
use super::context::{Buffer, Context};
use super::cusparse::{Handle, Opaque};
use super::gemm::Gemm;
use super::launch::refused;
use super::operands::{Judge, Loaded};
use super::spmm::Spmm;
use super::spmv::Spmv;
use super::spsv::Spsv;
use crate::domain::candidate::is_dense_product;
use crate::domain::catalog::vendor::takes_vector;
use crate::domain::{Dtype, Layout};
use crate::engine::EngineError;
use cudarc::cusparse::sys::{
    cudaDataType_t, cusparseIndexBase_t, cusparseIndexType_t, cusparseOperation_t, cusparseOrder_t,
};
use cudarc::driver::sys::CUstream;
use std::ffi::c_void;
use std::sync::Arc;

pub(super) const NO_TRANSPOSE: u32 = cusparseOperation_t::CUSPARSE_OPERATION_NON_TRANSPOSE as u32;

/// One routine, set up on the loaded operands.
pub(super) enum Routine {
    Product(Spmm),
    Vector(Spmv),
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
            Judge::Product(_) => {
                Self::product(context, handle, &Work::of(loaded), loaded.factors(), algorithm)
            }
            Judge::Solution(solution) => {
                let raw = solution.raw.as_ref().ok_or_else(|| {
                    refused("cuSPARSE was not available when the matrix was loaded".to_owned())
                })?;
                let arrays = [&raw.row_ptr, &raw.col_idx, &raw.values];
                let work = Work::of(loaded);
                let work = Work { csr: Csr { nnz: raw.nnz, arrays, ..work.csr }, ..work };
                Spsv::new(context, handle, &work, &solution.problem, algorithm).map(Self::Solve)
            }
        }
    }

    /// Sets a product of cuSPARSE up, as above.
    pub(super) fn product(
        context: &Arc<Context>,
        handle: &Arc<Handle>,
        work: &Work<'_>,
        factors: [f64; 2],
        algorithm: &str,
    ) -> Result<Self, EngineError> {
        match takes_vector(algorithm) {
            true => Spmv::new(context, handle, work, factors, algorithm).map(Self::Vector),
            false => Spmm::new(context, handle, work, factors, algorithm).map(Self::Product),
        }
    }

    /// Queues the calls that follow on this stream, with these addresses of B and C.
    pub(super) fn aim(&mut self, stream: CUstream, b: u64, c: u64) -> Result<(), EngineError> {
        match self {
            Self::Product(spmm) => spmm.aim(stream, b, c),
            Self::Vector(spmv) => spmv.aim(stream, b, c),
            Self::Dense(gemm) => gemm.aim(stream, b, c),
            Self::Solve(spsv) => spsv.aim(stream, b, c),
        }
    }

    /// Queues one call; a solve has no factors.
    pub(super) fn enqueue(&self, factors: &Factors) -> Result<(), EngineError> {
        match self {
            Self::Product(spmm) => spmm.enqueue(factors),
            Self::Vector(spmv) => spmv.enqueue(factors),
            Self::Dense(gemm) => gemm.enqueue(factors),
            Self::Solve(spsv) => spsv.enqueue(),
        }
    }

    /// Milliseconds that new values of the same pattern require again, if the routine keeps the matrix in its own form.
    pub(super) fn update_ms(&self) -> Option<f64> {
        match self {
            Self::Dense(gemm) => Some(gemm.densify_ms()),
            Self::Product(spmm) => spmm.blocks().map(Bsr::convert_ms),
            Self::Vector(_) | Self::Solve(_) => None,
        }
    }

    /// The library's function.
    pub(super) fn name(algorithm: &str) -> &'static str {
        match algorithm {
            "spsv" | "spsv_alg1" | "spsv_alg2" => "cusparseSpSV_solve",
            "spsm" => "cusparseSpSM_solve",
            dense if is_dense_product(dense) => "cublasGemmEx",
            vector if takes_vector(vector) => "cusparseSpMV",
            _ => "cusparseSpMM",
        }
    }
}

/// The vendor's number of an element type.
pub(super) fn data_type(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F16 => cudaDataType_t::CUDA_R_16F as u32,
        Dtype::Bf16 => cudaDataType_t::CUDA_R_16BF as u32,
        Dtype::F32 => cudaDataType_t::CUDA_R_32F as u32,
        Dtype::F64 => cudaDataType_t::CUDA_R_64F as u32,
    }
}

/// The vendor's number of the type in which such elements are summed, which is also the type of alpha and beta.
pub(super) fn compute_type(dtype: Dtype) -> u32 {
    data_type(dtype.sums())
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
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 => std::ptr::from_ref(&self.single[which]).cast(),
            Dtype::F64 => std::ptr::from_ref(&self.double[which]).cast(),
        }
    }
}

/// A descriptor, destroyed on drop.
pub(super) struct Descriptor {
    pub(super) raw: Opaque,
    pub(super) destroy: unsafe extern "C" fn(Opaque) -> u32,
    /// Keeps the library mapped until the descriptor is gone.
    pub(super) handle: Arc<Handle>,
}

impl Descriptor {
    /// Sets the address of a dense matrix.
    pub(super) fn set_dense(&self, pointer: u64) -> Result<(), EngineError> {
        // SAFETY: the descriptor is alive; it only keeps the address.
        let status = unsafe { (self.handle.library.api.set_dense)(self.raw, pointer) };
        self.handle.check("cusparseDnMatSetValues", status)
    }

    /// Sets the address of a vector.
    pub(super) fn set_vector(&self, pointer: u64) -> Result<(), EngineError> {
        // SAFETY: as above.
        let status = unsafe { (self.handle.library.api.set_vector)(self.raw, pointer) };
        self.handle.check("cusparseDnVecSetValues", status)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// What a routine works on: the sparse operand, and two dense ones with tight leading dimensions.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) csr: Csr<'a>,
    /// Columns of B and C.
    pub(super) n: usize,
    pub(super) layout: Layout,
    pub(super) b: u64,
    pub(super) c: u64,
    /// Type of C; B has that of the sparse operand.
    pub(super) result: Dtype,
}

impl<'a> Work<'a> {
    pub(super) fn of(loaded: &'a Loaded) -> Self {
        let Loaded { rows, cols, nnz, dtype, result, n, layout, .. } = *loaded;
        let arrays = [&loaded.row_ptr, &loaded.col_idx, &loaded.values];
        let csr = Csr { rows, cols, nnz, arrays, dtype };
        Self { csr, n, layout, b: loaded.b.pointer, c: loaded.c.pointer, result }
    }

    /// B, with as many rows as the sparse operand has columns.
    pub(super) fn dense_b(&self) -> Dense {
        self.dense(self.csr.cols, self.b, self.csr.dtype)
    }

    /// C, with as many rows as the sparse operand.
    pub(super) fn dense_c(&self) -> Dense {
        self.dense(self.csr.rows, self.c, self.result)
    }

    fn dense(&self, rows: usize, pointer: u64, dtype: Dtype) -> Dense {
        Dense { rows, cols: self.n, layout: self.layout, pointer, dtype }
    }
}

/// A CSR matrix on the device: row pointers, column indices (both u32, used as signed) and values.
#[derive(Clone, Copy)]
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
        Ok(Descriptor { raw, destroy: api.destroy_sparse, handle: handle.clone() })
    }
}

/// A dense matrix on the device with a tight leading dimension.
pub(super) struct Dense {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) layout: Layout,
    pub(super) pointer: u64,
    pub(super) dtype: Dtype,
}

impl Dense {
    /// As a vector; the matrix must have one column.
    pub(super) fn describe_vector(&self, handle: &Arc<Handle>) -> Result<Descriptor, EngineError> {
        let (api, rows) = (&handle.library.api, self.rows as i64);
        let mut raw: Opaque = std::ptr::null_mut();
        // SAFETY: out-pointer to a local; the array has as many elements and outlives the descriptor's use.
        let status =
            unsafe { (api.create_vector)(&mut raw, rows, self.pointer, data_type(self.dtype)) };
        handle.check("cusparseCreateDnVec", status)?;
        Ok(Descriptor { raw, destroy: api.destroy_vector, handle: handle.clone() })
    }

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
                self.pointer,
                data_type(self.dtype),
                order as u32,
            )
        };
        handle.check("cusparseCreateDnMat", status)?;
        Ok(Descriptor { raw, destroy: api.destroy_dense, handle: handle.clone() })
    }
}
