//! The vendor's dense product: A is scattered into a dense matrix once, then cuBLAS multiplies it by the same B into C.

use super::baseline::{Csr, Factors, Work, data_type};
use super::context::{Buffer, Context};
use super::cublas::{
    CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_64F, CUBLAS_GEMM_DEFAULT,
    CUBLAS_OP_N, CUBLAS_OP_T, Handle,
};
use super::launch::{Launch, refused};
use super::own::OwnKernels;
use crate::domain::{Dtype, Layout};
use crate::engine::EngineError;
use cudarc::driver::sys::CUstream;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Instant;

/// Threads per block of the scatter, one warp per row.
const THREADS: u32 = 256;

/// Most blocks of the scatter; they stride over the rows.
const MOST_BLOCKS: usize = 8192;

/// Rows of the dense A begin at multiples of this, as the library's fastest kernels want it.
const ALIGNMENT: usize = 16;

/// The dense A may take at most one part in this many of the remaining memory.
const SHARE: u64 = 4;

/// The product set up on the loaded operands.
pub(super) struct Gemm {
    handle: Arc<Handle>,
    shape: Shape,
    dtype: Dtype,
    /// Type of C.
    result: Dtype,
    compute: u32,
    a: Buffer,
    /// Elements from one row of it to the next.
    leading: usize,
    b: u64,
    c: u64,
    densify_ms: f64,
}

/// One call in the library's terms, all matrices in column order: C (m x n) from X (m x k) and Y (k x n).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Whether X is the dense A and Y is B, or the reverse.
    a_first: bool,
    /// How X is stored.
    operation: u32,
    m: c_int,
    n: c_int,
    k: c_int,
    /// Leading dimensions of X, Y and C.
    leading: [c_int; 3],
}

impl Shape {
    /// A is rows x cols in row order, its rows `leading` apart: in column order that is its transpose.
    ///
    /// B and C in row order are transposes, too, so `C' = B' A'` needs no operation; in column order `C = A B` with A
    /// transposed back.
    fn of(
        [rows, cols, n, leading]: [usize; 4],
        layout: Layout,
    ) -> Result<Self, std::num::TryFromIntError> {
        let [rows, cols, n, leading] =
            [c_int::try_from(rows)?, cols.try_into()?, n.try_into()?, leading.try_into()?];
        Ok(match layout {
            Layout::Row => Self {
                a_first: false,
                operation: CUBLAS_OP_N,
                m: n,
                n: rows,
                k: cols,
                leading: [n, leading, n],
            },
            Layout::Col => Self {
                a_first: true,
                operation: CUBLAS_OP_T,
                m: rows,
                n,
                k: cols,
                leading: [leading, cols, rows],
            },
        })
    }
}

impl Gemm {
    /// Makes the dense A; the work is complete on return.
    ///
    /// `scatter` fills the dense A, which holds zeros, from its rows' distance in elements.
    pub(super) fn new(
        context: &Arc<Context>,
        handle: &Arc<Handle>,
        work: &Work<'_>,
        algorithm: &str,
        scatter: impl FnOnce(&Buffer, usize) -> Result<(), EngineError>,
    ) -> Result<Self, EngineError> {
        let started = Instant::now();
        let Csr { rows, cols, dtype, .. } = work.csr;
        let compute = compute(algorithm, dtype).map_err(refused)?;
        let element = dtype.bytes() as usize;
        let leading = cols.next_multiple_of(ALIGNMENT / element);
        let shape = Shape::of([rows, cols, work.n, leading], work.layout)
            .map_err(|_| refused("cuBLAS counts with signed 32 bits".to_owned()))?;
        let bytes = (rows as u64).saturating_mul((leading * element) as u64);
        let most = context.free_bytes()? / SHARE;
        if bytes > most {
            let why =
                format!("A made dense takes {bytes} bytes, more than its share of memory, {most}");
            return Err(refused(why));
        }
        // Whole words: rows are padded to 16 bytes.
        let a = Buffer::new(context, bytes as usize)?;
        context.fill(a.pointer, 0, bytes as usize / 4)?;
        scatter(&a, leading)?;
        context.synchronize()?;
        Ok(Self {
            handle: handle.clone(),
            shape,
            dtype,
            result: work.result,
            compute,
            a,
            leading,
            b: work.b,
            c: work.c,
            densify_ms: started.elapsed().as_secs_f64() * 1e3,
        })
    }

    /// Milliseconds that making A dense took.
    pub(super) fn densify_ms(&self) -> f64 {
        self.densify_ms
    }

    /// Puts new values of the same pattern into the dense A.
    pub(super) fn scatter_again(
        &self,
        scatter: impl FnOnce(&Buffer, usize) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        scatter(&self.a, self.leading)
    }

    /// Queues the products that follow on this stream, with these addresses of B and C.
    pub(super) fn aim(&mut self, stream: CUstream, b: u64, c: u64) -> Result<(), EngineError> {
        (self.b, self.c) = (b, c);
        self.handle.set_stream(stream)
    }

