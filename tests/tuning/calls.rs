//! Expected calls: the plan minimises preprocessing and all calls together, and says for how many it was chosen.

use crate::bench::*;
use sparsetune::domain::*;
use sparsetune::engine::replay::Act;
use sparsetune::ops::Kernels;
use sparsetune::service::LookupQuery;
use std::collections::BTreeMap;

const GPU_KERNELS: Kernels = Kernels { op: Op::Spmm, device: DeviceKind::Cuda };

fn prepared(us: f64, ms: f64) -> Act {
    match takes(us) {
        Act::Measured { samples_us, alone_us, rel_error, resources, latency_ms, .. } => {
            Act::Measured {
                samples_us,
                alone_us,
                rel_error,
                resources,
                prepare_ms: Some(ms),
                latency_ms,
            }
        }
        other => other,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_and_a_million_have_plans_of_their_own() {
    let (bench, gpu) = (Bench::new().await, gpu());
    let all = bench.candidates(&gpu);
    // Everything else is packed, slow or both; the bare one is no finalist by its time.
    let mut acts: BTreeMap<Candidate, Act> =
        all.iter().map(|c| (c.clone(), prepared(12.0, 60.0))).collect();
    let bare = all
        .iter()
        .rev()
        .find(|c| c.family == "row_split" && c.text("order") == Some("natural"))
        .unwrap();
    let packed = all.iter().find(|c| c.family == "row_panel").unwrap();
    acts.insert(bare.clone(), prepared(40.0, 0.0));
    acts.insert(packed.clone(), prepared(10.0, 50.0));
    let worker = bench.work(&bench.service, &gpu, acts).await;

    let tune = async |expected_calls: Option<u64>| {
        let request = JobRequest {
            matrix: bench.matrix.digest,
            problem: PROBLEM,
            device: "cuda:0".to_owned(),
            search: exhaustive(),
            expected_calls,
        };
        let submitted = bench.service.submit(&request, None).await.unwrap();
        let plan = bench.plan(&bench.ended(&submitted.job.id).await).await;
        assert_eq!(plan.expected_calls, expected_calls);
        plan
    };
    let once = tune(Some(1)).await;
    assert_eq!((&once.candidate, once.preprocess_ms.unwrap() < 1.0), (bare, true));
    let query = LookupQuery {
        matrix: bench.matrix.digest,
        problem: PROBLEM,
        device: Some("cuda:0".to_owned()),
        l2_policy: None,
        neighbour: false,
        predicted: true,
    };
    let found = bench.service.lookup(&query).await.unwrap();
    assert_eq!((found.grade, found.plan.map(|p| p.id)), (Grade::Exact, Some(once.id)));
    assert!(
        found.reasons.iter().any(|why| why.contains("chosen for 1 calls")),
        "{:?}",
        found.reasons
    );

    let often = tune(Some(1_000_000)).await;
    assert_eq!((&often.candidate, often.preprocess_ms.unwrap() >= 50.0), (packed, true));
    let always = tune(None).await;
    assert_eq!(&always.candidate, packed);
    let found = bench.service.lookup(&query).await.unwrap();
    assert_eq!((found.plan.map(|p| p.id), found.reasons), (Some(always.id), vec![]));

    let error = always.model_error.unwrap();
    assert_eq!((error.trials as usize, &*error.model), (all.len(), bench.space(&gpu).model));
    assert!(error.median_ratio > 0.0 && error.spread >= 1.0);
    worker.stop().await;
}

/// A ranked job whose model likes none of them: what needs no preprocessing is measured beside the best predicted, and
/// does not take its only place.
#[tokio::test(flavor = "multi_thread")]
async fn what_needs_no_preprocessing_is_ranked_in() {
    let (bench, gpu) = (Bench::new().await, gpu());
    let acts = bench.candidates(&gpu).into_iter().map(|c| (c, takes(100.0)));
    let worker = bench.work(&bench.service, &gpu, acts).await;
    let scored = bench.space(&gpu).scored;
    let (best, _) = scored.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    assert!(!GPU_KERNELS.needs_no_preparation(best), "{best}");
    for (top_k, expected_calls) in [(1, 3), (1, 1000), (4, 3), (4, 1000)] {
        let request = JobRequest {
            matrix: bench.matrix.digest,
            problem: PROBLEM,
            device: "cuda:0".to_owned(),
            search: Search { top_k: Some(top_k), ..Search::default() },
            expected_calls: Some(expected_calls),
        };
        let submitted = bench.service.submit(&request, None).await.unwrap();
        bench.plan(&bench.ended(&submitted.job.id).await).await;
        let tried = bench.tried(&submitted.job.id).await;
        let own: Vec<_> =
            tried.iter().map(|t| &t.candidate).filter(|c| c.family != "vendor").collect();
        assert_eq!((own.len(), own.contains(&best)), (top_k as usize, true), "{own:?}");
        assert_eq!(own.iter().any(|c| GPU_KERNELS.needs_no_preparation(c)), top_k > 1, "{own:?}");
    }
    worker.stop().await;
}
