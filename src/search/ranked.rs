//! Ranked search: the best predicted (LO-SpMM, section 3.5), spread over families and tiles so that one error of the model
//! does not decide alone.

use super::strategy::{InOrder, Strategy, sort};
use crate::domain::{Candidate, FunnelStep};
use std::collections::{BTreeMap, BTreeSet};

/// The best of a family has a place where it is predicted within this factor of the best of all. A model is surest within
/// a family; between families it may be off, but hardly by more.
const NEAR: f64 = 3.0;

/// Candidates of one group (family and tile) whose predictions are this near, relatively, are alike to the model: what
/// they differ in (the block, the fetch) it does not see, and of these a few speak for all.
const ALIKE: f64 = 0.01;
const MOST_ALIKE: usize = 2;

/// The share of all places that one group may fill while others have candidates left; at least two.
const SHARE: usize = 4;

/// A strategy with what its ranking cut away.
pub struct Ranked {
    pub strategy: Box<dyn Strategy>,
    pub dropped: Vec<Candidate>,
    pub step: FunnelStep,
}

/// At most `top_k` candidates, handed out by prediction.
///
/// Places go, in this order, to: the best predicted; the best predicted of those that are `sure` of one; the best predicted
/// of each family, if it is near the best of all; the others by rank, as long as neither too many of their group nor too many that are alike
/// are in; whatever is left by rank. `group` names the family and the main tile of a candidate.
pub fn ranked(
    mut scored: Vec<(Candidate, f64)>,
    top_k: usize,
    group: impl Fn(&Candidate) -> String,
    sure: impl Fn(&Candidate) -> bool,
) -> Ranked {
    sort(&mut scored);
    let mut places = Places::of(&scored, top_k.max(1), group);
    if !scored.is_empty() {
        places.take(0);
    }
    if let Some(first) = scored.iter().position(|(candidate, _)| sure(candidate)) {
        places.take(first);
    }
    let near = scored.first().map_or(0.0, |(_, us)| NEAR * us);
    let mut families = BTreeSet::new();
    for (index, (candidate, us)) in scored.iter().enumerate() {
        if families.insert(&candidate.family) && *us <= near {
            places.take(index);
        }
    }
    for index in 0..scored.len() {
        if places.varied(index) {
            places.take(index);
        }
    }
    (0..scored.len()).for_each(|index| places.take(index));
    let Places { taken, .. } = places;
    let (chosen, dropped): (Vec<_>, Vec<_>) = scored
        .into_iter()
        .map(|(candidate, _)| candidate)
        .zip(taken)
        .partition(|(_, taken)| *taken);
    let bare = |all: Vec<(Candidate, bool)>| all.into_iter().map(|(c, _)| c).collect::<Vec<_>>();
    let (chosen, dropped) = (bare(chosen), bare(dropped));
    let step = rank_step(dropped.len(), chosen.len());
    Ranked { strategy: InOrder::of(chosen), dropped, step }
}

/// The cut to the best predicted, as the funnel's last step.
pub fn rank_step(removed: usize, left: usize) -> FunnelStep {
    FunnelStep {
        constraint: "rank".to_owned(),
        removed: removed as u64,
        left: left as u64,
        detail: Some(format!(
            "the {left} best predicted are measured, spread over families and tiles that are near the best"
        )),
    }
}

/// Who is in.
struct Places {
    left: usize,
    taken: Vec<bool>,
    /// Each candidate's group and prediction.
    scored: Vec<(String, f64)>,
    /// The predictions of those that are in, by group.
    groups: BTreeMap<String, Vec<f64>>,
    most_of_a_group: usize,
}

impl Places {
    fn of(
        scored: &[(Candidate, f64)],
        places: usize,
        group: impl Fn(&Candidate) -> String,
    ) -> Self {
        Self {
            left: places,
            taken: vec![false; scored.len()],
            scored: scored.iter().map(|(candidate, us)| (group(candidate), *us)).collect(),
            groups: BTreeMap::new(),
            most_of_a_group: (places / SHARE).max(2),
        }
    }

    /// Gives a candidate a place if there is one and it has none.
    fn take(&mut self, index: usize) {
        if self.left > 0 && !self.taken[index] {
            self.left -= 1;
            self.taken[index] = true;
            let (group, us) = &self.scored[index];
            self.groups.entry(group.clone()).or_default().push(*us);
        }
    }

