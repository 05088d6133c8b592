//! Search-space pruning (LO-SpMM, sections 3.2 to 3.4): named rules that remove candidates without running them.

use crate::domain::{Candidate, CandidateId, FunnelStep, Judged, Removal};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A constraint's verdict on one candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The rule compares no numbers for it, or does not apply to it.
    Keep,
    /// It keeps to the limit; both in the rule's own unit.
    Fits {
        value: f64,
        limit: f64,
    },
    Remove(Excess),
}

/// How a candidate violates a rule, in the rule's own unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excess {
    /// What the rule computed for the candidate.
    pub value: f64,
    /// What the value would have to keep to.
    pub limit: f64,
    /// How far it is off; smaller is less.
    pub by: f64,
}

impl Verdict {
    /// Removes what exceeds `most`.
    pub fn at_most(value: f64, most: f64) -> Self {
        Self::within(value, most, value - most)
    }

    /// Removes what is below `least`.
    pub fn at_least(value: f64, least: f64) -> Self {
        Self::within(value, least, least - value)
    }

    /// Removes what is off by more than nothing.
    pub fn within(value: f64, limit: f64, by: f64) -> Self {
        if by <= 0.0 {
            Self::Fits { value, limit }
        } else {
            Self::Remove(Excess { value, limit, by })
        }
    }

    /// Whether the candidate satisfies the rule.
    pub const fn keeps(self) -> bool {
        !matches!(self, Self::Remove(_))
    }

    /// What the rule computed and what it compared that with, if it compares numbers.
    fn numbers(self) -> Option<(f64, f64)> {
        let (value, limit) = match self {
            Self::Keep => return None,
            Self::Fits { value, limit } | Self::Remove(Excess { value, limit, .. }) => {
                (value, limit)
            }
        };
        (value.is_finite() && limit.is_finite()).then_some((value, limit))
    }

    /// Removes a candidate without numbers to compare.
    pub const fn refused(by: f64) -> Self {
        Self::Remove(Excess { value: f64::INFINITY, limit: 0.0, by })
    }
}

/// A removed candidate with the rule that removed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Removed {
    pub candidate: Candidate,
    pub rule: &'static str,
    pub excess: Excess,
}

impl Removed {
    /// As it is stored.
    pub fn removal(&self) -> Removal {
        let stored = |number: f64| number.is_finite().then_some(number);
        let Excess { value, limit, .. } = self.excess;
        let compares = stored(value).is_some();
        Removal {
            pruned_by: self.rule.to_owned(),
            value: stored(value),
            limit: stored(limit).filter(|_| compares),
        }
    }
}

/// A named rule.
pub trait Constraint: Send + Sync {
    fn name(&self) -> &'static str;

    fn judge(&self, candidate: &Candidate) -> Verdict;

    /// A soft rule must not remove a whole family: if none of its candidates passes, those that violate it least are kept.
    fn soft(&self) -> bool;

    /// The excess up to which a soft rule spares candidates of a family whose least excess is `least`.
    fn spares(&self, least: f64) -> f64 {
        least
    }

    /// Explanation shown with the pruning step.
    fn detail(&self) -> Option<String> {
        None
    }
}

/// The candidates left, those removed with the rule that removed them, and the counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pruned {
    pub kept: Vec<Candidate>,
    pub removed: Vec<Removed>,
    pub funnel: Vec<FunnelStep>,
}

/// What each rule computes for one candidate, those that compare numbers.
pub fn judged(candidate: &Candidate, constraints: &[Box<dyn Constraint>]) -> Vec<Judged> {
    let judge = |rule: &dyn Constraint| {
        let verdict = rule.judge(candidate);
        let (value, limit) = verdict.numbers()?;
        Some(Judged { constraint: rule.name().to_owned(), value, limit, kept: verdict.keeps() })
    };
    constraints.iter().filter_map(|rule| judge(rule.as_ref())).collect()
}

