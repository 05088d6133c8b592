//! Plans, devices, the quarantine, and what grows old.

use crate::Sqlite;
use crate::words::*;
use sparsetune::domain::plan::PlanKey;
use sparsetune::domain::{
    Candidate, DeviceClass, Digest, JobState, KernelFigures, L2Policy, Matrix, Plan, Timestamp,
};
use sparsetune::store::{NewJob, Quarantined, Retention, Store};

/// Runs one job to its end, with a plan made at `at`.
async fn tune(store: &dyn Store, matrix: &Matrix, at: i64) -> Plan {
    store.insert_matrix(matrix).await.unwrap();
    let mut new = new_job(matrix, &format!("{} {at}", matrix.digest), at);
    new.idempotency = Some((new.dedup_key.clone(), Digest::of(b"request")));
    store.submit(&new).await.unwrap();
    let claim = claim(store, "w", LEASE).await.unwrap();
    let plan = plan(matrix, &claim.job.id, at);
    let finish = ended(&claim.job, JobState::Succeeded, Some(plan.clone()));
    store.finish(&claim.fence, &finish).await.unwrap();
    plan
}

fn key(plan: &Plan) -> PlanKey {
    PlanKey {
        pattern_digest: plan.pattern_digest,
        problem: plan.problem,
        device_class: plan.device.class(),
        l2_policy: plan.l2_policy,
    }
}

pub async fn plan_and_end_are_one(harness: &Sqlite) {
    let store = harness.open().await;
    let plan = tune(&*store, &matrix("m", 1), 1).await;
    assert_eq!(store.plan(&plan.id).await.unwrap(), Some(plan.clone()));
    let job = store.job(&plan.provenance.job).await.unwrap().unwrap();
    assert_eq!((job.state, job.plan), (JobState::Succeeded, Some(plan.id)));
}

pub async fn the_newest_plan_of_a_key_wins(harness: &Sqlite) {
    let store = harness.open().await;
    let (a, b) = (matrix("a", 1), matrix("b", 1));
    let old = tune(&*store, &a, 1).await;
    let new = tune(&*store, &a, 2).await;
    let other = tune(&*store, &b, 3).await;
    let key = key(&new);
    assert_eq!(store.plan_by_key(&key).await.unwrap(), Some(new.clone()));
    assert_eq!(store.plan(&old.id).await.unwrap(), Some(old));
    assert_eq!(store.plan_keys(&a.pattern_digest).await.unwrap(), std::slice::from_ref(&key));
    assert_eq!(store.plan_keys(&a.digest).await.unwrap(), []);
    let (class, warm) = (&key.device_class, L2Policy::Warm);
    let near = store.plans_for(&key.problem, class, warm, 10).await.unwrap();
    assert_eq!(near, [(b, other.id), (a, new.id)]);
    assert_eq!(store.plans_for(&key.problem, class, warm, 1).await.unwrap().len(), 1);
    assert_eq!(store.plans_for(&key.problem, class, L2Policy::Cold, 9).await.unwrap(), []);
    let cold = PlanKey { l2_policy: L2Policy::Cold, ..key };
    assert_eq!(store.plan_by_key(&cold).await.unwrap(), None);
}

pub async fn plans_and_facts_outlive_the_matrix(harness: &Sqlite) {
    let store = harness.open().await;
    let matrix = matrix("m", 1);
    let plan = tune(&*store, &matrix, 1).await;
    assert!(store.delete_matrix(&matrix.digest).await.unwrap());
    assert_eq!(store.matrix(&matrix.digest).await.unwrap(), None);
    assert_eq!(store.plan_by_key(&key(&plan)).await.unwrap(), Some(plan));
    for digest in [matrix.digest, matrix.pattern_digest] {
        assert_eq!(store.facts(&digest).await.unwrap(), Some(matrix.clone()));
    }
    assert_eq!(store.facts(&Digest::of(b"?")).await.unwrap(), None);
}

pub async fn devices_and_quarantine_are_kept(harness: &Sqlite) {
    let store = harness.open().await;
    store.put_device("here", &device()).await.unwrap();
    store.put_device("there", &device()).await.unwrap();
    let newer = sparsetune::domain::Device { driver: "kernel 7".to_owned(), ..device() };
    store.put_device("here", &newer).await.unwrap();
    let known = store.devices().await.unwrap();
    let facts: Vec<_> = known.iter().map(|(owner, device, _)| (owner.as_str(), device)).collect();
    assert_eq!(facts, [("here", &newer), ("there", &device())]);
    let entry = Quarantined {
        class: device().class(),
        kernel_digest: Digest::of(b"text"),
        candidate: Candidate::new("row_split"),
        reason: "hung".to_owned(),
        at: Timestamp(1),
    };
    store.quarantine(&entry).await.unwrap();
    let later = Quarantined { reason: "again".to_owned(), ..entry.clone() };
    store.quarantine(&later).await.unwrap();
    assert_eq!(store.quarantined(Some(&entry.class)).await.unwrap(), [entry]);
}

