//! Jobs of a class and of one device, workers of other versions, names of workers, and the clock by which devices are seen.

use crate::Harness;
use crate::words::*;
use sparsetune::domain::{
    Device, DeviceClass, DeviceId, DeviceKey, JobId, Matrix, Process, Serving, Work,
};
use sparsetune::store::{Claim, NewWork, Queue, Store};
use std::time::{Duration, Instant};

/// One of several devices of the class that tests have.
fn one_of(host: &str, uuid: Option<&str>) -> Queue {
    Queue::of(&Device { uuid: uuid.map(str::to_owned), ..device() }, host)
}

fn job_on(matrix: &Matrix, dedup: &str, only: Option<&str>, class: Option<DeviceClass>) -> NewWork {
    let mut new = new_job(matrix, dedup, 1);
    if let Work::Tune(job) = &mut new.work {
        job.device_class = class;
        job.only_on = only.map(|key| DeviceKey(key.to_owned()));
    }
    new
}

async fn taken(store: &dyn Store, queue: &Queue) -> Option<JobId> {
    let claim = store.claim(queue, "w", LEASE, u32::MAX).await.unwrap();
    claim.map(|Claim { work, .. }| work.id().clone())
}

pub async fn any_device_of_a_class_runs_its_jobs(harness: &Harness) {
    let store = harness.open().await;
    let matrix = matrix("m", 1);
    store.insert_matrix(&matrix).await.unwrap();
    let (here, there) = (one_of("here", Some("GPU-1")), one_of("there", Some("GPU-2")));
    let submit = async |new: NewWork| created(store.submit(&new).await.unwrap()).id;
    let class = Some(device().class());
    let alone = submit(job_on(&matrix, "alone", Some("GPU-2"), class.clone())).await;
    let (first, second) = (
        submit(job_on(&matrix, "first", None, class.clone())).await,
        submit(job_on(&matrix, "second", None, class)).await,
    );
    let other = Some(other_device().class());
    let elsewhere = submit(job_on(&matrix, "elsewhere", None, other)).await;
    // One of an earlier version waits for a name.
    let earlier = submit(job_on(&matrix, "earlier", None, None)).await;
    let mut of_here = vec![taken(&*store, &here).await.unwrap()];
    let mut of_there = vec![taken(&*store, &there).await.unwrap()];
    while let Some(job) = taken(&*store, &here).await {
        of_here.push(job);
    }
    while let Some(job) = taken(&*store, &there).await {
        of_there.push(job);
    }
    assert_eq!(of_there, [alone], "{of_here:?}");
    assert_eq!(of_here, [first.clone(), second, earlier]);
    let another =
        Queue::of(&Device { id: DeviceId("cuda:7".to_owned()), ..other_device() }, "there");
    assert_eq!(taken(&*store, &another).await, Some(elsewhere));

    // What a worker lost, another of the class goes on with, and sees where it was.
    let held = store.job(&first).await.unwrap().unwrap();
    assert_eq!((held.ran_on.clone(), held.device.0.as_str()), (None, "cpu"));
    harness
        .spoil("UPDATE jobs SET lease_until = 0, ran_on = 'GPU-1' WHERE dedup_key = 'first'")
        .await;
    let claim = store.claim(&there, "w", LEASE, u32::MAX).await.unwrap().unwrap();
    let Work::Tune(mut job) = claim.work else { panic!("a training") };
    assert_eq!((&job.id, job.attempts), (&first, 2));
    assert_eq!(job.ran_on, Some(DeviceKey("GPU-1".to_owned())));
    (job.ran_on, job.device) = (Some(DeviceKey("GPU-2".to_owned())), DeviceId("cuda:3".to_owned()));
    store.update(&claim.fence, &Work::Tune(job.clone())).await.unwrap();
    assert_eq!(store.job(&first).await.unwrap(), Some(*job));
}

pub async fn what_a_worker_does_not_understand_is_left(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = queued(&*store).await;
    harness.spoil("UPDATE jobs SET needs = 2, request = '{}'").await;
    assert_eq!(taken(&*store, &of_cpu()).await, None);
    let Queue::Device(mut serves) = of_cpu() else { panic!("trainings") };
    serves.understands = 2;
    // A later version understands what this one cannot read.
    assert_eq!(taken(&*store, &Queue::Device(serves)).await, None, "its row cannot be read");
    assert!(store.job(&job.id).await.is_err());
}

