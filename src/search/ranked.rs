//! Ranked search: the best predicted candidates (LO-SpMM, section 3.5), spread over families and tiles, so that a single error of
//! the model is not decisive.

use super::correction::Correction;
use super::guided::{Guided, Observed};
use super::selector::{CandidateSelector, sort};
use crate::domain::{Candidate, FunnelStep, funnel};
use std::collections::{BTreeMap, BTreeSet};

/// The best candidate of a family is always tried if it is predicted within this factor of the overall best. Models are most
/// reliable within a family; between families they may be wrong, but rarely by more than this.
const NEAR: f64 = 3.0;

/// Candidates of one group (family and tile) whose predictions differ by less than this, relatively, are indistinguishable to
/// the model, which does not see the parameters they differ in (such as `block` and `fetch`); only a few of them are tried.
const ALIKE: f64 = 0.01;
const MOST_ALIKE: usize = 2;

/// One group gets at most `1 / SHARE` of all trials (at least two) while other groups have candidates left.
const SHARE: usize = 4;

/// Candidates that precede the model's choice.
#[derive(Clone, Debug, Default)]
pub struct First {
    /// Candidates that an earlier attempt tried, in its order: they are handed out again, so that their outcomes are
    /// observed, and count as trials.
    pub before: Vec<Candidate>,
    /// Warm start: candidates that won on similar matrices, or that another model would try. They are tried first, and count as
    /// trials, if they are among the scored.
    pub warm: Vec<Candidate>,
}

/// The selector with its pruning step.
pub struct Ranked {
    pub selector: Box<dyn CandidateSelector>,
    pub step: FunnelStep,
}

/// At most `top_k` candidates: the first half by prediction, spread over groups; each of the others by the prediction as
/// corrected by all outcomes so far.
///
/// The first half consists, in this order, of: the best predicted; the best predicted of those that must be included
/// (`sure`); the best predicted of each family, if it is near the overall best; the others by rank, as long as neither too many
/// of their group nor too many indistinguishable ones are included; any others by rank. `group` names the family and the main
/// tile of a candidate.
pub fn ranked(
    mut scored: Vec<(Candidate, f64)>,
    top_k: usize,
    First { before, warm }: First,
    group: impl Fn(&Candidate) -> String,
    sure: impl Fn(&Candidate) -> bool,
) -> Ranked {
    sort(&mut scored);
    let places = top_k.max(1).min(scored.len()).max(before.len());
    let spread = spread(&scored, places.div_ceil(2), group, sure);
    let replayed = before.len();
    let liked = known(warm, &scored).chain(spread);
    let queue = filled(before, liked, places.div_ceil(2));
    let step = rank_step(scored.len().saturating_sub(places), places.min(scored.len()));
    let parts = (places, places.div_ceil(2));
    let selector = Guided::of(scored, parts, queue, replayed, most_promising);
    Ranked { selector: Box::new(selector), step }
}

/// The candidates that are among the scored.
pub(super) fn known(
    warm: Vec<Candidate>,
    scored: &[(Candidate, f64)],
) -> impl Iterator<Item = Candidate> {
    let known = |warm: &Candidate| scored.iter().any(|(candidate, _)| candidate == warm);
    warm.into_iter().filter(known)
}

/// The queue extended by the preferred candidates, without duplicates, up to the number of trials.
pub(super) fn filled(
    mut queue: Vec<Candidate>,
    liked: impl Iterator<Item = Candidate>,
    places: usize,
) -> Vec<Candidate> {
    let mut there: BTreeSet<Candidate> = queue.iter().cloned().collect();
    for candidate in liked {
        if queue.len() >= places {
            break;
        }
        if there.insert(candidate.clone()) {
            queue.push(candidate);
        }
    }
    queue
}

/// The first half, chosen by prediction. `scored` is sorted.
fn spread(
    scored: &[(Candidate, f64)],
    count: usize,
    group: impl Fn(&Candidate) -> String,
    sure: impl Fn(&Candidate) -> bool,
) -> Vec<Candidate> {
    let mut places = Places::of(scored, count, group);
    let near = scored.first().map_or(0.0, |(_, us)| NEAR * us);
    if !scored.is_empty() {
        places.take(0);
    }
    if let Some(first) = scored.iter().position(|(candidate, _)| sure(candidate)) {
        places.take(first);
    }
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
    let taken = scored.iter().zip(&places.taken).filter(|(_, taken)| **taken);
    taken.map(|((candidate, _), _)| candidate.clone()).collect()
}

