//! What a service keeps of a bundle that it takes in: the plan, the facts of its matrix, and where in the file those files lie that the plan
//! names. It is made by the process that reads the bundle, of which the service believes nothing.

use super::open::{
    Bundle, BundleError, JSON_MEMORY, MOST_FACTS, MOST_JSON, contradiction, verify_kept,
};
use crate::domain::plan::Launch;
use crate::domain::{Digest, Matrix, Plan};
use crate::sparse::read::Pool;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::ops::Range;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Extract {
    pub plan: Plan,
    pub facts: Matrix,
    /// Whether arrays are left out, which are made of the matrix's values.
    pub without_values: bool,
    pub files: Vec<Named>,
}

/// A file that the plan names by its digest, and where it lies in the bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub digest: Digest,
    pub start: u64,
    pub bytes: u64,
}

impl Extract {
    /// Most bytes of one, as JSON: a plan, facts, and a line for each file.
    pub const MOST: u64 = (2 * MOST_JSON + MOST_FACTS) as u64;

    /// Memory that reading one of so many bytes takes.
    pub const fn memory(bytes: u64) -> u64 {
        bytes.saturating_mul(JSON_MEMORY)
    }

    /// Verifies the bundle in a file, which must not change meanwhile, and charges `memory` for what that takes.
    ///
    /// # Errors
    /// The file cannot be read, is no bundle, or is damaged; or there is not enough memory.
    pub fn of_file(file: &File, memory: &Pool) -> Result<Self, BundleError> {
        Ok(Self::of(&Bundle::open_in(file, memory)?))
    }

    pub(super) fn of(bundle: &Bundle) -> Self {
        let manifest = bundle.manifest();
        let named: HashSet<&Digest> = bundle.plan().launch.iter().flat_map(Launch::blobs).collect();
        let mut files = BTreeMap::new();
        if !named.is_empty() {
            let members = manifest.members.keys().filter_map(|path| bundle.place(path));
            let arrays = manifest.arrays.iter().filter_map(|array| bundle.tensor(&array.name));
            let place = |Range { start, end }: Range<usize>| {
                let digest = Digest::of(&bundle.bytes()[start..end]);
                (digest, Named { digest, start: start as u64, bytes: (end - start) as u64 })
            };
            files.extend(
                members.chain(arrays).map(place).filter(|(digest, _)| named.contains(digest)),
            );
        }
        Self {
            plan: bundle.plan().clone(),
            facts: bundle.facts().clone(),
            without_values: manifest.arrays.iter().any(|array| !array.included),
            files: files.into_values().collect(),
        }
    }

    /// # Errors
    /// It is longer than any that is read.
    pub fn to_json(&self) -> Result<Vec<u8>, BundleError> {
        match serde_json::to_vec(self) {
            Ok(json) if json.len() as u64 <= Self::MOST => Ok(json),
            Ok(json) => Err(contradiction(format!("it says {} bytes of its plan", json.len()))),
            Err(error) => Err(contradiction(format!("its plan cannot be written: {error}"))),
        }
    }

    /// Reads what another process says of a bundle of so many bytes. All that the service relies on is checked anew, but for the contents of
    /// the files, which have to be compared with their digests as they are read.
    ///
    /// # Errors
    /// It is no extract of any bundle.
    pub fn read(json: &[u8], bundle: u64) -> Result<Self, BundleError> {
        let read: Self = serde_json::from_slice(json)
            .map_err(|error| contradiction(format!("it cannot be understood: {error}")))?;
        verify_kept(&read.plan, &read.facts)?;
        // Each lookup reads the plan, and no bundle holds a longer one.
        if serde_json::to_vec(&read.plan).map_or(true, |plan| plan.len() > MOST_JSON) {
            return Err(contradiction("its plan is longer than any that is read"));
        }
        let mut named: HashSet<&Digest> = read.plan.launch.iter().flat_map(Launch::blobs).collect();
        let mut all = 0u64;
        for file in &read.files {
            let end = file.start.checked_add(file.bytes).filter(|end| *end <= bundle);
            if end.is_none() || !named.remove(&file.digest) {
                return Err(contradiction("it has a file that the plan does not name, or nowhere"));
            }
            all = all.saturating_add(file.bytes);
        }
        // An array is a part of a member, and no byte is of more than these two.
        match all <= bundle.saturating_mul(2) {
            true => Ok(read),
            false => Err(contradiction("its files are longer than itself")),
        }
    }
}
