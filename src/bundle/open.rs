//! Reads a bundle and verifies all that it says: nothing of a bundle is used before every hash, length and name agrees.

use super::check::{self, Samples};
use super::container::{self, ContainerError};
use super::{build, operand, tensors};
use crate::domain::bundle::{
    ARRAYS, Argument, BUNDLE_FORMAT, BUNDLE_VERSION, CHECK, CudaForward, CudaModule, Forward,
    MANIFEST, MATRIX, Manifest, Member, NO_ENTRY, PLAN, UpdateValues,
};
use crate::domain::element::Element;
use crate::domain::plan::PLAN_VERSION;
use crate::domain::recipe::ArrayData;
use crate::domain::{DeviceKind, Matrix, Plan};
use crate::engine::PlanFiles;
use memmap2::Mmap;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

/// Longest manifest and plan that are read.
const MOST_JSON: usize = 16 << 20;
/// Most scratch memory that a plan may ask for.
const MOST_SCRATCH: u64 = 1 << 40;
/// Most launches, arrays and arguments that a bundle may list.
const MOST_LISTED: usize = 1 << 16;

/// Why a file is not a bundle that can be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    #[error("the bundle cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("this is not a bundle: {0}")]
    Container(#[from] ContainerError),
    #[error("this is not a bundle: it has no member `{0}`")]
    Missing(String),
    #[error("this is not a bundle: `{member}` cannot be understood: {why}")]
    Json { member: &'static str, why: String },
    #[error(
        "the bundle has format version {0}; this version of sparsetune reads up to {BUNDLE_VERSION}"
    )]
    Version(u32),
    #[error("the bundle has the member `{0}`, which its manifest does not list")]
    Unlisted(String),
    #[error("member `{path}` is damaged: its {what} is not the manifest's")]
    Damaged { path: String, what: &'static str },
    #[error("the bundle contradicts itself: {0}")]
    Contradiction(String),
}

fn contradiction(why: impl Into<String>) -> BundleError {
    BundleError::Contradiction(why.into())
}

/// A verified bundle.
pub struct Bundle {
    file: FileBytes,
    manifest: Manifest,
    plan: Plan,
    facts: Matrix,
    members: BTreeMap<String, Range<usize>>,
    /// Element type and place in the file of each tensor of [`ARRAYS`].
    tensors: BTreeMap<String, (Element, Range<usize>)>,
    samples: Samples,
}

enum FileBytes {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl FileBytes {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Read(bytes) => bytes,
        }
    }
}

impl Bundle {
    /// Maps the file and verifies it. It must not change while the bundle is in use.
    ///
    /// # Errors
    /// The file cannot be read, is no bundle, or is damaged; the error says where.
    pub fn open(path: &Path) -> Result<Self, BundleError> {
        let file = File::open(path)?;
        // SAFETY: the documented requirement; bundles are written under another name and renamed.
        Self::of(FileBytes::Mapped(unsafe { Mmap::map(&file)? }))
    }

