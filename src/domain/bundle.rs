//! The manifest of a bundle: a plan with all that is needed to run it elsewhere, in one file. `docs/bundle.md` describes the
//! file around it.

mod pair;
mod values;

pub use pair::{PAIR_FORMAT, PAIR_VERSION, PARTS, PairManifest, PairSummary};
pub use values::{
    GatherKernel, GatherValues, HostUpdate, NO_ENTRY, ONE, PlacedValues, UpdateValues,
};

use super::element::Element;
use super::plan::{Baseline, PlanId};
use super::recipe::{HostProgram, Scratch};
use super::{Candidate, Clock, Clocks, DeviceKind, Digest, Layout, Problem};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The value of [`Manifest::format`].
pub const BUNDLE_FORMAT: &str = "sparsetune bundle";

/// The newest version of the format; readers refuse later ones.
///
/// Version 2 added `overlaps` to steps, and `clock` and `clocks` to the promise; version 3 arrays of quotients, with `divisors` of
/// their values and `quotients` of the update's kernel, and the word `equality`.
pub const BUNDLE_VERSION: u32 = 3;

/// The member that holds the manifest.
pub const MANIFEST: &str = "manifest.json";
/// The member that holds the whole plan in its stored form.
pub const PLAN: &str = "plan.json";
/// The member that holds the properties of the matrix in their stored form: what lookups and models read.
pub const MATRIX: &str = "matrix.json";
/// The member that holds the arrays.
pub const ARRAYS: &str = "arrays.safetensors";
/// The member that holds inputs and outputs that a loader can test itself with.
pub const CHECK: &str = "check.safetensors";

/// What a bundle contains, and how its plan is run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Says what the file is.
    #[cfg_attr(test, schemars(extend("const" = BUNDLE_FORMAT)))]
    pub format: String,
    /// Version of the format.
    #[cfg_attr(test, schemars(range(min = 1, max = BUNDLE_VERSION)))]
    pub version: u32,
    pub plan: PlanId,
    pub matrix: MatrixIdentity,
    /// `op` and the operation's fields, as in the API.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, serde_json::Value>"))]
    pub problem: Problem,
    /// The kernel family and its parameters.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, serde_json::Value>"))]
    pub candidate: Candidate,
    pub target: Target,
    /// The dense operands of a call.
    pub call: Call,
    /// How a call is made.
    pub forward: Forward,
    /// How new values of the same pattern get into the arrays.
    pub update_values: UpdateValues,
    /// What the tensors of `arrays.safetensors` are, but for maps.
    pub arrays: Vec<BundleArray>,
    /// Device memory that is filled once and then belongs to the kernels.
    pub scratch: Vec<Scratch>,
    pub check: Check,
    pub promise: Promise,
    /// Every member but the manifest itself, by its path.
    pub members: BTreeMap<String, Member>,
}

/// The matrix that the plan is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MatrixIdentity {
    pub rows: u64,
    pub cols: u64,
    pub nnz: u64,
    /// BLAKE3 of shape and structure, as in `docs/reference/digest.md`.
    #[cfg_attr(test, schemars(with = "String", extend("pattern" = "^[0-9a-f]{64}$")))]
    pub pattern_digest: Digest,
    /// BLAKE3 of pattern and values.
    #[cfg_attr(test, schemars(with = "String", extend("pattern" = "^[0-9a-f]{64}$")))]
    pub digest: Digest,
}

/// The device that the plan was made for. A loader refuses another kind, another compute capability, and fewer
/// multiprocessors or less shared memory; it warns of another name or driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Target {
    pub kind: DeviceKind,
    pub name: String,
    /// `9.0`; the instruction set on a CPU.
    pub compute_capability: String,
    /// Threads on a CPU.
    pub multiprocessors: u32,
    /// The CUDA version that the driver must support for the machine code, `13.0`; an older driver may still take the PTX.
    /// Absent on a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_cuda: Option<String>,
    /// The driver that the plan was measured with.
    pub driver: String,
    /// The compiler of the kernels.
    pub compiler: String,
}