/// Applies the constraints in order; the order of the candidates is preserved.
pub fn prune(candidates: Vec<Candidate>, constraints: &[Box<dyn Constraint>]) -> Pruned {
    let mut pruned = Pruned { kept: candidates, ..Pruned::default() };
    for constraint in constraints {
        apply(constraint.as_ref(), &mut pruned);
    }
    pruned
}

/// Applies only the constraints that are no preferences: what is left is everything that can run. Each candidate that
/// [`prune`] would not have left is also returned with the preference that would have removed it; a preference's step removes
/// nothing, and says how many it would have removed.
pub fn prune_full(
    candidates: Vec<Candidate>,
    constraints: &[Box<dyn Constraint>],
    preference: impl Fn(&dyn Constraint) -> bool,
) -> (Pruned, HashMap<CandidateId, Removal>) {
    let usual = prune(candidates.clone(), constraints);
    let mut pruned = Pruned { kept: candidates, ..Pruned::default() };
    for constraint in constraints {
        if preference(constraint.as_ref()) {
            let left = pruned.kept.len() as u64;
            let constraint = constraint.name().to_owned();
            pruned.funnel.push(FunnelStep { constraint, removed: 0, left, detail: None });
        } else {
            apply(constraint.as_ref(), &mut pruned);
        }
    }
    let kept: HashSet<CandidateId> = pruned.kept.iter().map(Candidate::id).collect();
    let despite: HashMap<CandidateId, Removal> = usual
        .removed
        .iter()
        .map(|removed| (removed.candidate.id(), removed.removal()))
        .filter(|(id, _)| kept.contains(id))
        .collect();
    for (step, constraint) in pruned.funnel.iter_mut().zip(constraints) {
        if preference(constraint.as_ref()) {
            let would = despite.values().filter(|by| by.pruned_by == step.constraint).count();
            let tried = format!("it would remove {would}, which are tried all the same");
            step.detail = joined(Some(tried), constraint.detail());
        }
    }
    (pruned, despite)
}

fn apply(constraint: &dyn Constraint, pruned: &mut Pruned) {
    let judged: Vec<(Candidate, Verdict)> = std::mem::take(&mut pruned.kept)
        .into_iter()
        .map(|candidate| {
            let verdict = constraint.judge(&candidate);
            (candidate, verdict)
        })
        .collect();
    let spared = if constraint.soft() { spared(constraint, &judged) } else { BTreeMap::new() };
    let before = judged.len();
    for (candidate, verdict) in judged {
        let is_spared = |by: f64| spared.get(&candidate.family).is_some_and(|most| by <= *most);
        match verdict {
            Verdict::Remove(excess) if !is_spared(excess.by) => {
                pruned.removed.push(Removed { candidate, rule: constraint.name(), excess });
            }
            _ => pruned.kept.push(candidate),
        }
    }
    let left = pruned.kept.len();
    pruned.funnel.push(FunnelStep {
        constraint: constraint.name().to_owned(),
        removed: (before - left) as u64,
        left: left as u64,
        detail: joined(constraint.detail(), detail(&spared)),
    });
}

/// Families that the rule would remove completely, with the excess up to which their candidates are kept.
fn spared(constraint: &dyn Constraint, judged: &[(Candidate, Verdict)]) -> BTreeMap<String, f64> {
    let mut least: BTreeMap<&str, Option<f64>> = BTreeMap::new();
    for (candidate, verdict) in judged {
        let entry = least.entry(&candidate.family).or_insert(Some(f64::INFINITY));
        match verdict {
            Verdict::Remove(excess) => *entry = entry.map(|so_far| so_far.min(excess.by)),
            Verdict::Keep | Verdict::Fits { .. } => *entry = None,
        }
    }
    least
        .into_iter()
        .filter_map(|(family, least)| Some((family.to_owned(), constraint.spares(least?))))
        .collect()
}

