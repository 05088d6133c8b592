//! Who is in the finals of a session, and who wins them.

use crate::domain::candidate::VENDOR;
use crate::domain::{Clock, Search};
use crate::ops::Kernels;
use crate::search::{self, Contender, Decision, Samples};

/// As many preparations have the contenders of a large matrix.
const FEW_PREPARATIONS: usize = 4;

/// Decides among the contenders of the families that were asked for, by one clock. Only if there are none of these families may another
/// win: the vendor's routine, where nothing else ran.
pub(super) fn decide(
    contenders: &[Contender],
    search: &Search,
    expected_calls: Option<u64>,
    samples: Samples,
    clock: Clock,
) -> Option<Decision> {
    let asked = |at: &usize| search.admits(&contenders[*at].candidate.family);
    let mut places: Vec<usize> = (0..contenders.len()).filter(asked).collect();
    if places.is_empty() {
        places = (0..contenders.len()).collect();
    }
    let clock = clock.in_common(places.iter().map(|&at| &contenders[at].timing));
    places.retain(|&at| contenders[at].timing.tells(clock));
    let among: Vec<Contender> = places.iter().map(|&at| contenders[at].clone()).collect();
    let decision = search::decide(&among, expected_calls, samples)?;
    let runner_up = decision.runner_up.map(|at| places[at]);
    Some(Decision { winner: places[decision.winner], runner_up, ..decision })
}

/// The `places` cheapest measured candidates in order, then the vendor's fastest routine, and its cheapest if that is
/// another: the baseline is the vendor's fastest call, and for few calls its cheapest routine competes as well.
///
/// If preprocessing counts, the cheapest candidate for a single call is added at the front if it is not among them:
/// preprocessing is timed only once, and noise must not exclude the candidate that needs the least of it.
///
/// If all of them are approximate, the cheapest exact candidate is added, since it wins a tie.
///
/// A trial that was cut may have but the time of one call alone. Where the others have the job's clock it comes after them, whatever
/// that time: the finals may still time it.
pub(super) fn best_of(
    mut measured: Vec<Contender>,
    places: usize,
    expected_calls: Option<u64>,
    clock: Clock,
) -> Vec<Contender> {
    let clock = clock.in_common(measured.iter().map(|contender| &contender.timing));
    let other = |c: &Contender| !c.timing.tells(clock);
    let by_cost = |a: &Contender, b: &Contender, calls| {
        other(a).cmp(&other(b)).then(a.cost_us(calls).total_cmp(&b.cost_us(calls)))
    };
    measured.sort_by(|a, b| by_cost(a, b, expected_calls));
    let (vendors, mut measured): (Vec<_>, Vec<_>) =
        measured.into_iter().partition(|c| c.candidate.is_baseline());
    let cheapest = vendors.first().cloned();
    let fastest = vendors.into_iter().min_by(|a, b| by_cost(a, b, None));
    let cheapest = cheapest.filter(|c| fastest.as_ref().is_none_or(|f| f.candidate != c.candidate));
    let rest = measured.split_off(places.min(measured.len()));
    let exact = |c: &&Contender| !c.candidate.is_approximate();
    let exact = match measured.iter().any(|c| exact(&c)) {
        true => None,
        false => rest.iter().find(exact).cloned(),
    };
    if expected_calls.is_some()
        && let Some(light) = rest.into_iter().min_by(|a, b| by_cost(a, b, Some(1)))
        && measured.iter().all(|c| by_cost(&light, c, Some(1)).is_lt())
    {
        measured.insert(0, light);
    }
    measured.extend(exact.filter(|exact| measured.iter().all(|c| c.candidate != exact.candidate)));
    measured.extend(fastest.into_iter().chain(cheapest));
    measured
}