pub async fn figures_are_learnt_once(harness: &Sqlite) {
    let store = harness.open().await;
    let class = device().class();
    let of = |registers| KernelFigures { registers, local_bytes: 8 };
    let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
    store.learn(&class, &[(a, of(40))]).await.unwrap();
    store.learn(&class, &[(a, of(99)), (b, of(255))]).await.unwrap();
    store.learn(&class, &[]).await.unwrap();
    let ever = Timestamp(i64::MAX);
    let known = store.learnt(&class, ever).await.unwrap();
    assert_eq!(known, [(a, of(40)), (b, of(255))].into());
    assert!(store.learnt(&class, Timestamp(1)).await.unwrap().is_empty());
    let other = DeviceClass("another".to_owned());
    assert!(store.learnt(&other, ever).await.unwrap().is_empty());
    // Bounded: what was told of last stays, however long ago it was learnt.
    const MOST: u32 = 16_384;
    let some = |range: std::ops::Range<u32>| -> Vec<_> {
        let figures = |i| KernelFigures { registers: i, local_bytes: 0 };
        range.map(|i| (Digest::of(&i.to_le_bytes()), figures(i))).collect()
    };
    let later = async || tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    store.learn(&other, &some(0..10)).await.unwrap();
    later().await;
    store.learn(&other, &some(10..MOST)).await.unwrap();
    later().await;
    store.learn(&other, &some(0..5)).await.unwrap();
    later().await;
    store.learn(&other, &some(MOST..MOST + 5)).await.unwrap();
    let kept = store.learnt(&other, ever).await.unwrap();
    let expected = some(0..5).into_iter().chain(some(10..MOST + 5)).collect();
    assert!(kept == expected, "{} are kept", kept.len());
    assert_eq!(store.learnt(&class, ever).await.unwrap().len(), 2);
}

pub async fn the_revision_grows_with_answers_alone(harness: &Sqlite) {
    let store = harness.open().await;
    let elsewhere = harness.open().await;
    let start = elsewhere.revision().await.unwrap();
    store.put_device("w", &device()).await.unwrap();
    let registered = elsewhere.revision().await.unwrap();
    assert!(registered > start);
    let other = matrix("other", 1);
    store.insert_matrix(&other).await.unwrap();
    let inserted = elsewhere.revision().await.unwrap();
    assert!(inserted > registered);
    assert!(store.delete_matrix(&other.digest).await.unwrap());
    let deleted = elsewhere.revision().await.unwrap();
    assert!(deleted > inserted);
    store.delete_matrix(&other.digest).await.unwrap();
    store.insert_matrix(&matrix("m", 1)).await.unwrap();
    let before = elsewhere.revision().await.unwrap();
    store.put_device("w", &device()).await.unwrap();
    queued(&*store).await;
    assert_eq!(elsewhere.revision().await.unwrap(), before, "nothing new");
    let (job, m) = (claim(&*store, "w", LEASE).await.unwrap(), matrix("m", 1));
    let plan = plan(&m, &job.job.id, 1);
    store.finish(&job.fence, &ended(&job.job, JobState::Succeeded, Some(plan))).await.unwrap();
    assert!(elsewhere.revision().await.unwrap() > before);
}

pub async fn old_things_are_pruned(harness: &Sqlite) {
    let store = harness.open().await;
    store.put_device("w", &device()).await.unwrap();
    let done = tune(&*store, &matrix("m", 1), 1).await.provenance.job;
    let live = created(store.submit(&new_job(&matrix("m", 1), "live", 2)).await.unwrap());
    let nothing = Timestamp(0);
    let none = Retention { idempotency_keys: nothing, events: nothing, devices: nothing };
    assert_eq!(store.prune(&none).await.unwrap(), Default::default());
    let now = Timestamp::now().plus_millis(1000);
    let all = Retention { idempotency_keys: now, events: now, devices: now };
    let pruned = store.prune(&all).await.unwrap();
    assert_eq!((pruned.idempotency_keys, pruned.events, pruned.devices), (1, 2, 1));
    let left = store.events(&done, 0, 10).await.unwrap();
    assert_eq!(left.iter().map(|event| event.seq).collect::<Vec<_>>(), [3]);
    assert_eq!(store.events(&live.id, 0, 10).await.unwrap().len(), 1);
    assert_eq!(store.prune(&all).await.unwrap(), Default::default());
    // The key is free again.
    let again = NewJob {
        idempotency: Some((format!("{} 1", matrix("m", 1).digest), Digest::of(b"other"))),
        ..new_job(&matrix("m", 1), "again", 3)
    };
    created(store.submit(&again).await.unwrap());
}
