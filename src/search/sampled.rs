//! Sampled search, for training data: half by prediction, half at random. Candidates near the best teach a model to distinguish
//! good from better, random ones what bad looks like; the selection does not depend on outcomes.

use super::halving::{diverse, together};
use super::selector::{CandidateSelector, InOrder, sort};
use crate::domain::{Candidate, FunnelStep, funnel};
use std::collections::BTreeSet;

/// Random candidates are preferably predicted within this factor of the best; much slower ones are not informative.
const FAR: f64 = 8.0;

/// The selector with its pruning step.
pub struct Sampled {
    pub selector: Box<dyn CandidateSelector>,
    pub step: FunnelStep,
}

/// At most `places` candidates: a quarter spread over families and parameter values, a quarter the best predicted, the others at
/// random. `draw` gives each candidate a random number: of those not chosen by prediction, the ones with the smallest numbers are
/// included. Candidates with the same `preparation` are consecutive. `before` are those that an earlier attempt tried, in its
/// order: they are handed out first and count as trials.
pub fn sampled(
    mut scored: Vec<(Candidate, f64)>,
    places: usize,
    before: Vec<Candidate>,
    preparation: impl Fn(&Candidate) -> String,
    draw: impl Fn(&Candidate) -> u64,
) -> Sampled {
    sort(&mut scored);
    let places = places.max(1).min(scored.len());
    let mut chosen = diverse(&scored, places.div_ceil(4));
    let mut known: BTreeSet<Candidate> = chosen.iter().cloned().collect();
    let far = scored.first().map_or(0.0, |(_, us)| FAR * us);
    // Slow candidates come last, so that small spaces are sampled completely.
    let mut others: Vec<(bool, u64, &Candidate)> =
        scored.iter().map(|(candidate, us)| (*us > far, draw(candidate), candidate)).collect();
    others.sort();
    let best = scored.iter().map(|(candidate, _)| candidate);
    for (candidates, most) in [
        (&mut best.clone() as &mut dyn Iterator<Item = &Candidate>, places.div_ceil(2)),
        (&mut others.into_iter().map(|(_, _, candidate)| candidate), places),
    ] {
        for candidate in candidates {
            if chosen.len() >= most {
                break;
            }
            if known.insert(candidate.clone()) {
                chosen.push(candidate.clone());
            }
        }
    }
    let step = FunnelStep {
        constraint: funnel::SAMPLE.to_owned(),
        removed: (scored.len() - places) as u64,
        left: places as u64,
        detail: Some(
            "half chosen by prediction, including every family, and half at random".to_owned(),
        ),
    };
    let mut queue = before;
    let fresh: Vec<Candidate> =
        together(chosen, preparation).filter(|candidate| !queue.contains(candidate)).collect();
    let room = places.saturating_sub(queue.len());
    queue.extend(fresh.into_iter().take(room));
    Sampled { selector: InOrder::of(queue), step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_chosen_by_prediction_and_half_at_random() {
        let scored: Vec<_> =
            (0..100).map(|x| (Candidate::new("a").with("x", x), 20.0 + x as f64)).collect();
        let draw = |candidate: &Candidate| candidate.int("x").unwrap().unsigned_abs() * 37 % 101;
        let of = |scored: &[(Candidate, f64)], places| {
            let family = |candidate: &Candidate| candidate.family.clone();
            let mut sampled = sampled(scored.to_vec(), places, Vec::new(), family, draw);
            let mut all = Vec::new();
            while let Some(candidate) = sampled.selector.next() {
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
