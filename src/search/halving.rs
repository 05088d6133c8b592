//! Successive halving: many candidates are tried with few samples each. (AG-SpTRSV times each scheme of its reduced list, section
//! 4.5; here that takes too long.) Two thirds are chosen by prediction and spread over the search space; the last third climbs
//! from the best observed candidates. A family that is far ahead of all others gets the rest of the first two thirds: where preparing takes
//! long the time ends before the climb begins. The finals then halve the field.

use super::guided::{FirstPart, Guided, Observed};
use super::selector::{CandidateSelector, sort};
use crate::domain::{Candidate, FunnelStep, Param, funnel};
use std::collections::{BTreeMap, BTreeSet};

/// Number of observations of a parameter value after which half of its mean error is applied.
const DOUBT: f64 = 2.0;

/// The selector with its pruning step.
pub struct Halved {
    pub selector: Box<dyn CandidateSelector>,
    pub step: FunnelStep,
}

/// At most `places` candidates: two thirds by prediction and diversity, one third by hill climbing.
///
/// `before` are the candidates that an earlier attempt tried, in its order. They are handed out again first, so that their
/// outcomes are observed, and count as trials: what follows depends only on outcomes and predictions.
///
/// Candidates with the same `preparation` share the work before their first call; in the first two thirds they are tried
/// one after the other. If `by_time_alone`, what a call takes is all that decides, and a family that is far ahead by it is soon
/// the only one that is tried.
pub fn halving(
    mut scored: Vec<(Candidate, f64)>,
    places: usize,
    before: Vec<Candidate>,
    preparation: impl Fn(&Candidate) -> String,
    by_time_alone: bool,
) -> Halved {
    sort(&mut scored);
    let places = places.max(1).min(scored.len()).max(before.len());
    let spread = (2 * places).div_ceil(3);
    let step = FunnelStep {
        constraint: funnel::HALVING.to_owned(),
        removed: scored.len().saturating_sub(places) as u64,
        left: places.min(scored.len()) as u64,
        detail: Some(format!(
            "{spread} chosen by prediction, covering every family and many values of every parameter, until one family is far \
             ahead; the others are neighbours of the best observed"
        )),
    };
    let replayed = before.len();
    let mut queue = before;
    let tried: BTreeSet<Candidate> = queue.iter().cloned().collect();
    let liked = diverse(&scored, spread);
    let fresh = liked.iter().filter(|c| !tried.contains(c));
    let fresh: BTreeSet<_> = fresh.take(spread.saturating_sub(tried.len())).cloned().collect();
    // Grouped together with those already tried, so that a resumed job continues in the group it was in.
    let all: Vec<Candidate> = together(liked, &preparation).collect();
    queue.extend(all.iter().filter(|candidate| fresh.contains(candidate)).cloned());
    let mut families: BTreeMap<String, Vec<(Candidate, f64)>> = BTreeMap::new();
    for (candidate, us) in scored.iter().filter(|_| by_time_alone) {
        families.entry(candidate.family.clone()).or_default().push((candidate.clone(), *us));
    }
    let alone = |own: &[(Candidate, f64)]| together(diverse(own, spread), &preparation).collect();
    let of_family = families.iter().map(|(family, own)| (family.clone(), alone(own))).collect();
    let part = FirstPart { all, of_family };
    let selector = Guided::of(scored, (places, spread), queue, replayed, climb).among(part);
    Halved { selector: Box::new(selector), step }
}

/// Groups candidates with the same preparation at the position of the first of them.
pub(super) fn together(
    candidates: Vec<Candidate>,
    preparation: impl Fn(&Candidate) -> String,
) -> impl Iterator<Item = Candidate> {
    let mut groups: Vec<(String, Vec<Candidate>)> = Vec::new();
    for candidate in candidates {
        let name = preparation(&candidate);
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, group)) => group.push(candidate),
            None => groups.push((name, vec![candidate])),
        }
    }
    groups.into_iter().flat_map(|(_, group)| group)
}

/// The next candidates of a hill climb: neighbours of the best observed, then of the next best, then any others; ties are
/// broken by the predictions, corrected by observations of the same parameter values.
fn climb(observed: &Observed, seen: &BTreeSet<&Candidate>, count: usize) -> Vec<Candidate> {
    let errors = Errors::of(&observed.scored, &observed.outcomes);
    let mut open: Vec<(&Candidate, f64)> = observed
        .scored
        .iter()
        .filter(|(candidate, _)| !seen.contains(candidate))
        .map(|(candidate, us)| (candidate, us.max(f64::MIN_POSITIVE).ln() + errors.at(candidate)))
        .collect();
    open.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(b.0)));
    let mut best: Vec<(&Candidate, f64)> =
        observed.outcomes.iter().filter_map(|(c, us)| Some((c, (*us)?))).collect();
    best.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(b.0)));
    let mut chosen: Vec<Candidate> = Vec::new();
    let summits = best.into_iter().map(|(candidate, _)| Some(candidate)).chain([None]);
    for summit in summits {
        for (candidate, _) in &open {
            if chosen.len() == count {
                return chosen;
            }
            let near = summit.is_none_or(|summit| are_neighbours(summit, candidate));
            if near && !chosen.contains(candidate) {
                chosen.push((*candidate).clone());
            }
        }
    }
    chosen
}

