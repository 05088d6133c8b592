//! A recipe: a candidate lowered for one matrix. Kernel text, constants, arrays to upload, launch geometry.

use super::{Candidate, Resources};
use serde::{Deserialize, Serialize};

/// Everything an engine needs to run a candidate on the loaded matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    pub candidate: Candidate,
    pub program: Program,
    /// Arrays beyond the loaded operands, uploaded before the first call.
    pub arrays: Vec<Array>,
    /// Device memory that calls share and nobody else reads: flags, partial results.
    pub scratch: Vec<Scratch>,
    /// Host time spent lowering (sorting, packing, scheduling), in milliseconds.
    pub lowering_ms: f64,
    /// The part of it that new values of the same pattern would take again, in milliseconds; absent where the kernel
    /// reads the operands' own values, so that nothing has to be done.
    pub update_ms: Option<f64>,
}

impl Recipe {
    /// A recipe that brings nothing along.
    pub fn bare(candidate: &Candidate, program: Program) -> Self {
        Self {
            candidate: candidate.clone(),
            program,
            arrays: Vec::new(),
            scratch: Vec::new(),
            lowering_ms: 0.0,
            update_ms: None,
        }
    }
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

/// One program text and the kernels of it that make one call.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaProgram {
    /// A few lines that include a header of `kernels/` and instantiate it; hashed with all headers for the cubin cache.
    pub source: String,
    /// Register cap a thread, when the family asks for one (`--maxrregcount`).
    pub max_registers: Option<u32>,
    /// The launches of one call, in order, at least one. Several are launched as one CUDA graph, so that no host time
    /// lies between them.
    pub steps: Vec<Step>,
    /// Whether C must be zeroed before each call (atomic finish); the zeroing is timed.
    pub zero_output: bool,
}

/// One launch of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Name of the `extern "C"` kernel.
    pub entry: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Blocks of a thread block cluster along x; 1 launches without clusters.
    pub cluster: u32,
    /// Dynamic shared memory a block, bytes.
    pub shared_bytes: u32,
    /// Blocks wait for one another, so all must be on the device at once: refused where they would not be.
    pub resident: bool,
    pub args: Vec<Arg>,
}

impl CudaProgram {
    /// A program of one launch.
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
            args,
        }
    }
}

/// Device memory of a recipe's own that starts with a pattern and then belongs to its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Scratch {
    pub bytes: u64,
    /// The 32-bit word that fills it before the first call, and again after a call that was cut short.
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
    /// SpTRSV: `dtype[rows]`, the diagonal in solve order, 1 throughout for a unit diagonal.
    Diagonal,
    /// Dense input, cols x n in the problem's layout; for SpTRSV the right-hand sides, rows x rhs row-major, in the
    /// matrix's own row order.
    B,
    /// Dense output, rows x n in the problem's layout; for SpTRSV x, as B.
    C,
    /// `recipe.arrays[i]`, device pointer.
    Array(usize),
    /// `recipe.scratch[i]`, device pointer.
    Scratch(usize),
    /// `recipe.scratch[even]` on the first call, `recipe.scratch[odd]` on the next, and so on in turn.
    Turn {
        even: usize,
        odd: usize,
    },
    /// `u32` that is another in every call, never 0; not for programs of several steps.
    Epoch,
    /// `u64`: nanoseconds after which a kernel that waits must give up, by its own clock from its own start.
    DeadlineNs,
    /// Pointer to a `u32` that a kernel which gives up sets to 1, and that waiting kernels look at.
    Status,
    U32(u32),
    U64(u64),
    F32(f32),
    /// SpMM with `accumulate`: alpha, and beta, in the type that sums are kept in (f32 for f16). The engine chooses them.
    Alpha,
    Beta,
}

impl Arg {
    /// A null pointer.
    pub const NULL: Self = Self::U64(0);
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
    /// Bits of IEEE 754 binary16.
    F16(std::sync::Arc<[u16]>),
    U32(std::sync::Arc<[u32]>),
    F32(std::sync::Arc<[f32]>),
    F64(std::sync::Arc<[f64]>),
}

/// A kernel of the CPU engine, monomorphised over the supported parameter values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kernel", rename_all = "snake_case")]
pub enum HostProgram {
    /// M1 rows of `arrays[0]` (a permutation of the rows) by N1 columns a task, accumulated in vector registers.
    RowPanel { m1: u32, n1: u32 },
    /// Contiguous rows with about equal nonzeros a task, `n1` columns of one row at a time.
    RowSplit { n1: u32, rows_per_task: u32 },
    /// SpTRSV row by row on one thread.
    SolveSerial,
    /// SpTRSV level by level with a barrier; runs of levels narrower than `narrow` rows are one thread's, without one.
    SolveLevels { threads: u32, narrow: u32 },
    /// SpTRSV in merged groups of `rows` consecutive rows, dealt to the threads in turn, each waiting for what it needs.
    SolveMerged { threads: u32, rows: u32 },
}

/// What an engine says of a recipe that compiled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compiled {
    pub resources: Option<Resources>,
    /// The cubin came from the cache.
    pub cached: bool,
    pub compile_ms: f64,
    /// Device work before the first call, milliseconds: all its arrays uploaded, its memory filled. An array that another
    /// recipe brought counts in full, as if this one were alone. Absent where the engine leaves the caller's clock to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare_ms: Option<f64>,
}
