//! Halving: few trials with few samples, the finals in rungs, the same walk when a job is taken up again; and what a
//! watchdog stops is no danger.

use crate::bench::*;
use sparsetune::domain::*;
use sparsetune::engine::replay::Act;
use std::collections::BTreeMap;
use std::time::Duration;

fn halving(trials: u32) -> Search {
    Search { strategy: SearchStrategy::Halving, trials: Some(trials), ..Search::default() }
}

/// Times that no model knows: every parameter has a value of its own that is best.
fn time_of(candidate: &Candidate) -> f64 {
    let away = |value: &Param| match value {
        Param::Int(value) => ((*value as f64 + 1.0).log2() - 2.0).abs(),
        Param::Text(text) => 0.1 * text.len() as f64,
    };
    100.0 + 10.0 * candidate.params.values().map(away).sum::<f64>()
}

fn acts(bench: &Bench, latency: Duration) -> BTreeMap<Candidate, Act> {
    let all = bench.candidates(&device()).into_iter();
    let mut acts: BTreeMap<Candidate, Act> =
        all.map(|c| (c.clone(), takes_and_waits(time_of(&c), latency))).collect();
    acts.insert(vendor(), takes_and_waits(400.0, latency));
    acts
}

#[tokio::test(flavor = "multi_thread")]
async fn few_trials_with_few_samples_and_finals_in_rungs() {
    let bench = Bench::new().await;
    let all = bench.candidates(&device());
    let worker = bench.work(&bench.service, &device(), acts(&bench, Duration::ZERO)).await;
    let id = bench.submit(halving(22)).await;
    let job = bench.ended(&id).await;
    let plan = bench.plan(&job).await;
    assert_eq!(job.stopped_by, Some(StoppedBy::Completed));
    assert_eq!((job.progress.done, job.progress.total), (22, 22));
    let tried: Vec<Candidate> = bench.tried(&id).await.into_iter().map(|t| t.candidate).collect();
    assert_eq!((tried.len(), &tried[0]), (22, &vendor()));
    assert!(distinct(&tried));
    let step = plan.funnel.last().unwrap();
    assert_eq!((&*step.constraint, step.left), ("halving", 21));
    assert_eq!(step.removed as usize, all.len() - 21);

    // The plan is the best that was tried, and the climb found better than the first two thirds.
    let best = |tried: &[Candidate]| tried[1..].iter().map(time_of).fold(f64::INFINITY, f64::min);
    assert_eq!(plan.median_us().unwrap(), best(&tried));
    assert!(best(&tried) < best(&tried[..15]));
    let (efforts, turns) = bench.asked();
    assert!(efforts.iter().all(|effort| effort.max_samples <= 9));
    let best_yet = |n: usize| tried[..n].iter().skip(1).map(time_of).fold(400.0, f64::min);
    for (n, effort) in efforts.iter().enumerate().skip(1) {
        assert_eq!(effort.give_up_us, Some(8.0 * best_yet(n)));
    }
    // Sixteen and the vendor's, then four and the vendor's, then what the plan names by the other clock.
    assert_eq!(turns.iter().map(|(count, _)| *count).collect::<Vec<_>>(), [17, 5, 3]);
    assert!((6..=25).contains(&turns[0].1) && turns[1].1 > turns[0].1, "{turns:?}");
    assert_eq!(plan.baseline.unwrap().median_us, 400.0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_taken_up_again_walks_the_same_way() {
    let bench = Bench::new().await;
    let latency = Duration::from_millis(20);
    let first = bench.work(&bench.service, &device(), acts(&bench, latency)).await;
    let order = async |id: &JobId| {
        bench.tried(id).await.into_iter().map(|t| t.candidate).collect::<Vec<_>>()
    };
    let whole = bench.submit(halving(22)).await;
    let whole_plan = bench.plan(&bench.ended(&whole).await).await;
    let mut broken = bench.submit(halving(22)).await;
    // Once while the model chooses, once while the outcomes do.
    let mut worker = first;
    for done in [5, 18] {
        bench.when(&broken, |_, tried| tried.len() >= done).await;
        worker.stop().await;
        worker = bench.work(&bench.service, &device(), acts(&bench, latency)).await;
    }
    let job = bench.ended(&broken).await;
    let plan = bench.plan(&job).await;
    assert_eq!(order(&broken).await, order(&whole).await);
    assert_eq!((&plan.candidate, &plan.funnel), (&whole_plan.candidate, &whole_plan.funnel));
    assert_eq!(job.progress.total, 22);

    // A device that copies faster predicts otherwise today; what was tried keeps its place.
    broken = bench.submit(halving(22)).await;
    bench.when(&broken, |_, tried| tried.len() >= 5).await;
    worker.stop().await;
    let faster = Device { copy_gbps: 90.0, ..device() };
    let worker = bench.work(&bench.service, &faster, acts(&bench, latency)).await;
    assert_eq!(bench.ended(&broken).await.stopped_by, Some(StoppedBy::Completed));
    let tried = order(&broken).await;
    assert!(distinct(&tried) && tried.len() == 22, "{}", tried.len());
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_its_watchdog_stopped_is_not_quarantined() {
    let bench = Bench::new().await;
    let slow = bench.candidates(&device())[0].clone();
    let mut acts = acts(&bench, Duration::ZERO);
    acts.insert(slow.clone(), Act::Stopped { detail: "gave up after 30 us".to_owned() });
    let worker = bench.work(&bench.service, &device(), acts).await;
    for _ in 0..2 {
        let id = bench.submit(halving(6)).await;
        let job = bench.ended(&id).await;
        let counted = bench.plan(&job).await.trials.failed;
        assert_eq!((counted.get("stopped"), counted.get("timed_out")), (Some(&1), None));
        let tried = bench.tried(&id).await;
        let trial = tried.iter().find(|trial| trial.candidate == slow).unwrap();
        assert!(
            matches!(
                trial.state.outcome(),
                Some(Outcome::TimedOut { stopped: true, out_of_time: false, .. })
            ),
            "{trial:?}"
        );
    }
    assert_eq!(bench.measured().iter().filter(|measured| **measured == slow).count(), 2);
    assert_eq!(bench.service.devices().await.unwrap()[0].quarantined, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_lists_what_the_host_takes() {
    let bench = Bench::new().await;
    let worker = bench.work(&bench.service, &device(), acts(&bench, Duration::ZERO)).await;
    let id = bench.submit_for(PROBLEM, "cpu", halving(9)).await;
    let on_host = bench.plan(&bench.ended(&id).await).await;
    assert_eq!(on_host.host, None, "it is the host's own");
    worker.stop().await;

    let gpu = gpu();
    let all = bench.space(&gpu);
    let acts = all.scored.into_iter().map(|(candidate, _)| (candidate, takes(50.0)));
    let vendors = all.vendor.into_iter().map(|candidate| (candidate, takes(70.0)));
    let acts: Vec<(Candidate, Act)> = acts.chain(vendors).collect();
    let worker = bench.work(&bench.service, &gpu, acts.clone()).await;
    let id = bench.submit_for(PROBLEM, "cuda:0", halving(9)).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    let host = plan.host.unwrap();
    assert_eq!((&host.plan, &host.device), (&on_host.id, &device().class()));
    assert_eq!(host.median_us, on_host.median_us().unwrap());
    worker.stop().await;

    // What another host takes is nothing to stay for.
    let elsewhere = bench.elsewhere().await;
    let another = Device { name: "another".to_owned(), ..device() };
    elsewhere.register(another).await.unwrap();
    let worker = bench.work(&elsewhere, &gpu, acts).await;
    let id = bench.submit_for(PROBLEM, "cuda:0", halving(7)).await;
    assert_eq!(bench.plan(&bench.ended(&id).await).await.host, None);
    worker.stop().await;
}