/// Whether both are of the same family and differ in exactly one parameter.
fn are_neighbours(a: &Candidate, b: &Candidate) -> bool {
    let names: BTreeSet<&String> = a.params.keys().chain(b.params.keys()).collect();
    let differing = |name: &&&String| a.params.get(**name) != b.params.get(**name);
    a.family == b.family && names.iter().filter(differing).count() == 1
}

/// The best predicted candidate of each family; then, for up to half of the remaining trials, the best predicted of each
/// parameter value; then the best predicted overall. `scored` is sorted.
pub(super) fn diverse(scored: &[(Candidate, f64)], places: usize) -> Vec<Candidate> {
    let mut families = BTreeSet::new();
    let (firsts, rest): (Vec<&Candidate>, Vec<&Candidate>) =
        scored.iter().map(|(c, _)| c).partition(|c| families.insert(c.family.as_str()));
    let mut covered: BTreeSet<(&str, &str, &Param)> =
        firsts.iter().copied().flat_map(values).collect();
    let mut spreading = places.saturating_sub(firsts.len()) / 2;
    let mut brings_new = vec![false; rest.len()];
    for (brings, candidate) in brings_new.iter_mut().zip(&rest) {
        let before = covered.len();
        if spreading > 0 {
            covered.extend(values(candidate));
            *brings = covered.len() > before;
            spreading -= usize::from(*brings);
        }
    }
    let taken = firsts.len() + brings_new.iter().filter(|brings| **brings).count();
    let mut by_rank = places.saturating_sub(taken);
    let others = rest.into_iter().zip(brings_new).filter_map(|(candidate, brings)| {
        let ranks = !brings && by_rank > 0;
        by_rank -= usize::from(ranks);
        (brings || ranks).then_some(candidate)
    });
    firsts.into_iter().chain(others).take(places).cloned().collect()
}

/// A candidate's parameter values, qualified by its family.
fn values(candidate: &Candidate) -> impl Iterator<Item = (&str, &str, &Param)> {
    let family = candidate.family.as_str();
    candidate.params.iter().map(move |(name, value)| (family, name.as_str(), value))
}

/// Prediction errors in logarithms: by family, and relative to that by parameter value.
struct Errors<'a> {
    families: BTreeMap<&'a str, Mean>,
    values: BTreeMap<(&'a str, &'a str, &'a Param), Mean>,
}

#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }

    fn value(self) -> f64 {
        if self.count > 0.0 { self.sum / self.count } else { 0.0 }
    }
}

