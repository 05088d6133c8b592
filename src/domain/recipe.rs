//! A recipe: a candidate lowered for one matrix. Kernel source, constants, arrays to upload, launch geometry.

use super::element::Element;
use super::{Candidate, Resources};
use serde::{Deserialize, Serialize};

/// Everything an engine needs to run a candidate on the loaded matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    pub candidate: Candidate,
    pub program: Program,
    /// Arrays in addition to the loaded operands, uploaded before the first call.
    pub arrays: Vec<Array>,
    /// Device memory that is used only by the kernels and persists between calls: flags, partial results.
    pub scratch: Vec<Scratch>,
    /// Host time spent lowering (sorting, packing, scheduling), in milliseconds.
    pub lowering_ms: f64,
    /// The part of the lowering that must be repeated for new values with the same pattern, in milliseconds; absent if
    /// the kernel reads the operands' values directly, so that no update is needed.
    pub update_ms: Option<f64>,
    /// Its solutions are approximate by design, and are judged by their residuals beside b.
    pub approximate: bool,
}

impl Recipe {
    /// A recipe without arrays and scratch memory.
    pub fn bare(candidate: &Candidate, program: Program) -> Self {
        Self {
            candidate: candidate.clone(),
            program,
            arrays: Vec::new(),
            scratch: Vec::new(),
            lowering_ms: 0.0,
            update_ms: None,
            approximate: candidate.is_approximate(),
        }
    }
}

/// The program of a recipe.
#[derive(Clone, Debug, PartialEq)]
pub enum Program {
    Cuda(CudaProgram),
    Host(HostProgram),
    /// A vendor routine, by the name of its algorithm (`csr_alg2`, `mkl_mm`).
    Vendor {
        algorithm: String,
    },
}

/// One source text and its kernels that make up one call.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaProgram {
    /// A few lines that include a header of `kernels/` and instantiate it; hashed with all headers for the cubin cache.
    pub source: String,
    /// Maximum registers per thread (`--maxrregcount`), if the family sets one.
    pub max_registers: Option<u32>,
    /// The launches of one call in order, at least one. Several are launched as one CUDA graph to avoid host time
    /// between them.
    pub steps: Vec<Step>,
    /// Whether C must be zeroed before each call (atomic accumulation); the zeroing is timed.
    pub zero_output: bool,
}

/// One launch of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Name of the `extern "C"` kernel.
    pub entry: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Blocks per thread block cluster along x; 1 for a launch without clusters. The kernel's text has the same number
    /// (`__cluster_dims__`), and the engine refuses any other.
    pub cluster: u32,
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
    /// Blocks wait for one another, so all must be resident at the same time; the engine refuses a grid that would not
    /// be.
    pub resident: bool,
    /// The kernel itself waits for what its stream held before it (`kernels/device.cuh`, `after_earlier_kernels`), so that it
    /// may be launched while the kernel before it still runs (programmatic dependent launch).
    pub overlaps: bool,
    pub args: Vec<Arg>,
}

impl CudaProgram {
    /// A program with one launch.
    pub fn of(source: String, step: Step) -> Self {
        Self::of_steps(source, vec![step])
    }

    /// A program of several launches.
    pub fn of_steps(source: String, steps: Vec<Step>) -> Self {
        Self { source, max_registers: None, steps, zero_output: false }
    }
}

impl Step {
    /// A launch along x without dynamic shared memory.
    pub fn of(entry: &str, grid: u32, block: u32, args: Vec<Arg>) -> Self {
        Self {
            entry: entry.to_owned(),
            grid: [grid, 1, 1],
            block: [block, 1, 1],
            cluster: 1,
            shared_bytes: 0,
            resident: false,
            overlaps: false,
            args,
        }
    }
}

/// Device memory that is filled with a value once and then used by the recipe's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Scratch {
    pub bytes: u64,
    /// The 32-bit word that fills it before the first call, and again after an aborted call.
    pub fill: u32,
}

/// A kernel argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// `u32[rows + 1]`, device pointer. For SpTRSV these three are the strictly lower triangle of the system in solve
    /// order (`sparse::Triangular`), not the uploaded matrix.
    RowPtr,
    /// `u32[nnz]`, device pointer.
    ColIdx,
    /// `dtype[nnz]`, device pointer.
    Values,
    /// SpTRSV: `dtype[rows]`, the diagonal in solve order; all ones for a unit diagonal.
    Diagonal,
    /// Dense input, cols x n in the problem's layout; for SpTRSV the right-hand sides, rows x rhs row-major, in the
    /// matrix's own row order.
    B,
    /// Dense output, rows x n in the problem's layout; for SpTRSV x, with the layout of b.
    C,
    /// `recipe.arrays[i]`, device pointer.
    Array(usize),
    /// `recipe.scratch[i]`, device pointer.
    Scratch(usize),
    /// `recipe.scratch[even]` and `recipe.scratch[odd]`, alternating from call to call.
    Turn {
        even: usize,
        odd: usize,
    },
    /// `u32` that differs in every call and is never 0; not supported in programs with several steps.
    Epoch,
    /// `u64`: nanoseconds after which a waiting kernel must give up, by its own clock since its start.
    DeadlineNs,
    /// Pointer to a `u32` that a kernel sets to 1 when it gives up, and that waiting kernels poll.
    Status,
    U32(u32),
    U64(u64),
    F32(f32),
    /// SpMM with `accumulate`: alpha and beta in the accumulator type (f32 for f16 and bf16). The engine chooses their values.
    Alpha,
    Beta,
}

