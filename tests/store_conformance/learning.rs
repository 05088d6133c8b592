//! Features beside trials, models, and the changes of which is in use.

use crate::Harness;
use crate::plans::key;
use crate::words::*;
use sparsetune::domain::Op;
use sparsetune::domain::learned::{Activation, DataUsed, HeldOut, Learner, Scope};
use sparsetune::domain::*;
use sparsetune::store::{Fence, PageRequest, Retention, RollBack, Store, StoreError};

const VERSION: u32 = 3;

pub fn scope() -> Scope {
    Scope { op: Op::Spmm, device_class: device().class() }
}

fn features(matrix: &Matrix, at: i64) -> JobFeatures {
    JobFeatures {
        scope: scope(),
        problem: problem(),
        matrix: matrix.digest,
        pattern: matrix.pattern_digest,
        name: matrix.name.clone(),
        features_version: VERSION,
        shared: vec![1.5, -0.0, f32::MAX],
        created_at: Timestamp(at),
    }
}

fn with_features(trial: Trial, own: &[f32]) -> Trial {
    Trial { features: Some(own.to_vec()), ..trial }
}

fn refused(trial: Trial) -> Trial {
    let state = TrialState::Tried(Outcome::Refused { detail: "too large".to_owned() });
    Trial { state, ..trial }
}

pub fn model(id: &str, at: i64) -> LearnedModel {
    LearnedModel {
        version: learned::MODEL_VERSION,
        id: ModelId(id.to_owned()),
        learner: Learner::Lambdamart,
        scope: scope(),
        features_version: VERSION,
        data: DataUsed { groups: 9, matrices: 8, generated: 7, trials: 99, newest: Timestamp(at) },
        quality: HeldOut { folds: 5, groups: 9, rankers: Vec::new() },
        importance: Vec::new(),
        seed: 1,
        started_from: None,
        training: None,
        digest: Digest::of(id.as_bytes()),
        created_at: Timestamp(at),
    }
}

pub fn activation(model: Option<&str>, at: i64) -> Activation {
    let model = model.map(|id| ModelId(id.to_owned()));
    Activation { scope: scope(), model, reason: format!("at {at}"), at: Timestamp(at) }
}

/// A matrix, and its job taken by a worker.
async fn taken(store: &dyn Store, name: &str, at: i64) -> (Matrix, Claimed) {
    let matrix = matrix(name, at);
    store.insert_matrix(&matrix).await.unwrap();
    created(store.submit(&new_job(&matrix, name, at)).await.unwrap());
    let claim = claim(store, "w", LEASE).await.unwrap();
    (matrix, claim)
}

/// Ends the job with a plan.
async fn succeed(store: &dyn Store, matrix: &Matrix, claim: &Claimed) {
    let plan = plan(matrix, &claim.job.id, 1);
    let finish = ended(&claim.job, JobState::Succeeded, Some(plan));
    store.finish(&claim.fence, &finish).await.unwrap();
}

