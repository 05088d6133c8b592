//! What candidates do, and what becomes of their job: every end is recorded, and the plan is the recorded fastest.

use crate::bench::*;
use sparsetune::domain::*;
use sparsetune::engine::replay::{Act, Step};
use std::collections::BTreeMap;
use std::time::Duration;

/// Of the candidates in their order: four that fail, the fastest and the next, and the others in no hurry.
pub struct Scene {
    pub all: Vec<Candidate>,
    failing: [(Candidate, &'static str, Act); 4],
    fastest: Candidate,
    second: Candidate,
}

impl Scene {
    pub fn of(bench: &Bench) -> Self {
        let all = bench.candidates(&device());
        assert!(all.len() >= 12, "{}", all.len());
        let wrong = Act::Wrong { rel_error: Some(0.5), unwritten: 0 };
        let failing = [
            (all[1].clone(), "timed_out", Act::Hang { during: Step::Verify }),
            (all[2].clone(), "crashed", Act::Die { during: Step::Time }),
            (all[4].clone(), "wrong", wrong),
            (all[5].clone(), "compile_failed", Act::CompileFailed { detail: "no ;".to_owned() }),
        ];
        let (fastest, second) = (all[7].clone(), all[9].clone());
        Self { all, failing, fastest, second }
    }

    pub fn acts(&self) -> BTreeMap<Candidate, Act> {
        let others =
            self.all.iter().zip(1..).map(|(c, i)| (c.clone(), takes(100.0 + f64::from(i))));
        let mut acts: BTreeMap<Candidate, Act> = others.collect();
        acts.extend(
            self.failing.iter().map(|(candidate, _, act)| (candidate.clone(), act.clone())),
        );
        acts.extend([(self.fastest.clone(), takes(60.0)), (self.second.clone(), takes(75.0))]);
        acts.insert(vendor(), takes(90.0));
        acts
    }
}

pub fn state_of<'a>(tried: &'a [Trial], candidate: &Candidate) -> (&'static str, &'a Outcome) {
    let trial = tried.iter().find(|trial| trial.candidate == *candidate).unwrap();
    (trial.state.name(), trial.state.outcome().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_survives_its_candidates_and_remembers_the_dangerous_ones() {
    let bench = Bench::new().await;
    let scene = Scene::of(&bench);
    let worker = bench.work(&bench.service, &device(), scene.acts()).await;

    let id = bench.submit(exhaustive()).await;
    let job = bench.ended(&id).await;
    let plan = bench.plan(&job).await;
    let tried = bench.tried(&id).await;
    for (candidate, state, _) in &scene.failing {
        assert_eq!(state_of(&tried, candidate).0, *state);
    }
    assert_eq!(tried.len(), scene.all.len() + 1);
    assert_eq!(bench.measured().len(), tried.len());
    assert_eq!((job.progress.done, job.progress.total), (tried.len() as u32, tried.len() as u32));
    assert_eq!(job.best.as_ref().unwrap().candidate, scene.fastest);
    assert_eq!((job.stage, job.attempts), (Stage::Done, 1));
    tells_of_the_job(&bench, &scene, &job, &plan);
    let told = bench.events(&id).await;
    let first_trial = told.iter().position(|event| matches!(event.kind, EventKind::Trial(_)));
    let funnel = told.iter().position(|event| matches!(event.kind, EventKind::Funnel { .. }));
    assert!(funnel.is_some() && funnel < first_trial, "before anything is measured");
    assert_eq!(bench.service.story(&id).await.unwrap().funnel, Some(plan.funnel.clone()));
    let told = told.iter().filter(|event| matches!(event.kind, EventKind::Trial(_))).count();
    assert_eq!(told, tried.len());

    // What hung or killed is not run again; what was wrong or did not compile is.
    let again = bench.submit(exhaustive()).await;
    let next_plan = bench.plan(&bench.ended(&again).await).await;
    assert_eq!(next_plan.candidate, scene.fastest);
    let retried = bench.tried(&again).await;
    for (candidate, state, _) in &scene.failing {
        let dangerous = ["timed_out", "crashed"].contains(state);
        let (now, outcome) = state_of(&retried, candidate);
        assert_eq!(now, if dangerous { "refused" } else { state });
        let why = format!("{outcome:?}");
        assert_eq!(why.contains("quarantined"), dangerous, "{why}");
        let runs = bench.measured().iter().filter(|measured| *measured == candidate).count();
        assert_eq!(runs, if dangerous { 1 } else { 2 }, "{candidate}");
    }
    let status = bench.service.devices().await.unwrap().remove(0);
    // One restart for what hung, one for what crashed.
    assert_eq!((status.quarantined, status.restarts), (2, Some(2)));
    worker.stop().await;
}

/// Every field of the plan that the recording decides.
fn tells_of_the_job(bench: &Bench, scene: &Scene, job: &Job, plan: &Plan) {
    let space = bench.space(&device());
    assert_eq!(plan.candidate, scene.fastest);
    let measured = plan.measured.as_ref().unwrap();
    assert_eq!((measured.median_us, measured.ci95_us), (60.0, [60.0, 60.0]));
    assert_eq!(measured.rel_error, 1e-8);
    assert!(!plan.tie);
    let runner_up = plan.runner_up.as_ref().unwrap();
    assert_eq!((&runner_up.candidate, runner_up.median_us), (&scene.second, 75.0));
    let baseline = plan.baseline.as_ref().unwrap();
    let named = (&*baseline.name, &*baseline.version, &*baseline.algorithm, baseline.median_us);
    assert_eq!(named, ("MKL", "2026.2", "mkl_mm", 90.0));
    assert_eq!(plan.speedup, Some(1.5));
    assert_eq!(plan.clock(), Some(Clock::Pipelined));
    assert_eq!(plan.limit.fraction, plan.limit.us / 60.0);
    assert_eq!(plan.limit.us, plan.limit.bytes as f64 / 1e4, "at the recorded 10 GB/s");
    let predicted = plan.predicted.as_ref().unwrap();
    let score = space.scored.iter().find(|(candidate, _)| *candidate == scene.fastest).unwrap().1;
    assert_eq!((&*predicted.model, predicted.median_us), (space.model, score));
    assert_eq!(plan.funnel, space.pruned.funnel);
    assert!(plan.funnel.iter().any(|step| step.removed > 0));
    assert_eq!(plan.funnel.last().unwrap().left, scene.all.len() as u64);
    assert_eq!(plan.trials.measured as usize, scene.all.len() + 1 - scene.failing.len());
    let failed = scene.failing.iter().map(|(_, state, _)| ((*state).to_owned(), 1)).collect();
    assert_eq!(plan.trials.failed, failed);
    assert_eq!(plan.provenance.job.as_ref(), Some(&job.id));
    assert_eq!(plan.provenance.stopped_by, StoppedBy::Completed);
    assert_eq!(job.stopped_by, Some(StoppedBy::Completed));
    assert_eq!(
        plan.provenance.kernel_digest,
        device().kernels.get(&plan.candidate.family).copied()
    );
    assert_eq!((plan.matrix, plan.problem), (bench.matrix.digest, PROBLEM));
}

/// A quarantine is of a kernel's text: another text is another chance.
#[tokio::test(flavor = "multi_thread")]
async fn a_mended_kernel_is_tried_again() {
    let bench = Bench::new().await;
    let scene = Scene::of(&bench);
    let (killer, few) = (scene.all[0].clone(), Search { trials: Some(2), ..exhaustive() });
    let mut acts = scene.acts();
    acts.insert(
        killer.clone(),
        Act::Lost { detail: "illegal address".to_owned(), during: Step::Time },
    );
    let worker = bench.work(&bench.service, &device(), acts.clone()).await;
    for state in ["crashed", "refused"] {
        let id = bench.submit(few.clone()).await;
        assert_eq!(bench.plan(&bench.ended(&id).await).await.candidate, vendor());
        assert_eq!(state_of(&bench.tried(&id).await, &killer).0, state);
    }
    worker.stop().await;

    let mut mended = device();
    mended.kernels.insert(killer.family.clone(), Digest::of(b"mended"));
    acts.insert(killer.clone(), takes(20.0));
    let worker = bench.work(&bench.service, &mended, acts).await;
    let id = bench.submit(few).await;
    assert_eq!(bench.plan(&bench.ended(&id).await).await.candidate, killer);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_plan_is_slower_than_the_vendor() {
    let bench = Bench::new().await;
    let acts = bench.candidates(&device()).into_iter().map(|candidate| (candidate, takes(100.0)));
    let worker = bench.work(&bench.service, &device(), acts.chain([(vendor(), takes(90.0))])).await;
    let id = bench.submit(Search { top_k: Some(4), ..Search::default() }).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    assert_eq!(plan.candidate, vendor());
    assert_eq!((plan.speedup, plan.break_even_calls, plan.tie), (Some(1.0), None, false));
    let rank = plan.funnel.last().unwrap();
    assert_eq!((&*rank.constraint, rank.left, plan.trials.measured), ("rank", 4, 5));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn within_the_noise_the_simpler_candidate_is_the_plan() {
    let bench = Bench::new().await;
    let all = bench.candidates(&device());
    let first = |family: &str| all.iter().find(|c| c.family == family).unwrap().clone();
    let (panel, split) = (first("row_panel"), first("row_split"));
    let mut acts: BTreeMap<Candidate, Act> =
        all.iter().map(|candidate| (candidate.clone(), takes(200.0))).collect();
    let noisy = |base: f64, noise: [f64; 5]| {
        samples(noise.iter().map(|n| base + n).collect(), Duration::ZERO)
    };
    // The panel's median is the least, but the split is as often ahead of it as behind.
    acts.insert(panel, noisy(100.0, [0.0, 2.0, -2.0, 1.0, -1.0]));
    acts.insert(split.clone(), noisy(100.2, [0.3, 1.0, -3.0, 2.0, -2.0]));
    acts.insert(vendor(), takes(150.0));
    let worker = bench.work(&bench.service, &device(), acts).await;
    let id = bench.submit(exhaustive()).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    assert_eq!((plan.tie, &plan.candidate), (true, &split));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_any_time_fails_and_says_why() {
    let bench = Bench::new().await;
    // Nothing is recorded, so every candidate is refused.
    let worker = bench.work(&bench.service, &device(), []).await;
    let id = bench.submit(Search { top_k: Some(2), ..Search::default() }).await;
    let job = bench.ended(&id).await;
    assert_eq!((job.state, &job.plan), (JobState::Failed, &None));
    let why = job.error.unwrap();
    assert!(why.contains("none of 3 candidates") && why.contains("3 refused"), "{why}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_lifts_no_candidate_over_a_faster_vendor() {
    let bench = Bench::new().await;
    let all = bench.candidates(&device());
    let first = |family: &str| all.iter().find(|c| c.family == family).unwrap().clone();
    let mut acts: BTreeMap<Candidate, Act> =
        all.iter().map(|candidate| (candidate.clone(), takes(200.0))).collect();
    acts.insert(first("row_panel"), takes(100.0));
    acts.insert(
        first("row_split"),
        samples(vec![99.0, 120.0, 99.0, 120.0, 99.0, 120.0, 99.0, 120.0, 120.0], Duration::ZERO),
    );
    acts.insert(vendor(), takes(105.0));
    let worker = bench.work(&bench.service, &device(), acts).await;
    let id = bench.submit(exhaustive()).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    assert!(
        plan.speedup.unwrap() >= 1.0,
        "{:?} {} {:?}",
        plan.speedup,
        plan.candidate,
        plan.measured
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_be_kept_does_not_cost_the_search() {
    let bench = Bench::new().await;
    let best = bench.candidates(&device())[0].clone();
    let worker = bench.work(&bench.service, &device(), [(best.clone(), takes(5.0))]).await;
    // Nothing can be staged any more.
    std::fs::remove_dir_all(bench.staging()).unwrap();
    let id = bench.submit(exhaustive()).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    assert_eq!((plan.candidate, plan.launch), (best, None));
    let told = |event: &Event| matches!(&event.kind, EventKind::Log { message } if message.contains("no launch"));
    assert!(bench.events(&id).await.iter().any(told));
    worker.stop().await;
}