impl Arg {
    /// A null pointer.
    pub const NULL: Self = Self::U64(0);
}

/// An array of a recipe.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Stable name: recipes for one loaded problem with an array of the same name and length share its upload.
    pub name: String,
    pub data: ArrayData,
}

/// The name of an array of one word that says whether all values of the matrix are equal; 0 is always right.
pub const EQUAL_VALUES: &str = "equal_values";

#[derive(Clone, Debug, PartialEq)]
pub enum ArrayData {
    U16(std::sync::Arc<[u16]>),
    /// Bits of IEEE 754 binary16.
    F16(std::sync::Arc<[u16]>),
    /// Bits of bf16, the upper halves of binary32.
    Bf16(std::sync::Arc<[u16]>),
    U32(std::sync::Arc<[u32]>),
    F32(std::sync::Arc<[f32]>),
    F64(std::sync::Arc<[f64]>),
}

impl ArrayData {
    pub const fn element(&self) -> Element {
        match self {
            Self::U16(_) => Element::U16,
            Self::F16(_) => Element::F16,
            Self::Bf16(_) => Element::Bf16,
            Self::U32(_) => Element::U32,
            Self::F32(_) => Element::F32,
            Self::F64(_) => Element::F64,
        }
    }

    /// The elements in memory; every supported host is little-endian.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::U16(data) | Self::F16(data) | Self::Bf16(data) => bytemuck::cast_slice(data),
            Self::U32(data) => bytemuck::cast_slice(data),
            Self::F32(data) => bytemuck::cast_slice(data),
            Self::F64(data) => bytemuck::cast_slice(data),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::U16(data) | Self::F16(data) | Self::Bf16(data) => data.len(),
            Self::U32(data) => data.len(),
            Self::F32(data) => data.len(),
            Self::F64(data) => data.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A kernel of the CPU engine, monomorphised over the supported parameter values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kernel", rename_all = "snake_case")]
pub enum HostProgram {
    /// Tasks of M1 rows of `arrays[0]` (a permutation of the rows) by N1 columns, accumulated in vector registers.
    RowPanel {
        m1: u32,
        n1: u32,
        #[serde(default, skip_serializing_if = "Stores::are_cached")]
        stores: Stores,
    },
    /// Tasks of consecutive rows, of the matrix or of `arrays[0]` (a permutation of the rows), with about equal numbers of
    /// nonzeros; `n1` columns of one row at a time. Rows of B are asked for `ahead` entries before they are needed; with 0
    /// they are not.
    RowSplit {
        n1: u32,
        rows_per_task: u32,
        #[serde(default, skip_serializing_if = "is_zero")]
        ahead: u32,
        #[serde(default, skip_serializing_if = "Stores::are_cached")]
        stores: Stores,
    },
    /// SpTRSV row by row on one thread.
    SolveSerial,
    /// SpTRSV level by level with a barrier; runs of levels with fewer than `narrow` rows are computed by one thread
    /// without barriers.
    SolveLevels { threads: u32, narrow: u32 },
    /// SpTRSV in merged groups of `rows` consecutive rows, assigned to the threads round-robin; each group waits for
    /// the values it needs.
    SolveMerged { threads: u32, rows: u32 },
}

/// How a kernel of the host writes C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stores {
    /// Through the caches, which read a line before it is written.
    #[default]
    Cached,
    /// Past the caches, wherever rows of C are whole cache lines.
    Streamed,
}

impl Stores {
    /// Its name in candidates.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Streamed => "streamed",
        }
    }

    fn are_cached(&self) -> bool {
        *self == Self::Cached
    }
}

const fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// An engine's report on a compiled recipe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compiled {
    pub resources: Option<Resources>,
    /// Whether the cubin came from the cache.
    pub cached: bool,
    pub compile_ms: f64,
    /// Device work before the first call in milliseconds: uploading all its arrays and filling its memory. A shared
    /// array counts in full, as if this recipe were the only one. Absent if the engine does not measure it, so that the
    /// caller's clock is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare_ms: Option<f64>,
}
