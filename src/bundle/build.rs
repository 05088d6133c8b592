//! Builds a bundle from a plan and its matrix. The plan's lowering is repeated: equal inputs give equal arrays, which the
//! digests in the plan confirm.

mod describe;
mod listed;
mod prepare;

pub(super) use prepare::lower;

use super::check;
use super::container::{self, ContainerError, Members};
use super::operand;
use super::places::Content;
use super::tensors;
use crate::domain::bundle::{
    ARRAYS, Argument, BUNDLE_FORMAT, BUNDLE_VERSION, BundleStep, CHECK, CudaForward, CudaModule,
    Forward, GatherKernel, GatherValues, GraphUse, HostForward, HostUpdate, MANIFEST, MATRIX,
    Manifest, MatrixIdentity, Member, PLAN, UpdateValues, VendorForward,
};
use crate::domain::candidate::is_dense_product;
use crate::domain::plan::LaunchStep;
use crate::domain::recipe::Program;
use crate::domain::{Digest, Matrix, Plan};
use crate::ops::{self, Refusal, Unsupported};
use crate::sparse::{Csr, TriangleError, features};
use describe::{promise, target};
use listed::tensors_of;
use prepare::{Prepared, arguments, prepare, steps};
use std::io::{self, Seek, Write};
use std::sync::Arc;

/// Nanoseconds after which a waiting kernel gives up, unless the loader's caller changes it.
const MAX_WAIT_NS: u64 = 1_000_000_000;

/// Threads per block of the kernel that puts values in place.
const GATHER_BLOCK: u32 = 256;

/// Whether a bundle holds the matrix's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    Included,
    /// They are left out, and given by the loader's caller before the first call.
    External,
}

