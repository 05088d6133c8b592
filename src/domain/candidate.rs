//! A candidate: a kernel family and its parameters, as plain data.

use super::Digest;
use super::catalog::vendor::{self, Routine};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One way to compute a problem. For triangular solves the literature's word is *scheme*.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    /// Name of the kernel family. Several kernels may share one; `catalog::family` tells them apart.
    pub family: String,
    /// Parameter values by name, sorted by name so that equal candidates have equal text.
    #[serde(default)]
    pub params: BTreeMap<String, Param>,
}

/// The value of one parameter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Param {
    Int(i64),
    Text(String),
}

/// A short, stable name of a candidate: the first 16 hexadecimal digits of the BLAKE3 hash of its canonical text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct CandidateId(pub String);

/// Names an entry of the quarantine: 16 hexadecimal digits of the BLAKE3 hash of device class, kernel text and candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct QuarantineId(pub String);

/// Which searches an entry of the quarantine counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum QuarantineScope {
    /// Those on the pattern that it was seen on, in the namespace whose job saw it.
    Pattern,
    /// Jobs of a namespace saw it on two patterns: all of that namespace.
    Namespace,
    /// Jobs of two namespaces saw it, on two patterns: all on devices of the class.
    Class,
}

impl QuarantineScope {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pattern => "pattern",
            Self::Namespace => "namespace",
            Self::Class => "class",
        }
    }
}

impl fmt::Display for QuarantineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Candidate {
    pub fn new(family: &str) -> Self {
        Self { family: family.to_owned(), params: BTreeMap::new() }
    }

    /// The forms that the candidate has for matrices of every kind: this one first, then those with and without [`EQUAL`] and [`NEAR`].
    pub fn forms(&self) -> Vec<Self> {
        let mut forms = vec![self.clone()];
        for name in [EQUAL, NEAR] {
            let toggled = |form: &Self| {
                let mut other = form.clone();
                if other.params.remove(name).is_none() {
                    other.params.insert(name.to_owned(), Param::Int(1));
                }
                other
            };
            forms.extend(forms.iter().map(toggled).collect::<Vec<_>>());
        }
        forms
    }

    /// This candidate with another integer parameter.
    pub fn with(mut self, name: &str, value: i64) -> Self {
        self.params.insert(name.to_owned(), Param::Int(value));
        self
    }

    /// This candidate with another text parameter.
    pub fn with_text(mut self, name: &str, value: &str) -> Self {
        self.params.insert(name.to_owned(), Param::Text(value.to_owned()));
        self
    }

    /// The value of an integer parameter; `None` where it is absent or a text.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.params.get(name) {
            Some(Param::Int(value)) => Some(*value),
            _ => None,
        }
    }

    /// The value of a text parameter; `None` where it is absent or an integer.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.params.get(name) {
            Some(Param::Text(value)) => Some(value),
            _ => None,
        }
    }

    /// The vendor's routine that the candidate names; `None` for kernels of our own and for routines that no version of this
    /// program knows.
    pub fn routine(&self) -> Option<&'static Routine> {
        (self.family == VENDOR).then(|| vendor::routine(self.text(ALGORITHM)?)).flatten()
    }

    /// Whether speed-ups are stated over it: a vendor's routine that solves the problem as it is given. The vendor's dense
    /// product of a densified matrix competes, but is no baseline.
    pub fn is_baseline(&self) -> bool {
        self.routine().is_some_and(|routine| routine.library.is_baseline())
    }

    /// Whether its solutions are approximate by design, so that they are judged by their residuals beside b, and only where a problem
    /// consents.
    pub fn is_approximate(&self) -> bool {
        is_approximate(&self.family)
    }

    /// The parameters that both solves of a pair have in common if their approximate candidates are to make a symmetric map of b; none of
    /// an exact one.
    pub fn map_parameters(&self) -> &'static [&'static str] {
        match self.family.as_str() {
            // Blocks matter only to sweeps among their rows.
            SWEEPS if self.int("inner") == Some(1) => &["sweeps", "inner"],
            SWEEPS => &["sweeps", "inner", "rows"],
            INVERSE => &["power", "steps"],
            _ => &[],
        }
    }

    /// Whether it is the vendor's dense product of a densified matrix.
    pub fn is_densified(&self) -> bool {
        self.routine().is_some_and(|routine| routine.library.densifies())
    }

    pub fn id(&self) -> CandidateId {
        CandidateId(Digest::of(self.to_string().as_bytes()).to_string()[..16].to_owned())
    }
}

/// The parameter of kernels that read one value instead of all. Whether candidates have it is a matter of the matrix: where all its
/// values are equal they do, and nobody chooses.
pub const EQUAL: &str = "equal";

/// The parameter of kernels that read columns of 16 bits, as distances from the row's own number. Where the matrix allows it and the
/// product is so narrow that it pays, only candidates that would need no preparation are also listed without it.
pub const NEAR: &str = "near";

/// The family name of every candidate that runs a vendor's routine.
pub const VENDOR: &str = "vendor";
/// The family names of the kernels that solve approximately: by Jacobi sweeps, and by products with an approximate inverse.
pub const SWEEPS: &str = "sweeps";
pub const INVERSE: &str = "inverse";
/// The parameter that names a technique which a study leaves out; candidates of a search's space do not have it.
pub const WITHOUT: &str = "without";

/// The parameter of those candidates that names the routine.
pub const ALGORITHM: &str = "algorithm";

/// Like [`Candidate::is_approximate`], for a family that is known by its name alone.
pub fn is_approximate(family: &str) -> bool {
    [SWEEPS, INVERSE].contains(&family)
}

/// Whether a routine, by its name, multiplies a matrix that was made dense.
pub fn is_dense_product(algorithm: &str) -> bool {
    vendor::routine(algorithm).is_some_and(|routine| routine.library.densifies())
}

/// Like [`Candidate::is_baseline`], for a candidate that is known by these two alone.
pub fn is_baseline(family: &str, algorithm: Option<&str>) -> bool {
    let routine = algorithm.filter(|_| family == VENDOR).and_then(vendor::routine);
    routine.is_some_and(|routine| routine.library.is_baseline())
}

/// `row_split{block=128,lanes=8,order=natural}`: canonical, because parameters are sorted by name.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{{", self.family)?;
        for (i, (name, value)) in self.params.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{name}={value}")?;
        }
        f.write_str("}")
    }
}

/// The value alone, texts without quotation marks.
impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => value.fmt(f),
            Self::Text(value) => f.write_str(value),
        }
    }
}

impl fmt::Display for CandidateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_has_forms_for_all_matrices() {
        let plain = Candidate::new("row_split").with("lanes", 4);
        let near = plain.clone().with(NEAR, 1);
        let of = |candidate: &Candidate| candidate.forms();
        assert_eq!(of(&near)[0], near, "its own comes first");
        for form in of(&near) {
            let mut all = of(&form);
            all.sort();
            let mut expected = [
                plain.clone(),
                plain.clone().with(EQUAL, 1),
                near.clone(),
                near.clone().with(EQUAL, 1),
            ];
            expected.sort();
            assert_eq!(all, expected);
        }
    }
}
