//! Plans, devices, the quarantine, and what grows old.

use crate::Harness;
use crate::words::*;
use sparsetune::domain::Serving;
use sparsetune::domain::plan::{ModelError, PlanKey};
use sparsetune::domain::{
    Caller, Candidate, DeviceClass, Digest, Dtype, JobState, KernelFigures, L2Policy, Layout,
    Matrix, Plan, Problem, QuarantineScope, Spmm, Timestamp,
};
use sparsetune::store::{NewWork, PageRequest, Quarantined, Retention, Store};
use std::sync::Arc;

/// Runs one job to its end, with a plan made at `at`.
pub async fn tune(store: &dyn Store, matrix: &Matrix, at: i64) -> Plan {
    tune_to(store, matrix, at, |plan| plan).await
}

async fn tune_to(
    store: &dyn Store,
    matrix: &Matrix,
    at: i64,
    change: impl FnOnce(Plan) -> Plan,
) -> Plan {
    store.insert_matrix(matrix).await.unwrap();
    let mut new = new_job(matrix, "", at);
    new.dedup_key.clone_from(&new.work.id().0);
    new.idempotency = Some((new.dedup_key.clone(), Digest::of(b"request")));
    store.submit(&new).await.unwrap();
    let claim = claim(store, "w", LEASE).await.unwrap();
    let plan = change(plan(matrix, &claim.job.id, at));
    let finish = ended(&claim.job, JobState::Succeeded, Some(plan.clone()));
    store.finish(&claim.fence, &finish).await.unwrap();
    plan
}

pub fn key(plan: &Plan) -> PlanKey {
    PlanKey {
        pattern_digest: plan.pattern_digest,
        problem: plan.problem,
        device_class: plan.device.class(),
        l2_policy: plan.l2_policy,
    }
}

pub async fn plan_and_end_are_one(harness: &Harness) {
    let store = harness.open().await;
    let plan = tune(&*store, &matrix("m", 1), 1).await;
    assert_eq!(store.plan(&plan.id).await.unwrap(), Some(plan.clone()));
    let job = store.job(plan.provenance.job.as_ref().unwrap()).await.unwrap().unwrap();
    assert_eq!((job.state, job.plan), (JobState::Succeeded, Some(plan.id)));
}

pub async fn the_newest_plan_of_a_key_wins(harness: &Harness) {
    let store = harness.open().await;
    let (a, b) = (matrix("a", 1), matrix("b", 1));
    let old = tune(&*store, &a, 1).await;
    let new = tune(&*store, &a, 2).await;
    let other = tune(&*store, &b, 3).await;
    let key = key(&new);
    assert_eq!(answer(&*store, &key).await, Some(new.clone()));
    assert_eq!(store.plan(&old.id).await.unwrap(), Some(old));
    assert_eq!(store.plan_keys(&a.pattern_digest).await.unwrap(), std::slice::from_ref(&key));
    assert_eq!(store.plan_keys(&a.digest).await.unwrap(), []);
    let (class, warm) = (&key.device_class, L2Policy::Warm);
    let near = store.plans_for(&key.problem, class, warm, 10).await.unwrap();
    assert_eq!(near, [(b, other.id), (a, new.id)]);
    assert_eq!(store.plans_for(&key.problem, class, warm, 1).await.unwrap().len(), 1);
    assert_eq!(store.plans_for(&key.problem, class, L2Policy::Cold, 9).await.unwrap(), []);
    let cold = PlanKey { l2_policy: L2Policy::Cold, ..key };
    assert_eq!(answer(&*store, &cold).await, None);
}

pub async fn matrices_and_classes_have_the_figures_of_their_plans(harness: &Harness) {
    let store = harness.open().await;
    let (a, b, without) = (matrix("a", 1), matrix("b", 1), matrix("c", 1));
    let faster = |speedup: Option<f64>| move |plan: Plan| Plan { speedup, ..plan };
    tune_to(&*store, &a, 1, faster(Some(1.5))).await;
    tune_to(&*store, &a, 2, faster(Some(2.5))).await;
    let newest = tune_to(&*store, &b, 3, faster(None)).await;
    store.insert_matrix(&without).await.unwrap();
    let asked = [a.digest, b.digest, without.digest];
    let tallies = store.plan_tallies(&asked).await.unwrap();
    let tally = |matrix: &Matrix| tallies.get(&matrix.digest).map(|t| (t.plans, t.speedup));
    assert_eq!(
        (tally(&a), tally(&b), tally(&without)),
        (Some((2, Some(2.5))), Some((1, None)), None)
    );
    assert!(store.plan_tallies(&[]).await.unwrap().is_empty());
    let (all, figures) = store.plan_figures(2).await.unwrap();
    assert_eq!((all, figures.len()), (3, 2));
    assert_eq!((&figures[0].class, figures[0].speedup), (&newest.device.class(), None));
    assert_eq!(figures[0].fraction, Some(newest.limit.fraction));
    assert_eq!(figures[1].speedup, Some(2.5));
}

