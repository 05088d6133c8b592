//! Jobs that are cancelled, stolen and given back: what is recorded stays, and nothing is written or run twice.

use crate::bench::*;
use crate::claimed::Claimed;
use sparsetune::domain::*;
use sparsetune::engine::replay::{Act, Step};
use sparsetune::store::{
    Claim, Jobs, PageRequest, Queue, SqliteOptions, SqliteStore, StoreError, TrialQuery, Trials,
    Upkeep as _,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// All candidates of the device, each with the same pause before its answer.
fn unhurried(bench: &Bench, latency: Duration) -> BTreeMap<Candidate, Act> {
    let all = bench.candidates(&device());
    let times = (0..).map(|i| takes_and_waits(100.0 + f64::from(i), latency));
    let mut acts: BTreeMap<Candidate, Act> = all.into_iter().zip(times).collect();
    acts.insert(vendor(), takes_and_waits(150.0, latency));
    acts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_cancelled_in_the_midst_of_a_hang() {
    let bench = Bench::new().await;
    let mut acts = unhurried(&bench, Duration::ZERO);
    let hanging = bench.candidates(&device())[1].clone();
    acts.insert(hanging.clone(), Act::Hang { during: Step::Verify });
    let worker = bench.work(&bench.service, &device(), acts).await;
    let id = bench.submit(exhaustive()).await;
    bench.when(&id, |_, _| bench.measured().contains(&hanging)).await;
    tokio::time::sleep(Duration::from_millis(100)).await;

    let asked = Instant::now();
    assert_eq!(bench.service.cancel(&id).await.unwrap().state(), JobState::Running);
    let job = bench.ended(&id).await;
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!((job.state, job.stopped_by), (JobState::Cancelled, Some(StoppedBy::Cancelled)));
    assert_eq!(job.plan, None);
    let tried = bench.tried(&id).await;
    assert_eq!(tried.len(), 2, "what came before the hang stays, and the hang is not on record");
    assert_eq!(bench.service.devices().await.unwrap()[0].quarantined, 0);
    bench.events(&id).await;

    // The worker lives and takes the next job.
    let id = bench.submit(Search { trials: Some(2), ..exhaustive() }).await;
    bench.plan(&bench.ended(&id).await).await;
    worker.stop().await;
}

/// What the thief saw when it had the job: everything that had been written up to then.
struct Stolen {
    claim: Claimed,
    trials: Vec<Trial>,
    events: Vec<Event>,
}

/// Claims the job as another process would, as soon as its lease has run out. `None` where the store stays busy: the worker was held up in
/// the midst of a write, which it cannot end while it waits for the thief.
fn steal(file: &std::path::Path, device: &Device) -> Option<Stolen> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let briefly = Duration::from_secs(1);
        let options = SqliteOptions { busy_timeout: briefly, ..SqliteOptions::default() };
        let store = match SqliteStore::open_with(file, options).await {
            Ok(store) => store,
            Err(StoreError::Busy(_)) => return None,
            Err(error) => panic!("{error}"),
        };
        let queue = Queue::of(device, crate::claimed::HOST);
        let begun = Instant::now();
        let claim = loop {
            match store.claim(&queue, "thief", 60_000, u32::MAX).await {
                Ok(Some(Claim { work: Work::Tune(job), fence, .. })) => {
                    break Claimed { job: *job, fence };
                }
                Ok(_) => assert!(begun.elapsed() < LONG, "the lease does not run out"),
                Err(StoreError::Busy(_)) if begun.elapsed() < Duration::from_secs(3) => {}
                Err(StoreError::Busy(_)) => {
                    store.close().await;
                    return None;
                }
                Err(error) => panic!("{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let trials =
            store.trials(&claim.job.id, &TrialQuery::All, &PageRequest::ALL).await.unwrap().items;
        let events = store.events(&claim.job.id, 0, 10_000).await.unwrap();
        store.close().await;
        Some(Stolen { claim, trials, events })
    })
}

/// On one thread, so that waiting for the thief holds up the worker, its lease and all. Where that held it up in a write, all begins again
/// with another store.
#[tokio::test]
async fn a_worker_that_lost_its_lease_writes_nothing_more() {
    for _ in 0..5 {
        if loses_its_lease_and_writes_nothing_more().await {
            return;
        }
    }
    panic!("the worker was in the midst of a write each time");
}

/// Whether the thief could steal the job.
async fn loses_its_lease_and_writes_nothing_more() -> bool {
    let bench = Bench::with(|settings| settings.lease_ms = 300).await;
    let acts = unhurried(&bench, Duration::from_millis(60));
    let worker = bench.work(&bench.service, &device(), acts).await;
    let id = bench.submit(exhaustive()).await;
    bench.when(&id, |_, tried| tried.len() >= 3).await;

    let (file, name) = (bench.store_file(), device());
    let Some(stolen) = std::thread::spawn(move || steal(&file, &name)).join().unwrap() else {
        worker.stop().await;
        return false;
    };
    assert_eq!(stolen.claim.job.id, id);
    assert_eq!(stolen.claim.job.attempts, 2);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.trials(&id).await, stolen.trials);
    let store = bench.service.store();
    assert_eq!(store.events(&id, 0, 10_000).await.unwrap(), stolen.events);
    assert_eq!(bench.service.job(&id).await.unwrap(), stolen.claim.job);

    // Given back by the thief, the worker takes it up like any other.
    store.release(&stolen.claim.fence).await.unwrap();
    let job = bench.ended(&id).await;
    bench.plan(&job).await;
    assert_eq!(job.attempts, 2, "what was given back does not count");
    let told = bench.events(&id).await;
    let funnels = told.iter().filter(|event| matches!(event.kind, EventKind::Funnel { .. }));
    assert!(funnels.count() >= 2, "told again by who took it up");
    let trials = bench.trials(&id).await;
    assert_eq!(trials[..stolen.trials.len()], stolen.trials);
    assert!(distinct(trials.iter().map(|trial| &trial.candidate)));
    let tried = bench.tried(&id).await;
    assert_eq!(tried.len(), bench.candidates(&device()).len() + 1);
    // At most the one under way at the theft was run again.
    assert!(bench.measured().len() <= tried.len() + 1);
    bench.events(&id).await;
    worker.stop().await;
    true
}

/// The second worker's device copies faster, so its model ranks otherwise: the choice of the first must stand.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_given_back_goes_on_where_it_was() {
    let bench = Bench::new().await;
    let search = Search { top_k: Some(10), ..Search::default() };
    let faster = Device { copy_gbps: 400.0, ..device() };
    let best = |device| {
        let mut best = bench.candidates(device)[..10].to_vec();
        best.sort();
        best
    };
    assert_ne!(best(&device()), best(&faster), "or this test shows nothing");
    let acts = unhurried(&bench, Duration::from_millis(60));
    let first = bench.work(&bench.service, &device(), acts.clone()).await;
    let id = bench.submit(search).await;
    bench.when(&id, |_, tried| tried.len() >= 4).await;
    let asked = Instant::now();
    first.stop().await;
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    let given_back = bench.service.job(&id).await.unwrap();
    assert_eq!((given_back.state, given_back.stage), (JobState::Queued, Stage::Waiting));
    assert_eq!((given_back.attempts, given_back.finished_at), (0, None));
    let before = bench.trials(&id).await;
    let tried = bench.tried(&id).await.len();
    assert!((4..11).contains(&tried), "{tried}");

    let elsewhere = bench.elsewhere().await;
    let second = bench.work(&elsewhere, &faster, acts).await;
    let job = bench.ended(&id).await;
    let plan = bench.plan(&job).await;
    assert_eq!((job.attempts, job.stopped_by), (1, Some(StoppedBy::Completed)));
    let after = bench.trials(&id).await;
    assert_eq!(after[..before.len()], before, "recorded trials stay as they are");
    assert!(distinct(after.iter().map(|trial| &trial.candidate)));
    let tried = bench.tried(&id).await;
    assert_eq!(tried.len(), 11, "ten ranked ones and the vendor's");
    let measured = bench.measured();
    assert!(distinct(&measured), "a candidate was measured twice");
    assert_eq!(measured.len(), tried.len(), "every measurement is on record");
    assert_eq!((job.progress.done, job.progress.total), (11, 11));
    assert_eq!(plan.trials.measured, 11);
    let rank = plan.funnel.last().unwrap();
    assert_eq!((&*rank.constraint, rank.left), ("rank", 10));
    bench.events(&id).await;
    second.stop().await;
}
