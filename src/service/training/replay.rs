//! Replays a search with strategy `ranked`, ten trials and no learned model on recorded trials, as the reference that a
//! new model has to beat for both operations. Actual searches may have other budgets and strategies.

use crate::domain::Candidate;
use crate::ops::Kernels;
use crate::search::{First, ranked};
use std::collections::BTreeMap;

/// Its name among rankers: the analytic model, corrected by the measurements so far (`search/correction.rs`).
pub(super) const CORRECTED: &str = "analytic_corrected";

/// Number of candidates that the search tries, at which verdicts compare.
pub(super) const TRIES: usize = 10;

/// The rows that a ranked search of [`TRIES`] candidates tries, in its order. Each row is a candidate with the analytic
/// prediction and the recorded median in microseconds, which is not finite if it failed. Only recorded candidates can
/// be tried, as by the models that it is compared with.
///
/// Without `kernels`, which a scope of an unknown class of device lacks, each candidate counts as a variety of its own.
pub(super) fn corrected(rows: &[(&Candidate, f64, f64)], kernels: Option<Kernels>) -> Vec<usize> {
    let variety = |candidate: &Candidate| match kernels {
        Some(kernels) => kernels.variety(candidate),
        None => candidate.to_string(),
    };
    let mut places: BTreeMap<&Candidate, usize> = BTreeMap::new();
    for (place, (candidate, ..)) in rows.iter().enumerate() {
        places.entry(candidate).or_insert(place);
    }
    let scored = places.iter().map(|(candidate, place)| ((*candidate).clone(), rows[*place].1));
    let scored = scored.collect();
    let mut search = ranked(scored, TRIES, First::default(), variety, |_| false).selector;
    let mut tried = Vec::with_capacity(TRIES);
    while let Some(candidate) = search.next() {
        let Some(place) = places.get(&candidate).copied() else { break };
        let us = rows[place].2;
        search.observe(&candidate, us.is_finite().then_some(us));
        tried.push(place);
    }
    tried
}

#[cfg(test)]
mod tests {
    use super::{TRIES, corrected};
    use crate::domain::{Candidate, DeviceKind, Op};
    use crate::ops::Kernels;

    /// Twenty candidates of a family that the model wrongly prefers, then twelve of a faster one.
    fn two_families() -> Vec<(Candidate, f64, f64)> {
        let of = |family: &str, x: i64| Candidate::new(family).with("unroll", x);
        let liked = (0..20).map(|x| (of("row_split", x), 10.0 + 0.01 * x as f64, 80.0 - x as f64));
        let faster = (0..12).map(|x| (of("nnz_split", x), 14.0 + 0.1 * x as f64, 20.0 - x as f64));
        liked.chain(faster).collect()
    }

    fn order(all: &[(Candidate, f64, f64)]) -> Vec<usize> {
        let rows: Vec<_> = all.iter().map(|(c, predicted, us)| (c, *predicted, *us)).collect();
        let kernels = Kernels { op: Op::Spmm, device: DeviceKind::Cuda };
        corrected(&rows, Some(kernels))
    }

    #[test]
    fn it_starts_with_predictions_and_then_follows_measurements() {
        let all = two_families();
        let tried = order(&all);
        assert_eq!((tried.len(), tried[0]), (TRIES, 0));
        // The faster family is included in the first half for diversity, and is chosen by outcomes in all of the
        // second.
        let of_the_faster = |places: &[usize]| places.iter().filter(|place| **place >= 20).count();
        assert_eq!((of_the_faster(&tried[..5]), of_the_faster(&tried[5..])), (2, 5), "{tried:?}");
        let mut once = tried.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), TRIES, "{tried:?}");
        assert_eq!(order(&all), tried);
    }

    #[test]
    fn failures_duplicates_and_few_rows_are_handled() {
        let mut few: Vec<_> = two_families().into_iter().take(3).collect();
        few[0].2 = f64::INFINITY;
        few.push(few[1].clone());
        let mut tried = order(&few);
        assert_eq!(tried[0], 0);
        tried.sort_unstable();
        assert_eq!(tried, [0, 1, 2]);
        assert!(corrected(&[], None).is_empty());
    }
}
