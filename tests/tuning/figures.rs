//! The compiler's figures: what one job learns of kernels prunes the next, and never a job that has begun.

use crate::bench::*;
use sparsetune::domain::*;
use sparsetune::engine::replay::Act;
use sparsetune::ops;
use std::collections::BTreeMap;
use std::time::Duration;

const REGISTERS: &str = "register_resource";
const SPILLS: &str = "local_memory";

fn compiled(us: f64, local_bytes: u32, latency: Duration) -> Act {
    let resources = Resources {
        registers: 48,
        local_bytes,
        shared_bytes: 0,
        blocks_per_multiprocessor: 4,
        occupancy: 0.5,
    };
    match takes_and_waits(us, latency) {
        Act::Measured { samples_us, alone_us, rel_error, prepare_ms, latency_ms, .. } => {
            Act::Measured {
                samples_us,
                alone_us,
                rel_error,
                resources: Some(resources),
                prepare_ms,
                latency_ms,
            }
        }
        other => other,
    }
}

fn few(gpu: &Device, bench: &Bench) -> (Vec<Candidate>, Search) {
    let all = bench.candidates(gpu);
    assert!(all.len() > 12, "{}", all.len());
    // The vendor's routines are tried as well.
    let vendors = bench.space(gpu).vendor.len() as u32;
    let search = Search { trials: Some(12 + vendors), ..exhaustive() };
    (all, search)
}

fn pruned(trials: &[Trial]) -> Vec<&Candidate> {
    let by = |trial: &&Trial| matches!(&trial.state, TrialState::Pruned(removal) if removal.pruned_by == SPILLS);
    trials.iter().filter(by).map(|trial| &trial.candidate).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_spilled_is_not_compiled_for_the_next_matrix() {
    let (bench, gpu) = (Bench::new().await, gpu());
    let (all, search) = few(&gpu, &bench);
    let spilling = all[2].clone();
    let mut acts: BTreeMap<Candidate, Act> =
        all.iter().map(|c| (c.clone(), compiled(100.0, 0, Duration::ZERO))).collect();
    // Candidates that differ in the order of rows alone share a text.
    let kernel = |candidate: &Candidate| ops::of(&PROBLEM).kernel_identity(candidate, &gpu);
    for same in all.iter().filter(|it| kernel(it) == kernel(&spilling)) {
        acts.insert(same.clone(), compiled(200.0, 4096, Duration::ZERO));
    }
    let worker = bench.work(&bench.service, &gpu, acts).await;

    let first = bench.submit_for(PROBLEM, "cuda:0", search.clone()).await;
    let plan = bench.plan(&bench.ended(&first).await).await;
    let named = |plan: &Plan, name| plan.funnel.iter().find(|s| s.constraint == name).cloned();
    let step = |plan: &Plan| named(plan, SPILLS).unwrap();
    assert_ne!(plan.candidate, spilling);
    assert!(!pruned(&bench.trials(&first).await).contains(&&spilling));

    let second = bench.submit_for(PROBLEM, "cuda:0", search).await;
    let next = bench.plan(&bench.ended(&second).await).await;
    let trials = bench.trials(&second).await;
    assert!(pruned(&trials).contains(&&spilling));
    assert!(kernel(&spilling).is_some());
    let gone = trials.iter().filter(|t| kernel(&t.candidate) == kernel(&spilling));
    assert!(gone.clone().all(|trial| trial.state.outcome().is_none()), "one text, one verdict");
    let before = bench.trials(&first).await;
    let more = pruned(&trials).len() - pruned(&before).len();
    assert_eq!((step(&next).removed - step(&plan).removed) as usize, more);
    assert!(pruned(&trials).iter().filter(|c| kernel(c) == kernel(&spilling)).count() >= more);
    let detail = named(&next, REGISTERS).unwrap().detail.unwrap();
    assert!(detail.contains("judged by the compiler's own figures"), "{detail}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_won_here_stays_whatever_it_spills() {
    let (bench, gpu) = (Bench::new().await, gpu());
    let (all, search) = few(&gpu, &bench);
    let spilling = all[2].clone();
    let mut acts: BTreeMap<Candidate, Act> =
        all.iter().map(|c| (c.clone(), compiled(100.0, 0, Duration::ZERO))).collect();
    acts.insert(spilling.clone(), compiled(50.0, 4096, Duration::ZERO));
    let worker = bench.work(&bench.service, &gpu, acts).await;
    for _ in 0..2 {
        let job = bench.submit_for(PROBLEM, "cuda:0", search.clone()).await;
        let plan = bench.plan(&bench.ended(&job).await).await;
        assert_eq!(plan.candidate, spilling);
        assert!(!pruned(&bench.trials(&job).await).contains(&&spilling));
    }
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_taken_up_again_chooses_as_it_did() {
    let (bench, gpu) = (Bench::new().await, gpu());
    let (all, search) = few(&gpu, &bench);
    let acts: BTreeMap<Candidate, Act> =
        all.iter().map(|c| (c.clone(), compiled(100.0, 0, Duration::from_millis(30)))).collect();
    let worker = bench.work(&bench.service, &gpu, acts.clone()).await;
    let id = bench.submit_for(PROBLEM, "cuda:0", search).await;
    bench.when(&id, |_, tried| tried.len() >= 6).await;
    worker.stop().await;
    let before = bench.trials(&id).await;

    // Meanwhile another job learns that everything spills.
    let figures = KernelFigures { registers: 255, local_bytes: 4096 };
    let kernels = all.iter().filter_map(|c| ops::of(&PROBLEM).kernel_identity(c, &gpu));
    let figures: Vec<_> = kernels.map(|kernel| (kernel, figures)).collect();
    bench.service.store().record_kernel_figures(&gpu.class(), &figures).await.unwrap();

    let worker = bench.work(&bench.service, &gpu, acts).await;
    let job = bench.ended(&id).await;
    bench.plan(&job).await;
    assert_eq!(job.stopped_by, Some(StoppedBy::Trials));
    let tried = bench.tried(&id).await;
    let order: Vec<&Candidate> =
        tried.iter().map(|t| &t.candidate).filter(|c| c.family != "vendor").collect();
    assert_eq!(order, all.iter().take(12).collect::<Vec<_>>());
    assert_eq!(pruned(&bench.trials(&id).await), pruned(&before));
    worker.stop().await;
}