/// The candidates with the smallest lower confidence bounds.
pub(super) fn most_promising(
    observed: &Observed,
    seen: &BTreeSet<&Candidate>,
    count: usize,
) -> Vec<Candidate> {
    let tried = observed.scored.iter().filter_map(|(candidate, predicted)| {
        observed.outcomes.get(candidate).map(|us| (candidate, *predicted, *us))
    });
    let correction = Correction::of(tried);
    let open = observed.scored.iter().filter(|(candidate, _)| !seen.contains(candidate));
    let mut bounds: Vec<(f64, &Candidate)> = open
        .map(|(candidate, us)| (correction.lower_confidence_bound(candidate, *us), candidate))
        .collect();
    bounds.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(b.1)));
    bounds.into_iter().take(count).map(|(_, candidate)| candidate.clone()).collect()
}

/// The restriction to the best predicted, as the last pruning step.
pub fn rank_step(removed: usize, left: usize) -> FunnelStep {
    FunnelStep {
        constraint: funnel::RANK.to_owned(),
        removed: removed as u64,
        left: left as u64,
        detail: Some(format!(
            "{left} are measured: half chosen by prediction, spread over families and tiles that are near the best, half as \
             measurements correct predictions"
        )),
    }
}

/// The candidates included so far.
struct Places {
    left: usize,
    taken: Vec<bool>,
    /// Each candidate's group and prediction.
    scored: Vec<(String, f64)>,
    /// The predictions of the included candidates, by group.
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

    /// Includes a candidate if there is room and it is not yet included.
    fn take(&mut self, index: usize) {
        if self.left > 0 && !self.taken[index] {
            self.left -= 1;
            self.taken[index] = true;
            let (group, us) = &self.scored[index];
            self.groups.entry(group.clone()).or_default().push(*us);
        }
    }

    /// Whether the candidate is sufficiently different from those already included.
    fn varied(&self, index: usize) -> bool {
        let (group, us) = &self.scored[index];
        let Some(within) = self.groups.get(group) else { return true };
        let alike = within.iter().filter(|other| (us - **other).abs() <= ALIKE * us).count();
        within.len() < self.most_of_a_group && alike < MOST_ALIKE
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::search) fn of(family: &str, x: i64, predicted: f64) -> (Candidate, f64) {
        (Candidate::new(family).with("x", x), predicted)
    }

    /// Every candidate is its own group.
    pub(in crate::search) fn apart(candidate: &Candidate) -> String {
        candidate.to_string()
    }

    fn family(candidate: &Candidate) -> String {
        candidate.family.clone()
    }

    /// The order of candidates if every prediction is exact.
    pub(in crate::search) fn order(scored: &[(Candidate, f64)], mut ranked: Ranked) -> Vec<String> {
        let mut order = Vec::new();
        while let Some(candidate) = ranked.selector.next() {
            let us = scored.iter().find(|(c, _)| *c == candidate).map(|(_, us)| *us);
            ranked.selector.observe(&candidate, us);
            order.push(candidate.to_string());
        }
        order
    }

    fn first(
        scored: &[(Candidate, f64)],
        count: usize,
        group: impl Fn(&Candidate) -> String,
    ) -> Vec<String> {
        let mut sorted = scored.to_vec();
        sort(&mut sorted);
        let spread = spread(&sorted, count, group, |_| false);
        spread.into_iter().map(|candidate| candidate.to_string()).collect()
    }

    #[test]
    fn the_best_of_a_family_near_the_optimum_is_included_and_the_step_is_reported() {
        let scored = vec![
            of("a", 1, 1.0),
            of("a", 2, 2.0),
            of("a", 3, 2.5),
            of("b", 1, 2.9),
            of("b", 2, 10.0),
            of("c", 1, 3.1),
        ];
        assert_eq!(first(&scored, 3, apart), ["a{x=1}", "a{x=2}", "b{x=1}"]);
        let ranked = ranked(scored, 3, First::default(), apart, |_| false);
        assert_eq!((ranked.step.removed, ranked.step.left), (3, 3));
        assert_eq!(ranked.selector.left(), 3);
    }

