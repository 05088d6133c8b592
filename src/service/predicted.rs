//! Plans predicted by a model alone: the ranking of the candidates, and the plan of the first usable one.

use super::{Ranker, Service};
use crate::domain::plan::{Limit, PREDICTED_VERSION, Predicted, Provenance, TrialCounts, Validity};
use crate::domain::{
    Candidate, CandidateId, Device, DeviceClass, Digest, FunnelStep, Intensity, JobId, JobRequest,
    Judged, Matrix, ModelId, Plan, PlanId, Problem, Search, SearchStrategy, StoppedBy, Timestamp,
};
use crate::ops::limit::Least;
use crate::ops::{Kernels, Space};
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// Number of further candidates that a plan lists.
const ALTERNATIVES: usize = 7;

/// Candidates ordered by a model, best first.
pub(in crate::service) struct Ranking {
    pub order: Vec<(Candidate, f64)>,
    /// The model's name: the id of a learned model, or the name of the analytic one.
    pub model: String,
    pub learned: Option<Learned>,
}

/// A learned model that ranked.
#[derive(Clone)]
pub(in crate::service) struct Learned {
    pub id: ModelId,
    /// The class of device that it was borrowed from.
    pub of: Option<DeviceClass>,
}

impl Learned {
    pub fn of(ranker: &Ranker) -> Self {
        Self { id: ranker.card().id.clone(), of: ranker.borrowed_from().cloned() }
    }
}

/// Ranks by the learned model, or by the analytic one if there is none. Quarantined candidates are left out.
pub(in crate::service) fn rank(
    space: &Space,
    learned: Option<&Ranker>,
    quarantined: &HashSet<CandidateId>,
) -> Ranking {
    let analytic: Vec<f64> = space.scored.iter().map(|(_, us)| *us).collect();
    let times = match learned {
        Some(ranker) => {
            let described = &space.described;
            let text = |at: usize| space.scored[at].0.to_string();
            ranker.model().file.order(&described.shared, &described.own, &analytic, text)
        }
        None => analytic,
    };
    let candidates = space.scored.iter().map(|(candidate, _)| candidate.clone());
    let mut order: Vec<(Candidate, f64)> = candidates.zip(times).collect();
    order.retain(|(candidate, us)| us.is_finite() && !quarantined.contains(&candidate.id()));
    // A stable sort: candidates with equal scores stay in the order of the search space.
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let learned = learned.map(Learned::of);
    let model = learned.as_ref().map_or_else(|| space.model.to_owned(), |one| one.id.to_string());
    Ranking { order, model, learned }
}

/// The analytic model objects to a candidate that it predicts to take this many times its best, or longer. On matrices of sizes that a model was
/// trained on to heed that costs 0.7 points of the share at K = 1 (443 searches of solves, held out), so it counts beyond them alone: there, on factors of
/// 18 and 20 million entries, first choices took four and seven times as long as the best (benches/NOTES.md).
const OBJECTS: f64 = 4.0;

/// Ranks for a plan that nobody measures. Where the matrix has more entries than any that the learned model was trained on, candidates to which the
/// analytic model objects come last: a model's trees do not extrapolate, and no outcome corrects them here.
pub(in crate::service) fn rank_unmeasured(
    space: &Space,
    learned: Option<&Ranker>,
    quarantined: &HashSet<CandidateId>,
) -> Ranking {
    let mut ranking = rank(space, learned, quarantined);
    if learned.is_some_and(|one| one.model().file.is_beyond(&space.described.shared)) {
        consented(&mut ranking.order, &space.scored);
    }
    ranking
}

/// Moves candidates that the analytic model predicts to take [`OBJECTS`] times its best, or longer, to the end, in their order.
fn consented(order: &mut [(Candidate, f64)], analytic: &[(Candidate, f64)]) {
    let best = analytic.iter().map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
    let times: HashMap<&Candidate, f64> = analytic.iter().map(|(one, us)| (one, *us)).collect();
    order.sort_by_key(|(candidate, _)| times.get(candidate).is_none_or(|us| *us >= OBJECTS * best));
}

/// The subject of a predicted plan.
pub(in crate::service) struct Subject<'a> {
    pub matrix: &'a Matrix,
    pub problem: Problem,
    pub device: &'a Device,
    pub least: Least,
    pub funnel: Vec<FunnelStep>,
    /// What the rules computed for the candidate.
    pub judged: Vec<Judged>,
    /// Tiled SpMM's terms of the candidate and of others.
    pub intensity: Vec<Intensity>,
    pub job: Option<JobId>,
    pub seed: u64,
    /// When the search for the plan began.
    pub started: Instant,
}