pub async fn features_are_read_back_by_job(harness: &Harness) {
    let store = harness.open().await;
    let mut jobs = Vec::new();
    for (name, at) in [("late", 20), ("early", 10)] {
        let (matrix, claim) = taken(&*store, name, at).await;
        let id = &claim.job.id;
        store.describe(DescribedJob::Running(&claim.fence), &features(&matrix, at)).await.unwrap();
        let fast = with_features(trial(id, 2, 7.25), &[0.1, f32::MIN_POSITIVE]);
        // Nothing is learned of what the job had no time for, nor of a first call alone.
        let mut late = trial(id, 6, 1.0);
        late.state = TrialState::Tried(Outcome::out_of_time("late".to_owned()));
        let mut cut = trial(id, 7, 1.0);
        if let TrialState::Tried(Outcome::Measured { timing, .. }) = &mut cut.state {
            timing.cut = true;
        }
        let batch = [
            with_features(refused(trial(id, 5, 1.0)), &[-3.0, 4.0]),
            with_features(late, &[5.0, 6.0]),
            with_features(cut, &[7.0, 8.0]),
            fast.clone(),
            pruned(id, 3),
            trial(id, 4, 9.0),
        ];
        store.record_trials(&claim.fence, &batch).await.unwrap();
        // The same again, as after a crash: nothing is counted twice.
        store.record_trials(&claim.fence, &batch).await.unwrap();
        let again = JobFeatures { shared: vec![9.0], ..features(&matrix, 99) };
        store.describe(DescribedJob::Running(&claim.fence), &again).await.unwrap();
        assert_eq!(trials_of(&*store, id).await[0], Trial { features: None, ..fast });
        jobs.push((id.clone(), features(&matrix, at)));
        let read = store.training_groups(&scope(), VERSION, None, 9).await.unwrap();
        assert!(read.iter().all(|group| group.job != *id), "it has not ended");
        let known = store.described_since(&scope(), VERSION, Timestamp(0)).await.unwrap();
        succeed(&*store, &matrix, &claim).await;
        assert_ne!(store.described_since(&scope(), VERSION, Timestamp(0)).await.unwrap(), known);
    }
    let read = store.training_groups(&scope(), VERSION, None, 9).await.unwrap();
    assert_eq!(read.len(), 2);
    for (group, (job, features)) in read.iter().zip(jobs.iter().rev()) {
        assert_eq!((&group.job, &group.features), (job, features));
        let rows: Vec<_> =
            group.rows.iter().map(|r| (r.own.as_slice(), r.us, r.predicted_us)).collect();
        let fast: &[f32] = &[0.1, f32::MIN_POSITIVE];
        assert_eq!(
            rows,
            [(fast, Some(7.25), Some(0.1 + 0.2)), (&[-3.0, 4.0], None, Some(0.1 + 0.2))]
        );
        assert_eq!(group.rows[0].candidate, Candidate::new("row_split").with("lanes", 2));
        let zero = group.features.shared[1];
        assert!(zero == 0.0 && zero.is_sign_negative(), "bit by bit");
    }
    let first = store.training_groups(&scope(), VERSION, None, 1).await.unwrap();
    let second = store.training_groups(&scope(), VERSION, Some(&jobs[1].0), 1).await.unwrap();
    assert_eq!([first, second].concat(), read);
    assert_eq!(store.training_groups(&scope(), VERSION, Some(&jobs[0].0), 9).await.unwrap(), []);
    assert_eq!(store.training_groups(&scope(), VERSION + 1, None, 9).await.unwrap(), []);
    let other = Scope { op: Op::Sptrsv, ..scope() };
    assert_eq!(store.training_groups(&other, VERSION, None, 9).await.unwrap(), []);
    let nobody = JobId("nobody".to_owned());
    let missing = store.training_groups(&scope(), VERSION, Some(&nobody), 9).await;
    assert!(matches!(missing, Err(StoreError::Missing(_))));

    let here = scope();
    let since = |at| store.described_since(&here, VERSION, Timestamp(at));
    // Both ended at 100, whenever they were described. Those are counted as well of which nothing is learned, so that no body is read.
    assert_eq!(since(99).await.unwrap(), 8);
    assert_eq!(since(100).await.unwrap(), 0);
    assert_eq!(store.described_since(&scope(), VERSION + 1, Timestamp(0)).await.unwrap(), 0);
}

pub async fn describing_is_fenced(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, claim) = taken(&*store, "m", 1).await;
    let stranger = Fence { owner: "x".to_owned(), ..claim.fence.clone() };
    let refused = store.describe(DescribedJob::Running(&stranger), &features(&matrix, 1)).await;
    assert!(matches!(refused, Err(StoreError::Fenced(id)) if id == claim.job.id));
    assert_eq!(store.training_groups(&scope(), VERSION, None, 9).await.unwrap(), []);
    let late = store
        .describe(DescribedJob::Ended { job: &claim.job.id, own: &[] }, &features(&matrix, 1))
        .await;
    assert!(matches!(late, Err(StoreError::InUse(_))), "its worker describes it");
    let nobody = JobId("nobody".to_owned());
    let missing =
        store.describe(DescribedJob::Ended { job: &nobody, own: &[] }, &features(&matrix, 1)).await;
    assert!(matches!(missing, Err(StoreError::Missing(_))));
}