pub async fn plans_and_facts_outlive_the_matrix(harness: &Harness) {
    let store = harness.open().await;
    let matrix = matrix("m", 1);
    let plan = tune(&*store, &matrix, 1).await;
    assert!(store.delete_matrix(&matrix.digest).await.unwrap());
    assert_eq!(store.matrix(&matrix.digest).await.unwrap(), None);
    assert_eq!(answer(&*store, &key(&plan)).await, Some(plan));
    for digest in [matrix.digest, matrix.pattern_digest] {
        assert_eq!(store.known_matrix(&digest).await.unwrap(), Some(matrix.clone()));
    }
    assert_eq!(store.known_matrix(&Digest::of(b"?")).await.unwrap(), None);
}

pub async fn a_pattern_lists_the_newest_plan_of_each_key(harness: &Harness) {
    let store = harness.open().await;
    let (a, b) = (matrix("a", 1), matrix("b", 1));
    let width = |n| {
        move |plan| Plan { problem: Problem::Spmm(Spmm::new(n, Dtype::F32, Layout::Row)), ..plan }
    };
    let cold = |plan| Plan { l2_policy: L2Policy::Cold, ..plan };
    tune(&*store, &a, 1).await;
    let wide = tune_to(&*store, &a, 2, width(64)).await;
    let cold = tune_to(&*store, &a, 3, cold).await;
    tune_to(&*store, &a, 4, width(8)).await;
    // The same moment: the id decides, and the later one is the greater.
    let narrow = tune_to(&*store, &a, 4, width(8)).await;
    let newest = tune(&*store, &a, 5).await;
    tune(&*store, &b, 6).await;
    let all = store.plans(&PlanQuery::NewestOfPattern(a.pattern_digest), &page(10)).await.unwrap();
    let expected = [newest, narrow, cold, wide];
    assert_eq!((all.items.as_slice(), all.next), (&expected[..], None));
    let mut page = page(1);
    for plan in &expected {
        let part = store.plans(&PlanQuery::NewestOfPattern(a.pattern_digest), &page).await.unwrap();
        assert_eq!(part.items, std::slice::from_ref(plan));
        page = PageRequest { after: part.next, limit: 1 };
    }
    assert_eq!(page.after, None);
    assert_eq!(store.plans(&PlanQuery::NewestOfPattern(a.digest), &page).await.unwrap().items, []);
}

pub async fn names_are_told_of_what_is_and_was(harness: &Harness) {
    let store = harness.open().await;
    let (kept, gone) = (matrix("kept", 1), matrix("<gone>", 1));
    let unnamed = Matrix { name: None, ..matrix("unnamed", 1) };
    for matrix in [&kept, &unnamed] {
        store.insert_matrix(matrix).await.unwrap();
    }
    tune(&*store, &gone, 2).await;
    store.delete_matrix(&gone.digest).await.unwrap();
    let asked = [kept.digest, gone.digest, unnamed.digest, Digest::of(b"?"), kept.digest];
    let names = store.matrix_names(&asked).await.unwrap();
    let expected = [(kept.digest, "kept".to_owned()), (gone.digest, "<gone>".to_owned())].into();
    assert_eq!(names, expected);
    assert!(store.matrix_names(&[]).await.unwrap().is_empty());
}

pub async fn models_are_judged_by_their_plans(harness: &Harness) {
    let store = harness.open().await;
    assert_eq!(store.model_quality().await.unwrap(), []);
    let matrix = matrix("m", 1);
    let judged = |model: &str, trials, median_ratio, spread, rank_correlation| {
        let model = model.to_owned();
        move |plan| Plan {
            model_error: Some(ModelError { model, trials, median_ratio, spread, rank_correlation }),
            ..plan
        }
    };
    tune_to(&*store, &matrix, 1, judged("old", 4, 2.0, 1.0, None)).await;
    tune_to(&*store, &matrix, 2, judged("new", 30, 4.0, 1.0, Some(0.5))).await;
    tune_to(&*store, &matrix, 3, judged("new", 10, 1.0, 1.0, None)).await;
    tune_to(&*store, &matrix, 4, judged("old", 4, 0.5, 1.0, None)).await;
    // Neither says anything.
    tune_to(&*store, &matrix, 5, |plan| Plan { model_error: None, ..plan }).await;
    tune_to(&*store, &matrix, 6, judged("untried", 0, 1.0, 1.0, None)).await;
    let models = store.model_quality().await.unwrap();
    let [old, new] = models.as_slice() else { panic!("{models:#?}") };
    assert_eq!((old.model.as_str(), new.model.as_str()), ("old", "new"), "the one in use first");
    assert_eq!((old.op.as_str(), &old.device_class), ("spmm", &device().class()));
    assert_eq!((new.plans, new.trials, new.rank_correlation), (2, 40, Some(0.5)));
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
    near(new.median_ratio, 4f64.powf(0.75));
    near(new.spread, 1.0);
    near(old.median_ratio, 1.0);
    assert_eq!(old.rank_correlation, None);
}