/// What a bundle is made of.
pub struct Parts<'a> {
    pub plan: &'a Plan,
    /// The matrix as it was uploaded.
    pub matrix: Arc<Csr>,
    /// Reads a blob that the plan names.
    pub blob: &'a dyn Fn(&Digest) -> io::Result<Vec<u8>>,
}

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("the matrix is not the plan's: it has the digest {found}, the plan is for {expected}")]
    OtherMatrix { found: Digest, expected: Digest },
    #[error("the plan has no program: {0}")]
    NoProgram(&'static str),
    #[error("the plan's candidate cannot be prepared: {0}")]
    Lowering(String),
    #[error("the plan has the argument `{0}`, which this version does not know")]
    Argument(String),
    #[error(
        "the values cannot be left out: the arrays of this plan do not hold them apart from all else, as a loader needs that \
         is to put them in place"
    )]
    ValuesNeeded,
    #[error("the plan's check cannot be made: {0}")]
    Unchecked(String),
    #[error(transparent)]
    Triangle(#[from] TriangleError),
    #[error("a file of the plan cannot be read: {0}")]
    Blob(#[source] io::Error),
    #[error("the arrays cannot be written: {0}")]
    Tensors(#[from] safetensors::SafeTensorError),
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error("the manifest cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

impl From<check::MakeError> for BuildError {
    fn from(error: check::MakeError) -> Self {
        match error {
            check::MakeError::Triangle(error) => Self::Triangle(error),
            check::MakeError::Tensors(error) => Self::Tensors(error),
            other @ (check::MakeError::Vague { .. } | check::MakeError::Unknown(_)) => {
                Self::Unchecked(other.to_string())
            }
        }
    }
}

impl From<Unsupported> for BuildError {
    fn from(error: Unsupported) -> Self {
        Self::Lowering(error.to_string())
    }
}

impl From<Refusal> for BuildError {
    fn from(error: Refusal) -> Self {
        Self::Lowering(error.to_string())
    }
}

/// Writes the bundle of a plan. Equal parts give equal bytes.
///
/// # Errors
/// The parts do not belong together, a blob is missing, or the output cannot be written.
pub fn build(parts: &Parts<'_>, values: Values, out: impl Write + Seek) -> Result<(), BuildError> {
    let plan = parts.plan;
    let pattern = crate::sparse::digest::pattern_digest(&parts.matrix);
    let found = crate::sparse::digest::digest(&parts.matrix, &pattern);
    if found != plan.matrix {
        return Err(BuildError::OtherMatrix { found, expected: plan.matrix });
    }
    let mut members = Members::new();
    let prepared = prepare(parts)?;
    let forward = forward(parts, &prepared, &mut members)?;
    let (arrays, tensors) = tensors_of(&prepared, values)?;
    members.insert(ARRAYS.to_owned(), tensors::write(&tensors)?.into());
    drop(tensors);
    let operand = ops::shared_operand(&parts.matrix, &plan.problem);
    let seed = plan.provenance.seed;
    let (check, samples) = check::make(&operand, &plan.problem, &plan.candidate, seed)?;
    members.insert(CHECK.to_owned(), samples.into());
    members.insert(PLAN.to_owned(), serde_json::to_vec(plan)?.into());
    let facts = features::facts_under(&parts.matrix, None, pattern, found);
    // Equal plans give equal bundles, so nothing may tell when this one was written.
    let facts = Matrix { created_at: plan.created_at, ..facts };
    members.insert(MATRIX.to_owned(), serde_json::to_vec(&facts)?.into());
    let update_values = update(parts, &prepared, &mut members)?;
    let manifest = Manifest {
        format: BUNDLE_FORMAT.to_owned(),
        version: BUNDLE_VERSION,
        plan: plan.id.clone(),
        matrix: MatrixIdentity {
            rows: parts.matrix.rows() as u64,
            cols: parts.matrix.cols() as u64,
            nnz: parts.matrix.nnz() as u64,
            pattern_digest: plan.pattern_digest,
            digest: plan.matrix,
        },
        problem: plan.problem,
        candidate: plan.candidate.clone(),
        target: target(plan),
        call: operand::call(plan, parts.matrix.rows() as u64, parts.matrix.cols() as u64),
        forward,
        update_values,
        arrays,
        scratch: plan.launch.as_ref().map(|launch| launch.scratch.clone()).unwrap_or_default(),
        check,
        promise: promise(plan),
        members: members.iter().map(|(path, bytes)| (path.clone(), member(bytes))).collect(),
    };
    let mut text = serde_json::to_vec_pretty(&manifest)?;
    text.push(b'\n');
    members.insert(MANIFEST.to_owned(), text.into());
    Ok(container::write(out, &members)?)
}

/// The hashes of a member.
pub(super) fn member(bytes: &[u8]) -> Member {
    let mut hasher = blake3::Hasher::new();
    hasher.update_rayon(bytes);
    let blake3 = hasher.finalize().to_hex().to_string();
    Member { bytes: bytes.len() as u64, blake3, sha256: check::sha256(bytes) }
}

fn forward(
    parts: &Parts<'_>,
    prepared: &Prepared,
    members: &mut Members<'_>,
) -> Result<Forward, BuildError> {
    let plan = parts.plan;
    let launch = plan.launch.as_ref();
    match &prepared.recipe.program {
        Program::Host(program) => {
            let kernel_digest = plan.provenance.kernel_digest;
            Ok(Forward::Host(HostForward { program: *program, kernel_digest }))
        }
        Program::Vendor { algorithm } => Ok(Forward::Vendor(vendor(plan, algorithm))),
        Program::Cuda(_) => {
            let launch = launch.ok_or(BuildError::NoProgram("it was never compiled"))?;
            let cubin = launch.cubin.ok_or(BuildError::NoProgram("it has no machine code"))?;
            let files = ModuleFiles { cubin, ptx: launch.ptx, source: launch.source };
            let module = CudaModule {
                options: launch.options.clone(),
                compiler: launch.compiler.clone(),
                ..module(parts, "forward", &files, members)?
            };
            // Earlier versions launched with attributes; without them such a kernel would run with clusters of one block.
            if launch.compiler.is_none() && steps(launch).iter().any(|step| step.cluster > 1) {
                let why = "its kernels were compiled without their cluster sizes by an earlier version: tune again";
                return Err(BuildError::NoProgram(why));
            }
            let steps = steps(launch).into_iter().map(|step| {
                let arguments = arguments(&step, plan.problem.dtype())?;
                let LaunchStep {
                    entry: symbol, grid, block, cluster, shared_bytes, overlaps, ..
                } = step;
                Ok(BundleStep { symbol, grid, block, cluster, shared_bytes, overlaps, arguments })
            });
            let steps = steps.collect::<Result<Vec<_>, BuildError>>()?;
            let passes_on =
                |argument: &Argument| matches!(argument, Argument::Turn { .. } | Argument::Epoch);
            // What is filled with a mark of absence is left so for the next call, too.
            let marked = launch.scratch.iter().any(|scratch| scratch.fill != 0);
            let mut arguments = steps.iter().flat_map(|step| &step.arguments);
            let graph = match marked || arguments.any(passes_on) {
                true => GraphUse::Refill,
                false => GraphUse::Plain,
            };
            let (zero_output, max_wait_ns) = (launch.zero_output, MAX_WAIT_NS);
            Ok(Forward::Cuda(CudaForward { module, steps, zero_output, max_wait_ns, graph }))
        }
    }
}

/// Blobs of a compiled program.
struct ModuleFiles {
    cubin: Digest,
    ptx: Option<Digest>,
    source: Option<Digest>,
}

/// Adds a compiled program's files to the members.
fn module(
    parts: &Parts<'_>,
    name: &str,
    files: &ModuleFiles,
    members: &mut Members<'_>,
) -> Result<CudaModule, BuildError> {
    let mut add = |extension: &str, digest: &Digest| -> Result<String, BuildError> {
        let path = format!("kernels/{name}.{extension}");
        let bytes = (parts.blob)(digest).map_err(BuildError::Blob)?;
        members.insert(path.clone(), bytes.into());
        Ok(path)
    };
    Ok(CudaModule {
        cubin: add("cubin", &files.cubin)?,
        ptx: files.ptx.as_ref().map(|digest| add("ptx", digest)).transpose()?,
        source: files.source.as_ref().map(|digest| add("cu", digest)).transpose()?,
        options: Vec::new(),
        compiler: None,
    })
}

fn vendor(plan: &Plan, algorithm: &str) -> VendorForward {
    let (library, version) = match (is_dense_product(algorithm), &plan.device.dense_vendor) {
        (true, dense) => dense.as_deref().unwrap_or_default().split_once(' ').unwrap_or_default(),
        (false, _) => plan.device.library_of(algorithm),
    };
    let entry = plan.launch.as_ref().map_or(algorithm, |launch| launch.entry.as_str());
    VendorForward {
        library: library.to_owned(),
        version: version.to_owned(),
        function: entry.to_owned(),
        algorithm: algorithm.to_owned(),
        instructions: operand::instructions(&plan.problem, plan.device.kind, algorithm).to_owned(),
    }
}

fn update(
    parts: &Parts<'_>,
    prepared: &Prepared,
    members: &mut Members<'_>,
) -> Result<UpdateValues, BuildError> {
    if let Some(reason) = prepared.foreign {
        return Ok(UpdateValues::Impossible { reason: reason.to_owned() });
    }
    if prepared.contents.is_none() {
        let milliseconds = parts.plan.validity.update_values_ms;
        return Ok(UpdateValues::Host(HostUpdate { milliseconds }));
    }
    let update = parts.plan.launch.as_ref().and_then(|launch| launch.update.as_ref());
    let kernel = match update {
        None => None,
        Some(update) => {
            let files = ModuleFiles {
                cubin: update.cubin,
                ptx: Some(update.ptx),
                source: Some(update.source),
            };
            let module = module(parts, "update", &files, members)?;
            let contents = prepared.contents.iter().flatten();
            let divides = contents.into_iter().any(Content::divides);
            let quotients = update.quotients.clone().filter(|_| divides);
            let (symbol, block) = (update.entry.clone(), GATHER_BLOCK);
            Some(GatherKernel { module, symbol, quotients, block })
        }
    };
    Ok(UpdateValues::Gather(GatherValues { kernel }))
}
