//! Parameter values that a request fixes.

use super::candidate::EQUAL;
use super::{Candidate, Param};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Values by parameter: `order`, or `row_split.order` for one family alone. A family without the parameter is not affected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fixed(pub BTreeMap<String, Param>);

impl Fixed {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the candidate has every value that is fixed for its family. Numbers and texts that read alike are equal: one
    /// name may stand for a number in one family and for a text in another.
    pub fn admits(&self, candidate: &Candidate) -> bool {
        self.0.iter().all(|(name, value)| {
            let (family, parameter) = parts(name);
            let own = candidate.params.get(parameter);
            let concerned = family.is_none_or(|family| family == candidate.family);
            !concerned || own.is_none_or(|own| own == value || own.to_string() == value.to_string())
        })
    }

    /// [`Self::admits`]; if `exact`, of those only candidates whose parameters are all fixed (but what the matrix determines), and that
    /// have every one that is.
    pub fn leaves(&self, candidate: &Candidate, exact: bool) -> bool {
        let own = |(family, parameter): (Option<&str>, &str)| {
            family.is_none_or(|family| family == candidate.family)
                && candidate.params.contains_key(parameter)
        };
        let names = || self.0.keys().map(|name| parts(name));
        let named =
            |name: &String| name == EQUAL || names().any(|(_, parameter)| parameter == name);
        self.admits(candidate)
            && (!exact || (names().all(own) && candidate.params.keys().all(named)))
    }
}

/// The family, if the name has one, and the parameter.
pub fn parts(name: &str) -> (Option<&str>, &str) {
    match name.split_once('.') {
        Some((family, parameter)) => (Some(family), parameter),
        None => (None, name),
    }
}

/// `order=length, row_split.vec=4`.
impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, value)) in self.0.iter().enumerate() {
            write!(f, "{}{name}={value}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fixed_binds_those_that_have_it() {
        let fixed = |pairs: &[(&str, Param)]| {
            Fixed(pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
        };
        let text = |value: &str| Param::Text(value.to_owned());
        let candidate = Candidate::new("a").with("x", 4).with_text("order", "length");
        assert!(Fixed::default().admits(&candidate));
        assert!(fixed(&[("order", text("length")), ("x", Param::Int(4))]).admits(&candidate));
        assert!(fixed(&[("x", text("4")), ("unknown", Param::Int(1))]).admits(&candidate));
        assert!(!fixed(&[("x", Param::Int(3))]).admits(&candidate));
        assert!(!fixed(&[("a.x", Param::Int(3))]).admits(&candidate));
        assert!(fixed(&[("b.x", Param::Int(3))]).admits(&candidate));
        let said = fixed(&[("x", Param::Int(4)), ("a.order", text("length"))]);
        assert_eq!(said.to_string(), "a.order=length, x=4");
        assert!(said.leaves(&candidate, true) && said.leaves(&candidate, false));
        let fewer = fixed(&[("x", Param::Int(4))]);
        assert!(fewer.leaves(&candidate, false) && !fewer.leaves(&candidate, true));
        let more = candidate.clone().with("turns", 2);
        assert!(said.leaves(&more, false) && !said.leaves(&more, true));
        let less = Candidate::new("a").with("x", 4);
        assert!(said.leaves(&less, false) && !said.leaves(&less, true));
        let other = Candidate::new("a").with("x", 4).with_text("order", "natural");
        assert!(!said.leaves(&other, true) && !said.leaves(&other, false));
        assert!(Fixed::default().leaves(&Candidate::new("bare"), true));
    }
}
