//! A search among named families: the vendor's routine is measured beside them and wins only where it may.

use crate::bench::*;
use sparsetune::domain::*;
use sparsetune::engine::replay::Act;
use std::collections::BTreeMap;

fn among(families: &[&str]) -> Search {
    let families = families.iter().map(|&family| family.to_owned()).collect();
    Search { families, ..exhaustive() }
}

/// The vendor's routine is faster than all others, and panels are faster than split rows.
fn acts(bench: &Bench) -> BTreeMap<Candidate, Act> {
    let mut acts: BTreeMap<Candidate, Act> = BTreeMap::new();
    for (candidate, us) in bench.candidates(&device()).into_iter().zip(0..) {
        let slow = if candidate.family == "row_panel" { 100.0 } else { 2000.0 };
        acts.insert(candidate, takes(slow + f64::from(us)));
    }
    acts.insert(vendor(), takes(20.0));
    acts
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_for_wins() {
    let bench = Bench::new().await;
    let worker = bench.work(&bench.service, &device(), acts(&bench)).await;
    let tune = async |families: &[&str]| {
        let job = bench.ended(&bench.submit(among(families)).await).await;
        let plan = bench.plan(&job).await;
        let best = job.best.as_ref().unwrap();
        assert_eq!((&best.candidate, best.median_us), (&plan.candidate, plan.median_us().unwrap()));
        let tried = bench.tried(&job.id).await;
        assert_eq!(tried[0].candidate, vendor(), "the baseline is measured in any case");
        assert_eq!(plan.baseline.as_ref().map(|baseline| baseline.median_us), Some(20.0));
        (plan, tried)
    };
    let (plan, _) = tune(&[]).await;
    assert_eq!(plan.candidate, vendor());
    assert!(plan.funnel.iter().all(|step| step.constraint != "requested"));

    // A hundred times slower than the vendor's routine, which is no reason to give up on it.
    let (plan, tried) = tune(&["row_split"]).await;
    assert_eq!(plan.candidate.family, "row_split");
    assert!(tried[1..].iter().all(|trial| trial.candidate.family == "row_split"));
    assert!(plan.speedup.unwrap() < 0.1);
    let first = &plan.funnel[0];
    assert_eq!(first.constraint, "requested");
    assert!(first.removed > 0 && first.left > 0);
    let runner_up = plan.runner_up.unwrap().candidate;
    assert_eq!(runner_up.family, "row_split");

    let (plan, tried) = tune(&["row_split", "vendor"]).await;
    assert_eq!((&plan.candidate, tried.len() > 1), (&vendor(), true));
    let (plan, tried) = tune(&["vendor"]).await;
    assert_eq!((&plan.candidate, tried.len()), (&vendor(), 1));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vendor_wins_where_nothing_else_ran_and_a_family_that_cannot_run_fails_the_job() {
    let bench = Bench::new().await;
    let refused = |candidate| (candidate, Act::CompileFailed { detail: "no".to_owned() });
    let mut acts: BTreeMap<Candidate, Act> =
        bench.candidates(&device()).into_iter().map(refused).collect();
    acts.insert(vendor(), takes(20.0));
    let worker = bench.work(&bench.service, &device(), acts).await;
    let job = bench.ended(&bench.submit(among(&["row_panel"])).await).await;
    assert_eq!(bench.plan(&job).await.candidate, vendor());

    // On this device a solve has one thread, so levels are not shared.
    let alone = Device { id: DeviceId("cpu".to_owned()), multiprocessors: 1, ..device() };
    worker.stop().await;
    let worker = bench.work(&bench.service, &alone, [(vendor(), takes(20.0))]).await;
    let solve = serde_json::from_str(
        r#"{"op":"sptrsv","rhs":1,"dtype":"f64","triangle":"lower","diagonal":"non-unit"}"#,
    );
    let id = bench.submit_for(solve.unwrap(), "cpu", among(&["levels"])).await;
    let job = bench.ended(&id).await;
    assert_eq!(job.state, JobState::Failed);
    let why = job.error.unwrap();
    assert!(why.contains("levels") && why.contains("one thread"), "{why}");
    worker.stop().await;
}
