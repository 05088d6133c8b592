//! Trainings: one a scope, claimed by one worker, ended once.

use crate::Harness;
use crate::learning::{activation, model, scope};
use crate::words::{self, LEASE, of_cpu, page};
use sparsetune::domain::learned::{Activation, Scope};
use sparsetune::domain::training::{Activate, TrainingStage};
use sparsetune::domain::{
    JobState, ModelId, Op, Timestamp, TrainRequest, Training, Work, WorkKind,
};
use sparsetune::store::{
    ActivationQuery, Change, Claim, Fence, Finish, JobFilter, Listener, NewModel, PageRequest,
    Queue, Retention, Store, StoreError, Submission,
};
use std::sync::{Arc, Mutex};

fn training(op: Op, at: i64) -> Training {
    let scope = Scope { op, ..scope() };
    let request = TrainRequest { scope, activate: Activate::Always, seed: 7 };
    Training { created_at: Timestamp(at), ..Training::queued(request) }
}

/// A queued one.
async fn queued(store: &dyn Store, op: Op, at: i64) -> Training {
    match store.submit(&training(op, at).into()).await.unwrap() {
        Submission::Created(Work::Train(training)) => *training,
        other => panic!("not created: {other:?}"),
    }
}

async fn stored(store: &dyn Store, training: &Training) -> Training {
    store.training(&training.id).await.unwrap().unwrap()
}

async fn claim(store: &dyn Store, owner: &str, lease_ms: i64) -> Option<(Training, Fence)> {
    let Claim { work, fence, .. } =
        store.claim(&Queue::Trainings, owner, lease_ms, u32::MAX).await.unwrap()?;
    Some((work.into_training().unwrap(), fence))
}

async fn update(store: &dyn Store, fence: &Fence, training: &Training) -> Result<(), StoreError> {
    store.update(fence, &training.clone().into()).await
}

async fn cancel(store: &dyn Store, training: &Training) -> Training {
    store.request_cancel(&training.id).await.unwrap().unwrap().into_training().unwrap()
}

/// Ends with a model that is put to use.
async fn finish(
    store: &dyn Store,
    fence: &Fence,
    end: &Training,
    model: NewModel,
) -> Result<Training, StoreError> {
    let ended = store.finish(fence, &Finish::training(end.clone(), Some(model))).await?;
    Ok(ended.into_training().unwrap())
}

fn succeeded(training: &Training) -> Training {
    Training {
        state: JobState::Succeeded,
        stage: TrainingStage::Done,
        progress: 1.0,
        model: Some(ModelId("made".to_owned())),
        activated: true,
        finished_at: Some(Timestamp(100)),
        ..training.clone()
    }
}

/// A model that is put to use whatever is in use.
fn made(name: &str, at: i64, change: &Activation) -> NewModel {
    NewModel {
        card: model(name, at),
        file: b"file".to_vec(),
        activation: Some(change.clone()),
        only_after: None,
    }
}

async fn assert_fenced(store: &dyn Store, fence: &Fence, training: &Training) {
    let before = stored(store, training).await;
    let change = activation(Some("late"), 1);
    let made = made("late", 1, &change);
    let end = succeeded(training);
    for refused in [
        store.renew(fence, LEASE).await.map(drop),
        store.held(fence).await.map(drop),
        update(store, fence, training).await,
        finish(store, fence, &end, made.clone()).await.map(drop),
        store.release(fence).await,
    ] {
        assert!(matches!(refused, Err(StoreError::Fenced(id)) if id == training.id));
    }
    assert_eq!(stored(store, training).await, before);
    assert_eq!(store.learned_model(&made.card.id).await.unwrap(), None);
    assert!(store.activations(ActivationQuery::InUse).await.unwrap().iter().all(|a| *a != change));
}

