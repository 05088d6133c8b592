//! Triangular solves from submission to plan, and found again: on a recorded device, whatever its kernels may be.

use crate::bench::*;
use sparsetune::domain::plan::Bound;
use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::*;
use sparsetune::engine::replay::Act;
use sparsetune::service::LookupQuery;
use std::collections::BTreeMap;
use std::path::Path;

const SOLVE: Sptrsv = Sptrsv {
    rhs: 1,
    dtype: Dtype::F64,
    triangle: Triangle::Lower,
    diagonal: Diagonal::NonUnit,
    transpose: false,
    ..Sptrsv::PLAIN
};

fn halving() -> Search {
    Search { strategy: SearchStrategy::Halving, ..Search::default() }
}

/// Right to the last bit, as f64 needs it.
fn exactly(us: f64) -> Act {
    Act::Measured {
        samples_us: vec![us; 9],
        alone_us: None,
        rel_error: 0.0,
        resources: None,
        prepare_ms: None,
        latency_ms: 0,
    }
}

/// Every scheme and the vendor's routine with a time of its own; the vendor's is 400 us.
fn acts(bench: &Bench, problem: &Problem, device: &Device) -> BTreeMap<Candidate, Act> {
    let space = bench.space_of(problem, device);
    let times = (0..).map(|i| exactly(100.0 + f64::from(i)));
    let mut acts: BTreeMap<Candidate, Act> =
        space.scored.into_iter().map(|(candidate, _)| candidate).zip(times).collect();
    acts.extend(space.vendor.into_iter().map(|vendor| (vendor, exactly(400.0))));
    acts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_solve_goes_from_submission_to_a_plan_that_is_found() {
    let bench = Bench::new().await;
    for device in [device(), gpu()] {
        let problem = Problem::Sptrsv(SOLVE);
        let acts = acts(&bench, &problem, &device);
        let worker = bench.work(&bench.service, &device, acts.clone()).await;
        let id = bench.submit_for(problem, &device.id.0, halving()).await;
        let job = bench.ended(&id).await;
        let plan = bench.plan(&job).await;
        let tried = bench.tried(&id).await;
        assert_eq!(tried.len(), acts.len().min(64));
        assert_eq!(tried[0].candidate.family, "vendor");
        assert!(tried.iter().all(|trial| trial.state.name() == "measured"), "{tried:?}");
        let best = tried.iter().filter_map(|trial| trial.state.outcome()?.median_us());
        let best = best.min_by(f64::total_cmp).unwrap();
        assert_eq!(plan.median_us().unwrap(), best);
        // 300 levels at 250 ns are more than the bytes take; one thread of a host makes no hop.
        match device.kind {
            DeviceKind::Cuda => {
                assert_eq!(plan.limit.bound, Bound::Latency);
                assert!((plan.limit.us - 75.0).abs() < 1.0, "{:?}", plan.limit);
            }
            DeviceKind::Cpu => assert_eq!(plan.limit.bound, Bound::Bytes),
        }
        assert_eq!(plan.baseline.as_ref().unwrap().median_us, 400.0);
        assert_eq!(plan.host.is_some(), device.kind == DeviceKind::Cuda);
        // Far slower than the best: three times, since a kernel that waits ends itself there.
        let gives_up = bench.asked().0.last().unwrap().give_up_us;
        assert_eq!(gives_up.is_some(), tried.len() > 1);
        assert!(gives_up.is_none_or(|us| us <= 3.0 * 400.0 && us >= 3.0 * best), "{gives_up:?}");
        arrays_are_kept(&bench, &plan).await;
        worker.stop().await;

        let query = LookupQuery {
            matrix: bench.matrix.pattern_digest,
            problem,
            device: Some(device.id.0.clone()),
            l2_policy: None,
            neighbour: false,
            predicted: true,
        };
        let found = bench.service.lookup(&query).await.unwrap();
        assert_eq!((found.grade, found.plan), (Grade::Exact, Some(plan)));
    }
}

/// One request, one job after the other on one device, and one lookup for both.
#[tokio::test(flavor = "multi_thread")]
async fn both_triangles_are_tuned_one_after_the_other() {
    let bench = Bench::new().await;
    let device = gpu();
    let problem = Problem::Sptrsv(Sptrsv { triangle: Triangle::Both, ..SOLVE });
    let parts = problem.parts().unwrap();
    let mut all = acts(&bench, &parts[0], &device);
    all.extend(acts(&bench, &parts[1], &device));
    let worker = bench.work(&bench.service, &device, all).await;
    let id = bench.submit_for(problem, &device.id.0, halving()).await;
    let first = bench.ended(&id).await;
    assert_eq!(first.state, JobState::Succeeded, "{:?}", first.error);
    let second = bench.ended(first.follow_up.as_ref().unwrap()).await;
    let told = bench.logged(&id).await;
    let goes_on = format!("job {} goes on with the other triangle", second.id);
    assert!(told.contains(&goes_on), "{told:?}");
    let plans = [bench.plan(&first).await, bench.plan(&second).await];
    for (plan, part) in plans.iter().zip(parts) {
        assert_eq!((plan.problem, plan.device.id.clone()), (part, device.id.clone()));
    }
    assert_eq!((second.follow_up, second.request.search.then), (None, None));
    let budget = |job: &Search| (job.seconds, job.trials);
    assert_eq!(budget(&first.request.search), budget(&second.request.search));
    worker.stop().await;
    let query = LookupQuery {
        matrix: bench.matrix.digest,
        problem,
        device: Some(device.id.0.clone()),
        l2_policy: None,
        neighbour: false,
        predicted: false,
    };
    let found = bench.service.lookup(&query).await.unwrap();
    let [plan, other] = plans;
    assert_eq!((found.grade, found.plan, found.second), (Grade::Exact, Some(plan), Some(other)));
}

/// A job that is cancelled, or fails, leaves no other behind.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_first_plan_there_is_no_second_job() {
    let bench = Bench::new().await;
    let device = gpu();
    let problem = Problem::Sptrsv(Sptrsv { triangle: Triangle::Both, ..SOLVE });
    let parts = problem.parts().unwrap();
    let refused = Act::CompileFailed { detail: "no compiler".to_owned() };
    let acts = acts(&bench, &parts[0], &device).into_keys().map(|it| (it, refused.clone()));
    let worker = bench.work(&bench.service, &device, acts.collect::<Vec<_>>()).await;
    let id = bench.submit_for(problem, &device.id.0, halving()).await;
    let job = bench.ended(&id).await;
    assert_eq!((job.state, job.plan, job.follow_up), (JobState::Failed, None, None));
    worker.stop().await;
}