pub async fn devices_and_quarantine_are_kept(harness: &Harness) {
    let store = harness.open().await;
    store.put_device("here", &device(), &Serving::default()).await.unwrap();
    store.put_device("there", &device(), &Serving::default()).await.unwrap();
    let newer = sparsetune::domain::Device { driver: "kernel 7".to_owned(), ..device() };
    store.put_device("here", &newer, &Serving::default()).await.unwrap();
    let known = store.devices().await.unwrap();
    let facts: Vec<_> = known.iter().map(|seen| (seen.owner.as_str(), &seen.device)).collect();
    assert_eq!(facts, [("here", &newer), ("there", &device())]);
    let entry = Quarantined {
        class: device().class(),
        kernel_digest: Digest::of(b"text"),
        candidate: Candidate::new("row_split"),
        scope: QuarantineScope::Pattern,
        reason: "hung".to_owned(),
        at: Timestamp(1),
    };
    let pattern = Digest::of(b"pattern");
    store.quarantine(&entry, &pattern).await.unwrap();
    let later = Quarantined { reason: "again".to_owned(), ..entry.clone() };
    store.quarantine(&later, &pattern).await.unwrap();
    let other = DeviceClass("another".to_owned());
    assert_eq!(store.quarantined(Some(&other), &page(9)).await.unwrap().items, []);
    let elsewhere = Quarantined { class: other.clone(), at: Timestamp(2), ..entry.clone() };
    store.quarantine(&elsewhere, &pattern).await.unwrap();
    let second = Quarantined { candidate: Candidate::new("ell"), ..elsewhere.clone() };
    store.quarantine(&Quarantined { at: Timestamp(3), ..second.clone() }, &pattern).await.unwrap();
    assert_eq!(
        store.quarantined(Some(&entry.class), &page(9)).await.unwrap().items,
        std::slice::from_ref(&entry)
    );
    let all = store.quarantined(None, &page(9)).await.unwrap();
    assert_eq!(all.items, [Quarantined { at: Timestamp(3), ..second }, elsewhere, entry]);
}

pub async fn figures_are_learnt_once(harness: &Harness) {
    let store = harness.open().await;
    let class = device().class();
    let of = |registers| KernelFigures { registers, local_bytes: 8 };
    let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
    store.record_kernel_figures(&class, &[(a, of(40))]).await.unwrap();
    store.record_kernel_figures(&class, &[(a, of(99)), (b, of(255))]).await.unwrap();
    store.record_kernel_figures(&class, &[]).await.unwrap();
    let ever = Timestamp(i64::MAX);
    let known = store.kernel_figures(&class, ever).await.unwrap();
    assert_eq!(known, [(a, of(40)), (b, of(255))].into());
    assert!(store.kernel_figures(&class, Timestamp(1)).await.unwrap().is_empty());
    let other = DeviceClass("another".to_owned());
    assert!(store.kernel_figures(&other, ever).await.unwrap().is_empty());
    // Bounded: what was told of last stays, however long ago it was learnt.
    const MOST: u32 = 16_384;
    let some = |range: std::ops::Range<u32>| -> Vec<_> {
        let figures = |i| KernelFigures { registers: i, local_bytes: 0 };
        range.map(|i| (Digest::of(&i.to_le_bytes()), figures(i))).collect()
    };
    let later = async || tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    store.record_kernel_figures(&other, &some(0..10)).await.unwrap();
    later().await;
    store.record_kernel_figures(&other, &some(10..MOST)).await.unwrap();
    later().await;
    store.record_kernel_figures(&other, &some(0..5)).await.unwrap();
    later().await;
    store.record_kernel_figures(&other, &some(MOST..MOST + 5)).await.unwrap();
    let kept = store.kernel_figures(&other, ever).await.unwrap();
    let expected = some(0..5).into_iter().chain(some(10..MOST + 5)).collect();
    assert!(kept == expected, "{} are kept", kept.len());
    assert_eq!(store.kernel_figures(&class, ever).await.unwrap().len(), 2);
}