pub async fn ended_jobs_are_described_once(harness: &Harness) {
    let store = harness.open().await;
    let mut jobs = Vec::new();
    for (name, at) in [("b", 2), ("a", 1), ("gone", 3)] {
        let (matrix, claim) = taken(&*store, name, at).await;
        let id = &claim.job.id;
        store.record_trials(&claim.fence, &[trial(id, 0, 2.0), pruned(id, 1)]).await.unwrap();
        succeed(&*store, &matrix, &claim).await;
        jobs.push((id.clone(), matrix));
    }
    let recorded = store.recorded().await.unwrap();
    assert_eq!(recorded, [(scope(), 3)], "what was pruned is no trial, and none has features");
    // One without a plan, and one whose matrix is gone.
    let (_, failed) = taken(&*store, "failed", 4).await;
    let finish = ended(&failed.job, JobState::Failed, None);
    store.finish(&failed.fence, &finish).await.unwrap();
    store.delete_matrix(&jobs[2].1.digest).await.unwrap();

    let undescribed = async |version| {
        let found = store.undescribed(&scope(), version, &page(9)).await.unwrap();
        found.items.into_iter().map(|found| found.job).collect::<Vec<_>>()
    };
    let gone = &jobs[2].0;
    assert_eq!(undescribed(VERSION).await, [&jobs[1].0, &jobs[0].0, gone].map(JobId::clone));
    let mut first = store.undescribed(&scope(), VERSION, &page(1)).await.unwrap();
    let second = PageRequest { after: first.next, limit: 1 };
    let second = store.undescribed(&scope(), VERSION, &second).await.unwrap();
    assert_eq!(second.items[0].job, jobs[0].0);
    let first = first.items.remove(0);
    assert_eq!((first.problem, first.matrix), (problem(), jobs[1].1.digest));
    assert_eq!(first.device, device());
    let other = Scope { op: Op::Sptrsv, ..scope() };
    assert_eq!(store.undescribed(&other, VERSION, &page(9)).await.unwrap().items, []);

    let (id, matrix) = &jobs[1];
    let own = |value: f32| {
        let of = |ordinal: u32| trial(id, ordinal, 1.0).candidate.id();
        [(of(0), vec![value]), (of(1), vec![8.0]), (of(77), vec![9.0])]
    };
    store
        .describe(DescribedJob::Ended { job: id, own: &own(0.5) }, &features(matrix, 1))
        .await
        .unwrap();
    assert_eq!(undescribed(VERSION).await, [&jobs[0].0, gone].map(JobId::clone));
    let read = store.training_groups(&scope(), VERSION, None, 9).await.unwrap();
    assert_eq!(read.len(), 1);
    assert_eq!((read[0].rows.len(), read[0].rows[0].own.as_slice()), (1, &[0.5][..]));
    assert_eq!(store.described_since(&scope(), VERSION, Timestamp(0)).await.unwrap(), 1);

    // Another version takes the place of both, and nothing of the old one is left.
    assert_eq!(undescribed(VERSION + 1).await, [id, &jobs[0].0, gone].map(JobId::clone));
    let newer = JobFeatures { features_version: VERSION + 1, ..features(matrix, 2) };
    store.describe(DescribedJob::Ended { job: id, own: &[] }, &newer).await.unwrap();
    assert_eq!(store.training_groups(&scope(), VERSION, None, 9).await.unwrap(), []);
    let read = store.training_groups(&scope(), VERSION + 1, None, 9).await.unwrap();
    assert_eq!((read.len(), read[0].rows.as_slice()), (1, &[][..]));
    assert_eq!(store.described_since(&scope(), VERSION, Timestamp(0)).await.unwrap(), 0);
}

