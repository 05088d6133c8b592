//! Drawing at random from a search space: the same draw for the same matrix and seed, so that a resumed job takes the same path.

use super::selector::{CandidateSelector, InOrder};
use crate::domain::{Candidate, Digest, FunnelStep, funnel};
use std::collections::HashSet;

/// A draw from a full search space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// The most candidates that are drawn.
    pub most: usize,
    /// Decides which; a job derives it from its matrix and its own seed.
    pub seed: u64,
}

impl Draw {
    /// The draw of a job.
    pub fn of(matrix: &Digest, seed: Option<u64>, most: usize) -> Self {
        Self { most, seed: lot(&format!("{matrix} {seed:?}")) }
    }

    /// The candidate's random number: those with the smallest are drawn, in this order.
    pub fn lot(&self, candidate: &Candidate) -> u64 {
        lot(&format!("{} {candidate}", self.seed))
    }

    /// Different numbers below `count` in random order, for spaces that are too large to be listed: an endless draw without
    /// replacement, until the space is exhausted. `what` names the space, so that two spaces are drawn from independently.
    pub fn numbers(&self, what: &str, count: u64) -> impl Iterator<Item = u64> {
        let (seed, what) = (self.seed, what.to_owned());
        let mut drawn = HashSet::new();
        let mut at = 0u64;
        std::iter::from_fn(move || {
            // Rejected repetitions stay few while a space is drawn from sparsely; a space drawn from densely is walked to its
            // end from where the lot fell.
            let free = count.checked_sub(drawn.len() as u64).filter(|free| *free > 0)?;
            at += 1;
            let mut number = lot(&format!("{seed} {what} {at}")) % count;
            let dense = free < count / 2;
            while !drawn.insert(number) {
                if dense {
                    number = (number + 1) % count;
                } else {
                    at += 1;
                    number = lot(&format!("{seed} {what} {at}")) % count;
                }
            }
            Some(number)
        })
    }

    /// Keeps `most` of the candidates, those with the smallest numbers, in their order.
    pub fn keep<T>(&self, mut all: Vec<T>, candidate: impl Fn(&T) -> &Candidate) -> Vec<T> {
        all.sort_by_cached_key(|one| (self.lot(candidate(one)), candidate(one).clone()));
        all.truncate(self.most);
        all
    }

    /// The pruning step of a draw of `left` from `all` candidates, `passing` of which no rule would have removed.
    pub fn step(all: u64, left: u64, passing: u64) -> FunnelStep {
        FunnelStep {
            constraint: funnel::DRAW.to_owned(),
            removed: all.saturating_sub(left),
            left,
            detail: Some(format!(
                "{left} of all {all} that can run are tried, drawn at random; {passing} of them pass every rule"
            )),
        }
    }
}

/// A random number that depends on a text alone.
pub fn lot(text: &str) -> u64 {
    let lot = Digest::of(text.as_bytes());
    lot.as_bytes()[..8].iter().fold(0, |lot, byte| lot << 8 | u64::from(*byte))
}

/// The candidates of a draw in their random order, so that a search that ends early has tried an unbiased part of them. At most
/// `places`; `before` are those that an earlier attempt tried, in its order: they come first and count.
pub fn drawn(
    scored: Vec<(Candidate, f64)>,
    places: usize,
    before: Vec<Candidate>,
    draw: &Draw,
) -> Box<dyn CandidateSelector> {
    let places = places.max(1);
    let draw = Draw { most: places, ..*draw };
    let chosen = draw.keep(scored, |(candidate, _)| candidate);
    let fresh: Vec<Candidate> = chosen
        .into_iter()
        .map(|(candidate, _)| candidate)
        .filter(|candidate| !before.contains(candidate))
        .take(places.saturating_sub(before.len()))
        .collect();
    InOrder::of(before.into_iter().chain(fresh).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(count: i64) -> Vec<(Candidate, f64)> {
        (0..count).map(|x| (Candidate::new("a").with("x", x), 1.0)).collect()
    }

    fn of(scored: Vec<(Candidate, f64)>, places: usize, before: Vec<Candidate>) -> Vec<i64> {
        let mut selector = drawn(scored, places, before, &Draw { most: places, seed: 1 });
        std::iter::from_fn(|| selector.next()).filter_map(|c| c.int("x")).collect()
    }

    #[test]
    fn a_draw_is_random_repeatable_and_resumed_where_it_was() {
        let first = of(space(100), 20, Vec::new());
        let mut reversed = space(100);
        reversed.reverse();
        assert_eq!(of(reversed, 20, Vec::new()), first);
        assert_eq!(first.len(), 20);
        assert!(!first.is_sorted() && first.iter().any(|x| *x > 60));
        let before: Vec<Candidate> =
            first[..7].iter().map(|x| Candidate::new("a").with("x", *x)).collect();
        assert_eq!(of(space(100), 20, before), first);
        let mut all = of(space(5), 100, Vec::new());
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn numbers_are_drawn_without_replacement_from_small_and_large_spaces() {
        let draw = Draw { most: 0, seed: 7 };
        let mut few: Vec<u64> = draw.numbers("few", 50).collect();
        assert!(!few.is_sorted());
        few.sort_unstable();
        assert!(few.into_iter().eq(0..50));
        let many: Vec<u64> = draw.numbers("many", 513_216).take(2000).collect();
        assert_eq!(many.iter().collect::<HashSet<_>>().len(), 2000);
        let mean = many.iter().map(|number| *number as f64).sum::<f64>() / 2000.0;
        assert!((mean / 256_608.0 - 1.0).abs() < 0.05, "{mean}");
        assert_eq!(draw.numbers("none", 0).next(), None);
    }
}