    /// Whether it brings something that is not yet in.
    fn varied(&self, index: usize) -> bool {
        let (group, us) = &self.scored[index];
        let Some(within) = self.groups.get(group) else { return true };
        let alike = within.iter().filter(|other| (us - **other).abs() <= ALIKE * us).count();
        within.len() < self.most_of_a_group && alike < MOST_ALIKE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(family: &str, x: i64, predicted: f64) -> (Candidate, f64) {
        (Candidate::new(family).with("x", x), predicted)
    }

    /// Every candidate a group of its own.
    fn apart(candidate: &Candidate) -> String {
        candidate.to_string()
    }

    fn family(candidate: &Candidate) -> String {
        candidate.family.clone()
    }

    fn order(mut ranked: Ranked) -> Vec<String> {
        std::iter::from_fn(|| ranked.strategy.next()).map(|c| c.to_string()).collect()
    }

    #[test]
    fn a_family_near_the_best_keeps_its_best_and_the_cut_is_reported() {
        let scored = vec![
            of("a", 1, 1.0),
            of("a", 2, 2.0),
            of("a", 3, 2.5),
            of("b", 1, 2.9),
            of("b", 2, 10.0),
            of("c", 1, 3.1),
        ];
        let ranked = ranked(scored, 3, apart, |_| false);
        assert_eq!((ranked.step.removed, ranked.step.left, ranked.dropped.len()), (3, 3, 3));
        // c is too far behind for a place of its own.
        assert_eq!(order(ranked), ["a{x=1}", "a{x=2}", "b{x=1}"]);
    }

    #[test]
    fn a_top_k_smaller_than_the_families_takes_the_best() {
        let scored = vec![of("a", 1, 5.0), of("b", 1, 4.0), of("c", 1, 6.0)];
        let one = ranked(scored.clone(), 1, apart, |_| false);
        assert_eq!(one.step.removed, 2);
        assert_eq!(order(one), ["b{x=1}"]);
        let sure = |candidate: &Candidate| candidate.family == "c";
        assert_eq!(order(ranked(scored.clone(), 1, apart, sure)), ["b{x=1}"]);
        let sure = ranked(scored, 2, apart, sure);
        assert_eq!(order(sure), ["b{x=1}", "c{x=1}"]);
    }

    #[test]
    fn one_tile_does_not_fill_the_places() {
        let mut scored: Vec<_> = (0..20).map(|x| of("a", x, 1.0 + 0.1 * x as f64)).collect();
        scored.extend((0..2).map(|x| of("b", x, 4.0 + x as f64)));
        let eight = ranked(scored.clone(), 8, family, |_| false);
        // Two of a's by right, b's two, and the rest by rank again.
        let expected = [0, 1, 2, 3, 4, 5].map(|x| format!("a{{x={x}}}"));
        let expected = expected.into_iter().chain(["b{x=0}".to_owned(), "b{x=1}".to_owned()]);
        assert_eq!(order(eight), expected.collect::<Vec<_>>());
        scored.reverse();
        assert_eq!(order(ranked(scored, 2, family, |_| false)), ["a{x=0}", "a{x=1}"]);
    }

    #[test]
    fn of_those_alike_a_few_are_enough() {
        let scored: Vec<_> = [1.0, 1.001, 1.002, 1.003, 1.2, 1.3]
            .into_iter()
            .zip(0..)
            .map(|(us, x)| of("a", x, us))
            .collect();
        let chosen = order(ranked(scored, 16, family, |_| false));
        assert_eq!(chosen.len(), 6, "what has places keeps them");
        let scored = [1.0, 1.001, 1.002, 1.003, 1.2, 1.3].into_iter().zip(0..);
        let scored: Vec<_> = scored.map(|(us, x)| of("a", x, us)).collect();
        let mut padded = scored;
        padded.extend((0..12).map(|x| of(&format!("f{x}"), 0, 2.0)));
        let chosen = order(ranked(padded, 16, family, |_| false));
        for (x, there) in [(0, true), (1, true), (2, false), (3, false), (4, true), (5, true)] {
            assert_eq!(chosen.contains(&format!("a{{x={x}}}")), there, "{x}: {chosen:?}");
        }
    }
}
