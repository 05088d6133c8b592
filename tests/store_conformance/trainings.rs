//! Trainings: one a scope, claimed by one worker, ended once.

use crate::Sqlite;
use crate::learning::{activation, model, scope};
use crate::words::{LEASE, page};
use sparsetune::domain::learned::{Activation, Op, Scope};
use sparsetune::domain::training::{Activate, TrainingStage};
use sparsetune::domain::{JobState, ModelId, Timestamp, TrainRequest, Training};
use sparsetune::store::{PageRequest, PutToUse, Retention, Store, StoreError, TrainingFence};

fn training(op: Op, at: i64) -> Training {
    let scope = Scope { op, ..scope() };
    let request = TrainRequest { scope, activate: Activate::Always, seed: 7 };
    Training { created_at: Timestamp(at), ..Training::queued(request) }
}

/// A queued one.
async fn queued(store: &dyn Store, op: Op, at: i64) -> Training {
    let (training, new) = store.submit_training(&training(op, at)).await.unwrap();
    assert!(new);
    training
}

async fn stored(store: &dyn Store, training: &Training) -> Training {
    store.training(&training.id).await.unwrap().unwrap()
}

async fn claim(store: &dyn Store, owner: &str, lease_ms: i64) -> Option<(Training, TrainingFence)> {
    store.claim_training(owner, lease_ms).await.unwrap()
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

fn always(activation: &Activation) -> Option<PutToUse<'_>> {
    Some(PutToUse { activation, only_after: None })
}

async fn assert_fenced(store: &dyn Store, fence: &TrainingFence, training: &Training) {
    let before = stored(store, training).await;
    let (made, change) = (model("late", 1), activation(Some("late"), 1));
    let end = succeeded(training);
    for refused in [
        store.update_training(fence, training, LEASE).await.map(|_| ()),
        store
            .finish_training(fence, &end, Some((&made, b"file")), always(&change))
            .await
            .map(|_| ()),
        store.release_training(fence).await,
    ] {
        assert!(matches!(refused, Err(StoreError::Fenced(id)) if id.0 == training.id.0));
    }
    assert_eq!(stored(store, training).await, before);
    assert_eq!(store.learned_model(&made.id).await.unwrap(), None);
    assert!(store.active().await.unwrap().iter().all(|a| *a != change));
}

pub async fn a_scope_has_one_training(harness: &Sqlite) {
    let store = harness.open().await;
    let first = queued(&*store, Op::Spmm, 1).await;
    let twin = store.submit_training(&training(Op::Spmm, 2)).await.unwrap();
    assert_eq!(twin, (first.clone(), false));
    let other = queued(&*store, Op::Sptrsv, 3).await;
    let newest = store.trainings(&page(1)).await.unwrap();
    assert_eq!(newest.items, std::slice::from_ref(&other));
    let rest = PageRequest { after: newest.next, limit: 1 };
    let rest = store.trainings(&rest).await.unwrap();
    assert_eq!((rest.items, rest.next), (vec![first.clone()], None));
    let foreign = PageRequest { after: Some("nonsense".to_owned()), limit: 1 };
    assert!(matches!(store.trainings(&foreign).await, Err(StoreError::BadCursor)));
    let running = Training { state: JobState::Running, ..training(Op::Spmm, 9) };
    assert!(matches!(store.submit_training(&running).await, Err(StoreError::Misuse(_))));

    // One that is asked to stop makes way for the next.
    claim(&*store, "w", LEASE).await.unwrap();
    store.cancel_training(&first.id).await.unwrap();
    queued(&*store, Op::Spmm, 4).await;
}