pub async fn a_name_is_one_process_at_a_time(harness: &Harness) {
    let store = harness.open().await;
    let process = |id: &str, place: &str| Process {
        name: "node".to_owned(),
        id: id.to_owned(),
        host: format!("host of {id}"),
        place: place.to_owned(),
        version: "1".to_owned(),
    };
    let (first, second) = (process("a", "1"), process("b", "2"));
    assert_eq!(store.keep_name(&first, 60_000).await.unwrap(), None);
    assert_eq!(store.keep_name(&first, 60_000).await.unwrap(), None, "it is its own");
    let holder = store.keep_name(&second, 60_000).await.unwrap().unwrap();
    assert_eq!(holder.host, "host of a");
    assert!((0..60_000).contains(&holder.silent_ms), "{holder:?}");
    // A lock of the host says that the former has ended.
    let again = process("c", "1");
    assert_eq!(store.keep_name(&again, 60_000).await.unwrap(), None);
    assert!(store.keep_name(&first, 60_000).await.unwrap().is_none(), "by the same lock");
    assert_eq!(store.keep_name(&again, 60_000).await.unwrap(), None);
    // What was not seen for so long is gone.
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(store.keep_name(&second, 20).await.unwrap(), None);
    store.leave_name(&again).await.unwrap();
    assert!(store.keep_name(&first, 60_000).await.unwrap().is_some(), "only its own is given back");
    store.leave_name(&second).await.unwrap();
    assert_eq!(store.keep_name(&first, 60_000).await.unwrap(), None);
}

/// However far the clock of a worker's host is off: it is the store's that is read.
pub async fn devices_are_seen_by_the_stores_clock(harness: &Harness) {
    let store = harness.open().await;
    let serving = Serving {
        host: "here".to_owned(),
        version: "1.2.3".to_owned(),
        restarts: 4,
        trouble: Some("hot".to_owned()),
        waiting: None,
        draining: true,
    };
    store.put_device("w", &device(), &serving).await.unwrap();
    let seen = store.devices().await.unwrap().remove(0);
    assert_eq!((seen.serving, seen.owner.as_str()), (serving, "w"));
    assert!((0..30_000).contains(&seen.age_ms), "{}", seen.age_ms);
    harness.spoil("UPDATE devices SET seen_at = seen_at - 100000, serving = NULL").await;
    let seen = store.devices().await.unwrap().remove(0);
    assert!((100_000..130_000).contains(&seen.age_ms), "{}", seen.age_ms);
    assert_eq!(seen.serving, Serving::default(), "of an earlier version");
}

/// All within the last hour, by the store's clock.
const ENDED: &str = "INSERT INTO jobs (id, matrix, device, version, request, dedup_key, state, stage, created_at, finished_at, last_seq, search_seconds, token)
    SELECT 'job' || i, x'0000000000000000000000000000000000000000000000000000000000000000', 'cpu', 1, '{}', 'key' || i, 'succeeded', 'done', i,
        now.at - i * 35, 3, 10, CASE WHEN i % 3 > 0 THEN 't' || (i % 5) END
    FROM (WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99999) SELECT i FROM n) n, (SELECT max(seen_at) AS at FROM devices) now";

/// What a trigger adds up where they end one by one.
const SEARCHED: &str = "INSERT INTO searched (turn, since, slot, seconds)
    SELECT turn, finished_at / 300000 * 300000, created_at % 4, sum(search_seconds) FROM jobs WHERE state = 'succeeded' GROUP BY 1, 2, 3
    UNION ALL
    SELECT namespace, finished_at / 300000 * 300000, created_at % 4, sum(search_seconds) FROM jobs WHERE state = 'succeeded' GROUP BY 1, 2, 3";

/// Ten thousand jobs that wait and a hundred thousand that have ended within the hour cost a claim some milliseconds. Reading them took half a
/// second.
pub async fn a_claim_reads_neither_the_queue_nor_history(harness: &Harness) {
    let store = harness.open().await;
    let (_, _) = queued(&*store).await;
    store.put_device("w", &device(), &Serving::default()).await.unwrap();
    harness.spoil(ENDED).await;
    harness.spoil(SEARCHED).await;
    harness
        .spoil(
            "INSERT INTO jobs (id, matrix, device, device_class, version, request, dedup_key, state, stage, created_at, last_seq, token, priority)
             SELECT 'wait' || n.i, first.matrix, 'cpu', first.device_class, 1, first.request, 'wait' || n.i, 'queued', 'waiting', n.i, 1,
                 CASE WHEN n.i % 3 > 0 THEN 't' || (n.i % 5) END, n.i % 2
             FROM (WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) SELECT i FROM n) n,
                 (SELECT matrix, request, device_class FROM jobs WHERE dedup_key = 'same') first",
        )
        .await;
    let mut times = Vec::new();
    for _ in 0..21 {
        let began = Instant::now();
        assert!(taken(&*store, &of_cpu()).await.is_some());
        times.push(began.elapsed());
    }
    times.sort_unstable();
    eprintln!("a claim takes {:?} at the median, {:?} at most", times[10], times[20]);
    assert!(times[10] < Duration::from_millis(60), "{times:?}");
}