pub async fn models_are_kept_and_put_to_use(harness: &Harness) {
    let store = harness.open().await;
    assert_eq!(store.activations(ActivationQuery::InUse).await.unwrap(), []);
    for (id, at) in [("old", 1), ("new", 2)] {
        assert!(store.insert_model(&model(id, at), id.as_bytes()).await.unwrap());
    }
    assert!(!store.insert_model(&model("old", 9), b"another").await.unwrap(), "the first stays");
    assert_eq!(store.model_file(&ModelId("old".to_owned())).await.unwrap().unwrap(), b"old");
    let both = [model("new", 2), model("old", 1)];
    assert_eq!(store.learned_models(None).await.unwrap(), both);
    assert_eq!(store.learned_models(Some(&scope())).await.unwrap(), both);
    let other = Scope { op: Op::Sptrsv, ..scope() };
    assert_eq!(store.learned_models(Some(&other)).await.unwrap(), []);
    let unknown = ModelId("unknown".to_owned());
    assert_eq!(store.learned_model(&unknown).await.unwrap(), None);
    assert_eq!(store.model_file(&unknown).await.unwrap(), None);

    let before = store.revision().await.unwrap();
    let foreign = Activation { scope: other.clone(), ..activation(Some("new"), 1) };
    for refused in [&activation(Some("unknown"), 1), &foreign] {
        assert!(matches!(store.activate(refused).await, Err(StoreError::Missing(_))));
    }
    assert_eq!(store.revision().await.unwrap(), before, "nothing changed");
    // All at one moment: the order of the changes is that of their writing.
    let changes = [Some("old"), Some("new"), None, Some("old")].map(|model| activation(model, 5));
    for change in &changes {
        store.activate(change).await.unwrap();
        assert_eq!(
            store.activations(ActivationQuery::InUse).await.unwrap(),
            std::slice::from_ref(change)
        );
    }
    assert!(store.revision().await.unwrap() >= before + 4);
    let mut history = store.activations(ActivationQuery::OfScope(&scope(), 9)).await.unwrap();
    assert_eq!(
        store.activations(ActivationQuery::OfScope(&scope(), 2)).await.unwrap(),
        history[..2]
    );
    history.reverse();
    assert_eq!(history, changes);
    let none = Activation { scope: other.clone(), ..activation(None, 6) };
    store.activate(&none).await.unwrap();
    assert_eq!(
        store.activations(ActivationQuery::InUse).await.unwrap(),
        [changes[3].clone(), none]
    );
    assert_eq!(store.activations(ActivationQuery::OfScope(&other, 9)).await.unwrap().len(), 1);

    harness.spoil("UPDATE models SET card = '{}' WHERE id = 'new'").await;
    assert_eq!(store.learned_models(None).await.unwrap(), [model("old", 1)]);
    let spoilt = store.learned_model(&ModelId("new".to_owned())).await;
    assert!(matches!(spoilt, Err(StoreError::Corrupt { .. })));
}

pub async fn changes_are_taken_back_one_by_one(harness: &Harness) {
    let store = harness.open().await;
    let back = async || store.roll_back(&scope(), VERSION, Timestamp(9)).await.unwrap();
    let to = |model: Option<&str>| {
        let reason = Activation::ROLLED_BACK.to_owned();
        RollBack::Done(Activation { reason, ..activation(model, 9) })
    };
    assert_eq!(back().await, RollBack::Nothing);
    for (id, at) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        store.insert_model(&model(id, at), b"file").await.unwrap();
    }
    for id in ["a", "b", "c"] {
        store.activate(&activation(Some(id), 5)).await.unwrap();
    }
    let before = store.revision().await.unwrap();
    assert_eq!(back().await, to(Some("b")));
    assert!(store.revision().await.unwrap() > before);
    assert_eq!(back().await, to(Some("a")), "not to the one just taken back");
    store.activate(&activation(Some("d"), 6)).await.unwrap();
    for model in [Some("a"), None] {
        assert_eq!(back().await, to(model));
    }
    assert_eq!(back().await, RollBack::Nothing);
    assert_eq!(store.activations(ActivationQuery::InUse).await.unwrap()[0].model, None);
}