/// The plan of the candidate at position `at` of the ranking, with those before it passed over; `None` if there is none. It
/// has no launch, which is added by a caller that can compile.
pub(in crate::service) fn plan(
    service: &Service,
    subject: Subject<'_>,
    ranking: &Ranking,
    at: usize,
) -> Option<Plan> {
    let Subject { matrix, device, least, .. } = subject;
    let (candidate, us) = ranking.order.get(at)?.clone();
    let next = ranking.order.iter().skip(at + 1).take(ALTERNATIVES);
    Some(Plan {
        version: PREDICTED_VERSION,
        id: PlanId::fresh(),
        matrix: matrix.digest,
        pattern_digest: matrix.pattern_digest,
        problem: subject.problem,
        l2_policy: service.settings().l2_policy,
        device: device.clone(),
        measured: None,
        tie: false,
        runner_up: None,
        finals: Vec::new(),
        baseline: None,
        speedup: None,
        limit: Limit {
            us: least.us,
            bound: least.bound,
            fraction: if us > 0.0 { least.us / us } else { 0.0 },
            bytes: least.bytes,
        },
        predicted: Some(Predicted {
            model: ranking.model.clone(),
            median_us: us,
            passed_over: at as u32,
        }),
        model_error: None,
        funnel: subject.funnel,
        judged: subject.judged,
        intensity: subject.intensity,
        trials: TrialCounts::default(),
        alternatives: next.map(|(candidate, _)| candidate.clone()).collect(),
        preprocess_ms: None,
        // Regardless of the expected number of calls: the model predicts the time of a call, not of the preprocessing.
        expected_calls: None,
        no_baseline: None,
        break_even_calls: None,
        validity: Validity {
            values_may_change: !candidate.is_approximate(),
            pattern_may_change: false,
            update_values_ms: 0.0,
            dense_must_be_finite: Kernels::of(&subject.problem, device.kind)
                .needs_finite_dense(&candidate),
            n_may_change: false,
        },
        launch: None,
        host: None,
        resources: None,
        provenance: Provenance {
            job: subject.job,
            model: ranking.learned.as_ref().map(|learned| learned.id.clone()),
            model_of: ranking.learned.as_ref().and_then(|learned| learned.of.clone()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            environment: device.environment(),
            kernel_digest: device.kernels.get(&candidate.family).copied(),
            seed: subject.seed,
            stopped_by: StoppedBy::Completed,
            search_seconds: subject.started.elapsed().as_secs_f64(),
            narrowed: None,
            imported: None,
        },
        candidate,
        created_at: Timestamp::now(),
    })
}

/// The request for a job that measures on any device of the class, with the operation's default search.
pub(in crate::service) fn measuring(
    matrix: Digest,
    problem: Problem,
    device: &Device,
    expected_calls: Option<u64>,
) -> JobRequest {
    let search = Search { strategy: SearchStrategy::default_for(&problem), ..Search::default() };
    JobRequest { matrix, problem, device: device.class().0, search, expected_calls }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Op;
    use crate::domain::learned::Scope;
    use crate::learn::{Forest, Model, ModelFile, file};

    #[test]
    fn candidates_that_the_analytic_model_objects_to_come_last_in_their_order() {
        let one = |name: &str| Candidate::new(name);
        let analytic = [("a", 40.0), ("b", 10.0), ("c", 39.9), ("d", 900.0)];
        let analytic: Vec<_> = analytic.iter().map(|&(name, us)| (one(name), us)).collect();
        let mut order: Vec<_> = ["d", "a", "c", "b"].iter().map(|name| (one(name), 1.0)).collect();
        consented(&mut order, &analytic);
        let names: Vec<&str> = order.iter().map(|(one, _)| one.family.as_str()).collect();
        assert_eq!(names, ["c", "b", "d", "a"]);
    }

    #[test]
    fn a_matrix_is_beyond_a_model_that_saw_none_as_large() {
        let scope = Scope { op: Op::Sptrsv, device_class: DeviceClass("cuda/imagined".to_owned()) };
        let model = Model::Lambdamart(Forest { prior: None, trees: Vec::new(), scale: 1.0 });
        let (shared, own) = (vec!["m".to_owned(), file::SIZE.to_owned()], Vec::new());
        let (version, features_version, largest) = (file::VERSION, 1, Some(20.0));
        let mut model = ModelFile { version, scope, features_version, shared, own, largest, model };
        assert!(!model.is_beyond(&[30.0, 20.0]));
        assert!(model.is_beyond(&[1.0, 20.5]));
        model.largest = None;
        assert!(!model.is_beyond(&[1.0, 20.5]));
        for op in Op::ALL {
            let (shared, _) = crate::ops::features::names(op);
            assert!(shared.iter().any(|name| name == file::SIZE), "{op}");
        }
    }
}
