//! A candidate: a kernel family, its parameters, and which part it has in comparisons.

use crate::domain;
use crate::domain::candidate::VENDOR;
use crate::domain::{CandidateId, Param};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A kernel family and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Candidate {
    pub id: CandidateId,
    pub family: String,
    #[serde(default)]
    pub params: BTreeMap<String, Param>,
    /// Earlier servers do not say; their candidates are read as `own`.
    #[serde(default)]
    pub role: Role,
}

/// Whose routine a candidate is, and whether speed-ups are over it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A kernel of ours.
    #[default]
    Own,
    /// A routine of the vendor's for the problem as it is. Speed-ups are over the fastest of these.
    Baseline,
    /// A routine of the vendor's that first changes the problem: the dense product of a matrix made dense. It competes, and
    /// no speed-up is over it.
    Vendor,
}

impl From<domain::Candidate> for Candidate {
    fn from(candidate: domain::Candidate) -> Self {
        let role = match candidate.family == VENDOR {
            true if candidate.is_baseline() => Role::Baseline,
            true => Role::Vendor,
            false => Role::Own,
        };
        Self { id: candidate.id(), family: candidate.family, params: candidate.params, role }
    }
}

/// `row_split block=128 lanes=8`: the canonical text with less punctuation.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.family)?;
        self.params.iter().try_for_each(|(name, value)| match value {
            Param::Int(value) => write!(f, " {name}={value}"),
            Param::Text(value) => write!(f, " {name}={value}"),
        })
    }
}