pub async fn a_roll_back_passes_over_models_of_other_features(harness: &Harness) {
    let store = harness.open().await;
    let back = async || store.roll_back(&scope(), VERSION, Timestamp(9)).await.unwrap();
    let to = |model: Option<&str>| {
        let reason = Activation::ROLLED_BACK.to_owned();
        RollBack::Done(Activation { reason, ..activation(model, 9) })
    };
    for (id, version) in [("a", 0), ("old", 1), ("older", 2), ("b", 0), ("c", 0)] {
        let features_version = VERSION + version;
        let model = LearnedModel { features_version, ..model(id, 1) };
        store.insert_model(&model, b"file").await.unwrap();
    }
    for id in ["older", "a", "old", "older", "b", "c", "old"] {
        store.activate(&activation(Some(id), 5)).await.unwrap();
    }
    // Each brings what ranks: none stays where it was, and none comes to a model twice.
    for model in [Some("c"), Some("b"), Some("a"), None] {
        assert_eq!(back().await, to(model));
        assert_eq!(
            RollBack::Done(store.activations(ActivationQuery::InUse).await.unwrap().remove(0)),
            to(model)
        );
    }
    assert_eq!(back().await, RollBack::Nothing);
    let changes = store.activations(ActivationQuery::OfScope(&scope(), 99)).await.unwrap();
    let told: Vec<_> = changes.iter().rev().map(|change| change.model.clone()).collect();
    let ids =
        ["older", "a", "old", "older", "b", "c", "old", "c", "b", "older", "old", "a", "older"];
    let ids = ids.map(|id| Some(ModelId(id.to_owned()))).into_iter().chain([None]);
    assert_eq!(told, ids.collect::<Vec<_>>());
}

pub async fn unused_models_are_pruned_but_for_the_newest(harness: &Harness) {
    let store = harness.open().await;
    for at in 0..25 {
        store.insert_model(&model(&format!("m{at}"), at), b"file").await.unwrap();
    }
    store.activate(&activation(Some("m0"), 1)).await.unwrap();
    store.activate(&activation(None, 2)).await.unwrap();
    let nothing = Timestamp(0);
    let none = Retention {
        idempotency_keys: nothing,
        events: nothing,
        devices: nothing,
        predicted: nothing,
        bundles: nothing,
        deliveries: nothing,
    };
    store.prune(&none).await.unwrap();
    let left = store.learned_models(None).await.unwrap();
    let left: Vec<i64> = left.iter().map(|model| model.created_at.0).collect();
    let expected: Vec<i64> = (5..25).rev().chain([0]).collect();
    assert_eq!(left, expected, "what was ever in use stays, and twenty others");
}

