//! Routines of the vendor's that fail on a problem: each is left out with its reason, and the best of the others is the baseline.

use crate::bench::*;
use sparsetune::domain::*;
use sparsetune::engine::replay::{Act, Step};
use std::collections::BTreeMap;

const LIBRARY: &str = "cuSPARSE 12.9.4";

fn device() -> Device {
    Device { vendor: Some(LIBRARY.to_owned()), ..gpu() }
}

fn routine(algorithm: &str) -> Candidate {
    Candidate::new("vendor").with_text("algorithm", algorithm)
}

/// All own candidates at 100 us, cuSPARSE's three routines as told, and cuBLAS refused where it is tried.
fn acts(bench: &Bench, routines: [(&str, Act); 3]) -> BTreeMap<Candidate, Act> {
    let space = bench.space(&device());
    let own = space.scored.into_iter().map(|(candidate, _)| (candidate, takes(100.0)));
    let refused = |detail: &str| Act::Refused { detail: detail.to_owned() };
    let vendor = space.vendor.into_iter().map(|candidate| (candidate, refused("no room")));
    let told = routines.map(|(algorithm, act)| (routine(algorithm), act));
    own.chain(vendor).chain(told).collect()
}

fn few() -> Search {
    Search { top_k: Some(2), ..Search::default() }
}

/// The state of the routine's trial, and all that is stored of it.
fn outcome(tried: &[Trial], algorithm: &str) -> (&'static str, String) {
    let trial = tried.iter().find(|trial| trial.candidate == routine(algorithm)).unwrap();
    (trial.state.name(), format!("{:?}", trial.state))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_routine_that_fails_is_left_out_with_its_reason() {
    let bench = Bench::new().await;
    let unsupported = "cusparseSpMM_bufferSize: not supported";
    let routines = [
        ("csr_alg2", Act::Refused { detail: unsupported.to_owned() }),
        ("csr_alg3", Act::Wrong { rel_error: Some(0.5), unwritten: 0 }),
        ("csr_alg1", takes(130.0)),
    ];
    let worker = bench.work(&bench.service, &device(), acts(&bench, routines)).await;
    let id = bench.submit(few()).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    let baseline = plan.baseline.as_ref().unwrap();
    let named = (&*baseline.name, &*baseline.version, &*baseline.algorithm, baseline.median_us);
    assert_eq!(named, ("cuSPARSE", "12.9.4", "csr_alg1", 130.0));
    assert_eq!(plan.speedup, Some(1.3));
    let tried = bench.tried(&id).await;
    let (state, stored) = outcome(&tried, "csr_alg2");
    assert!(state == "refused" && stored.contains(unsupported), "{stored}");
    let (state, stored) = outcome(&tried, "csr_alg3");
    assert!(state == "wrong" && stored.contains("0.5"), "{stored}");
    worker.stop().await;
}

/// The first routine kills the evaluator; the others follow in the next one.
#[tokio::test(flavor = "multi_thread")]
async fn neither_a_crash_nor_the_want_of_any_routine_fails_the_job() {
    let refused = || Act::Refused { detail: "cusparseSpMM: allocation failed".to_owned() };
    let bench = Bench::new().await;
    let routines = [
        ("csr_alg2", Act::Die { during: Step::Verify }),
        ("csr_alg3", takes(120.0)),
        ("csr_alg1", refused()),
    ];
    let worker = bench.work(&bench.service, &device(), acts(&bench, routines)).await;
    let id = bench.submit(few()).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    assert_eq!(plan.baseline.map(|baseline| baseline.algorithm).as_deref(), Some("csr_alg3"));
    let tried = bench.tried(&id).await;
    assert_eq!(outcome(&tried, "csr_alg2").0, "crashed");
    worker.stop().await;

    let bench = Bench::new().await;
    let routines = ["csr_alg2", "csr_alg3", "csr_alg1"].map(|algorithm| (algorithm, refused()));
    let worker = bench.work(&bench.service, &device(), acts(&bench, routines)).await;
    let id = bench.submit(few()).await;
    let plan = bench.plan(&bench.ended(&id).await).await;
    assert_eq!((&plan.baseline, plan.speedup), (&None, None));
    assert!(plan.median_us().is_some() && plan.candidate.family != "vendor");
    worker.stop().await;
}