pub async fn a_scope_has_one_training(harness: &Harness) {
    let store = harness.open().await;
    let first = queued(&*store, Op::Spmm, 1).await;
    let twin = store.submit(&training(Op::Spmm, 2).into()).await.unwrap();
    assert_eq!(twin, Submission::Existing(first.clone().into()));
    let other = queued(&*store, Op::Sptrsv, 3).await;
    let newest = store.trainings(&page(1)).await.unwrap();
    assert_eq!(newest.items, std::slice::from_ref(&other));
    let rest = PageRequest { after: newest.next, limit: 1 };
    let rest = store.trainings(&rest).await.unwrap();
    assert_eq!((rest.items, rest.next), (vec![first.clone()], None));
    let foreign = PageRequest { after: Some("nonsense".to_owned()), limit: 1 };
    assert!(matches!(store.trainings(&foreign).await, Err(StoreError::BadCursor)));
    let running = Training { state: JobState::Running, ..training(Op::Spmm, 9) };
    assert!(matches!(store.submit(&running.into()).await, Err(StoreError::Misuse(_))));

    // One that is asked to stop makes way for the next.
    claim(&*store, "w", LEASE).await.unwrap();
    cancel(&*store, &first).await;
    queued(&*store, Op::Spmm, 4).await;
}

pub async fn of_many_claims_of_a_training_one_wins(harness: &Harness) {
    let stores = [harness.open().await, harness.open().await];
    let asked = queued(&*stores[0], Op::Spmm, 1).await;
    let tasks: Vec<_> = (0..16)
        .map(|i| {
            let store = stores[i % 2].clone();
            tokio::spawn(async move { claim(&*store, &format!("w{i}"), LEASE).await })
        })
        .collect();
    let mut claims = Vec::new();
    for task in tasks {
        claims.extend(task.await.unwrap());
    }
    assert_eq!(claims.len(), 1);
    let (taken, _) = &claims[0];
    assert_eq!((&taken.id, taken.state, taken.attempts), (&asked.id, JobState::Running, 1));
    assert!(taken.started_at.is_some());
    assert_eq!(stored(&*stores[1], &asked).await, *taken);
}