/// Each array that a plan names is there, whole, and nothing is left behind.
async fn arrays_are_kept(bench: &Bench, plan: &Plan) {
    for array in &plan.launch.as_ref().unwrap().arrays {
        let bytes = match array.element.as_str() {
            "u16" => 2,
            "f64" => 8,
            _ => 4,
        };
        let blob = bench.service.plan_blob(&plan.id, &array.blob).await.unwrap();
        assert_eq!(blob.bytes, array.length * bytes, "{array:?}");
    }
    let left = |folder: &Path| -> Vec<_> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(left(&bench.staging()), ["exports"]);
    assert!(left(&bench.staging().join("exports")).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_system_comes_to_a_plan() {
    let bench = Bench::new().await;
    let device = device();
    let systems = [
        Sptrsv { triangle: Triangle::Upper, ..SOLVE },
        Sptrsv { transpose: true, dtype: Dtype::F32, ..SOLVE },
        Sptrsv { rhs: 33, ..SOLVE },
    ];
    for system in systems {
        let problem = Problem::Sptrsv(system);
        let worker = bench.work(&bench.service, &device, acts(&bench, &problem, &device)).await;
        let few = Search { trials: Some(5), ..halving() };
        let id = bench.submit_for(problem, "cpu", few).await;
        assert_eq!(bench.plan(&bench.ended(&id).await).await.problem, problem);
        worker.stop().await;
    }

    // With ones on its diagonal this matrix has solutions beyond any type.
    let problem = Problem::Sptrsv(Sptrsv { diagonal: Diagonal::Unit, ..SOLVE });
    let worker = bench.work(&bench.service, &device, acts(&bench, &problem, &device)).await;
    let job = bench.ended(&bench.submit_for(problem, "cpu", halving()).await).await;
    assert!(job.error.as_ref().is_some_and(|error| error.contains("amplifies")), "{job:?}");
    worker.stop().await;
}

/// Whether a lookup for the bench's matrix finds a plan without measuring anything.
async fn found(bench: &Bench, matrix: Digest, problem: Problem, device: &Device) -> Lookup {
    let device = Some(device.id.0.clone());
    let (l2_policy, neighbour, predicted) = (None, false, false);
    let query = LookupQuery { matrix, problem, device, l2_policy, neighbour, predicted };
    bench.service.lookup(&query).await.unwrap()
}

/// A matrix whose sweeps come near soon: each row is coupled to the one before it by a part of its diagonal.
async fn dominant(bench: &Bench, diagonal: u32) -> Matrix {
    let rows = 300;
    let mut text = format!(
        "%%MatrixMarket matrix coordinate real general\n{rows} {rows} {}\n1 1 {diagonal}\n",
        2 * rows - 1
    );
    for row in 2..=rows {
        text += &format!("{row} {} 1\n{row} {row} {diagonal}\n", row - 1);
    }
    let body = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(text.into())]);
    bench.service.upload(body, None).await.unwrap().matrix
}

