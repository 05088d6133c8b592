//! The order of a learned model: followed as it is, unless the model is of another class of device or proves to be wrong about a
//! matrix; then measurements correct it.

use super::guided::{Guided, Observed};
use super::halving::together;
use super::ranked::{First, Ranked, filled, known, most_promising, rank_step};
use super::selector::sort;
use crate::domain::Candidate;

/// A candidate that a learned model did not choose is clearly faster than its choices if they take this many times as long.
const CLEARLY: f64 = 1.05;

/// At most `top_k` candidates: the best of those that must be included (`sure`), those tried first (`warm`), then the best
/// predicted (LO-SpMM, section 3.5). For learned models, which need neither spreading nor, as a rule, correction: only if, among the
/// first half, one that the model did not put there is clearly the fastest, and `corrects` says that the model's scores are times, the
/// other half follows its order as corrected by all outcomes. Candidates with the same `preparation` are consecutive in each half, so
/// that shared work is done once.
pub fn top(
    mut scored: Vec<(Candidate, f64)>,
    top_k: usize,
    First { before, warm }: First,
    preparation: impl Fn(&Candidate) -> String,
    sure: impl Fn(&Candidate) -> bool,
    corrects: bool,
) -> Ranked {
    sort(&mut scored);
    let places = top_k.max(1).min(scored.len()).max(before.len());
    let (half, tried) = (places.div_ceil(2), before.len());
    // The halves as they would be without an earlier attempt, whose trials follow them as far as it came.
    let planned = filled(Vec::new(), liked(&scored, warm.clone(), &sure), places);
    let (first, rest) = planned.split_at(half.min(planned.len()));
    let ordered = |part: &[Candidate]| together(part.to_vec(), &preparation);
    let order = ordered(first).chain(ordered(rest));
    let queue = filled(before, order.chain(liked(&scored, warm.clone(), &sure)), places);
    let mut step = rank_step(scored.len().saturating_sub(places), places.min(scored.len()));
    step.detail = Some(
        "the candidates that the learned model ranks first, those that won on similar matrices, and the analytic model's best"
            .to_owned(),
    );
    let first: Vec<Candidate> = queue[..half.min(queue.len())].to_vec();
    let doubt = move |observed: &Observed| corrects && is_misled(observed, &first, &warm);
    let parts = (places, half);
    let selector = Guided::of(scored, parts, queue, tried, most_promising);
    Ranked { selector: Box::new(selector.doubting(Box::new(doubt))), step }
}

/// Whether a model is wrong about a matrix: of the candidates of the first half, the fastest is one of `others`, which it would not have
/// tried so early, and by more than [`CLEARLY`].
fn is_misled(observed: &Observed, first: &[Candidate], others: &[Candidate]) -> bool {
    let mut own: Vec<&Candidate> = observed.scored.iter().map(|(candidate, _)| candidate).collect();
    own.truncate(first.len());
    let fastest = |of_others: bool| {
        let these = first.iter().filter(|candidate| {
            of_others == (others.contains(candidate) && !own.contains(candidate))
        });
        these
            .filter_map(|candidate| observed.outcomes.get(candidate).copied().flatten())
            .min_by(f64::total_cmp)
    };
    match (fastest(true), fastest(false)) {
        (Some(others), Some(own)) => others * CLEARLY < own,
        // All of its own failed.
        (Some(_), None) => true,
        (None, _) => false,
    }
}

/// At most `top_k` candidates of a model of another class of device, whose times are comparable: the first half as [`top`] would
/// take them, without spreading, since the model's errors are not those of the analytic one; each of the others by the model's
/// times as corrected by all outcomes so far, since it has seen no measurement of this class.
pub fn corrected_top(
    mut scored: Vec<(Candidate, f64)>,
    top_k: usize,
    First { before, warm }: First,
    sure: impl Fn(&Candidate) -> bool,
) -> Ranked {
    sort(&mut scored);
    let places = top_k.max(1).min(scored.len()).max(before.len());
    let (first, replayed) = (places.div_ceil(2), before.len());
    let queue = filled(before, liked(&scored, warm, sure), first);
    let mut step = rank_step(scored.len().saturating_sub(places), places.min(scored.len()));
    step.detail = Some(
        "half are the candidates that a learned model of another class of device ranks first, and those that won on similar \
         matrices; half follow as measurements correct its order"
            .to_owned(),
    );
    let selector = Guided::of(scored, (places, first), queue, replayed, most_promising);
    Ranked { selector: Box::new(selector), step }
}

/// The best, the best of those that must be included, the winners on similar matrices, then all by rank; some of them twice.
/// `scored` is sorted.
fn liked(
    scored: &[(Candidate, f64)],
    warm: Vec<Candidate>,
    sure: impl Fn(&Candidate) -> bool,
) -> impl Iterator<Item = Candidate> {
    let best = || scored.iter().map(|(candidate, _)| candidate);
    let first = best().next().into_iter().chain(best().find(|candidate| sure(candidate)));
    let first: Vec<Candidate> = first.cloned().collect();
    first.into_iter().chain(known(warm, scored)).chain(best().cloned())
}

#[cfg(test)]
mod tests {
    use super::super::ranked::tests::{apart, of, order};
    use super::*;

