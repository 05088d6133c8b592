//! Sampled: half by prediction, half at random. What models are trained on: the near best tell the good from the better,
//! the random ones what bad looks like, and no outcome decides what is looked at next.

use super::halving::{diverse, together};
use super::strategy::{InOrder, Strategy, sort};
use crate::domain::{Candidate, FunnelStep, funnel};
use std::collections::BTreeSet;

/// The strategy with its step of the funnel.
pub struct Sampled {
    pub strategy: Box<dyn Strategy>,
    pub step: FunnelStep,
}

/// At most `places` candidates. `draw` gives each candidate its lot: of what predictions do not choose, the smallest are
/// in. Candidates that `preparation` names alike follow each other.
pub fn sampled(
    mut scored: Vec<(Candidate, f64)>,
    places: usize,
    preparation: impl Fn(&Candidate) -> String,
    draw: impl Fn(&Candidate) -> u64,
) -> Sampled {
    sort(&mut scored);
    let places = places.max(1).min(scored.len());
    let liked = diverse(&scored, places.div_ceil(2));
    let known: BTreeSet<&Candidate> = liked.iter().collect();
    let mut others: Vec<(u64, &Candidate)> = scored
        .iter()
        .map(|(candidate, _)| candidate)
        .filter(|candidate| !known.contains(candidate))
        .map(|candidate| (draw(candidate), candidate))
        .collect();
    others.sort();
    let drawn = others.into_iter().take(places - liked.len()).map(|(_, candidate)| candidate);
    let chosen = liked.iter().chain(drawn).cloned().collect();
    let step = FunnelStep {
        constraint: funnel::SAMPLE.to_owned(),
        removed: (scored.len() - places) as u64,
        left: places as u64,
        detail: Some("half by prediction, every family among them, and half at random".to_owned()),
    };
    Sampled { strategy: InOrder::of(together(chosen, preparation).collect()), step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_predicted_and_half_is_drawn() {
        let scored: Vec<_> =
            (0..100).map(|x| (Candidate::new("a").with("x", x), 1.0 + x as f64)).collect();
        let draw = |candidate: &Candidate| candidate.int("x").unwrap().unsigned_abs() * 37 % 101;
        let of = |scored: &[(Candidate, f64)], places| {
            let family = |candidate: &Candidate| candidate.family.clone();
            let mut sampled = sampled(scored.to_vec(), places, family, draw);
            let mut all = Vec::new();
            while let Some(candidate) = sampled.strategy.next() {
                all.push(candidate.int("x").unwrap());
            }
            (all, sampled.step.removed)
        };
        let (mut all, removed) = of(&scored, 20);
        assert_eq!((all.len(), removed), (20, 80));
        all.sort_unstable();
        let lots: Vec<u64> = all[10..].iter().map(|x| x.unsigned_abs() * 37 % 101).collect();
        assert!(all[..5].iter().eq([0, 1, 2, 3, 4].iter()), "{all:?}");
        assert!(lots.iter().filter(|lot| **lot < 15).count() >= 8, "{lots:?}");
        let mut reversed = scored.clone();
        reversed.reverse();
        assert_eq!(of(&reversed, 20), of(&scored, 20));
        assert_eq!(of(&scored, 1000).0.len(), 100);
        assert_eq!(of(&scored, 1).0, [0]);
    }
}
