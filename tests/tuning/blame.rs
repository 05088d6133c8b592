//! Whom a death is blamed on: not a candidate that was running when somebody else killed the evaluator, never the vendor, and
//! nobody for longer than until it is lifted.

use crate::bench::*;
use crate::outcomes::{Scene, state_of};
use sparsetune::domain::*;
use sparsetune::engine::replay::{Act, Step};
use sparsetune::store::PageRequest;
use std::collections::BTreeMap;
use std::time::Duration;

fn logged(events: &[Event], part: &str) -> bool {
    let says =
        |event: &Event| matches!(&event.kind, EventKind::Log { message } if message.contains(part));
    events.iter().any(says)
}

/// An operator, or the kernel for want of memory, kills the evaluator while a candidate runs: nobody is to blame.
#[tokio::test(flavor = "multi_thread")]
async fn one_stray_kill_quarantines_nobody() {
    let bench = Bench::new().await;
    let all = bench.candidates(&device());
    let slow = Act::Measured {
        samples_us: vec![50.0; 5],
        alone_us: None,
        rel_error: 1e-8,
        resources: None,
        prepare_ms: None,
        latency_ms: 3_000,
    };
    let mut acts: BTreeMap<Candidate, Act> =
        all.iter().map(|candidate| (candidate.clone(), takes(100.0))).collect();
    acts.insert(vendor(), slow);
    let worker = bench.work(&bench.service, &device(), acts).await;
    let id = bench.submit(Search { top_k: Some(2), ..Search::default() }).await;
    // The vendor's routine is first.
    let started = std::time::Instant::now();
    while bench.measured().is_empty() {
        assert!(started.elapsed() < LONG);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    kill_evaluator(&bench);
    let plan = bench.plan(&bench.ended(&id).await).await;
    assert_eq!((&plan.candidate, plan.no_baseline.as_deref()), (&vendor(), None));
    assert_eq!(plan.trials.failed, BTreeMap::new());
    assert_eq!(bench.service.devices().await.unwrap()[0].quarantined, 0);
    let events = bench.events(&id).await;
    assert!(logged(&events, "SIGKILL") && logged(&events, "measure is asked again"));
    worker.stop().await;
}

/// Sends SIGKILL to the evaluator of this bench.
fn kill_evaluator(bench: &Bench) {
    let named = bench.folder.path().to_str().unwrap();
    let me = std::process::id().to_string();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let of = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let stat = of("stat");
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
        if parent == Some(&me) && of("cmdline").contains(named) {
            // SAFETY: a plain call, on a child of this process.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        }
    }
}

/// Each plan is compared with the vendor's routine, so it is tried by every search, and a plan that has to do without says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_vendors_routine_that_crashes_is_told_and_not_quarantined() {
    let bench = Bench::new().await;
    let all = bench.candidates(&device());
    let mut acts: BTreeMap<Candidate, Act> =
        all.iter().map(|candidate| (candidate.clone(), takes(100.0))).collect();
    acts.insert(vendor(), Act::Die { during: Step::Time });
    let worker = bench.work(&bench.service, &device(), acts).await;
    for _ in 0..2 {
        let id = bench.submit(Search { top_k: Some(1), ..Search::default() }).await;
        let plan = bench.plan(&bench.ended(&id).await).await;
        assert_eq!(state_of(&bench.tried(&id).await, &vendor()).0, "crashed");
        let why = plan.no_baseline.unwrap();
        assert!(why.contains("mkl_mm crashed") && why.contains("SIGABRT"), "{why}");
        assert!(logged(&bench.events(&id).await, "not quarantined"));
    }
    assert_eq!(bench.service.devices().await.unwrap()[0].quarantined, 0);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lifted_is_tried_again() {
    let bench = Bench::new().await;
    let scene = Scene::of(&bench);
    let dies = scene.all[0].clone();
    let mut acts = scene.acts();
    acts.insert(dies.clone(), Act::Die { during: Step::Time });
    let few = Search { trials: Some(2), ..exhaustive() };
    let worker = bench.work(&bench.service, &device(), acts).await;
    for state in ["crashed", "refused", "crashed"] {
        let id = bench.submit(few.clone()).await;
        bench.ended(&id).await;
        assert_eq!(state_of(&bench.tried(&id).await, &dies).0, state);
        if state == "refused" {
            let entries = bench.service.quarantine(None, &PageRequest::ALL).await.unwrap().items;
            let [entry] = entries.as_slice() else { panic!("{entries:?}") };
            assert_eq!(bench.service.lift_quarantine(&entry.id()).await.unwrap(), *entry);
            assert!(bench.service.lift_quarantine(&entry.id()).await.is_err());
        }
    }
    worker.stop().await;
}

/// What is damaged is neither measured nor graded: the job says what to do, and nothing of where the store is.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_for_a_damaged_matrix_says_to_upload_it_again() {
    let bench = Bench::new().await;
    let name = bench.matrix.digest.to_string();
    let file = bench.folder.path().join("blobs").join(&name[..2]).join(&name);
    let acts: Vec<_> = bench.candidates(&device()).into_iter().map(|c| (c, takes(100.0))).collect();
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let service = bench.elsewhere().await;
    let worker = bench.work(&service, &device(), acts).await;
    let job = bench.ended(&bench.submit(Search::default()).await).await;
    assert_eq!(job.state, JobState::Failed);
    let why = job.error.unwrap();
    assert!(why.contains("damaged") && why.contains("upload the matrix again"), "{why}");
    assert!(!why.contains('/'), "{why}");
    let log = std::fs::read_to_string(bench.log()).unwrap();
    assert!(!log.contains("\"measure\""), "{log}");
    worker.stop().await;
}