impl<'a> Errors<'a> {
    fn of(scored: &'a [(Candidate, f64)], outcomes: &BTreeMap<Candidate, Option<f64>>) -> Self {
        let error = |(candidate, us): &'a (Candidate, f64)| {
            let measured = (*outcomes.get(candidate)?)?;
            let error = (measured / us).ln();
            error.is_finite().then_some((candidate, error))
        };
        let errors: Vec<(&Candidate, f64)> = scored.iter().filter_map(error).collect();
        let mut families: BTreeMap<&str, Mean> = BTreeMap::new();
        let mut by_value: BTreeMap<_, Mean> = BTreeMap::new();
        for (candidate, error) in &errors {
            families.entry(&candidate.family).or_default().add(*error);
        }
        for (candidate, error) in &errors {
            let beyond = error - families[candidate.family.as_str()].value();
            values(candidate).for_each(|value| by_value.entry(value).or_default().add(beyond));
        }
        Self { families, values: by_value }
    }

    /// The correction to add to the logarithm of a prediction. An unobserved value counts as good as the best of its parameter,
    /// so that it is explored.
    fn at(&self, candidate: &Candidate) -> f64 {
        let family = self.families.get(candidate.family.as_str()).copied().unwrap_or_default();
        let trusted = |mean: &Mean| mean.value() * mean.count / (mean.count + DOUBT);
        let unseen = |(family, name, _): (&str, &str, &Param)| {
            let others = self.values.iter().filter(|((f, n, _), _)| (*f, *n) == (family, name));
            others.map(|(_, mean)| trusted(mean)).fold(0.0, f64::min)
        };
        let beyond = |value| self.values.get(&value).map_or_else(|| unseen(value), trusted);
        family.value() + values(candidate).map(beyond).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::domain::{Domain, product};

    const SIZES: [i64; 6] = [1, 2, 4, 8, 16, 32];

    /// Two families; the model of `wide` ignores x.
    fn scored() -> Vec<(Candidate, f64)> {
        let domains = [
            Domain::ints("x", &SIZES),
            Domain::ints("y", &SIZES),
            Domain::texts("order", &["natural", "level"]),
        ];
        let int = |c: &Candidate, name: &str| c.int(name).unwrap() as f64;
        let mut all: Vec<(Candidate, f64)> = product("wide", &domains)
            .into_iter()
            .map(|c| (c.clone(), 100.0 + int(&c, "y")))
            .collect();
        let narrow = product("narrow", &domains[..1]).into_iter();
        all.extend(narrow.map(|c| (c.clone(), 300.0 + int(&c, "x"))));
        all
    }

    /// The true times: a large y, x = 16 and the order by level are best.
    fn measured(candidate: &Candidate) -> Option<f64> {
        let (x, y) = (candidate.int("x")?, candidate.int("y").unwrap_or(1));
        let order = if candidate.text("order") == Some("level") { 1.0 } else { 1.5 };
        let away = |value: i64, from: f64| (value as f64 / from).log2().abs();
        // A failure must not stop the climb.
        (x != 32 || y != 2).then(|| order * (100.0 + 20.0 * away(y, 32.0) + 10.0 * away(x, 16.0)))
    }

    /// Continues for at most `steps` trials after those tried before.
    fn walk(before: Vec<Candidate>, places: usize, steps: usize) -> Vec<Candidate> {
        walk_by(measured, before, places, steps)
    }

    fn walk_by(
        measured: fn(&Candidate) -> Option<f64>,
        before: Vec<Candidate>,
        places: usize,
        steps: usize,
    ) -> Vec<Candidate> {
        handed_out(halving(scored(), places, before, alone, true).selector, steps, measured)
    }

    fn handed_out(
        mut selector: Box<dyn CandidateSelector>,
        steps: usize,
        measured: impl Fn(&Candidate) -> Option<f64>,
    ) -> Vec<Candidate> {
        let mut order = Vec::new();
        while order.len() < steps {
            let left = selector.left();
            let Some(candidate) = selector.next() else { break };
            assert_eq!(selector.left(), left - 1);
            selector.observe(&candidate, measured(&candidate));
            order.push(candidate);
        }
        order
    }

    #[test]
    fn earlier_trials_are_replayed_regardless_of_new_predictions() {
        let whole = walk(Vec::new(), 30, 30);
        // Interrupted during the climb; the model's ranking has been reversed since.
        let before = whole[..26].to_vec();
        let scored = scored().into_iter().map(|(candidate, us)| (candidate, 1e4 / us)).collect();
        let mut selector = halving(scored, 30, before.clone(), alone, true).selector;
        let mut order = Vec::new();
        while let Some(candidate) = selector.next() {
            selector.observe(&candidate, measured(&candidate));
            order.push(candidate);
        }
        assert_eq!(order[..26], before);
        assert_eq!((order.len(), order.iter().collect::<BTreeSet<_>>().len()), (30, 30));
    }

    /// Every candidate has its own preparation.
    fn alone(candidate: &Candidate) -> String {
        candidate.to_string()
    }

    #[test]
    fn candidates_with_the_same_preparation_are_consecutive() {
        let of = |x, y, us| (Candidate::new("a").with("x", x).with("y", y), us);
        let scored =
            vec![of(1, 1, 1.0), of(2, 1, 2.0), of(1, 2, 3.0), of(2, 2, 4.0), of(1, 3, 5.0)];
        let by_x = |candidate: &Candidate| format!("{:?}", candidate.int("x"));
        let selector = halving(scored, 5, Vec::new(), by_x, true).selector;
        let xs: Vec<_> = selector.upcoming().iter().map(|c| c.int("x")).collect();
        let mut runs = xs.clone();
        runs.dedup();
        assert!(xs.len() >= 3 && runs.len() <= 2, "{xs:?}");
    }

    #[test]
    fn uses_its_whole_budget_and_repeats_nothing() {
        for places in [1, 2, 5, 24, 60, 78, 500] {
            let order = walk(Vec::new(), places, usize::MAX);
            assert_eq!(order.len(), places.min(78));
            assert_eq!(order.iter().collect::<BTreeSet<_>>().len(), order.len());
        }
        let mut nothing = halving(Vec::new(), 9, Vec::new(), alone, true).selector;
        assert_eq!((nothing.left(), nothing.next()), (0, None));
        let step = halving(scored(), 24, Vec::new(), alone, true).step;
        assert_eq!((step.removed, step.left), (54, 24));
    }

    #[test]
    fn every_family_and_many_parameter_values_are_tried_first() {
        let order = walk(Vec::new(), 30, 20);
        assert_eq!(order[..2].iter().map(|c| &*c.family).collect::<Vec<_>>(), ["wide", "narrow"]);
        let wide = |name: &str| {
            let values =
                order.iter().filter(|c| c.family == "wide").map(|c| c.params[name].clone());
            values.collect::<BTreeSet<_>>().len()
        };
        assert_eq!((wide("order"), wide("x")), (2, 6));
        // Half of the trials cover parameter values, the most promising first.
        assert!(wide("y") >= 4, "{order:?}");
    }

    #[test]
    fn climbs_to_an_optimum_that_the_model_does_not_know() {
        let best =
            |order: &[Candidate]| order.iter().filter_map(measured).min_by(f64::total_cmp).unwrap();
        let (order, whole) = (walk(Vec::new(), 30, 30), walk(Vec::new(), 78, 78));
        assert!(best(&order[..20]) > best(&whole));
        assert_eq!(best(&order), best(&whole), "{order:?}");
    }

    #[test]
    fn a_family_that_is_far_ahead_is_tried_alone_until_the_climb() {
        let families = |measured, steps| {
            let order = walk_by(measured, Vec::new(), 30, steps);
            order.iter().map(|candidate| candidate.family.clone()).collect::<Vec<_>>()
        };
        let wide = |families: &[String]| families.iter().filter(|family| *family == "wide").count();
        // All of the six, of which the prediction thinks little, follow at once.
        let ahead = |c: &Candidate| Some(if c.family == "narrow" { 300.0 } else { 1000.0 });
        let order = families(ahead, 7);
        assert_eq!((order[0].as_str(), wide(&order)), ("wide", 1), "{order:?}");
        let all = families(ahead, usize::MAX);
        assert_eq!((all.len(), wide(&all)), (30, 24));
        // Not so far ahead, by times or by microseconds; far behind; failed, which says little of the next.
        for (narrow, others) in [(400.0, 1000.0), (30.0, 100.0), (4000.0, 1000.0)] {
            let selector = halving(scored(), 30, Vec::new(), alone, true).selector;
            let order = handed_out(selector, 20, |c| {
                Some(if c.family == "narrow" { narrow } else { others })
            });
            let as_planned = halving(scored(), 30, Vec::new(), alone, true).selector;
            let planned = as_planned.upcoming()[..20].to_vec();
            assert_eq!(order == planned, narrow < others, "{narrow} {others}: {order:?}");
        }
        let failed = families(|c| (c.family == "narrow").then_some(300.0), 20);
        assert!(wide(&failed) > 10, "{failed:?}");
        let mut third = scored();
        third.push((Candidate::new("third").with("x", 1), 500.0));
        let selector = halving(third, 30, Vec::new(), alone, true).selector;
        let order = handed_out(selector, 20, |c| match c.family.as_str() {
            "narrow" => Some(300.0),
            "third" => Some(1000.0),
            _ => None,
        });
        let wide = order.iter().filter(|candidate| candidate.family == "wide").count();
        assert!(wide > 10, "what has no time keeps its places: {order:?}");
        // Where preparing counts, too, a call's time alone decides nothing.
        let selector = halving(scored(), 30, Vec::new(), alone, false).selector;
        let order = handed_out(selector, 7, ahead);
        assert!(order.iter().filter(|candidate| candidate.family == "wide").count() > 1);
        for done in [1, 2, 3, 7, 8, 20] {
            let whole = walk_by(ahead, Vec::new(), 30, 30);
            assert_eq!(walk_by(ahead, whole[..done].to_vec(), 30, 30), whole, "after {done}");
        }
    }

    #[test]
    fn a_resumed_search_continues_as_if_not_interrupted() {
        let whole = walk(Vec::new(), 30, 30);
        assert_eq!(walk(Vec::new(), 30, 30), whole);
        for done in [1, 7, 19, 20, 21, 26, 30] {
            assert_eq!(walk(whole[..done].to_vec(), 30, 30), whole, "after {done}");
        }
        let family = |candidate: &Candidate| candidate.family.clone();
        let order =
            |before| halving(scored(), 30, before, family, true).selector.upcoming().to_vec();
        let whole = order(Vec::new());
        for done in [1, 7, 19, 20] {
            assert_eq!(order(whole[..done].to_vec()), whole, "after {done}");
        }
    }
}
