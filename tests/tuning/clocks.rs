//! The two clocks: trials, finals and decision go by the job's, and the plan has the times by both.

use crate::bench::*;
use sparsetune::domain::protocol::{Request, RequestBody};
use sparsetune::domain::*;
use sparsetune::engine::replay::Act;
use std::collections::BTreeMap;

/// So long among others of its kind, and so long alone.
fn both(us: f64, alone: f64) -> Act {
    match takes(us) {
        Act::Measured { samples_us, rel_error, resources, prepare_ms, latency_ms, .. } => {
            let alone_us = Some(vec![alone; 9]);
            Act::Measured { samples_us, alone_us, rel_error, resources, prepare_ms, latency_ms }
        }
        other => other,
    }
}

/// The fastest in a row, and the fastest alone.
fn scene(bench: &Bench) -> [Candidate; 2] {
    let all = bench.candidates(&device());
    [all[3].clone(), all[5].clone()]
}

fn acts(bench: &Bench) -> BTreeMap<Candidate, Act> {
    let [row, alone] = scene(bench);
    let mut acts: BTreeMap<Candidate, Act> =
        bench.candidates(&device()).into_iter().map(|c| (c, both(200.0, 202.0))).collect();
    acts.extend([
        (row, both(60.0, 90.0)),
        (alone, both(75.0, 70.0)),
        (vendor(), both(90.0, 140.0)),
    ]);
    acts
}

fn by(clock: Option<Clock>) -> Search {
    Search { clock, ..exhaustive() }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_choice_goes_by_the_jobs_clock_and_the_plan_has_both() {
    let bench = Bench::new().await;
    let worker = bench.work(&bench.service, &device(), acts(&bench)).await;
    let [row, alone] = scene(&bench);

    let id = bench.submit(by(None)).await;
    let job = bench.ended(&id).await;
    assert_eq!(job.request.search.clock, Some(Clock::Pipelined));
    let plan = bench.plan(&job).await;
    assert_eq!((&plan.candidate, plan.clock()), (&row, Some(Clock::Pipelined)));
    let times = |plan: &Plan| Clock::ALL.map(|clock| plan.median_by(clock));
    assert_eq!(times(&plan), [Some(90.0), Some(60.0)]);
    assert_eq!(Clock::ALL.map(|clock| plan.baseline_by(clock)), [Some(140.0), Some(90.0)]);
    assert_eq!((plan.speedup, plan.speedup_by(Clock::Pipelined)), (Some(1.5), Some(1.5)));
    assert_eq!(plan.speedup_by(Clock::Isolated), Some(140.0 / 90.0));
    assert_eq!(plan.limit.fraction, plan.limit.us / 60.0);
    assert_eq!(job.best.as_ref().map(|best| best.median_us), Some(60.0));
    // What is stored and sent.
    let said = serde_json::to_value(&plan).unwrap();
    let measured = &said["measured"];
    assert_eq!((&measured["clock"], &measured["median_us"]), (&"pipelined".into(), &60.0.into()));
    for (part, isolated, pipelined) in
        [("measured", 90.0, 60.0), ("runner_up", 70.0, 75.0), ("baseline", 140.0, 90.0)]
    {
        let clocks = &said[part]["clocks"];
        assert_eq!(clocks["isolated"]["median_us"], isolated, "{part}");
        assert_eq!(clocks["pipelined"]["median_us"], pipelined, "{part}");
        assert!(clocks["isolated"]["samples"].as_u64() >= Some(6), "{part}: {clocks}");
    }
    assert!(said["version"].as_u64() > Some(1), "earlier readers would mistake its times");
    for trial in bench.tried(&id).await {
        let Some(Outcome::Measured { timing, .. }) = trial.state.outcome() else { panic!() };
        assert_eq!(timing.clock, Clock::Pipelined);
    }

    let id = bench.submit(by(Some(Clock::Isolated))).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    assert_eq!((&plan.candidate, plan.clock()), (&alone, Some(Clock::Isolated)));
    assert_eq!((times(&plan), plan.speedup), ([Some(70.0), Some(75.0)], Some(2.0)));
    assert_eq!(plan.speedup_by(Clock::Pipelined), Some(90.0 / 75.0));

    let log = std::fs::read_to_string(bench.log()).unwrap();
    let asked = log.lines().filter_map(|line| serde_json::from_str::<Request>(line).ok());
    let turns: Vec<(Clock, usize)> = asked
        .filter_map(|request| match request.body {
            RequestBody::Pair { clock, candidates, .. } => Some((clock, candidates.len())),
            _ => None,
        })
        .collect();
    use Clock::{Isolated, Pipelined};
    assert_eq!(turns, [(Pipelined, 4), (Isolated, 3), (Isolated, 4), (Pipelined, 3)]);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_cannot_be_read_is_left_out() {
    let bench = Bench::new().await;
    let mut acts = acts(&bench);
    let [row, _] = scene(&bench);
    if let Some(Act::Measured { alone_us, .. }) = acts.get_mut(&row) {
        *alone_us = Some(Vec::new());
    }
    let worker = bench.work(&bench.service, &device(), acts).await;
    let id = bench.submit(by(None)).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    assert_eq!((&plan.candidate, plan.speedup), (&row, Some(1.5)));
    assert_eq!(Clock::ALL.map(|clock| plan.speedup_by(clock)), [None, Some(1.5)]);
    let told = bench.events(&id).await;
    let why = |event: &Event| matches!(&event.kind, EventKind::Log { message } if message.contains("by the clock isolated"));
    assert!(told.iter().any(why), "{told:?}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swept_cache_has_one_clock() {
    let bench = Bench::with(|settings| settings.l2_policy = L2Policy::Cold).await;
    let worker = bench.work(&bench.service, &device(), acts(&bench)).await;
    let request = |clock| JobRequest {
        matrix: bench.matrix.digest,
        problem: PROBLEM,
        device: "auto".to_owned(),
        search: by(clock),
        expected_calls: None,
    };
    let refused = bench.service.submit(&request(Some(Clock::Pipelined)), None).await.unwrap_err();
    assert!(refused.to_string().contains("swept before each call"), "{refused}");
    let id = bench.submit(by(None)).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    assert_eq!(plan.clock(), Some(Clock::Isolated));
    assert_eq!(plan.median_by(Clock::Pipelined), None);
    assert_eq!(plan.speedup_by(Clock::Pipelined), None);
    worker.stop().await;
}