    /// Queues one product.
    pub(super) fn enqueue(&self, factors: &Factors) -> Result<(), EngineError> {
        let Shape { a_first, operation, m, n, k, leading } = self.shape;
        let (a, b) = (self.a.pointer, self.b);
        let [x, y] = if a_first { [a, b] } else { [b, a] };
        let (element, result) = (data_type(self.dtype), data_type(self.result));
        // SAFETY: the arrays are as large as shape and leading dimensions say; alpha and beta are host numbers of the
        // compute type (the handle's default pointer mode).
        let status = unsafe {
            (self.handle.api.gemm)(
                self.handle.raw,
                operation,
                CUBLAS_OP_N,
                m,
                n,
                k,
                factors.alpha(),
                x,
                element,
                leading[0],
                y,
                element,
                leading[1],
                factors.beta(),
                self.c,
                result,
                leading[2],
                self.compute,
                CUBLAS_GEMM_DEFAULT,
            )
        };
        self.handle.check("cublasGemmEx", status)
    }
}

/// Queues the scatter of a CSR matrix into `dense`, whose rows begin `leading` elements apart.
pub(super) fn scatter(
    context: &Arc<Context>,
    own: &OwnKernels,
    csr: &Csr<'_>,
    dense: &Buffer,
    leading: usize,
) -> Result<(), EngineError> {
    let blocks = csr.rows.div_ceil(THREADS as usize / 32).clamp(1, MOST_BLOCKS) as u32;
    let [row_ptr, col_idx, values] = csr.arrays.map(|array| array.pointer);
    let arguments = vec![row_ptr, col_idx, values, dense.pointer, csr.rows as u64, leading as u64];
    Launch::own(context, own.densify(csr.dtype), blocks, THREADS, arguments).enqueue()
}

/// How the library computes for an algorithm of a recipe, as the library's number.
fn compute(algorithm: &str, dtype: Dtype) -> Result<u32, String> {
    match (algorithm, dtype) {
        ("cublas_dense", Dtype::F16 | Dtype::Bf16 | Dtype::F32) => Ok(CUBLAS_COMPUTE_32F),
        ("cublas_dense", Dtype::F64) => Ok(CUBLAS_COMPUTE_64F),
        ("cublas_dense_tf32", Dtype::F32) => Ok(CUBLAS_COMPUTE_32F_FAST_TF32),
        ("cublas_dense_tf32", other) => Err(format!("tf32 is of f32 operands, not of {other}")),
        (other, _) => Err(format!(
            "cuBLAS has no algorithm `{other}`; it has cublas_dense and cublas_dense_tf32"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cuda::baseline::compute_type;

    /// What the library computes according to its documentation, in f64.
    fn gemm(shape: &Shape, a: &[f64], b: &[f64]) -> Vec<f64> {
        let (x, y) = if shape.a_first { (a, b) } else { (b, a) };
        let [ldx, ldy, ldc] = shape.leading.map(|leading| leading as usize);
        let (m, n, k) = (shape.m as usize, shape.n as usize, shape.k as usize);
        let mut c = vec![0.0; ldc * n];
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let x_at = |p| if shape.operation == CUBLAS_OP_T { i * ldx + p } else { p * ldx + i };
            c[j * ldc + i] = (0..k).map(|p| x[x_at(p)] * y[j * ldy + p]).sum();
        }
        c
    }

    #[test]
    fn both_layouts_are_the_product() {
        let (rows, cols, n, leading) = (3, 5, 2, 8);
        let mut a = vec![0.0; rows * leading];
        let (mut at, mut expected) = (0.0, vec![vec![0.0; n]; rows]);
        let b = |k: usize, j: usize| (3 * k + 7 * j) as f64 - 4.0;
        for row in 0..rows {
            for k in 0..cols {
                at += 1.5;
                a[row * leading + k] = at;
                (0..n).for_each(|j| expected[row][j] += at * b(k, j));
            }
        }
        let by_rows: Vec<f64> = (0..cols).flat_map(|k| (0..n).map(move |j| b(k, j))).collect();
        let shape = Shape::of([rows, cols, n, leading], Layout::Row).unwrap();
        assert_eq!(gemm(&shape, &a, &by_rows), expected.concat());
        let by_columns: Vec<f64> = (0..n).flat_map(|j| (0..cols).map(move |k| b(k, j))).collect();
        let shape = Shape::of([rows, cols, n, leading], Layout::Col).unwrap();
        let columns: Vec<f64> =
            (0..n).flat_map(|j| expected.iter().map(move |row| row[j])).collect();
        assert_eq!(gemm(&shape, &a, &by_columns), columns);
        assert!(Shape::of([1 << 31, 1, 1, 8], Layout::Row).is_err());
    }

    #[test]
    fn sums_are_kept_as_the_factors_come() {
        use cudarc::cusparse::sys::cudaDataType_t::{CUDA_R_32F, CUDA_R_64F};
        for (dtype, by, factors) in [
            (Dtype::F16, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            (Dtype::Bf16, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            (Dtype::F32, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            (Dtype::F64, CUBLAS_COMPUTE_64F, CUDA_R_64F),
        ] {
            assert_eq!(compute("cublas_dense", dtype), Ok(by));
            assert_eq!(compute_type(dtype), factors as u32);
        }
        assert!(compute("cublas_dense_tf32", Dtype::F64).is_err());
        assert!(compute("cublas_sparse", Dtype::F64).is_err());
    }
}