/// The contenders that share one of the first few preparations, and vendor routines.
pub(super) fn of_few_preparations(contenders: Vec<Contender>, kernels: Kernels) -> Vec<Contender> {
    let mut known: Vec<String> = Vec::new();
    let shares = |contender: &Contender| {
        let name = kernels.preparation(&contender.candidate);
        if contender.candidate.family == VENDOR || known.contains(&name) {
            return true;
        }
        let room = known.len() < FEW_PREPARATIONS;
        if room {
            known.push(name);
        }
        room
    };
    contenders.into_iter().filter(shares).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Candidate, DeviceKind, Op, Timing};

    #[test]
    fn the_finals_of_a_large_matrix_have_few_preparations() {
        let contender = |candidate: Candidate| {
            let timing = Timing::of(vec![1.0], 0).unwrap();
            Contender { candidate, timing, preprocess_ms: 0.0, complexity: 0 }
        };
        let ag = |merge: i64, tpr: i64| {
            contender(Candidate::new("ag").with("merge", merge).with("tpr", tpr))
        };
        let mut all: Vec<Contender> = (1..=6).map(|merge| ag(merge, 1)).collect();
        all.extend([ag(1, 2), ag(6, 2), contender(Candidate::new(VENDOR))]);
        let kernels = Kernels { op: Op::Sptrsv, device: DeviceKind::Cuda };
        let kept = of_few_preparations(all, kernels).into_iter().map(|c| c.candidate);
        let kept: Vec<_> = kept.collect();
        let merges: Vec<_> = kept.iter().map(|candidate| candidate.int("merge")).collect();
        assert_eq!(merges, [Some(1), Some(2), Some(3), Some(4), Some(1), None]);
    }

    #[test]
    fn an_exact_candidate_is_in_the_finals() {
        let mut all: Vec<Contender> =
            (0..5).map(|us| costing("sweeps", 0.0, f64::from(us))).collect();
        all.extend([costing("chains", 1.0, 8.0), costing("slices", 1.0, 7.0)]);
        all.push(costing(VENDOR, 1.0, 90.0));
        let names = |places, calls| -> Vec<String> {
            let kept = best_of(all.clone(), places, calls, Clock::Isolated).into_iter();
            kept.map(|c| c.candidate.family).collect()
        };
        assert_eq!(names(2, None), ["sweeps", "sweeps", "slices", VENDOR]);
        assert_eq!(names(2, Some(10)), ["sweeps", "sweeps", "slices", VENDOR]);
        assert_eq!(names(6, None).iter().filter(|name| *name == "slices").count(), 1);
        assert!(!names(6, None).contains(&"chains".to_owned()));
    }

    /// Preprocessing in milliseconds, time per call in microseconds.
    fn costing(name: &str, preprocess_ms: f64, median_us: f64) -> Contender {
        let timing = Timing::of(vec![median_us], 0).unwrap();
        let candidate = match name {
            VENDOR => Candidate::new(name).with_text("algorithm", "mkl_mm"),
            own => Candidate::new(own),
        };
        Contender { candidate, timing, preprocess_ms, complexity: 1 }
    }

    #[test]
    fn the_finals_consist_of_the_lowest_total_costs() {
        let all = [
            costing("packed", 5.0, 10.0),
            costing("packed more", 6.0, 9.0),
            costing("ordered", 1.0, 14.0),
            costing("bare", 0.0, 30.0),
            costing("bare and slow", 0.0, 40.0),
            costing(VENDOR, 0.0, 50.0),
        ];
        let finals = |calls| {
            let best = best_of(all.to_vec(), 2, calls, Clock::Isolated);
            let winner = search::decide(&best, calls, Samples::Paired).map(|d| d.winner);
            let names: Vec<String> = best.iter().map(|c| c.candidate.family.clone()).collect();
            (winner.map(|winner| names[winner].clone()).unwrap_or_default(), names)
        };
        assert_eq!(
            finals(None),
            ("packed more".into(), ["packed more", "packed", VENDOR].map(String::from).into())
        );
        assert_eq!(
            finals(Some(1)),
            ("bare".into(), ["bare", "bare and slow", VENDOR].map(String::from).into())
        );
        assert_eq!(
            finals(Some(100)),
            ("ordered".into(), ["ordered", "bare", VENDOR].map(String::from).into())
        );
        let (winner, names) = finals(Some(1_000_000));
        assert_eq!((&*winner, &*names[0]), ("packed more", "bare"), "{names:?}");
    }

    #[test]
    fn only_what_was_asked_for_wins_unless_nothing_else_ran() {
        let all =
            [costing("packed", 0.0, 30.0), costing("bare", 0.0, 40.0), costing(VENDOR, 0.0, 1.0)];
        let winner = |contenders: &[Contender], families: &[&str]| {
            let families = families.iter().map(|&family| family.to_owned()).collect();
            let search = Search { families, ..Search::default() };
            let decision =
                decide(contenders, &search, None, Samples::Paired, Clock::Isolated).unwrap();
            let name = |at: usize| contenders[at].candidate.family.clone();
            (name(decision.winner), decision.runner_up.map(name))
        };
        let (packed, bare) = ("packed".to_owned(), "bare".to_owned());
        assert_eq!(winner(&all, &[]), (VENDOR.to_owned(), Some(packed.clone())));
        assert_eq!(winner(&all, &["bare"]), (bare.clone(), None));
        assert_eq!(winner(&all, &["bare", "packed"]), (packed, Some(bare)));
        assert_eq!(winner(&all, &["bare", VENDOR]).0, VENDOR);
        assert_eq!(winner(&all[2..], &["bare"]), (VENDOR.to_owned(), None));
    }

    #[test]
    fn contenders_are_compared_by_one_clock() {
        let (alone, row) = (Clock::Isolated, Clock::Pipelined);
        let timed = |name: &str, us: f64, clock: Clock| {
            let one = costing(name, 0.0, us);
            Contender { timing: one.timing.clone().by(clock), ..one }
        };
        let won = |all: Vec<Contender>| {
            let best = best_of(all, 2, None, row);
            let decision = decide(&best, &Search::default(), None, Samples::Separate, row).unwrap();
            let name = |at: usize| best[at].candidate.family.clone();
            (name(decision.winner), decision.runner_up.map(name), best.len())
        };
        let is = |winner: &str, runner_up: Option<&str>, finalists| {
            (winner.to_owned(), runner_up.map(str::to_owned), finalists)
        };
        // The time of one call alone does not count while another candidate has the job's clock, but is in the finals.
        let cut = || timed("cut", 10.0, alone);
        let (a, b) = (timed("a", 20.0, row), timed("b", 30.0, row));
        assert_eq!(won(vec![cut(), a.clone(), b.clone()]), is("a", Some("b"), 2));
        assert_eq!(won(vec![cut(), a.clone()]), is("a", None, 2));
        assert_eq!(won(vec![a.clone(), timed(VENDOR, 15.0, alone)]), is("a", None, 2));
        assert_eq!(won(vec![cut(), timed(VENDOR, 15.0, alone)]), is("cut", Some(VENDOR), 2));
        // One call this long is a sample by either clock.
        let long = timed(VENDOR, 5000.0, row);
        assert_eq!(won(vec![cut(), long.clone()]), is("cut", Some(VENDOR), 2));
        assert_eq!(won(vec![timed("a", 900.0, alone), long]), is("a", Some(VENDOR), 2));
    }
}