pub async fn of_many_claims_of_a_training_one_wins(harness: &Sqlite) {
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

pub async fn a_training_ends_with_its_model_in_use(harness: &Sqlite) {
    let store = harness.open().await;
    queued(&*store, Op::Spmm, 1).await;
    let (mut taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
    (taken.stage, taken.progress) = (TrainingStage::Judging, 0.5);
    let renewal = store.update_training(&fence, &taken, LEASE).await.unwrap();
    assert!(!renewal.cancel_requested);
    assert_eq!(stored(&*store, &taken).await, taken);
    let unfinished = store.finish_training(&fence, &taken, None, None).await;
    assert!(matches!(unfinished, Err(StoreError::Misuse(_))));

    let (end, made) = (succeeded(&taken), model("made", 5));
    let before = store.revision().await.unwrap();
    // A change that cannot be takes the end and the model back with it.
    let wrong = activation(Some("unknown"), 5);
    let refused = store.finish_training(&fence, &end, Some((&made, b"file")), always(&wrong)).await;
    assert!(matches!(refused, Err(StoreError::Missing(_))));
    assert_eq!(store.learned_models(None).await.unwrap(), []);
    assert_eq!(stored(&*store, &taken).await, taken);
    let right = activation(Some("made"), 5);
    let stands = store.finish_training(&fence, &end, Some((&made, b"file")), always(&right)).await;
    assert_eq!(stands.unwrap(), end);
    assert_eq!(stored(&*store, &taken).await, end);
    assert_eq!(store.learned_model(&made.id).await.unwrap().as_ref(), Some(&made));
    assert_eq!(store.model_file(&made.id).await.unwrap().unwrap(), b"file");
    assert_eq!(store.active().await.unwrap(), [right]);
    assert!(store.revision().await.unwrap() > before);
    assert_fenced(&*store, &fence, &taken).await;
    assert!(claim(&*store, "w", LEASE).await.is_none());
    queued(&*store, Op::Spmm, 6).await;
}

pub async fn a_lost_lease_fences_a_training(harness: &Sqlite) {
    let store = harness.open().await;
    queued(&*store, Op::Spmm, 1).await;
    let (slow, lost) = claim(&*store, "w", 0).await.unwrap();
    // Run out, but nobody else came: it may still go on, and lose it again.
    store.update_training(&lost, &slow, 0).await.unwrap();
    let (next, fence) = claim(&*store, "w", LEASE).await.unwrap();
    assert_eq!((&next.id, next.attempts, next.started_at), (&slow.id, 2, slow.started_at));
    assert_fenced(&*store, &lost, &slow).await;
    let stranger = TrainingFence { owner: "x".to_owned(), ..fence.clone() };
    assert_fenced(&*store, &stranger, &next).await;
    // A late writer's attempts are not believed.
    store.update_training(&fence, &Training { attempts: 0, ..next.clone() }, LEASE).await.unwrap();
    assert_eq!(stored(&*store, &next).await, next);
    let foreign = store.update_training(&fence, &training(Op::Spmm, 1), LEASE).await;
    assert!(matches!(foreign, Err(StoreError::Misuse(_))));
}

pub async fn a_released_training_is_queued_again(harness: &Sqlite) {
    let store = harness.open().await;
    let asked = queued(&*store, Op::Spmm, 1).await;
    // More often than it may lose its workers.
    for _ in 0..5 {
        let (mut taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
        assert_eq!((&taken.id, taken.attempts), (&asked.id, 1));
        (taken.stage, taken.progress) = (TrainingStage::Judging, 0.5);
        taken.message = Some("judging".to_owned());
        store.update_training(&fence, &taken, LEASE).await.unwrap();
        store.release_training(&fence).await.unwrap();
        assert_eq!(stored(&*store, &asked).await, asked, "as if nobody had taken it");
        assert_fenced(&*store, &fence, &asked).await;
    }
    let twin = store.submit_training(&training(Op::Spmm, 2)).await.unwrap();
    assert_eq!(twin, (asked.clone(), false));

    let (_, fence) = claim(&*store, "w", LEASE).await.unwrap();
    store.cancel_training(&asked.id).await.unwrap();
    store.release_training(&fence).await.unwrap();
    assert_eq!(stored(&*store, &asked).await.state, JobState::Cancelled);
    assert!(claim(&*store, "w", LEASE).await.is_none());
}

pub async fn a_training_is_cancelled(harness: &Sqlite) {
    let store = harness.open().await;
    let waiting = queued(&*store, Op::Spmm, 1).await;
    let ended = store.cancel_training(&waiting.id).await.unwrap().unwrap();
    assert_eq!((ended.state, ended.stage), (JobState::Cancelled, TrainingStage::Done));
    assert!(ended.finished_at.is_some());
    assert!(claim(&*store, "w", LEASE).await.is_none());
    assert_eq!(store.cancel_training(&training(Op::Spmm, 1).id).await.unwrap(), None);

    queued(&*store, Op::Spmm, 2).await;
    let (taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
    let asked = store.cancel_training(&taken.id).await.unwrap().unwrap();
    assert_eq!(asked.state, JobState::Running, "its worker is asked");
    assert!(store.update_training(&fence, &taken, 0).await.unwrap().cancel_requested);
    // The worker is gone: whoever comes next ends it, and does not take it up.
    assert!(claim(&*store, "v", LEASE).await.is_none());
    assert_eq!(stored(&*store, &taken).await.state, JobState::Cancelled);
    let again = store.cancel_training(&taken.id).await.unwrap().unwrap();
    assert_eq!(again.state, JobState::Cancelled, "it has ended once");

    // Upkeep does so too.
    queued(&*store, Op::Spmm, 3).await;
    let (taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
    store.cancel_training(&taken.id).await.unwrap();
    store.update_training(&fence, &taken, 0).await.unwrap();
    let old = Timestamp(0);
    let none = Retention { idempotency_keys: old, events: old, devices: old, predicted: old };
    store.prune(&none).await.unwrap();
    assert_eq!(stored(&*store, &taken).await.state, JobState::Cancelled);
}

pub async fn a_training_that_loses_its_workers_is_failed(harness: &Sqlite) {
    let store = harness.open().await;
    let deadly = queued(&*store, Op::Spmm, 1).await;
    for attempt in 1..=3 {
        let (taken, _) = claim(&*store, "w", 0).await.unwrap();
        assert_eq!((&taken.id, taken.attempts), (&deadly.id, attempt));
    }
    let next = queued(&*store, Op::Sptrsv, 2).await;
    assert_eq!(claim(&*store, "w", LEASE).await.unwrap().0.id, next.id);
    let failed = stored(&*store, &deadly).await;
    assert_eq!((failed.state, failed.attempts), (JobState::Failed, 3));
    assert!(failed.error.as_ref().unwrap().contains("took 3 workers down"), "{failed:?}");
    queued(&*store, Op::Spmm, 3).await;
}

pub async fn an_unreadable_training_does_not_hold_up_the_queue(harness: &Sqlite) {
    let store = harness.open().await;
    let spoilt = queued(&*store, Op::Spmm, 1).await;
    let sound = queued(&*store, Op::Sptrsv, 2).await;
    harness.spoil("UPDATE trainings SET body = '{' WHERE created_at = 1").await;
    assert!(matches!(store.training(&spoilt.id).await, Err(StoreError::Corrupt { .. })));
    assert_eq!(claim(&*store, "w", LEASE).await.unwrap().0.id, sound.id);
    assert!(claim(&*store, "w", LEASE).await.is_none());
    let list = store.trainings(&page(9)).await.unwrap().items;
    assert_eq!(list.len(), 1, "one that cannot be read does not hide the others");
    queued(&*store, Op::Spmm, 3).await;
}

pub async fn a_training_that_ends_overrides_nobody(harness: &Sqlite) {
    let store = harness.open().await;
    // What was seen as the new model was judged, and what is there as its training ends.
    let old = activation(Some("old"), 1);
    store.insert_model(&model("old", 1), b"old").await.unwrap();
    for (at, seen, stands) in [(2, None, false), (3, Some(&old), false), (4, None, true)] {
        queued(&*store, Op::Spmm, at).await;
        let (taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
        let id = format!("m{at}");
        let (made, change) = (model(&id, at), activation(Some(&id), at));
        let mut end = succeeded(&taken);
        end.model = Some(made.id.clone());
        match at {
            2 => store.activate(&old).await.unwrap(),
            3 => store.activate(&activation(None, 1)).await.unwrap(),
            _ => {}
        }
        let before = store.active().await.unwrap();
        let seen = if stands { before.first() } else { seen };
        let change = PutToUse { activation: &change, only_after: Some(seen) };
        let file: &[u8] = b"file";
        let ended = store.finish_training(&fence, &end, Some((&made, file)), Some(change)).await;
        let ended = ended.unwrap();
        assert_eq!((ended.state, ended.activated), (JobState::Succeeded, stands));
        assert_eq!(store.active().await.unwrap() == before, !stands);
        let told = ended.message.as_deref().is_some_and(|told| told.contains("changed"));
        assert_eq!(told, !stands);
        assert!(store.learned_model(&made.id).await.unwrap().is_some(), "it is there all the same");
        assert_eq!(stored(&*store, &taken).await, ended);
    }
}

pub async fn a_late_cancel_leaves_no_model(harness: &Sqlite) {
    let store = harness.open().await;
    queued(&*store, Op::Spmm, 1).await;
    let (taken, fence) = claim(&*store, "w", LEASE).await.unwrap();
    store.cancel_training(&taken.id).await.unwrap();
    let (made, change) = (model("made", 1), activation(Some("made"), 1));
    let file: &[u8] = b"file";
    let end = succeeded(&taken);
    let ended = store.finish_training(&fence, &end, Some((&made, file)), always(&change)).await;
    let ended = ended.unwrap();
    assert_eq!(
        (ended.state, ended.model.as_ref(), ended.activated),
        (JobState::Cancelled, None, false)
    );
    assert_eq!(stored(&*store, &taken).await, ended);
    assert_eq!(store.learned_models(None).await.unwrap(), []);
    assert_eq!(store.active().await.unwrap(), []);
}

pub async fn old_trainings_are_pruned(harness: &Sqlite) {
    let store = harness.open().await;
    for at in 0..103 {
        let ended = queued(&*store, Op::Spmm, at).await;
        store.cancel_training(&ended.id).await.unwrap();
    }
    let waiting = queued(&*store, Op::Spmm, 0).await;
    let other = queued(&*store, Op::Sptrsv, 0).await;
    store.cancel_training(&other.id).await.unwrap();
    let nothing = Timestamp(0);
    let none = Retention {
        idempotency_keys: nothing,
        events: nothing,
        devices: nothing,
        predicted: nothing,
    };
    store.prune(&none).await.unwrap();
    let left = store.trainings(&page(200)).await.unwrap().items;
    assert_eq!(left.len(), 102);
    assert_eq!(left[99].created_at, Timestamp(3), "the newest hundred of the scope");
    assert!(left.iter().any(|t| t.id == waiting.id) && left.iter().any(|t| t.id == other.id));
}