/// The dense operands of a call: `c = f(b)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// B of a product, the right-hand sides of a solve.
    pub b: DenseOperand,
    /// C of a product, x of a solve. It must not overlap `b`.
    pub c: DenseOperand,
    /// `C = alpha A B + beta C` with factors given at each call; otherwise `C = A B`.
    pub accumulate: bool,
    /// The call multiplies padding by elements of B, so B must not contain infinities or NaN.
    pub b_must_be_finite: bool,
}

/// A dense operand with a tight leading dimension.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DenseOperand {
    pub rows: u64,
    pub cols: u64,
    pub element: Element,
    #[cfg_attr(test, schemars(with = "String", extend("enum" = ["row", "col"])))]
    pub layout: Layout,
    /// Bytes that the address must be a multiple of.
    pub alignment: u32,
}

/// How a call is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Forward {
    /// Kernels of the bundle on a GPU.
    Cuda(CudaForward),
    /// A kernel of sparsetune's own library on the host CPU.
    Host(HostForward),
    /// A routine of a vendor's library, which was the fastest.
    Vendor(VendorForward),
}

/// The launches of one call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CudaForward {
    /// The one module that holds all kernels of the steps.
    pub module: CudaModule,
    /// In order on one stream.
    pub steps: Vec<BundleStep>,
    /// The output must be filled with zeros before the first step of each call.
    pub zero_output: bool,
    /// The value of arguments with the role `max_wait_ns`: nanoseconds after which a waiting kernel gives up.
    pub max_wait_ns: u64,
    /// Whether a call may be captured in a CUDA graph.
    pub graph: GraphUse,
}

/// Compiled kernels. Paths are members of the bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CudaModule {
    /// Machine code for the target's compute capability.
    pub cubin: String,
    /// To fall back on where the driver refuses the cubin; absent in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ptx: Option<String>,
    /// The complete text; absent in plans that kept none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The options that the text was compiled with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// `NVRTC 13.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
}

/// Whether a call may be captured in a CUDA graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GraphUse {
    /// Calls are alike: each may be captured as it is.
    Plain,
    /// Calls pass state on in their scratch memory. A captured call uses scratch memory of its own, which it fills itself
    /// before its first step, the `even` buffer of every `turn`, and 1 as its `epoch`.
    Refill,
}

/// One kernel launch. Clusters are compiled in, and `overlaps` is a permission: a plain launch suffices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BundleStep {
    /// Name of the kernel in its module.
    pub symbol: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Blocks per cluster along x that the kernel was compiled for; 1 without clusters. Above 8 the function attribute for
    /// non-portable cluster sizes must be set.
    pub cluster: u32,
    /// Dynamic shared memory per block in bytes. Above 48 KiB the function attribute that permits it must be set.
    pub shared_bytes: u32,
    /// Whether the kernel waits by itself for what its stream held before it, so that on compute capability 9.0 and later it
    /// may be launched while the kernel before it still runs (the launch attribute of programmatic stream serialization).
    /// Since version 2.
    #[serde(default)]
    pub overlaps: bool,
    /// In order.
    pub arguments: Vec<Argument>,
}

/// A kernel argument by its role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "role", rename_all = "snake_case", deny_unknown_fields)]
pub enum Argument {
    /// Address of an array of the bundle, 8 bytes.
    Array { name: String },
    /// Address of the dense input, 8 bytes.
    B,
    /// Address of the output, 8 bytes.
    C,
    /// Address of a scratch buffer, 8 bytes.
    Scratch { index: u32 },
    /// Address of one of two scratch buffers, 8 bytes: `even` in the first call, `odd` in the second, and so on.
    Turn { even: u32, odd: u32 },
    /// The number of the call as 4 bytes: 1 in the first, and after 4294967295 again 1.
    Epoch,
    /// The call's `max_wait_ns` as 8 bytes.
    MaxWaitNs,
    /// Address of a 4-byte word that is 0 before the first call; a kernel that gave up sets it to 1. 8 bytes.
    Status,
    /// 4 bytes.
    U32 { value: u32 },
    /// 8 bytes; 0 is also the null address.
    U64 { value: u64 },
    /// 4 bytes.
    F32 { value: f32 },
    /// The factor of the product, in the element type named.
    Alpha { element: Element },
    /// The factor of C, in the element type named.
    Beta { element: Element },
}

