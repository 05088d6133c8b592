//! Strategies: which candidate to try next. Deterministic, so that a job taken up again walks the same path.

use crate::domain::Candidate;

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
pub(super) struct InOrder {
    candidates: Vec<Candidate>,
    handed_out: usize,
}

impl InOrder {
    pub(super) fn of(candidates: Vec<Candidate>) -> Box<dyn Strategy> {
        Box::new(Self { candidates, handed_out: 0 })
    }
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
    InOrder::of(scored.into_iter().map(|(candidate, _)| candidate).collect())
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
    fn exhaustive_is_deterministic() {
        let mut strategy = exhaustive(vec![of("b", 1, 1.0), of("a", 1, 1.0), of("a", 2, 0.5)]);
        assert_eq!(strategy.upcoming().len(), 3);
        let order: Vec<String> =
            std::iter::from_fn(|| strategy.next()).map(|c| c.to_string()).collect();
        assert_eq!(order, ["a{x=2}", "a{x=1}", "b{x=1}"]);
    }
}
