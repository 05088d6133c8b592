//! Chooses the two parameters of a family that form the axes of its heat map.

use crate::domain::{Param, Trial};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A parameter and its values, in order.
pub struct Axis {
    pub name: String,
    pub values: Vec<Value>,
}

/// A value on an axis; numbers are ordered before words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value(Param);

impl Axis {
    /// The position of a candidate on the axis.
    pub fn place(&self, trial: &Trial) -> Option<usize> {
        let param = trial.candidate.params.get(&self.name)?;
        self.values.iter().position(|value| value.0 == *param)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Param::Int(value) => write!(f, "{value}"),
            Param::Text(value) => f.write_str(value),
        }
    }
}

/// Number of columns that fit on most screens.
const BROAD: usize = 8;

/// Rows and columns of the map: m1 and n1 if both exist; else the two numeric parameters with the most values; parameters
/// with words are used last.
pub fn pair(trials: &[&Trial]) -> Option<(Axis, Axis)> {
    let mut values: BTreeMap<&str, BTreeSet<&Param>> = BTreeMap::new();
    for (name, value) in trials.iter().flat_map(|trial| &trial.candidate.params) {
        values.entry(name).or_default().insert(value);
    }
    let axis = |(name, values): &(&str, BTreeSet<&Param>)| Axis {
        name: (*name).to_owned(),
        values: values.iter().map(|value| Value((*value).clone())).collect(),
    };
    let mut ranked: Vec<(&str, BTreeSet<&Param>)> = values.into_iter().collect();
    if let (Some(m1), Some(n1)) = (named(&ranked, "m1"), named(&ranked, "n1")) {
        return Some((axis(m1), axis(n1)));
    }
    // A parameter with any word among its values counts as non-numeric.
    let words = |values: &BTreeSet<&Param>| values.iter().any(|v| matches!(v, Param::Text(_)));
    // Parameters with one value are dropped. A stable sort keeps equals in alphabetical order.
    ranked.retain(|(_, values)| values.len() > 1);
    ranked.sort_by_key(|(_, values)| (words(values), std::cmp::Reverse(values.len())));
    let (most, next) = (axis(ranked.first()?), axis(ranked.get(1)?));
    // The parameter with the most values goes along the columns, unless they would not fit.
    Some(if most.values.len() > BROAD { (most, next) } else { (next, most) })
}

fn named<'a, 'b>(
    all: &'b [(&'a str, BTreeSet<&'a Param>)],
    name: &str,
) -> Option<&'b (&'a str, BTreeSet<&'a Param>)> {
    all.iter().find(|(known, _)| *known == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Candidate, JobId, Removal, Timestamp, TrialState};

    fn names(candidates: &[Candidate]) -> Option<(String, String)> {
        let trials: Vec<Trial> = candidates
            .iter()
            .map(|candidate| Trial {
                job: JobId("j".to_owned()),
                ordinal: 0,
                candidate: candidate.clone(),
                state: TrialState::Pruned(Removal::by("rank")),
                predicted_us: None,
                despite: None,
                features: None,
                created_at: Timestamp(0),
            })
            .collect();
        let (rows, columns) = pair(&trials.iter().collect::<Vec<_>>())?;
        Some((rows.name, columns.name))
    }

    fn of(a: i64, b: i64, order: &str) -> Candidate {
        Candidate::new("f").with("a", a).with("b", b).with("fixed", 1).with_text("order", order)
    }

    #[test]
    fn numeric_parameters_with_most_values_are_preferred_to_words() {
        let two = [of(1, 1, "x"), of(2, 2, "y"), of(2, 4, "z")];
        assert_eq!(names(&two), Some(("a".to_owned(), "b".to_owned())));
        let one = [of(1, 1, "x"), of(1, 2, "y"), of(1, 4, "z")];
        assert_eq!(names(&one), Some(("order".to_owned(), "b".to_owned())));
        assert_eq!(names(&[of(1, 1, "x"), of(1, 2, "x")]), None);
        let tall: Vec<_> = (0..12).map(|n| of(n % 2, n, "x")).collect();
        assert_eq!(names(&tall), Some(("b".to_owned(), "a".to_owned())));
    }
}
