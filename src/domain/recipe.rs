//! A recipe: a candidate lowered for one matrix. Kernel text, constants, arrays to upload, launch geometry.

use super::{Candidate, Resources};
use serde::{Deserialize, Serialize};

/// Everything an engine needs to run a candidate on the loaded matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    pub candidate: Candidate,
    pub program: Program,
    /// Arrays beyond the CSR itself, uploaded before the first call.
    pub arrays: Vec<Array>,
    /// Host time spent lowering (sorting, packing), in milliseconds.
    pub lowering_ms: f64,
}

/// What runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Program {
    Cuda(CudaProgram),
    Host(HostProgram),
    /// The vendor's routine, by the vendor's name for the algorithm (`csr_alg2`, `sprs`).
    Vendor {
        algorithm: String,
    },
}

/// One CUDA kernel and its launch.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaProgram {
    /// A few lines that include a header of `kernels/` and instantiate it; hashed with all headers for the cubin cache.
    pub source: String,
    /// Name of the `extern "C"` kernel.
    pub entry: String,
    /// Register cap a thread, when the family asks for one (`--maxrregcount`).
    pub max_registers: Option<u32>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory a block, bytes.
    pub shared_bytes: u32,
    pub args: Vec<Arg>,
    /// Whether C must be zeroed before each call (atomic finish); the zeroing is timed.
    pub zero_output: bool,
}

/// A kernel argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// `u32[rows + 1]`, device pointer.
    RowPtr,
    /// `u32[nnz]`, device pointer.
    ColIdx,
    /// `dtype[nnz]`, device pointer.
    Values,
    /// Dense input, cols x n in the problem's layout.
    B,
    /// Dense output, rows x n in the problem's layout.
    C,
    /// `recipe.arrays[i]`, device pointer.
    Array(usize),
    U32(u32),
    U64(u64),
    F32(f32),
}

/// An array that a recipe brings along.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Stable name: recipes of one load that bring an array of the same name and length share its upload.
    pub name: String,
    pub data: ArrayData,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ArrayData {
    U16(std::sync::Arc<[u16]>),
    U32(std::sync::Arc<[u32]>),
    F32(std::sync::Arc<[f32]>),
}

/// A kernel of the CPU engine, monomorphised over the supported parameter values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kernel", rename_all = "snake_case")]
pub enum HostProgram {
    /// M1 rows of `arrays[0]` (a permutation of the rows) by N1 columns a task, accumulated in vector registers.
    RowPanel { m1: u32, n1: u32 },
    /// Contiguous rows with about equal nonzeros a task, `n1` columns of one row at a time.
    RowSplit { n1: u32, rows_per_task: u32 },
}

/// What an engine says of a recipe that compiled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compiled {
    pub resources: Option<Resources>,
    /// The cubin came from the cache.
    pub cached: bool,
    pub compile_ms: f64,
}