/// By consent only: a lookup of the exact problem does not find the plan, nor does one with other values of the pattern than those
/// that its error was measured with.
#[tokio::test(flavor = "multi_thread")]
async fn an_approximate_solve_is_judged_by_its_residual_and_found_by_consent() {
    let mut bench = Bench::new().await;
    bench.matrix = dominant(&bench, 3).await;
    let device = gpu();
    let exact = Problem::Sptrsv(SOLVE);
    let near = Problem::Sptrsv(Sptrsv { approximate: true, ..SOLVE });
    let (all, of_exact) = (acts(&bench, &near, &device), acts(&bench, &exact, &device));
    let sweeps = |acts: &BTreeMap<Candidate, Act>| -> Vec<Candidate> {
        acts.keys().filter(|candidate| candidate.family == "sweeps").cloned().collect()
    };
    assert!(sweeps(&of_exact).is_empty());
    assert!(sweeps(&all).len() > 1, "{}", all.len());
    assert!(of_exact.keys().all(|candidate| all.contains_key(candidate)), "all are tried");
    let left = |us, rel_error| match exactly(us) {
        Act::Measured { samples_us, alone_us, resources, prepare_ms, latency_ms, .. } => {
            Act::Measured { samples_us, alone_us, rel_error, resources, prepare_ms, latency_ms }
        }
        other => other,
    };
    // One of the sweeps leaves too much, and the others are within the bound of approximate solves. So much is wrong of an exact scheme.
    let mut acts = all.clone();
    for (at, candidate) in all.keys().enumerate() {
        let (us, error) = match candidate.is_approximate() {
            true if *candidate == sweeps(&all)[0] => (5.0, 0.2),
            true => (10.0 + at as f64 / 100.0, 0.1),
            false => continue,
        };
        acts.insert(candidate.clone(), left(us, error));
    }
    let loose = acts.keys().find(|candidate| candidate.family == "overlapped");
    let loose = loose.unwrap().clone();
    acts.insert(loose.clone(), left(1.0, 0.1));
    let worker = bench.work(&bench.service, &device, acts).await;
    let families = vec!["sweeps".to_owned(), loose.family.clone()];
    let search = Search { families, ..exhaustive() };
    let id = bench.submit_for(near, &device.id.0, search).await;
    let job = bench.ended(&id).await;
    let plan = bench.plan(&job).await;
    let tried = bench.tried(&id).await;
    let state = |candidate: &Candidate| {
        let trial = tried.iter().find(|trial| trial.candidate == *candidate);
        trial.map(|trial| trial.state.name().to_owned())
    };
    assert_eq!(state(&sweeps(&all)[0]).as_deref(), Some("wrong"), "{tried:?}");
    assert_eq!(state(&loose).as_deref(), Some("wrong"), "exact schemes are as exact as ever");
    assert!(plan.candidate.is_approximate(), "{}", plan.candidate);
    assert_eq!(plan.measured.as_ref().unwrap().rel_error, 0.1);
    assert!(!plan.validity.values_may_change);
    assert_eq!(plan.baseline.as_ref().unwrap().median_us, 400.0);
    worker.stop().await;

    let answer = found(&bench, bench.matrix.digest, near, &device).await;
    assert_eq!((answer.grade, answer.plan), (Grade::Exact, Some(plan)));
    let answer = found(&bench, bench.matrix.digest, exact, &device).await;
    assert_eq!((answer.grade, answer.plan), (Grade::None, None));
    assert!(
        answer.reasons[0].contains("its approximate is true, not false"),
        "{:?}",
        answer.reasons
    );
    let other = dominant(&bench, 4).await;
    assert_eq!(other.pattern_digest, bench.matrix.pattern_digest);
    let answer = found(&bench, other.digest, near, &device).await;
    // The plan of another matrix, and called that.
    assert_eq!(answer.grade, Grade::Neighbour);
    assert!(answer.reasons[0].contains("holds only for the values"), "{:?}", answer.reasons);
}

