//! Strategies: which candidate to try next. Deterministic, so that a job taken up again walks the same path.

use crate::domain::{Candidate, FunnelStep};

/// A search order. Two calls are the whole of it; outcomes are data.
pub trait Strategy: Send + Sync {
    /// The next candidate to try; `None` ends the search.
    fn next(&mut self) -> Option<Candidate>;

    /// What came of it, in microseconds; `None` for a failure.
    fn observe(&mut self, candidate: &Candidate, median_us: Option<f64>);

    /// The candidates that come next, in order, as far as they are known: what to compile ahead.
    fn upcoming(&self) -> &[Candidate];

    /// How many will still be handed out.
    fn left(&self) -> usize {
        self.upcoming().len()
    }
}

/// A fixed order, best expected first.
struct InOrder {
    candidates: Vec<Candidate>,
    handed_out: usize,
}

impl Strategy for InOrder {
    fn next(&mut self) -> Option<Candidate> {
        let candidate = self.candidates.get(self.handed_out)?.clone();
        self.handed_out += 1;
        Some(candidate)
    }

    fn observe(&mut self, _candidate: &Candidate, _median_us: Option<f64>) {}

    fn upcoming(&self) -> &[Candidate] {
        &self.candidates[self.handed_out..]
    }
}

/// Every candidate, best predicted first, so that a budget that ends early has seen the likely ones.
pub fn exhaustive(mut scored: Vec<(Candidate, f64)>) -> Box<dyn Strategy> {
    sort(&mut scored);
    let candidates = scored.into_iter().map(|(candidate, _)| candidate).collect();
    Box::new(InOrder { candidates, handed_out: 0 })
}

/// The `top_k` best predicted (LO-SpMM, section 3.5), each family's best among them; the cut is the funnel's last step.
///
/// A model is surest within a family. So the best of every family has a place, and the rest are filled by rank.
pub fn ranked(mut scored: Vec<(Candidate, f64)>, top_k: usize) -> Ranked {
    sort(&mut scored);
    let mut seen = std::collections::BTreeSet::new();
    let (mut firsts, rest): (Vec<_>, Vec<_>) =
        scored.into_iter().partition(|(candidate, _)| seen.insert(candidate.family.clone()));
    let places = top_k.saturating_sub(firsts.len()).min(rest.len());
    let cut = rest[places..].iter().map(|(candidate, _)| candidate.clone()).collect::<Vec<_>>();
    firsts.extend(rest.into_iter().take(places));
    let mut dropped = Vec::new();
    sort(&mut firsts);
    if firsts.len() > top_k.max(1) {
        dropped =
            firsts.split_off(top_k.max(1)).into_iter().map(|(candidate, _)| candidate).collect();
    }
    dropped.extend(cut);
    let candidates: Vec<Candidate> = firsts.into_iter().map(|(candidate, _)| candidate).collect();
    let step = rank_step(dropped.len(), candidates.len());
    Ranked { strategy: Box::new(InOrder { candidates, handed_out: 0 }), dropped, step }
}

/// The cut to the best predicted, as the funnel's last step.
pub fn rank_step(removed: usize, left: usize) -> FunnelStep {
    FunnelStep {
        constraint: "rank".to_owned(),
        removed: removed as u64,
        left: left as u64,
        detail: Some(format!("the {left} best predicted are measured")),
    }
}

/// A strategy with what its ranking cut away.
pub struct Ranked {
    pub strategy: Box<dyn Strategy>,
    pub dropped: Vec<Candidate>,
    pub step: FunnelStep,
}

/// By prediction, then by name: equal predictions must not make the order depend on anything else.
pub(super) fn sort(scored: &mut [(Candidate, f64)]) {
    scored.sort_by(|(a, x), (b, y)| x.total_cmp(y).then_with(|| a.cmp(b)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(family: &str, x: i64, predicted: f64) -> (Candidate, f64) {
        (Candidate::new(family).with("x", x), predicted)
    }

    #[test]
    fn ranked_keeps_every_family_and_reports_the_cut() {
        let scored = vec![
            of("a", 1, 1.0),
            of("a", 2, 2.0),
            of("a", 3, 3.0),
            of("b", 1, 9.0),
            of("b", 2, 10.0),
        ];
        let mut ranked = ranked(scored, 3);
        let order: Vec<String> =
            std::iter::from_fn(|| ranked.strategy.next()).map(|c| c.to_string()).collect();
        assert_eq!(order, ["a{x=1}", "a{x=2}", "b{x=1}"]);
        assert_eq!((ranked.step.removed, ranked.step.left, ranked.dropped.len()), (2, 3, 2));
    }

    #[test]
    fn a_top_k_smaller_than_the_families_takes_the_best() {
        let mut ranked = ranked(vec![of("a", 1, 5.0), of("b", 1, 4.0), of("c", 1, 6.0)], 1);
        assert_eq!(ranked.strategy.next().map(|c| c.family), Some("b".to_owned()));
        assert_eq!(ranked.strategy.next(), None);
        assert_eq!(ranked.step.removed, 2);
    }

    #[test]
    fn exhaustive_is_deterministic() {
        let mut strategy = exhaustive(vec![of("b", 1, 1.0), of("a", 1, 1.0), of("a", 2, 0.5)]);
        assert_eq!(strategy.upcoming().len(), 3);
        let order: Vec<String> =
            std::iter::from_fn(|| strategy.next()).map(|c| c.to_string()).collect();
        assert_eq!(order, ["a{x=2}", "a{x=1}", "b{x=1}"]);
    }
}