    #[test]
    fn a_top_k_below_the_number_of_families_takes_the_best() {
        let scored = vec![of("a", 1, 5.0), of("b", 1, 4.0), of("c", 1, 6.0)];
        let is_c = |candidate: &Candidate| candidate.family == "c";
        let one = ranked(scored.clone(), 1, First::default(), apart, is_c);
        assert_eq!(one.step.removed, 2);
        assert_eq!(order(&scored, one), ["b{x=1}"]);
        let four = ranked(scored.clone(), 4, First::default(), apart, is_c);
        assert_eq!(order(&scored, four), ["b{x=1}", "c{x=1}", "a{x=1}"]);
    }

    #[test]
    fn the_second_half_follows_what_was_measured() {
        // The model prefers small x; in the measurements even x are twice as fast as odd ones.
        let scored: Vec<_> = (0..40)
            .map(|x| (Candidate::new("a").with("x", x).with("even", (x + 1) % 2), 10.0 + x as f64))
            .collect();
        let mut search = ranked(scored.clone(), 16, First::default(), apart, |_| false).selector;
        let mut tried = Vec::new();
        while let Some(candidate) = search.next() {
            let even = candidate.int("even") == Some(1);
            search.observe(&candidate, Some(if even { 10.0 } else { 20.0 }));
            tried.push(even);
        }
        assert_eq!(tried.len(), 16);
        let even = |part: &[bool]| part.iter().filter(|even| **even).count();
        assert_eq!(even(&tried[..8]), 4);
        assert!(even(&tried[8..]) >= 7, "{tried:?}");
    }

    #[test]
    fn earlier_trials_are_replayed_first_and_count() {
        let scored: Vec<_> = (0..30).map(|x| of("a", x, 1.0 + x as f64)).collect();
        let whole = order(&scored, ranked(scored.clone(), 10, First::default(), apart, |_| false));
        for tried in [1, 4, 7, 10] {
            let names = &whole[..tried];
            let find = |name: &String| scored.iter().find(|(c, _)| c.to_string() == *name).unwrap();
            let before = names.iter().map(|name| find(name).0.clone()).collect();
            let again = order(
                &scored,
                ranked(scored.clone(), 10, First { before, ..First::default() }, apart, |_| false),
            );
            assert_eq!(again, whole, "{tried} tried before");
        }
    }

    #[test]
    fn winners_on_similar_matrices_are_part_of_the_first_half() {
        let scored: Vec<_> = (0..30).map(|x| of("a", x, 1.0 + x as f64)).collect();
        let warm = vec![scored[20].0.clone(), Candidate::new("gone"), scored[0].0.clone()];
        let first = || First { warm: warm.clone(), ..First::default() };
        let spread = order(&scored, ranked(scored.clone(), 4, first(), apart, |_| false));
        assert_eq!(spread[..2], ["a{x=20}", "a{x=0}"]);
        assert_eq!(spread.len(), 4);
    }

    #[test]
    fn one_tile_does_not_use_up_all_trials() {
        let mut scored: Vec<_> = (0..20).map(|x| of("a", x, 1.0 + 0.1 * x as f64)).collect();
        scored.extend((0..2).map(|x| of("b", x, 4.0 + x as f64)));
        // Two of a by its share, two of b, and the rest by rank again.
        let expected = [0, 1, 2, 3, 4, 5].map(|x| format!("a{{x={x}}}"));
        let expected = expected.into_iter().chain(["b{x=0}".to_owned(), "b{x=1}".to_owned()]);
        assert_eq!(first(&scored, 8, family), expected.collect::<Vec<_>>());
        scored.reverse();
        assert_eq!(first(&scored, 2, family), ["a{x=0}", "a{x=1}"]);
    }

    #[test]
    fn few_of_the_indistinguishable_candidates_are_included() {
        let scored: Vec<_> = [1.0, 1.001, 1.002, 1.003, 1.2, 1.3]
            .into_iter()
            .zip(0..)
            .map(|(us, x)| of("a", x, us))
            .collect();
        let chosen = first(&scored, 16, family);
        assert_eq!(chosen.len(), 6, "all trials are used");
        let scored = [1.0, 1.001, 1.002, 1.003, 1.2, 1.3].into_iter().zip(0..);
        let scored: Vec<_> = scored.map(|(us, x)| of("a", x, us)).collect();
        let mut padded = scored;
        padded.extend((0..12).map(|x| of(&format!("f{x}"), 0, 2.0)));
        let chosen = first(&padded, 16, family);
        for (x, there) in [(0, true), (1, true), (2, false), (3, false), (4, true), (5, true)] {
            assert_eq!(chosen.contains(&format!("a{{x={x}}}")), there, "{x}: {chosen:?}");
        }
    }
}
