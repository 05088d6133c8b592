//! Budgets: kept to, and when they end the best so far is the answer.

use crate::bench::*;
use sparsetune::domain::*;
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