    /// Verifies a bundle in memory.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, BundleError> {
        Self::of(FileBytes::Read(bytes))
    }

    fn of(file: FileBytes) -> Result<Self, BundleError> {
        let bytes = file.bytes();
        let members = container::read(bytes)?;
        let manifest: Manifest = json(bytes, &members, MANIFEST)?;
        if manifest.format != BUNDLE_FORMAT {
            return Err(contradiction(format!("its format is `{}`", manifest.format)));
        }
        if manifest.version == 0 || manifest.version > BUNDLE_VERSION {
            return Err(BundleError::Version(manifest.version));
        }
        verify_members(bytes, &members, &manifest)?;
        let plan: Plan = json(bytes, &members, PLAN)?;
        let facts: Matrix = json(bytes, &members, MATRIX)?;
        let arrays = place(&members, ARRAYS)?;
        let tensors = tensors::read(&bytes[arrays.clone()])
            .map_err(|why| BundleError::Json { member: ARRAYS, why })?;
        let shifted = |(name, (element, place)): (String, (Element, Range<usize>))| {
            (name, (element, place.start + arrays.start..place.end + arrays.start))
        };
        let tensors = tensors.into_iter().map(shifted).collect();
        let samples = samples(bytes, &members, &manifest)?;
        let bundle = Self { manifest, plan, facts, members, tensors, samples, file };
        bundle.verify_plan()?;
        bundle.verify_arrays()?;
        bundle.verify_forward()?;
        Ok(bundle)
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The whole plan, as a service stores it.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The properties of the matrix.
    pub fn facts(&self) -> &Matrix {
        &self.facts
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        self.file.bytes()
    }

    /// The bytes of a member.
    pub fn member(&self, path: &str) -> Option<&[u8]> {
        self.members.get(path).map(|place| &self.bytes()[place.clone()])
    }

    /// The bytes of an array.
    pub fn array(&self, name: &str) -> Option<&[u8]> {
        self.tensors.get(name).map(|(_, place)| &self.bytes()[place.clone()])
    }

    /// Where a member lies in the file.
    pub fn place(&self, member: &str) -> Option<Range<usize>> {
        self.members.get(member).cloned()
    }

    /// Where a tensor of the arrays lies in the file.
    pub fn tensor(&self, name: &str) -> Option<Range<usize>> {
        self.tensors.get(name).map(|(_, place)| place.clone())
    }

    /// The numbers of a tensor.
    pub fn array_data(&self, name: &str) -> Option<ArrayData> {
        let (element, place) = self.tensors.get(name)?;
        array_data(*element, &self.bytes()[place.clone()])
    }

    pub(super) fn samples(&self) -> &Samples {
        &self.samples
    }

    /// What the manifest repeats of the plan must be the plan's.
    fn verify_plan(&self) -> Result<(), BundleError> {
        let (manifest, plan) = (&self.manifest, &self.plan);
        if plan.version > PLAN_VERSION {
            return Err(contradiction(format!("its plan has version {}", plan.version)));
        }
        let matrix = &manifest.matrix;
        let (device, facts) = (&plan.device, &self.facts);
        let sizes = [(facts.rows, matrix.rows), (facts.cols, matrix.cols), (facts.nnz, matrix.nnz)];
        let same = [
            ("properties of the matrix", facts.digest == plan.matrix),
            ("pattern of the matrix", facts.pattern_digest == plan.pattern_digest),
            ("size of the matrix", sizes.iter().all(|(facts, matrix)| facts == matrix)),
            ("plan", manifest.plan == plan.id),
            ("matrix", matrix.digest == plan.matrix),
            ("pattern", matrix.pattern_digest == plan.pattern_digest),
            ("problem", manifest.problem == plan.problem),
            ("candidate", manifest.candidate == plan.candidate),
            ("kind of device", manifest.target.kind == device.kind),
            ("target", manifest.target.compute_capability == device.compute_capability),
            ("call", manifest.call == operand::call(plan, matrix.rows, matrix.cols)),
        ];
        if let Some((what, _)) = same.iter().find(|(_, same)| !same) {
            return Err(contradiction(format!("the manifest and the plan differ in the {what}")));
        }
        let most = crate::sparse::Csr::MAX_DIMENSION;
        if matrix.rows > most || matrix.cols > most || matrix.nnz > u64::from(u32::MAX) {
            return Err(contradiction("the matrix is larger than any that is tuned"));
        }
        Ok(())
    }

    fn verify_arrays(&self) -> Result<(), BundleError> {
        let manifest = &self.manifest;
        if manifest.arrays.len() > MOST_LISTED || manifest.scratch.len() > MOST_LISTED {
            return Err(contradiction("it lists more arrays than any plan has"));
        }
        let mut names = BTreeSet::new();
        for array in &manifest.arrays {
            let name = &array.name;
            if !names.insert(name.as_str()) {
                return Err(contradiction(format!("array `{name}` is listed twice")));
            }
            self.verify_tensor(name, array.element, array.length, array.included)?;
            let Some(values) = &array.values else {
                if array.included {
                    continue;
                }
                return Err(contradiction(format!("array `{name}` is left out without values")));
            };
            match &values.map {
                None if array.length == manifest.matrix.nnz => {}
                None => return Err(contradiction(format!("array `{name}` has no map"))),
                Some(map) => {
                    names.insert(map);
                    self.verify_tensor(map, Element::U32, array.length, true)?;
                    self.verify_map(map)?;
                }
            }
        }
        if let Some(name) = self.tensors.keys().find(|name| !names.contains(name.as_str())) {
            return Err(contradiction(format!("tensor `{name}` belongs to no array")));
        }
        let scratch = manifest.scratch.iter().map(|it| u128::from(it.bytes)).sum::<u128>();
        if scratch > u128::from(MOST_SCRATCH) {
            return Err(contradiction(format!("it asks for {scratch} bytes of scratch memory")));
        }
        Ok(())
    }

    fn verify_tensor(
        &self,
        name: &str,
        element: Element,
        length: u64,
        included: bool,
    ) -> Result<(), BundleError> {
        match self.tensors.get(name) {
            None if !included => Ok(()),
            None => Err(contradiction(format!("there is no tensor `{name}`"))),
            Some(_) if !included => Err(contradiction(format!("tensor `{name}` is there"))),
            Some((found, place)) => {
                let bytes = length.checked_mul(element.bytes());
                if *found == element && bytes == Some(place.len() as u64) {
                    return Ok(());
                }
                Err(contradiction(format!("tensor `{name}` is not as the manifest describes it")))
            }
        }
    }

    /// Every place holds one of the matrix's entries, or none.
    fn verify_map(&self, name: &str) -> Result<(), BundleError> {
        let Some(ArrayData::U32(map)) = self.array_data(name) else {
            return Err(contradiction(format!("there is no map `{name}`")));
        };
        let nnz = self.manifest.matrix.nnz;
        let fits = |&entry: &u32| entry == NO_ENTRY || u64::from(entry) < nnz;
        match map.par_iter().all(fits) {
            true => Ok(()),
            false => Err(contradiction(format!("`{name}` names entries that the matrix lacks"))),
        }
    }

    fn verify_forward(&self) -> Result<(), BundleError> {
        let manifest = &self.manifest;
        let on = match &manifest.forward {
            Forward::Cuda(forward) => {
                self.verify_launches(forward)?;
                DeviceKind::Cuda
            }
            Forward::Host(_) => DeviceKind::Cpu,
            Forward::Vendor(_) => manifest.target.kind,
        };
        if on != manifest.target.kind {
            return Err(contradiction("its program is of another kind of device than its target"));
        }
        if let UpdateValues::Gather(gather) = &manifest.update_values
            && let Some(kernel) = &gather.kernel
        {
            self.verify_module(&kernel.module)?;
            if kernel.block == 0 || kernel.block > 1024 {
                return Err(contradiction("its update kernel has an impossible block"));
            }
        }
        Ok(())
    }

    fn verify_module(&self, module: &CudaModule) -> Result<(), BundleError> {
        let files = [Some(&module.cubin), module.ptx.as_ref(), module.source.as_ref()];
        let missing = files.into_iter().flatten().find(|path| !self.members.contains_key(*path));
        missing.map_or(Ok(()), |path| Err(BundleError::Missing(path.clone())))
    }

    fn verify_launches(&self, forward: &CudaForward) -> Result<(), BundleError> {
        self.verify_module(&forward.module)?;
        let arguments: usize = forward.steps.iter().map(|step| step.arguments.len()).sum();
        if forward.steps.is_empty() || forward.steps.len() + arguments > MOST_LISTED {
            return Err(contradiction(format!("a call has {} launches", forward.steps.len())));
        }
        let arrays: BTreeSet<&str> =
            self.manifest.arrays.iter().map(|array| array.name.as_str()).collect();
        let scratch = self.manifest.scratch.len() as u64;
        for step in &forward.steps {
            let geometry = step.grid.iter().chain(&step.block).chain([&step.cluster]);
            if geometry.clone().any(|&count| count == 0) {
                return Err(contradiction(format!("kernel `{}` has no threads", step.symbol)));
            }
            for argument in &step.arguments {
                let known = match argument {
                    Argument::Array { name } => arrays.contains(name.as_str()),
                    Argument::Scratch { index } => u64::from(*index) < scratch,
                    Argument::Turn { even, odd } => u64::from(*even.max(odd)) < scratch,
                    Argument::F32 { value } => value.is_finite(),
                    _ => true,
                };
                if !known {
                    let kernel = &step.symbol;
                    return Err(contradiction(format!(
                        "kernel `{kernel}` has an argument that is not there: {argument:?}"
                    )));
                }
            }
        }
        Ok(())
    }
}

