//! The sentinel: a worker that has nothing to do measures pinned plans again, and lookups say what came of it.

use crate::bench::*;
use crate::outcomes::Scene;
use sparsetune::domain::drift::Verdict;
use sparsetune::domain::*;
use sparsetune::engine::replay::Act;
use sparsetune::service::{LookupQuery, Pin};
use std::time::{Duration, Instant};

async fn looked_up(bench: &Bench) -> Lookup {
    let query = LookupQuery {
        matrix: bench.matrix.digest,
        problem: PROBLEM,
        device: None,
        l2_policy: None,
        neighbour: false,
        predicted: false,
    };
    bench.service.lookup(&query).await.unwrap()
}

/// The verdict of the first check after this moment.
async fn next_check(bench: &Bench) -> drift::Check {
    let (now, started) = (Timestamp::now(), Instant::now());
    loop {
        let checks = bench.service.store().checks(10).await.unwrap();
        if let Some(check) = checks.into_iter().find(|check| check.at > now) {
            return check;
        }
        assert!(started.elapsed() < LONG, "nothing was measured again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_plan_is_measured_again_and_lookups_say_how_it_stands() {
    let bench = Bench::with(|settings| settings.drift.check = Duration::from_millis(300)).await;
    let scene = Scene::of(&bench);
    let worker = bench.work(&bench.service, &device(), scene.acts()).await;
    let id = bench.submit(exhaustive()).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    // Nothing is measured again that nobody has pinned.
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(bench.service.store().checks(10).await.unwrap().is_empty());
    bench.service.pin(&Pin::Plan(plan.id.clone()), true).await.unwrap();
    let check = next_check(&bench).await;
    assert_eq!((check.plan, check.verdict), (plan.id.clone(), Verdict::Holds));
    assert_eq!((check.median_us, check.vendor_us), (Some(60.0), Some(90.0)));
    let answer = looked_up(&bench).await;
    assert_eq!(answer.grade, Grade::Exact);
    assert!(answer.reasons.iter().any(|why| why.contains("measured again at")), "{answer:?}");
    worker.stop().await;

    let wrong = Act::Wrong { rel_error: Some(0.5), unwritten: 0 };
    for (own, vendor, verdict, says) in [
        (takes(90.0), takes(90.0), Verdict::Drifted, "90.000 us a call"),
        // Everything takes three times as long.
        (takes(180.0), takes(270.0), Verdict::Unclear, "shared"),
        // The vendor's routine was made faster.
        (takes(60.0), takes(40.0), Verdict::Drifted, "faster now"),
        (wrong, takes(90.0), Verdict::Drifted, "wrong"),
        (
            Act::Refused { detail: "no memory".to_owned() },
            takes(90.0),
            Verdict::Unclear,
            "no memory",
        ),
        (takes(62.0), takes(90.0), Verdict::Holds, "62.000 us"),
    ] {
        let mut acts = scene.acts();
        acts.insert(plan.candidate.clone(), own);
        acts.insert(crate::bench::vendor(), vendor);
        let worker = bench.work(&bench.service, &device(), acts).await;
        let check = next_check(&bench).await;
        assert_eq!(check.verdict, verdict, "{check:?}");
        assert!(check.why.contains(says), "{check:?}");
        let answer = looked_up(&bench).await;
        let stale = answer.grade == Grade::Stale;
        assert_eq!(stale, verdict == Verdict::Drifted, "{answer:?}");
        assert!(answer.reasons.iter().any(|why| why.contains(says)), "{answer:?}");
        worker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_not_kept_waiting_by_the_sentinel() {
    let bench = Bench::with(|settings| settings.drift.check = Duration::from_secs(3600)).await;
    let scene = Scene::of(&bench);
    let worker = bench.work(&bench.service, &device(), scene.acts()).await;
    let id = bench.submit(exhaustive()).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    worker.stop().await;
    bench.service.pin(&Pin::Plan(plan.id.clone()), true).await.unwrap();
    // Measuring again takes a minute here, and a job comes meanwhile.
    let mut acts = scene.acts();
    acts.insert(plan.candidate.clone(), takes_and_waits(60.0, Duration::from_secs(60)));
    let worker = bench.work(&bench.service, &device(), acts).await;
    let before = bench.measured().len();
    let started = Instant::now();
    while bench.measured().len() == before {
        assert!(started.elapsed() < LONG, "it was not measured again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let search = Search { families: vec!["row_panel".to_owned()], trials: Some(2), ..exhaustive() };
    let id = bench.submit(search).await;
    bench.when(&id, |job, tried| job.state.is_final() || !tried.is_empty()).await;
    assert!(bench.service.store().checks(10).await.unwrap().is_empty());
    worker.stop().await;
}