pub async fn the_revision_grows_with_answers_alone(harness: &Harness) {
    let store = harness.open().await;
    let elsewhere = harness.open().await;
    let start = elsewhere.revision().await.unwrap();
    store.put_device("w", &device(), &Serving::default()).await.unwrap();
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
    store.put_device("w", &device(), &Serving::default()).await.unwrap();
    queued(&*store).await;
    assert_eq!(elsewhere.revision().await.unwrap(), before, "nothing new");
    let (job, m) = (claim(&*store, "w", LEASE).await.unwrap(), matrix("m", 1));
    let plan = plan(&m, &job.job.id, 1);
    store.finish(&job.fence, &ended(&job.job, JobState::Succeeded, Some(plan))).await.unwrap();
    assert!(elsewhere.revision().await.unwrap() > before);
}

pub async fn old_things_are_pruned(harness: &Harness) {
    let store = harness.open().await;
    store.put_device("w", &device(), &Serving::default()).await.unwrap();
    let done = tune(&*store, &matrix("m", 1), 1).await.provenance.job.unwrap();
    let live = created(store.submit(&new_job(&matrix("m", 1), "live", 2)).await.unwrap());
    let nothing = Timestamp(0);
    let none = Retention {
        idempotency_keys: nothing,
        events: nothing,
        devices: nothing,
        predicted: nothing,
        bundles: nothing,
        deliveries: nothing,
    };
    assert_eq!(store.prune(&none).await.unwrap(), Default::default());
    let now = Timestamp::now().plus_millis(1000);
    let all = Retention {
        idempotency_keys: now,
        events: now,
        devices: now,
        predicted: now,
        bundles: now,
        deliveries: now,
    };
    let pruned = store.prune(&all).await.unwrap();
    assert_eq!((pruned.idempotency_keys, pruned.events, pruned.devices), (1, 2, 1));
    let left = store.events(&done, 0, 10).await.unwrap();
    assert_eq!(left.iter().map(|event| event.seq).collect::<Vec<_>>(), [3]);
    assert_eq!(store.events(&live.id, 0, 10).await.unwrap().len(), 1);
    assert_eq!(store.prune(&all).await.unwrap(), Default::default());
    // The key is free again.
    let again = NewWork {
        idempotency: Some((format!("{} 1", matrix("m", 1).digest), Digest::of(b"other"))),
        ..new_job(&matrix("m", 1), "again", 3)
    };
    created(store.submit(&again).await.unwrap());
}

/// What one matrix or one namespace has seen keeps nobody else from a kernel.
pub async fn a_quarantine_reaches_as_far_as_its_witnesses(harness: &Harness) {
    let store = harness.open().await;
    let of = |name: &str| store.on_behalf_of(&Caller::owner(None, name.parse().unwrap()));
    let (a, b) = (of("a"), of("b"));
    let (one, two, three) = (Digest::of(b"one"), Digest::of(b"two"), Digest::of(b"three"));
    let entry = Quarantined {
        class: device().class(),
        kernel_digest: Digest::of(b"text"),
        candidate: Candidate::new("row_split"),
        scope: QuarantineScope::Pattern,
        reason: "hung".to_owned(),
        at: Timestamp(1),
    };
    let barred = async |store: &Arc<dyn Store>, pattern: &Digest| {
        !store.barred(&device().class(), pattern).await.unwrap().is_empty()
    };
    let scope = async || store.quarantined(None, &page(9)).await.unwrap().items[0].scope;

    a.quarantine(&entry, &one).await.unwrap();
    a.quarantine(&entry, &one).await.unwrap();
    assert!(barred(&a, &one).await && !barred(&a, &two).await);
    assert!(!barred(&b, &one).await && !barred(&store, &one).await);
    assert_eq!(scope().await, QuarantineScope::Pattern);
    // Another namespace with the same pattern says nothing that is new of other patterns.
    b.quarantine(&entry, &one).await.unwrap();
    assert!(barred(&b, &one).await && !barred(&b, &two).await && !barred(&a, &two).await);
    assert_eq!(scope().await, QuarantineScope::Pattern);
    assert!(store.lift_quarantine(&entry.id()).await.unwrap().is_some());
    assert!(!barred(&a, &one).await && !barred(&b, &one).await);

    for pattern in [&one, &two] {
        a.quarantine(&entry, pattern).await.unwrap();
    }
    assert!(barred(&a, &three).await && !barred(&b, &one).await);
    assert_eq!(scope().await, QuarantineScope::Namespace);
    b.quarantine(&entry, &three).await.unwrap();
    assert!(barred(&b, &one).await && barred(&store, &two).await);
    assert_eq!(scope().await, QuarantineScope::Class);
    let elsewhere = store.barred(&DeviceClass("another".to_owned()), &one).await.unwrap();
    assert_eq!(elsewhere, []);
}