impl PlanFiles for Bundle {
    fn member(&self, path: &str) -> Option<&[u8]> {
        self.member(path)
    }

    fn array(&self, name: &str) -> Option<&[u8]> {
        self.array(name)
    }
}

fn place(
    members: &BTreeMap<String, Range<usize>>,
    path: &str,
) -> Result<Range<usize>, BundleError> {
    members.get(path).cloned().ok_or_else(|| BundleError::Missing(path.to_owned()))
}

fn json<T: serde::de::DeserializeOwned>(
    file: &[u8],
    members: &BTreeMap<String, Range<usize>>,
    member: &'static str,
) -> Result<T, BundleError> {
    let bytes = &file[place(members, member)?];
    if bytes.len() > MOST_JSON {
        let why = format!("it has {} bytes; at most {MOST_JSON} are read", bytes.len());
        return Err(BundleError::Json { member, why });
    }
    serde_json::from_slice(bytes)
        .map_err(|error| BundleError::Json { member, why: error.to_string() })
}

/// Every member is listed, with its length and its hashes.
fn verify_members(
    file: &[u8],
    members: &BTreeMap<String, Range<usize>>,
    manifest: &Manifest,
) -> Result<(), BundleError> {
    let mut unlisted = members.keys().filter(|path| *path != MANIFEST);
    if let Some(path) = unlisted.find(|path| !manifest.members.contains_key(*path)) {
        return Err(BundleError::Unlisted(path.clone()));
    }
    manifest.members.par_iter().try_for_each(|(path, listed)| {
        let bytes = &file[place(members, path)?];
        let damaged = |what| Err(BundleError::Damaged { path: path.clone(), what });
        if bytes.len() as u64 != listed.bytes {
            return damaged("length");
        }
        let Member { blake3, sha256, .. } = build::member(bytes);
        if blake3 != listed.blake3 {
            return damaged("BLAKE3 hash");
        }
        if sha256 == listed.sha256 { Ok(()) } else { damaged("SHA-256 hash") }
    })
}