/// The processor has no sweeps: an exact solve is what is asked for, and more.
#[tokio::test(flavor = "multi_thread")]
async fn a_processor_solves_exactly_where_an_approximate_solve_would_do() {
    let bench = Bench::new().await;
    let device = device();
    let near = Problem::Sptrsv(Sptrsv { approximate: true, ..SOLVE });
    let acts = acts(&bench, &near, &device);
    assert!(acts.keys().all(|candidate| !candidate.is_approximate()));
    let worker = bench.work(&bench.service, &device, acts).await;
    let id = bench.submit_for(near, "cpu", halving()).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    assert_eq!((plan.problem, plan.validity.values_may_change), (near, true));
    worker.stop().await;
}

/// Each for itself, L of this matrix needs several sweeps and U, which is a diagonal, one, and so it is with the hops of an approximate
/// inverse: conjugate gradients would have no symmetric preconditioner.
#[tokio::test(flavor = "multi_thread")]
async fn both_solves_of_an_approximate_pair_make_the_same_map_or_are_exact() {
    let mut bench = Bench::new().await;
    bench.matrix = dominant(&bench, 3).await;
    let device = gpu();
    let both = Problem::Sptrsv(Sptrsv { triangle: Triangle::Both, approximate: true, ..SOLVE });
    let parts = both.parts().unwrap();
    let swept = |us: f64| Act::Measured {
        samples_us: vec![us; 9],
        alone_us: None,
        rel_error: 0.1,
        resources: None,
        prepare_ms: None,
        latency_ms: 0,
    };
    let mut all = acts(&bench, &parts[0], &device);
    let of_first: Vec<Candidate> = all.keys().filter(|it| it.is_approximate()).cloned().collect();
    all.extend(acts(&bench, &parts[1], &device));
    // Without inner sweeps, which a pair has none of.
    let one = |it: &Candidate| (it.int("sweeps"), it.int("inner")) == (Some(1), Some(1));
    assert!(all.keys().any(one) && !of_first.iter().any(one));
    for (us, family) in [(10.0, Some("sweeps")), (10.0, Some("inverse")), (900.0, None)] {
        let mut acts = all.clone();
        for (candidate, act) in &mut acts {
            if candidate.is_approximate() {
                // More sweeps and hops are slower, and inner ones are the fastest for each system by itself.
                let int = |name| candidate.int(name).unwrap_or(0) as f64;
                let steps = int("sweeps") + int("power") + int("steps") - int("inner") / 10.0;
                let other = family.is_some_and(|family| candidate.family != family);
                *act = swept(us + steps + if other { 300.0 } else { 0.0 });
            }
        }
        let worker = bench.work(&bench.service, &device, acts).await;
        let id = bench.submit_for(both, &device.id.0, exhaustive()).await;
        let first = bench.ended(&id).await;
        let second = bench.ended(first.follow_up.as_ref().unwrap()).await;
        let plans = [bench.plan(&first).await, bench.plan(&second).await];
        worker.stop().await;
        let approximate = family.is_some();
        let asked = &second.request.search;
        match family {
            Some(family) => assert_eq!(asked.families, [family]),
            None => {
                assert!(!asked.families.is_empty() && !asked.admits("sweeps"));
                assert!(!asked.admits("inverse"));
            }
        }
        let counts = plans.each_ref().map(|plan| {
            assert_eq!(plan.candidate.is_approximate(), approximate, "{}", plan.candidate);
            let names = ["sweeps", "inner", "power", "steps"];
            names.map(|name| plan.candidate.int(name))
        });
        if approximate {
            assert_eq!(counts[0], counts[1]);
            let [sweeps, inner, power, steps] = counts[0];
            match family {
                Some("sweeps") => assert!(sweeps > Some(1) && inner == Some(1), "{counts:?}"),
                _ => assert!(power.max(steps) > Some(1), "{counts:?}"),
            }
        }
    }
}
