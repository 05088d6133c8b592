//! A candidate: a kernel family and its parameters, as plain data.

use super::Digest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One way to compute a problem. For SpTRSV the literature's word is *scheme*.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Kernel family, the name of a header under `kernels/`, or `vendor`.
    pub family: String,
    /// Parameter values by name, ordered by name so that equal candidates are equal text.
    #[serde(default)]
    pub params: BTreeMap<String, Param>,
}

/// The value of one parameter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Param {
    Int(i64),
    Text(String),
}

/// A short stable name for a candidate: 16 hex digits of the BLAKE3 of its canonical text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CandidateId(pub String);

impl Candidate {
    pub fn new(family: &str) -> Self {
        Self { family: family.to_owned(), params: BTreeMap::new() }
    }

    /// This candidate with one more integer parameter.
    pub fn with(mut self, name: &str, value: i64) -> Self {
        self.params.insert(name.to_owned(), Param::Int(value));
        self
    }

    /// This candidate with one more textual parameter.
    pub fn with_text(mut self, name: &str, value: &str) -> Self {
        self.params.insert(name.to_owned(), Param::Text(value.to_owned()));
        self
    }

    /// An integer parameter, if it is there and is one.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.params.get(name) {
            Some(Param::Int(value)) => Some(*value),
            _ => None,
        }
    }

    /// A textual parameter, if it is there and is one.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.params.get(name) {
            Some(Param::Text(value)) => Some(value),
            _ => None,
        }
    }

    /// Whether plans are compared with it: the vendor's routine for the problem as it is. What first makes another problem
    /// of it, the vendor's dense product of a densified matrix, competes, but nobody's speed-up is over that.
    pub fn is_baseline(&self) -> bool {
        is_baseline(&self.family, self.text("algorithm"))
    }

    /// Whether it is the vendor's dense product of a densified matrix.
    pub fn is_densified(&self) -> bool {
        self.family == VENDOR && !self.is_baseline()
    }

    pub fn id(&self) -> CandidateId {
        CandidateId(Digest::of(self.to_string().as_bytes()).to_string()[..16].to_owned())
    }
}

/// The family of the vendor's routines.
pub const VENDOR: &str = "vendor";

/// Whether a routine of the vendor's, by its name in recipes, multiplies a matrix made dense.
pub fn is_dense_product(algorithm: &str) -> bool {
    algorithm.starts_with("cublas_")
}

/// See [`Candidate::is_baseline`].
pub fn is_baseline(family: &str, algorithm: Option<&str>) -> bool {
    family == VENDOR && !algorithm.is_some_and(is_dense_product)
}

/// `row_split{block=128,lanes=8,order=natural}`: canonical, since parameters are ordered by name.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{{", self.family)?;
        for (i, (name, value)) in self.params.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match value {
                Param::Int(value) => write!(f, "{comma}{name}={value}")?,
                Param::Text(value) => write!(f, "{comma}{name}={value}")?,
            }
        }
        f.write_str("}")
    }
}

impl fmt::Display for CandidateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