fn samples(
    file: &[u8],
    members: &BTreeMap<String, Range<usize>>,
    manifest: &Manifest,
) -> Result<Samples, BundleError> {
    let why = |why: String| BundleError::Json { member: CHECK, why };
    let len = |operand: &crate::domain::bundle::DenseOperand| -> Result<usize, BundleError> {
        let len = operand.rows.checked_mul(operand.cols);
        len.filter(|&len| len < 1 << 40)
            .and_then(|len| usize::try_from(len).ok())
            .ok_or_else(|| contradiction("its dense operands are too large"))
    };
    let (b, c) = (len(&manifest.call.b)?, len(&manifest.call.c)?);
    let rhs = manifest.problem.columns() as usize;
    let finite = [manifest.check.scale, manifest.check.alpha, manifest.check.beta];
    if !finite.iter().all(|factor| factor.is_finite()) {
        return Err(why("a factor is not finite".to_owned()));
    }
    check::Samples::read(&file[place(members, CHECK)?], &manifest.check, b, c, rhs).map_err(why)
}

/// The numbers of some bytes; `None` if they are not a whole number of elements, or of a type that no kernel reads.
pub(super) fn array_data(element: Element, bytes: &[u8]) -> Option<ArrayData> {
    fn numbers<T: bytemuck::Pod>(bytes: &[u8]) -> Option<Vec<T>> {
        bytes.len().is_multiple_of(size_of::<T>()).then(|| bytemuck::pod_collect_to_vec(bytes))
    }
    Some(match element {
        Element::U16 => ArrayData::U16(numbers(bytes)?.into()),
        Element::F16 => ArrayData::F16(numbers(bytes)?.into()),
        Element::U32 => ArrayData::U32(numbers(bytes)?.into()),
        Element::F32 => ArrayData::F32(numbers(bytes)?.into()),
        Element::F64 => ArrayData::F64(numbers(bytes)?.into()),
        Element::U64 => return None,
    })
}