    #[test]
    fn a_borrowed_order_is_followed_and_then_corrected() {
        // The other device prefers small x of one family; here odd ones, which it never put first, are twice as fast.
        let scored: Vec<_> = (0..40)
            .map(|x| (Candidate::new("a").with("x", x).with("odd", (x / 8) % 2), 10.0 + x as f64))
            .collect();
        let search = |before| {
            corrected_top(scored.clone(), 12, First { before, ..First::default() }, |_| false)
        };
        let run = |mut ranked: Ranked| {
            let mut tried = Vec::new();
            while let Some(candidate) = ranked.selector.next() {
                let odd = candidate.int("odd") == Some(1);
                ranked.selector.observe(&candidate, Some(if odd { 5.0 } else { 20.0 }));
                tried.push(candidate);
            }
            tried
        };
        let first = search(Vec::new());
        assert_eq!((first.step.removed, first.step.left), (28, 12));
        let tried = run(first);
        let best: Vec<_> = scored.iter().take(6).map(|(candidate, _)| candidate.clone()).collect();
        assert_eq!((tried.len(), &tried[..6]), (12, &best[..]), "without spreading");
        let odd = |part: &[Candidate]| part.iter().filter(|c| c.int("odd") == Some(1)).count();
        assert!(odd(&tried[6..]) >= 4, "{tried:?}");
        for count in [1, 6, 9, 12] {
            assert_eq!(run(search(tried[..count].to_vec())), tried, "{count} tried before");
        }
    }

    #[test]
    fn the_ranking_of_a_learned_model_is_used_unchanged() {
        let scored: Vec<_> = (0..9).rev().map(|x| of("a", x, 1.0 + x as f64)).collect();
        let sure = |candidate: &Candidate| candidate.int("x") == Some(7);
        let taken = top(scored.clone(), 3, First::default(), apart, sure, true);
        assert_eq!((taken.step.removed, taken.step.left), (6, 3));
        assert_eq!(order(&scored, taken), ["a{x=0}", "a{x=7}", "a{x=1}"]);
        let odd = |candidate: &Candidate| (candidate.int("x").unwrap_or(0) % 2).to_string();
        let grouped = top(scored.clone(), 6, First::default(), odd, |_| false, true);
        assert_eq!(
            order(&scored, grouped),
            ["a{x=0}", "a{x=2}", "a{x=1}", "a{x=3}", "a{x=5}", "a{x=4}"]
        );
        let before = vec![Candidate::new("a").with("x", 5)];
        let again =
            top(scored.clone(), 3, First { before, ..First::default() }, apart, |_| false, true);
        assert_eq!(order(&scored, again), ["a{x=5}", "a{x=0}", "a{x=1}"]);
        assert_eq!(
            order(&scored, top(scored.clone(), 90, First::default(), apart, |_| false, true)).len(),
            9
        );
    }

    #[test]
    fn winners_on_similar_matrices_follow_the_best() {
        let scored: Vec<_> = (0..30).map(|x| of("a", x, 1.0 + x as f64)).collect();
        let warm = vec![scored[20].0.clone(), Candidate::new("gone"), scored[0].0.clone()];
        let first = First { warm, ..First::default() };
        let whole = order(&scored, top(scored.clone(), 4, first, apart, |_| false, true));
        assert_eq!(whole, ["a{x=0}", "a{x=20}", "a{x=1}", "a{x=2}"]);
    }

    #[test]
    fn a_learned_order_is_corrected_only_where_another_opinion_is_clearly_faster() {
        // The model puts family b last, and another opinion has one of it.
        let mut scored: Vec<_> = (0..20).map(|x| of("a", x, 10.0 + 0.2 * x as f64)).collect();
        scored.extend((0..20).map(|x| of("b", x, 14.0 + 0.05 * x as f64)));
        let opinion = scored[25].0.clone();
        let run = |b_us: f64, corrects: bool, before: Vec<Candidate>| {
            let first = First { before, warm: vec![opinion.clone()] };
            let mut selector = top(scored.clone(), 12, first, apart, |_| false, corrects).selector;
            let mut tried = Vec::new();
            while let Some(candidate) = selector.next() {
                let us = if candidate.family == "b" { b_us } else { 10.0 };
                selector.observe(&candidate, Some(us));
                tried.push(candidate);
            }
            tried
        };
        let of_b = |tried: &[Candidate]| tried.iter().filter(|c| c.family == "b").count();
        let plain = run(20.0, true, Vec::new());
        assert_eq!((plain.len(), of_b(&plain)), (12, 1));
        assert_eq!(run(9.9, true, Vec::new()), plain, "within the noise");
        assert_eq!(run(5.0, false, Vec::new()), plain, "its scores are no times");
        let misled = run(5.0, true, Vec::new());
        assert_eq!(misled[..6], plain[..6]);
        assert!(of_b(&misled[6..]) >= 4, "{misled:?}");
        for tried in [1, 6, 9, 12] {
            assert_eq!(run(5.0, true, misled[..tried].to_vec()), misled, "{tried} tried before");
            assert_eq!(run(20.0, true, plain[..tried].to_vec()), plain, "{tried} tried before");
        }
    }
}
