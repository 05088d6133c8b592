//! A candidate: a kernel family, its parameters, and its role in comparisons.

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
    /// Earlier servers do not send this; their candidates are read as `own`.
    #[serde(default)]
    pub role: Role,
}

/// Whether a candidate is a vendor routine, and whether speed-ups are relative to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A kernel of this project.
    #[default]
    Own,
    /// A vendor routine for the original problem. Speed-ups are relative to the fastest of these.
    Baseline,
    /// A vendor routine for a converted problem: the dense product of a densified matrix. It competes, but no speed-up is
    /// relative to it.
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