fn joined(first: Option<String>, second: Option<String>) -> Option<String> {
    let parts: Vec<String> = first.into_iter().chain(second).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn detail(spared: &BTreeMap<String, f64>) -> Option<String> {
    let families: Vec<&str> = spared.keys().map(String::as_str).collect();
    (!families.is_empty()).then(|| {
        format!(
            "no candidate of {} satisfies this rule, so those that violate it least are kept",
            families.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct AtMost {
        limit: i64,
        soft: bool,
    }

    impl Constraint for AtMost {
        fn name(&self) -> &'static str {
            "at_most"
        }
        fn judge(&self, candidate: &Candidate) -> Verdict {
            match candidate.int("x") {
                Some(x) => Verdict::at_most(x as f64, self.limit as f64),
                None => Verdict::Keep,
            }
        }
        fn soft(&self) -> bool {
            self.soft
        }
    }

    fn space() -> Vec<Candidate> {
        let of = |family: &str, x| Candidate::new(family).with("x", x);
        vec![of("a", 1), of("a", 9), of("b", 7), of("b", 7).with("y", 1), of("b", 8)]
    }

    #[test]
    fn a_hard_rule_may_remove_a_family() {
        let pruned = prune(space(), &[Box::new(AtMost { limit: 5, soft: false })]);
        assert_eq!(pruned.kept, [Candidate::new("a").with("x", 1)]);
        assert_eq!((pruned.funnel[0].removed, pruned.funnel[0].left), (4, 1));
        assert!(pruned.removed.iter().all(|removed| removed.rule == "at_most"));
        let removal = pruned.removed[0].removal();
        assert_eq!((removal.value, removal.limit), (Some(9.0), Some(5.0)));
    }

    #[test]
    fn the_numbers_of_a_candidate_are_told_whether_it_keeps_to_the_limit_or_not() {
        let rules: Vec<Box<dyn Constraint>> = vec![Box::new(AtMost { limit: 5, soft: false })];
        let of = |x| judged(&Candidate::new("a").with("x", x), &rules);
        let told =
            |value, kept| Judged { constraint: "at_most".to_owned(), value, limit: 5.0, kept };
        assert_eq!((of(4), of(6)), (vec![told(4.0, true)], vec![told(6.0, false)]));
        assert!(judged(&Candidate::new("a"), &rules).is_empty(), "nothing to compare");
    }

    #[test]
    fn a_full_space_keeps_what_a_preference_removes_and_says_which_did() {
        struct Even;
        impl Constraint for Even {
            fn name(&self) -> &'static str {
                "even"
            }
            fn judge(&self, candidate: &Candidate) -> Verdict {
                Verdict::at_most((candidate.int("x").unwrap_or(0) % 2) as f64, 0.0)
            }
            fn soft(&self) -> bool {
                false
            }
        }
        let all: Vec<Candidate> = (1..=6).map(|x| Candidate::new("a").with("x", x)).collect();
        let rules: [Box<dyn Constraint>; 2] =
            [Box::new(AtMost { limit: 3, soft: true }), Box::new(Even)];
        let (pruned, despite) = prune_full(all, &rules, |rule| rule.soft());
        let kept: Vec<_> = pruned.kept.iter().filter_map(|c| c.int("x")).collect();
        assert_eq!(kept, [2, 4, 6]);
        assert!(pruned.removed.iter().all(|removed| removed.rule == "even"));
        let counts: Vec<_> = pruned.funnel.iter().map(|step| (step.removed, step.left)).collect();
        assert_eq!(counts, [(0, 6), (3, 3)]);
        let four = &despite[&Candidate::new("a").with("x", 4).id()];
        assert_eq!((despite.len(), four.pruned_by.as_str(), four.value), (2, "at_most", Some(4.0)));
        let detail = pruned.funnel[0].detail.as_deref().unwrap_or_default();
        assert!(detail.starts_with("it would remove 2,"), "{detail}");
    }

    #[test]
    fn a_soft_rule_keeps_those_that_violate_it_least_and_reports_it() {
        let pruned = prune(space(), &[Box::new(AtMost { limit: 5, soft: true })]);
        assert_eq!(pruned.kept.len(), 3);
        assert!(pruned.kept.iter().all(|c| c.int("x") != Some(8)));
        let detail = pruned.funnel[0].detail.as_deref().unwrap_or_default();
        assert!(detail.contains("of b "), "{detail}");
    }
}
