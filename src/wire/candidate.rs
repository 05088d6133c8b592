//! A candidate: a kernel family, its parameters, and its role in comparisons.

use super::Open;
use crate::domain;
use crate::domain::candidate::VENDOR;
use crate::domain::{CandidateId, Param};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A kernel family and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Candidate {
    pub id: CandidateId,
    pub family: String,
    pub params: BTreeMap<String, Param>,
    pub role: Role,
}

/// A candidate as any server sends it: earlier ones send no role, and later ones may send one that is not known here. Family
/// and parameters decide then.
#[derive(Deserialize)]
struct AnyCandidate {
    id: CandidateId,
    family: String,
    #[serde(default)]
    params: BTreeMap<String, Param>,
    role: Option<Open<Role>>,
}

impl<'de> Deserialize<'de> for Candidate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let AnyCandidate { id, family, params, role } = AnyCandidate::deserialize(deserializer)?;
        let known = domain::Candidate { family, params };
        let role = match role {
            Some(Open::Known(role)) => role,
            _ => Role::of(&known),
        };
        Ok(Self { id, family: known.family, params: known.params, role })
    }
}

impl Role {
    fn of(candidate: &domain::Candidate) -> Self {
        match candidate.family == VENDOR {
            true if candidate.is_baseline() => Self::Baseline,
            true => Self::Vendor,
            false => Self::Own,
        }
    }
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
        let role = Role::of(&candidate);
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
