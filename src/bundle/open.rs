//! Reads a bundle and verifies all that it says: nothing of a bundle is used before every hash, length and name agrees.

mod verify;

pub(super) use verify::verify_kept;

use super::check::{self, Samples};
use super::container::{self, ContainerError};
use super::{build, tensors};
use crate::domain::bundle::{
    ARRAYS, BUNDLE_FORMAT, BUNDLE_VERSION, CHECK, MANIFEST, MATRIX, Manifest, Member, PAIR_VERSION,
    PARTS, PLAN,
};
use crate::domain::element::Element;
use crate::domain::recipe::ArrayData;
use crate::domain::{Matrix, Plan};
use crate::engine::PlanFiles;
use crate::sparse::read::{Held, Pool, ReadError};
use memmap2::{Mmap, MmapOptions};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Longest manifest and plan that are read.
pub(super) const MOST_JSON: usize = 8 << 20;
/// Longest properties of a matrix: a store keeps a copy with each plan.
pub(super) const MOST_FACTS: usize = 64 << 10;
/// Memory that a byte of JSON may take while it is read: `[]` is a list, and lists are kept in parts before they are understood.
pub(super) const JSON_MEMORY: u64 = 64;

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
    #[error(
        "the pair of bundles has format version {0}; this version of sparsetune reads up to {PAIR_VERSION}"
    )]
    PairVersion(u32),
    #[error("the bundle has the member `{0}`, which its manifest does not list")]
    Unlisted(String),
    #[error("member `{path}` is damaged: its {what} is not the manifest's")]
    Damaged { path: String, what: &'static str },
    #[error("the bundle contradicts itself: {0}")]
    Contradiction(String),
    #[error("there is not enough memory to read the bundle: {0}")]
    Memory(#[from] ReadError),
}

pub(super) fn contradiction(why: impl Into<String>) -> BundleError {
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
    /// What its memory is charged with.
    _held: Held,
}

pub(super) enum FileBytes {
    Mapped(Mmap),
    Read(Vec<u8>),
    /// A member of another file.
    Part(Arc<Self>, Range<usize>),
}

impl FileBytes {
    /// Maps a file, which must not change as long as this is in use.
    pub(super) fn map(mut file: &File) -> Result<Self, BundleError> {
        // A process within a fence may ask for the length in this way alone.
        let bytes = usize::try_from(file.seek(SeekFrom::End(0))?).map_err(io::Error::other)?;
        if bytes == 0 {
            return Ok(Self::Read(Vec::new()));
        }
        // SAFETY: the documented requirement; bundles are written under another name and renamed.
        Ok(Self::Mapped(unsafe { MmapOptions::new().len(bytes).map(file)? }))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Read(bytes) => bytes,
            Self::Part(file, part) => &file.bytes()[part.clone()],
        }
    }
}

impl Bundle {
    /// Maps the file and verifies it. It must not change while the bundle is in use.
    ///
    /// # Errors
    /// The file cannot be read, is no bundle, or is damaged; the error says where.
    pub fn open(path: &Path) -> Result<Self, BundleError> {
        Self::open_in(&File::open(path)?, &Pool::memory(u64::MAX))
    }

    /// [`Self::open`] of a file that is open already, which charges `memory` for what reading and keeping it take before they take it.
    ///
    /// # Errors
    /// As [`Self::open`], and if there is not enough.
    pub(super) fn open_in(file: &File, memory: &Pool) -> Result<Self, BundleError> {
        Self::of(FileBytes::map(file)?, memory)
    }

    /// Verifies a bundle in memory.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, BundleError> {
        Self::of(FileBytes::Read(bytes), &Pool::memory(u64::MAX))
    }

    pub(super) fn of(file: FileBytes, memory: &Pool) -> Result<Self, BundleError> {
        let bytes = file.bytes();
        let members = container::read(bytes)?;
        if PARTS.iter().all(|part| members.contains_key(*part)) {
            let why = "it is a pair of bundles, `first.stplan` and `second.stplan`, where one is expected";
            return Err(contradiction(why));
        }
        let held = memory.open(u64::MAX);
        held.charge(needed(bytes, &members), 1, "the bundle")?;
        let manifest: Manifest = json(bytes, &members, MANIFEST)?;
        if manifest.format != BUNDLE_FORMAT {
            return Err(contradiction(format!("its format is `{}`", manifest.format)));
        }
        if manifest.version == 0 || manifest.version > BUNDLE_VERSION {
            return Err(BundleError::Version(manifest.version));
        }
        verify_members(bytes, &members, &manifest.members)?;
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
        let bundle = Self { manifest, plan, facts, members, tensors, samples, file, _held: held };
        bundle.verify()?;
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
}

impl PlanFiles for Bundle {
    fn member(&self, path: &str) -> Option<&[u8]> {
        self.member(path)
    }

    fn array(&self, name: &str) -> Option<&[u8]> {
        self.array(name)
    }
}

/// The memory that reading a bundle takes at most: that of its JSON as it is understood, and each array once.
fn needed(file: &[u8], members: &BTreeMap<String, Range<usize>>) -> u64 {
    let json = members.iter().map(|(path, place)| match path.as_str() {
        MANIFEST | PLAN => place.len().min(MOST_JSON),
        MATRIX => place.len().min(MOST_FACTS),
        ARRAYS | CHECK => place.len().min(tensors::MOST_HEADER),
        _ => 0,
    });
    let json = json.sum::<usize>() as u64;
    (file.len() as u64).saturating_add(json.saturating_mul(JSON_MEMORY))
}

pub(super) fn place(
    members: &BTreeMap<String, Range<usize>>,
    path: &str,
) -> Result<Range<usize>, BundleError> {
    members.get(path).cloned().ok_or_else(|| BundleError::Missing(path.to_owned()))
}

pub(super) fn json<T: serde::de::DeserializeOwned>(
    file: &[u8],
    members: &BTreeMap<String, Range<usize>>,
    member: &'static str,
) -> Result<T, BundleError> {
    let bytes = &file[place(members, member)?];
    let most = if member == MATRIX { MOST_FACTS } else { MOST_JSON };
    if bytes.len() > most {
        let why = format!("it has {} bytes; at most {most} are read", bytes.len());
        return Err(BundleError::Json { member, why });
    }
    serde_json::from_slice(bytes)
        .map_err(|error| BundleError::Json { member, why: error.to_string() })
}

/// Every member is listed, with its length and its hashes.
pub(super) fn verify_members(
    file: &[u8],
    members: &BTreeMap<String, Range<usize>>,
    listed: &BTreeMap<String, Member>,
) -> Result<(), BundleError> {
    let mut unlisted = members.keys().filter(|path| *path != MANIFEST);
    if let Some(path) = unlisted.find(|path| !listed.contains_key(*path)) {
        return Err(BundleError::Unlisted(path.clone()));
    }
    listed.par_iter().try_for_each(|(path, listed)| {
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
        Element::Bf16 => ArrayData::Bf16(numbers(bytes)?.into()),
        Element::U32 => ArrayData::U32(numbers(bytes)?.into()),
        Element::F32 => ArrayData::F32(numbers(bytes)?.into()),
        Element::F64 => ArrayData::F64(numbers(bytes)?.into()),
        Element::U64 => return None,
    })
}
