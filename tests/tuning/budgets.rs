//! Budgets: kept to, and when they end the best so far is the answer.

use crate::bench::*;
use sparsetune::domain::*;
use sparsetune::engine::replay::{Act, Step};
use sparsetune::service::PageRequest;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn three_trials_are_three_trials() {
    let bench = Bench::new().await;
    let all = bench.candidates(&device());
    // Faster and faster, so that the last one tried is the best so far.
    let acts = all.iter().zip(1..).map(|(c, i)| (c.clone(), takes(100.0 - f64::from(i))));
    let worker =
        bench.work(&bench.service, &device(), acts.chain([(vendor(), takes(110.0))])).await;
    let id = bench.submit(Search { trials: Some(3), ..exhaustive() }).await;
    let job = bench.ended(&id).await;
    let plan = bench.plan(&job).await;
    assert_eq!(job.stopped_by, Some(StoppedBy::Trials));
    assert_eq!(plan.provenance.stopped_by, StoppedBy::Trials);
    let tried: Vec<Candidate> = bench.tried(&id).await.into_iter().map(|t| t.candidate).collect();
    assert_eq!(tried, [vendor(), all[0].clone(), all[1].clone()]);
    assert_eq!(bench.measured(), tried);
    assert_eq!((plan.trials.measured, &plan.candidate), (3, &all[1]));
    assert_eq!(job.progress.done, 3);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seconds_end_the_search_and_the_best_so_far_is_the_plan() {
    let bench = Bench::new().await;
    let all = bench.candidates(&device());
    let latency = Duration::from_millis(100);
    let acts = all
        .iter()
        .zip(1..)
        .map(|(c, i)| (c.clone(), takes_and_waits(100.0 - f64::from(i), latency)));
    let acts = acts.chain([(vendor(), takes_and_waits(110.0, latency))]);
    let worker = bench.work(&bench.service, &device(), acts).await;
    let id = bench.submit(Search { seconds: Some(0.8), ..exhaustive() }).await;
    let job = bench.ended(&id).await;
    let plan = bench.plan(&job).await;
    assert_eq!(job.stopped_by, Some(StoppedBy::Seconds));
    let took = job.finished_at.unwrap().0 - job.started_at.unwrap().0;
    // Trials leave up to a quarter to the finals; what is beyond 800 is for a busy machine.
    assert!((500..1600).contains(&took), "{took} ms");
    let tried = bench.tried(&id).await;
    assert!((2..=9).contains(&tried.len()), "{}", tried.len());
    assert_eq!(plan.candidate, tried.last().unwrap().candidate, "the last tried is the fastest");
    assert!(plan.provenance.search_seconds >= 0.5);
    assert!(plan.finals.len() >= 2, "the finals were held within the budget: {:?}", plan.finals);
    assert!(plan.finals.iter().any(|one| one.candidate == plan.candidate));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_is_of_the_job_however_often_it_is_taken_up() {
    let bench = Bench::new().await;
    let latency = Duration::from_millis(60);
    let all = bench.candidates(&device()).into_iter().chain([vendor()]);
    let acts: Vec<_> = all.map(|candidate| (candidate, takes_and_waits(100.0, latency))).collect();
    let first = bench.work(&bench.service, &device(), acts.clone()).await;
    let few = bench.submit(Search { trials: Some(6), ..exhaustive() }).await;
    let brief = bench.submit(Search { seconds: Some(1.6), ..exhaustive() }).await;
    bench.when(&few, |_, tried| tried.len() >= 3).await;
    first.stop().await;
    let second = bench.work(&bench.service, &device(), acts.clone()).await;
    assert_eq!(bench.ended(&few).await.stopped_by, Some(StoppedBy::Trials));
    assert_eq!(bench.tried(&few).await.len(), 6);

    bench.when(&brief, |_, tried| tried.len() >= 5).await;
    second.stop().await;
    let spent = bench.service.job(&brief).await.unwrap().search_seconds;
    assert!(spent > 0.25, "{spent}");
    let third = bench.work(&bench.service, &device(), acts).await;
    let job = bench.ended(&brief).await;
    let plan = bench.plan(&job).await;
    assert_eq!((job.stopped_by, job.attempts), (Some(StoppedBy::Seconds), 1));
    let spent = plan.provenance.search_seconds;
    assert!((1.0..2.6).contains(&spent), "{spent}");
    // 1.6 s hold 26 pauses of 60 ms, and each attempt may overrun by one.
    assert!(bench.tried(&brief).await.len() <= 28);
    third.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trial_under_way_is_cut_when_its_share_is_used_up() {
    let bench = Bench::new().await;
    let all = bench.candidates(&device());
    let slow = Act::Measured {
        samples_us: vec![90.0; 8],
        alone_us: None,
        rel_error: 0.0,
        resources: None,
        prepare_ms: None,
        latency_ms: 8_000,
    };
    let acts = all.iter().zip(0..).map(|(candidate, at)| match at {
        2 => (candidate.clone(), slow.clone()),
        _ => (candidate.clone(), takes(100.0)),
    });
    let acts: Vec<_> = acts.chain([(vendor(), takes(110.0))]).collect();
    let worker = bench.work(&bench.service, &device(), acts).await;
    let id = bench.submit(Search { seconds: Some(3.0), ..exhaustive() }).await;
    let job = bench.ended(&id).await;
    assert_eq!(job.stopped_by, Some(StoppedBy::Seconds));
    let took = job.finished_at.unwrap().0 - job.started_at.unwrap().0;
    // A sample that has begun, of a second each, is not ended; the whole trial would take eight.
    assert!((2_000..6_000).contains(&took), "{took} ms");
    let tried = bench.tried(&id).await;
    let cut: Vec<(&Candidate, usize)> = tried
        .iter()
        .filter_map(|trial| match trial.state.outcome() {
            Some(Outcome::Measured { timing, .. }) if timing.cut => {
                Some((&trial.candidate, timing.samples_us.len()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(cut.len(), 1, "the others had time: {tried:?}");
    assert!(cut[0].0 == &all[2] && (1..8).contains(&cut[0].1), "{cut:?}");
    bench.plan(&job).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_outlasts_the_budget_is_told_and_not_held_against_the_candidate() {
    let bench = Bench::new().await;
    let all = bench.candidates(&device());
    // By the best so far, a call would be waited for for minutes.
    let acts = all.iter().zip(0..).map(|(candidate, at)| match at {
        1 => (candidate.clone(), Act::Hang { during: Step::Verify }),
        _ => (candidate.clone(), takes(1e6)),
    });
    let acts: Vec<_> = acts.chain([(vendor(), takes(1.1e6))]).collect();
    let worker = bench.work(&bench.service, &device(), acts).await;
    let id = bench.submit(Search { seconds: Some(2.0), ..exhaustive() }).await;
    let job = bench.ended(&id).await;
    bench.plan(&job).await;
    let took = job.finished_at.unwrap().0 - job.started_at.unwrap().0;
    assert!(took < 20_000, "{took} ms");
    let tried = bench.tried(&id).await;
    let outcome = tried.iter().find(|t| t.candidate == all[1]).unwrap().state.outcome().unwrap();
    assert_eq!(outcome.counted_as(), "stopped", "{outcome:?}");
    assert!(matches!(outcome, Outcome::TimedOut { out_of_time: true, .. }), "{outcome:?}");
    assert!(outcome.detail().unwrap().contains("left of the job's time budget"), "{outcome:?}");
    let barred = bench.service.quarantine(None, &PageRequest::first(9)).await.unwrap();
    assert_eq!(barred.items, []);
    worker.stop().await;
}