pub async fn a_training_ends_with_its_model_in_use(harness: &Harness) {
    let store = harness.open().await;
    queued(&*store, Op::Spmm, 1).await;
    let (mut taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
    (taken.stage, taken.progress) = (TrainingStage::Judging, 0.5);
    update(&*store, &fence, &taken).await.unwrap();
    assert!(!store.renew(&fence, LEASE).await.unwrap().cancel_requested);
    assert_eq!(stored(&*store, &taken).await, taken);
    let unfinished = store.finish(&fence, &Finish::training(taken.clone(), None)).await;
    assert!(matches!(unfinished, Err(StoreError::Misuse(_))));

    let (end, model) = (succeeded(&taken), model("made", 5));
    let before = store.revision().await.unwrap();
    // A change that cannot be takes the end and the model back with it.
    let wrong = activation(Some("unknown"), 5);
    let refused = finish(&*store, &fence, &end, made("made", 5, &wrong)).await;
    assert!(matches!(refused, Err(StoreError::Missing(_))));
    assert_eq!(store.learned_models(None).await.unwrap(), []);
    assert_eq!(stored(&*store, &taken).await, taken);
    let right = activation(Some("made"), 5);
    let stands = finish(&*store, &fence, &end, made("made", 5, &right)).await;
    assert_eq!(stands.unwrap(), end);
    assert_eq!(stored(&*store, &taken).await, end);
    assert_eq!(store.learned_model(&model.id).await.unwrap().as_ref(), Some(&model));
    assert_eq!(store.model_file(&model.id).await.unwrap().unwrap(), b"file");
    assert_eq!(store.activations(ActivationQuery::InUse).await.unwrap(), [right]);
    assert!(store.revision().await.unwrap() > before);
    assert_fenced(&*store, &fence, &taken).await;
    assert!(claim(&*store, "w", LEASE).await.is_none());
    queued(&*store, Op::Spmm, 6).await;
}

pub async fn a_lost_lease_fences_a_training(harness: &Harness) {
    let store = harness.open().await;
    queued(&*store, Op::Spmm, 1).await;
    let (slow, lost) = claim(&*store, "w", 0).await.unwrap();
    // Run out, but nobody else came: it may still go on, and lose it again.
    store.renew(&lost, 0).await.unwrap();
    update(&*store, &lost, &slow).await.unwrap();
    let (next, fence) = claim(&*store, "w", LEASE).await.unwrap();
    assert_eq!((&next.id, next.attempts, next.started_at), (&slow.id, 2, slow.started_at));
    assert_fenced(&*store, &lost, &slow).await;
    let stranger = Fence { owner: "x".to_owned(), ..fence.clone() };
    assert_fenced(&*store, &stranger, &next).await;
    // A late writer's attempts are not believed.
    update(&*store, &fence, &Training { attempts: 0, ..next.clone() }).await.unwrap();
    assert_eq!(stored(&*store, &next).await, next);
    let foreign = update(&*store, &fence, &training(Op::Spmm, 1)).await;
    assert!(matches!(foreign, Err(StoreError::Misuse(_))));
}

pub async fn a_released_training_is_queued_again(harness: &Harness) {
    let store = harness.open().await;
    let asked = queued(&*store, Op::Spmm, 1).await;
    // More often than it may lose its workers.
    for _ in 0..5 {
        let (mut taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
        assert_eq!((&taken.id, taken.attempts), (&asked.id, 1));
        (taken.stage, taken.progress) = (TrainingStage::Judging, 0.5);
        taken.message = Some("judging".to_owned());
        update(&*store, &fence, &taken).await.unwrap();
        store.release(&fence).await.unwrap();
        assert_eq!(stored(&*store, &asked).await, asked, "as if nobody had taken it");
        assert_fenced(&*store, &fence, &asked).await;
    }
    let twin = store.submit(&training(Op::Spmm, 2).into()).await.unwrap();
    assert_eq!(twin, Submission::Existing(asked.clone().into()));

    let (_, fence) = claim(&*store, "w", LEASE).await.unwrap();
    cancel(&*store, &asked).await;
    store.release(&fence).await.unwrap();
    assert_eq!(stored(&*store, &asked).await.state, JobState::Cancelled);
    assert!(claim(&*store, "w", LEASE).await.is_none());
}

pub async fn a_training_is_cancelled(harness: &Harness) {
    let store = harness.open().await;
    let waiting = queued(&*store, Op::Spmm, 1).await;
    let ended = cancel(&*store, &waiting).await;
    assert_eq!((ended.state, ended.stage), (JobState::Cancelled, TrainingStage::Done));
    assert!(ended.finished_at.is_some());
    assert!(claim(&*store, "w", LEASE).await.is_none());
    assert_eq!(store.request_cancel(&training(Op::Spmm, 1).id).await.unwrap(), None);

    queued(&*store, Op::Spmm, 2).await;
    let (taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
    let asked = cancel(&*store, &taken).await;
    assert_eq!(asked.state, JobState::Running, "its worker is asked");
    assert!(store.renew(&fence, 0).await.unwrap().cancel_requested);
    // The worker is gone: whoever comes next ends it, and does not take it up.
    assert!(claim(&*store, "v", LEASE).await.is_none());
    assert_eq!(stored(&*store, &taken).await.state, JobState::Cancelled);
    let again = cancel(&*store, &taken).await;
    assert_eq!(again.state, JobState::Cancelled, "it has ended once");

    // Upkeep does so too.
    queued(&*store, Op::Spmm, 3).await;
    let (taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
    cancel(&*store, &taken).await;
    store.renew(&fence, 0).await.unwrap();
    let old = Timestamp(0);
    let none = Retention {
        idempotency_keys: old,
        events: old,
        devices: old,
        predicted: old,
        bundles: old,
        deliveries: old,
    };
    store.prune(&none).await.unwrap();
    assert_eq!(stored(&*store, &taken).await.state, JobState::Cancelled);
}

pub async fn a_training_that_loses_its_workers_is_failed(harness: &Harness) {
    let store = harness.open().await;
    let deadly = queued(&*store, Op::Spmm, 1).await;
    for attempt in 1..=3 {
        let (taken, _) = claim(&*store, "w", 0).await.unwrap();
        assert_eq!((&taken.id, taken.attempts), (&deadly.id, attempt));
    }
    let next = queued(&*store, Op::Sptrsv, 2).await;
    assert_eq!(store.claim(&of_cpu(), "w", LEASE, 3).await.unwrap(), None, "another queue");
    assert_eq!(stored(&*store, &deadly).await.state, JobState::Running);
    let taken = store.claim(&Queue::Trainings, "w", LEASE, 3).await.unwrap().unwrap();
    assert_eq!(taken.work.id(), &next.id);
    let failed = stored(&*store, &deadly).await;
    assert_eq!((failed.state, failed.attempts), (JobState::Failed, 3));
    assert!(failed.error.as_ref().unwrap().contains("claimed 3 times"), "{failed:?}");
    queued(&*store, Op::Spmm, 3).await;
}

pub async fn an_unreadable_training_does_not_hold_up_the_queue(harness: &Harness) {
    let store = harness.open().await;
    let spoilt = queued(&*store, Op::Spmm, 1).await;
    let sound = queued(&*store, Op::Sptrsv, 2).await;
    harness.spoil("UPDATE jobs SET request = '{' WHERE created_at = 1").await;
    assert!(matches!(store.training(&spoilt.id).await, Err(StoreError::Corrupt { .. })));
    assert_eq!(claim(&*store, "w", LEASE).await.unwrap().0.id, sound.id);
    assert!(claim(&*store, "w", LEASE).await.is_none());
    let list = store.trainings(&page(9)).await.unwrap().items;
    assert_eq!(list.len(), 1, "one that cannot be read does not hide the others");
    queued(&*store, Op::Spmm, 3).await;
}

pub async fn a_training_that_ends_overrides_nobody(harness: &Harness) {
    let store = harness.open().await;
    // What was seen as the new model was judged, and what is there as its training ends.
    let old = activation(Some("old"), 1);
    store.insert_model(&model("old", 1), b"old").await.unwrap();
    for (at, seen, stands) in [(2, None, false), (3, Some(&old), false), (4, None, true)] {
        queued(&*store, Op::Spmm, at).await;
        let (taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
        let id = format!("m{at}");
        let change = activation(Some(&id), at);
        let mut end = succeeded(&taken);
        end.model = Some(ModelId(id.clone()));
        match at {
            2 => store.activate(&old).await.unwrap(),
            3 => store.activate(&activation(None, 1)).await.unwrap(),
            _ => {}
        }
        let before = store.activations(ActivationQuery::InUse).await.unwrap();
        let seen = if stands { before.first() } else { seen };
        let model = NewModel { only_after: Some(seen.cloned()), ..made(&id, at, &change) };
        let ended = finish(&*store, &fence, &end, model).await.unwrap();
        assert_eq!((ended.state, ended.activated), (JobState::Succeeded, stands));
        assert_eq!(store.activations(ActivationQuery::InUse).await.unwrap() == before, !stands);
        let told = ended.message.as_deref().is_some_and(|told| told.contains("changed"));
        assert_eq!(told, !stands);
        assert!(
            store.learned_model(&ModelId(id)).await.unwrap().is_some(),
            "it is there all the same"
        );
        assert_eq!(stored(&*store, &taken).await, ended);
    }
}

pub async fn a_late_cancel_leaves_no_model(harness: &Harness) {
    let store = harness.open().await;
    queued(&*store, Op::Spmm, 1).await;
    let (taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
    cancel(&*store, &taken).await;
    let change = activation(Some("made"), 1);
    let end = succeeded(&taken);
    let ended = finish(&*store, &fence, &end, made("made", 1, &change)).await.unwrap();
    assert_eq!(
        (ended.state, ended.model.as_ref(), ended.activated),
        (JobState::Cancelled, None, false)
    );
    assert_eq!(stored(&*store, &taken).await, ended);
    assert_eq!(store.learned_models(None).await.unwrap(), []);
    assert_eq!(store.activations(ActivationQuery::InUse).await.unwrap(), []);
}

pub async fn old_trainings_are_pruned(harness: &Harness) {
    let store = harness.open().await;
    for at in 0..103 {
        let ended = queued(&*store, Op::Spmm, at).await;
        cancel(&*store, &ended).await;
    }
    let waiting = queued(&*store, Op::Spmm, 0).await;
    let other = queued(&*store, Op::Sptrsv, 0).await;
    cancel(&*store, &other).await;
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
    let left = store.trainings(&page(200)).await.unwrap().items;
    assert_eq!(left.len(), 102);
    assert_eq!(left[99].created_at, Timestamp(3), "the newest hundred of the scope");
    assert!(left.iter().any(|t| t.id == waiting.id) && left.iter().any(|t| t.id == other.id));
}

pub async fn both_kinds_share_one_queue(harness: &Harness) {
    let store = harness.open().await;
    let (_, job) = words::queued(&*store).await;
    let asked = queued(&*store, Op::Spmm, 2).await;
    let list = async |kind, state| {
        let filter = JobFilter { kind, state, ..JobFilter::default() };
        let works = store.works(&filter, &page(9)).await.unwrap().items;
        works.into_iter().map(|work| work.id().clone()).collect::<Vec<_>>()
    };
    assert_eq!(list(None, None).await, [asked.id.clone(), job.id.clone()]);
    assert_eq!(list(Some(WorkKind::Tune), None).await, std::slice::from_ref(&job.id));
    // Neither is claimed by who works on the other kind.
    let (taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
    assert_eq!(taken.id, asked.id);
    assert!(claim(&*store, "w", LEASE).await.is_none());
    assert_eq!(
        list(Some(WorkKind::Train), Some(JobState::Running)).await,
        std::slice::from_ref(&asked.id)
    );
    assert_eq!(list(Some(WorkKind::Train), Some(JobState::Queued)).await, []);
    let counts = store.job_counts(sparsetune::store::Whose::Own).await.unwrap();
    assert!(counts.contains(&(WorkKind::Tune, JobState::Queued, 1)));
    assert!(counts.contains(&(WorkKind::Train, JobState::Running, 1)) && counts.len() == 2);
    assert_eq!(words::claim(&*store, "w", LEASE).await.unwrap().job.id, job.id);
    assert_eq!(store.job(&asked.id).await.unwrap(), None);
    assert_eq!(store.training(&job.id).await.unwrap(), None);

    // A training has events as a job has, numbered without gaps.
    let at_work = Training { stage: TrainingStage::Judging, progress: 0.5, ..taken.clone() };
    update(&*store, &fence, &at_work).await.unwrap();
    let failed =
        Training { state: JobState::Failed, finished_at: Some(Timestamp(9)), ..at_work.clone() };
    store.finish(&fence, &Finish::training(failed.clone(), None)).await.unwrap();
    let events = store.events(&asked.id, 0, 9).await.unwrap();
    let numbers: Vec<u64> = events.iter().map(|event| event.seq).collect();
    let told: Vec<_> = events.into_iter().map(|event| event.kind).collect();
    let expected =
        [asked, taken, at_work, failed].map(|training| Work::from(training).into_event());
    assert_eq!((numbers, told), (vec![1, 2, 3, 4], expected.to_vec()));
}

pub async fn every_write_says_what_it_changed(harness: &Harness) {
    let store = harness.open().await;
    let heard = Arc::new(Heard::default());
    let listener: Arc<dyn Listener> = heard.clone();
    store.listen(&listener);
    let asked = queued(&*store, Op::Spmm, 1).await;
    store.submit(&training(Op::Spmm, 2).into()).await.unwrap();
    assert_eq!(heard.take(), [Change::Submitted(asked.clone().into())], "a twin is no change");
    let (taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
    update(&*store, &fence, &taken).await.unwrap();
    store.renew(&fence, LEASE).await.unwrap();
    assert_eq!(heard.take(), [Change::Job(asked.id.clone()), Change::Job(asked.id.clone())]);
    store.release(&fence).await.unwrap();
    assert_eq!(heard.take(), [Change::Job(asked.id.clone()), Change::Released]);
    let (taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
    heard.take();
    let change = activation(Some("made"), 1);
    let ended =
        finish(&*store, &fence, &succeeded(&taken), made("made", 1, &change)).await.unwrap();
    let changes = heard.take();
    let revision = || Change::Revision(2);
    assert_eq!(changes, [revision(), Change::Ended(ended.into())]);
    // Another process may have raised the revision, so reading it tells the listeners too.
    assert_eq!(store.revision().await.unwrap(), 2);
    assert_eq!(heard.take(), [revision()]);
    // What is refused changes nothing, and who is gone is told nothing.
    store.release(&fence).await.unwrap_err();
    assert_eq!(heard.take(), []);
    drop((listener, heard));
    queued(&*store, Op::Sptrsv, 3).await;
}

/// The changes heard of since they were last taken.
#[derive(Default)]
struct Heard(Mutex<Vec<Change>>);

impl Heard {
    fn take(&self) -> Vec<Change> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Listener for Heard {
    fn changed(&self, change: &Change) {
        self.0.lock().unwrap().push(change.clone());
    }
}
