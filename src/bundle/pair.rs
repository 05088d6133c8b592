//! Two bundles in one file, which is run by one call: the plans of both triangles of one matrix.

use super::build;
use super::container::{self, ContainerError, Members};
use super::open::{Bundle, BundleError, FileBytes, contradiction, json, place, verify_members};
use crate::domain::Problem;
use crate::domain::bundle::{
    MANIFEST, Manifest, PAIR_FORMAT, PAIR_VERSION, PARTS, PairManifest, PairSummary,
};
use crate::sparse::read::Pool;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::Arc;

/// Two verified bundles for the two triangles of one matrix.
#[derive(Clone)]
pub struct Pair {
    problem: Problem,
    parts: [Arc<Bundle>; 2],
}

/// What a file holds that can be run.
#[derive(Clone)]
pub enum Opened {
    One(Arc<Bundle>),
    Two(Pair),
}

/// Why no pair was written.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error("the manifest cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

impl Pair {
    /// Two bundles whose calls follow each other.
    ///
    /// # Errors
    /// They are of different matrices or devices, or their problems are not the two parts of one.
    pub fn of(first: Arc<Bundle>, second: Arc<Bundle>) -> Result<Self, BundleError> {
        let [one, two] = [first.manifest(), second.manifest()];
        if one.matrix != two.matrix {
            return Err(contradiction(format!(
                "the two plans of a pair are for different matrices, {} and {}, whose patterns may be the same: ask for both triangles of \
                 one matrix by one job",
                one.matrix.digest, two.matrix.digest
            )));
        }
        let device = |manifest: &Manifest| {
            let target = &manifest.target;
            (target.kind, target.name.clone(), target.compute_capability.clone())
        };
        if device(one) != device(two) {
            return Err(contradiction(format!(
                "the two plans of a pair are for different devices, {} and {}",
                one.target.name, two.target.name
            )));
        }
        let Some(problem) = Problem::of_parts(&one.problem, &two.problem) else {
            return Err(contradiction(format!(
                "`{}` and `{}` are not the two triangles of one solve, in their order",
                one.problem, two.problem
            )));
        };
        Ok(Self { problem, parts: [first, second] })
    }

    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    pub fn parts(&self) -> &[Arc<Bundle>; 2] {
        &self.parts
    }

    /// What the manifests of both say of the pair.
    pub fn summary(&self) -> PairSummary<'_> {
        let [first, second] = &self.parts;
        PairSummary::of(self.problem, [first.manifest(), second.manifest()])
    }

    /// Writes both bundles into one file. Equal pairs give equal bytes.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn write(&self, out: impl Write + Seek) -> Result<(), PairError> {
        let mut members: Members<'_> = PARTS
            .iter()
            .zip(&self.parts)
            .map(|(path, bundle)| ((*path).to_owned(), bundle.bytes().into()))
            .collect();
        let manifest = PairManifest {
            format: PAIR_FORMAT.to_owned(),
            version: PAIR_VERSION,
            problem: self.problem,
            members: members
                .iter()
                .map(|(path, file)| (path.clone(), build::member(file)))
                .collect(),
        };
        let mut text = serde_json::to_vec_pretty(&manifest)?;
        text.push(b'\n');
        members.insert(MANIFEST.to_owned(), text.into());
        Ok(container::write(out, &members)?)
    }
}

impl Opened {
    /// Maps a file and verifies the bundle in it, or both. It must not change while they are in use.
    ///
    /// # Errors
    /// The file cannot be read, holds neither, or is damaged; the error says where.
    pub fn open(path: &Path) -> Result<Self, BundleError> {
        Self::of(FileBytes::map(&File::open(path)?)?)
    }

    /// As [`Self::open`], for a file in memory.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, BundleError> {
        Self::of(FileBytes::Read(bytes))
    }

    /// The bundles, in the order of their calls.
    pub fn parts(&self) -> &[Arc<Bundle>] {
        match self {
            Self::One(bundle) => std::slice::from_ref(bundle),
            Self::Two(pair) => pair.parts(),
        }
    }

    fn of(file: FileBytes) -> Result<Self, BundleError> {
        let memory = Pool::memory(u64::MAX);
        let members = container::read(file.bytes())?;
        if !PARTS.iter().all(|part| members.contains_key(*part)) {
            return Ok(Self::One(Arc::new(Bundle::of(file, &memory)?)));
        }
        let manifest: PairManifest = json(file.bytes(), &members, MANIFEST)?;
        if manifest.format != PAIR_FORMAT {
            return Err(contradiction(format!("its format is `{}`", manifest.format)));
        }
        if manifest.version == 0 || manifest.version > PAIR_VERSION {
            return Err(BundleError::PairVersion(manifest.version));
        }
        verify_members(file.bytes(), &members, &manifest.members)?;
        let file = Arc::new(file);
        let part = |path: &str| -> Result<Arc<Bundle>, BundleError> {
            let part = FileBytes::Part(Arc::clone(&file), place(&members, path)?);
            Ok(Arc::new(Bundle::of(part, &memory)?))
        };
        let pair = Pair::of(part(PARTS[0])?, part(PARTS[1])?)?;
        if members.len() > PARTS.len() + 1 || pair.problem != manifest.problem {
            return Err(contradiction("the manifest of the pair is not that of its bundles"));
        }
        Ok(Self::Two(pair))
    }
}