/// A kernel of sparsetune's own library.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HostForward {
    pub program: HostProgram,
    /// Digest of the kernel's sources; a library with other sources calls the plan stale.
    #[cfg_attr(test, schemars(with = "Option<String>", extend("pattern" = "^[0-9a-f]{64}$")))]
    pub kernel_digest: Option<Digest>,
}

/// A routine of a vendor's library. Its sparse operand consists of the arrays `row_ptr`, `col_idx` and `values`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VendorForward {
    /// `cuSPARSE`, `cuBLAS`, `MKL`, or the name of a plain kernel of this program.
    pub library: String,
    /// The version that was measured.
    pub version: String,
    /// The function: `cusparseSpMM`.
    pub function: String,
    /// The algorithm, as candidates name it: `csr_alg2`, `spsv`.
    pub algorithm: String,
    /// How to call it, as a sentence for people.
    pub instructions: String,
}

/// A tensor of `arrays.safetensors`, or one of values that was left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BundleArray {
    pub name: String,
    pub element: Element,
    pub length: u64,
    /// Whether the tensor is in the bundle; an array of values may be left out.
    pub included: bool,
    /// Set if the array holds values of the matrix, as they are or divided by one another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub values: Option<PlacedValues>,
    /// The array is a word of u32 that says whether all values of the matrix are equal, bit by bit: 1, or 0, which is always right.
    /// Whoever puts new values in place sets it. Since version 3.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub equality: bool,
}

/// How a loader tests itself. The dense input is drawn from the seed: element i from
/// `bits(i) = mix(seed + 0x9e3779b97f4a7c15 (i + 1))`, with `mix` of SplitMix64 (`docs/bundle.md`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Check {
    pub kind: CheckKind,
    /// The seed of `b`; that of the initial C is the next number.
    pub seed: u64,
    /// The factor of every element drawn, a power of two.
    pub scale: f64,
    /// SHA-256 of `b` as it lies in memory, hexadecimal.
    pub b_sha256: String,
    /// Factors of the call; 1 and 0 unless the problem accumulates.
    pub alpha: f64,
    pub beta: f64,
    /// Number of outputs, or of equations, that are compared.
    pub samples: u32,
}

/// What `check.safetensors` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CheckKind {
    /// Tensors `index` (u64, places of C in memory), `value` and `bound` (f64): `|c[index] - value| <= bound`. Also of an approximate
    /// solve, of which x is known and equations hold nearly.
    Product,
    /// Sampled equations. Tensors `row`, `row_ptr`, `col` (u64), `value`, `diagonal` and `bound` (f64): for every right-hand
    /// side `|diagonal x[row] + sum value x[col] - b[row]| <= bound (|diagonal x[row]| + sum |value x[col]| + |b[row]|)`.
    Equations,
}

/// What was measured when the plan was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Promise {
    /// Microseconds of a call; absent in a predicted plan, which was not measured.
    pub median_us: Option<f64>,
    pub ci95_us: Option<[f64; 2]>,
    /// Largest error of the result, relative to the sum of the absolute values of its terms.
    pub rel_error: Option<f64>,
    /// The best routine of the vendor, measured in the same session.
    pub vendor: Option<Baseline>,
    pub speedup: Option<f64>,
    pub preprocess_ms: Option<f64>,
    /// Calls after which the preprocessing has been recovered.
    pub break_even_calls: Option<u64>,
    /// The clock of these times. Absent in a predicted plan, and in version 1, whose times are `isolated`.
    #[serde(default)]
    pub clock: Option<Clock>,
    /// The time of a call by each clock that was read, as `vendor` has it too; empty in version 1.
    #[serde(default, skip_serializing_if = "Clocks::is_empty")]
    pub clocks: Clocks,
}

/// A file of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Member {
    pub bytes: u64,
    /// Hexadecimal.
    #[cfg_attr(test, schemars(extend("pattern" = "^[0-9a-f]{64}$")))]
    pub blake3: String,
    /// Hexadecimal.
    #[cfg_attr(test, schemars(extend("pattern" = "^[0-9a-f]{64}$")))]
    pub sha256: String,
}