pub async fn what_is_spoilt_is_left_out(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, claim) = taken(&*store, "m", 1).await;
    let id = &claim.job.id;
    store.describe(DescribedJob::Running(&claim.fence), &features(&matrix, 1)).await.unwrap();
    let described = with_features(trial(id, 0, 1.0), &[1.0]);
    store.record_trials(&claim.fence, &[described]).await.unwrap();
    succeed(&*store, &matrix, &claim).await;
    // Another that is sound, after it.
    let (matrix, sound) = taken(&*store, "sound", 2).await;
    store.describe(DescribedJob::Running(&sound.fence), &features(&matrix, 2)).await.unwrap();
    let described = with_features(trial(&sound.job.id, 0, 1.0), &[1.0]);
    store.record_trials(&sound.fence, &[described]).await.unwrap();
    succeed(&*store, &matrix, &sound).await;
    macro_rules! left {
        ($($statement:literal, $limit:literal, $left:expr;)+) => {$(
            harness.spoil($statement).await;
            let read = store.training_groups(&scope(), VERSION, None, $limit).await.unwrap();
            let left: Vec<usize> = read.iter().map(|group| group.rows.len()).collect();
            assert_eq!(left, $left, "{}", $statement);
        )+};
    }
    left!(
        "UPDATE trials SET body = body", 9, [1, 1];
        "UPDATE trials SET features = x'000000' WHERE job = (SELECT job FROM job_features WHERE created_at = 1)", 9, [0, 1];
        "UPDATE trials SET features = x'00000000', state = 'refused' WHERE job = (SELECT job FROM job_features WHERE created_at = 1)", 9, [0, 1];
        "UPDATE trials SET state = 'measured', body = '{}' WHERE job = (SELECT job FROM job_features WHERE created_at = 1)", 9, [0, 1];
        "UPDATE trials SET version = 9 WHERE job = (SELECT job FROM job_features WHERE created_at = 1)", 9, [0, 1];
        "UPDATE job_features SET shared = x'01' WHERE created_at = 1", 9, [1];
        // A page that holds nothing else is not the end.
        "UPDATE job_features SET shared = x'', problem = '[]' WHERE created_at = 1", 1, [1];
    );
    harness.spoil("UPDATE job_features SET described = -1").await;
    let counted = store.described_since(&scope(), VERSION, Timestamp(0)).await;
    assert!(matches!(counted, Err(StoreError::Corrupt { .. })));
    harness
        .spoil(
            "UPDATE plans SET body = '{}' WHERE id = (SELECT plan FROM jobs WHERE created_at = 1)",
        )
        .await;
    let undescribed = store.undescribed(&scope(), VERSION + 1, &page(9)).await.unwrap();
    let jobs: Vec<_> = undescribed.items.into_iter().map(|found| found.job).collect();
    assert_eq!(jobs, [sound.job.id]);
}

pub async fn a_predicted_plan_answers_no_key(harness: &Harness) {
    let store = harness.open().await;
    let (matrix, claim) = taken(&*store, "m", 1).await;
    let plan = plan(&matrix, &claim.job.id, 1);
    let finish = ended(&claim.job, JobState::Succeeded, Some(plan.clone()));
    store.finish(&claim.fence, &finish).await.unwrap();
    store.delete_matrix(&matrix.digest).await.unwrap();
    assert_eq!(answer(&*store, &key(&plan)).await, Some(plan.clone()));
    assert_eq!(
        store
            .plans(&PlanQuery::UnmeasuredOfPattern(plan.pattern_digest), &page(9))
            .await
            .unwrap()
            .items,
        [],
        "it was measured"
    );
    harness.spoil("UPDATE plans SET predicted = 1").await;
    assert_eq!(answer(&*store, &key(&plan)).await, None);
    assert_eq!(
        store
            .plans(&PlanQuery::NewestOfPattern(plan.pattern_digest), &page(9))
            .await
            .unwrap()
            .items,
        []
    );
    let unmeasured = store
        .plans(&PlanQuery::UnmeasuredOfPattern(plan.pattern_digest), &page(9))
        .await
        .unwrap()
        .items;
    assert_eq!(unmeasured, std::slice::from_ref(&plan));
    assert_eq!(store.plan_keys(&plan.pattern_digest).await.unwrap(), []);
    let neighbours = store.plans_for(&plan.problem, &device().class(), plan.l2_policy, 9).await;
    assert_eq!(neighbours.unwrap(), []);
    assert_eq!(store.known_matrix(&matrix.digest).await.unwrap(), None);
    assert_eq!(store.plan(&plan.id).await.unwrap(), Some(plan), "by its own id it is there");
}
