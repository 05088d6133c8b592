//! Candidate selectors decide which candidate to try next. They are deterministic, so that a resumed job takes the same path.

use crate::domain::Candidate;

/// Selects candidates one by one and observes their outcomes.
pub trait CandidateSelector: Send + Sync {
    /// The next candidate to try; `None` ends the search.
    fn next(&mut self) -> Option<Candidate>;

    /// Reports an outcome: the median in microseconds, or `None` for a failure.
    fn observe(&mut self, candidate: &Candidate, median_us: Option<f64>);

    /// The next candidates in order, as far as they are known; they can be compiled ahead.
    fn upcoming(&self) -> &[Candidate];

    /// The number of candidates that will still be selected.
    fn left(&self) -> usize {
        self.upcoming().len()
    }
}

/// A fixed order, best predicted first.
pub(super) struct InOrder {
    candidates: Vec<Candidate>,
    handed_out: usize,
}

impl InOrder {
    pub(super) fn of(candidates: Vec<Candidate>) -> Box<dyn CandidateSelector> {
        Box::new(Self { candidates, handed_out: 0 })
    }
}

impl CandidateSelector for InOrder {
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

/// Every candidate, best predicted first, so that a search that ends early has tried the most promising ones.
pub fn exhaustive(mut scored: Vec<(Candidate, f64)>) -> Box<dyn CandidateSelector> {
    sort(&mut scored);
    InOrder::of(scored.into_iter().map(|(candidate, _)| candidate).collect())
}

/// Sorts by prediction, then by name, so that the order is deterministic even for equal predictions.
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
    fn exhaustive_is_deterministic() {
        let mut selector = exhaustive(vec![of("b", 1, 1.0), of("a", 1, 1.0), of("a", 2, 0.5)]);
        assert_eq!(selector.upcoming().len(), 3);
        let order: Vec<String> =
            std::iter::from_fn(|| selector.next()).map(|c| c.to_string()).collect();
        assert_eq!(order, ["a{x=2}", "a{x=1}", "b{x=1}"]);
    }
}
