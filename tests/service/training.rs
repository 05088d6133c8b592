//! Trainings over a real store: from recorded trials to a model in use, and every way in which that may end otherwise.

use crate::world::{World, device, ended, plan, problem, request, trial, tridiagonal};
use sparsetune::domain::learned::{Op, Scope};
use sparsetune::domain::training::Activate;
use sparsetune::domain::*;
use sparsetune::ops::features;
use sparsetune::service::training::Trainer;
use sparsetune::service::{LearningSettings, Service};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const GROUPS: usize = 24;
const ROWS: u32 = 12;

fn scope() -> Scope {
    Scope { op: Op::Spmm, device_class: device().class() }
}

fn wanted(activate: Activate) -> TrainRequest {
    TrainRequest { scope: scope(), activate, seed: 1 }
}

async fn world() -> World {
    World::with(|settings| {
        settings.learning = LearningSettings {
            threads: 1,
            retrain_trials: 0,
            check: Duration::from_millis(50),
            min_groups: 20,
            min_trials: 200,
        };
    })
    .await
}

/// Jobs whose candidates take the longer the farther an own feature lies from what a shared one says; the analytic
/// prediction knows nothing of that.
async fn measured(world: &World, groups: usize) {
    let (shared, own) = features::names(Op::Spmm);
    let store = world.service.store();
    world.service.register(device()).await.unwrap();
    for group in 0..groups {
        let matrix = world.upload(&tridiagonal(4 + group)).await.matrix;
        world.service.submit(&request(&matrix, 8), None).await.unwrap();
        let claim = world.claim().await;
        let best = (group % 4) as f32;
        let described = JobFeatures {
            scope: scope(),
            problem: problem(8),
            matrix: matrix.digest,
            pattern: matrix.pattern_digest,
            name: None,
            features_version: features::VERSION,
            shared: (0..shared.len()).map(|i| if i == 0 { best } else { 0.0 }).collect(),
            created_at: Timestamp::now(),
        };
        store.describe_job(&claim.fence, &described).await.unwrap();
        let row = |ordinal: u32| {
            let at = (ordinal % 4) as f32;
            let us = 1.0 + f64::from((at - best).abs()) + f64::from(ordinal) * 1e-3;
            let mut numbers = vec![0.0; own.len()];
            numbers[2] = at;
            let timing = Timing::of(vec![us; 3], 0).unwrap();
            let state = TrialState::Tried(Outcome::Measured {
                timing,
                rel_error: 1e-7,
                resources: None,
                preprocess_ms: 0.1,
            });
            let predicted_us = Some(1.0);
            Trial { state, predicted_us, features: Some(numbers), ..trial(&claim.job.id, ordinal) }
        };
        let trials: Vec<Trial> = (0..ROWS).map(row).collect();
        store.record_trials(&claim.fence, &trials).await.unwrap();
        let answer = plan(&device(), &matrix, &claim.job);
        store.finish(&claim.fence, &ended(&claim.job, Some(answer))).await.unwrap();
    }
}

/// Runs a trainer until the training has ended.
async fn trained(service: &Service, id: &TrainingId) -> Training {
    let stop = CancellationToken::new();
    let task = tokio::spawn(Trainer::new(service.clone()).run(stop.clone()));
    let begun = Instant::now();
    let training = loop {
        let training = service.training(id).await.unwrap().unwrap();
        if training.state.is_final() {
            break training;
        }
        assert!(begun.elapsed() < Duration::from_secs(240), "{training:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    stop.cancel();
    task.await.unwrap();
    training
}

#[tokio::test]
async fn trials_become_a_model_in_use_that_is_taken_back() {
    let world = world().await;
    measured(&world, GROUPS).await;
    let service = &world.service;
    assert!(service.active_model(&scope()).await.unwrap().is_none());
    let (queued, created) = service.train(&wanted(Activate::Always)).await.unwrap();
    assert!(created);
    assert!(!service.train(&wanted(Activate::Always)).await.unwrap().1);
    let training = trained(service, &queued.id).await;
    assert_eq!(training.state, JobState::Succeeded, "{training:?}");
    assert!(training.activated && training.progress == 1.0);
    let active = service.active_model(&scope()).await.unwrap().unwrap();
    assert_eq!(Some(&active.card.id), training.model.as_ref());
    assert_eq!(active.card.data.groups, GROUPS as u64);
    assert_eq!(active.card.data.trials, GROUPS as u64 * u64::from(ROWS));
    // Another process on the store uses the same model, and this one sees when it is taken back there.
    let other = world.elsewhere("elsewhere").await;
    assert_eq!(other.active_model(&scope()).await.unwrap().unwrap().card, active.card);
    other.roll_back(&scope()).await.unwrap();
    assert!(other.active_model(&scope()).await.unwrap().is_none());
    service.store().revision().await.unwrap();
    assert!(service.active_model(&scope()).await.unwrap().is_none());
    service.activate_model(&active.card.id, "by hand").await.unwrap();
    assert!(service.active_model(&scope()).await.unwrap().is_some());
}

#[tokio::test]
async fn too_little_is_told_with_what_makes_more() {
    let world = world().await;
    measured(&world, 3).await;
    let (queued, _) = world.service.train(&wanted(Activate::IfBetter)).await.unwrap();
    let training = trained(&world.service, &queued.id).await;
    assert_eq!(training.state, JobState::Failed);
    let why = training.error.unwrap();
    assert!(why.contains("3 searches over 3 matrices with 36 trials"), "{why}");
    assert!(why.contains("sparsetune corpus"), "{why}");
    assert!(training.model.is_none() && world.service.learned_models().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_cancelled_training_leaves_no_model() {
    let world = world().await;
    measured(&world, GROUPS).await;
    let service = &world.service;
    let (queued, _) = service.train(&wanted(Activate::Always)).await.unwrap();
    // Claimed by a trainer that is gone at once; the cancel reaches the next one.
    service.store().claim_training("gone", 1).await.unwrap().unwrap();
    service.cancel_training(&queued.id).await.unwrap().unwrap();
    let training = trained(service, &queued.id).await;
    assert_eq!(training.state, JobState::Cancelled, "{training:?}");
    assert!(service.learned_models().await.unwrap().is_empty());
}

#[tokio::test]
async fn enough_new_trials_queue_a_training_once() {
    let world = World::with(|settings| {
        settings.learning.retrain_trials = 2 * u64::from(ROWS);
        settings.learning.threads = 1;
    })
    .await;
    measured(&world, 1).await;
    assert!(world.service.retrain_where_due().await.unwrap().is_empty());
    measured(&world, 2).await;
    let queued = world.service.retrain_where_due().await.unwrap();
    assert_eq!(queued.len(), 1);
    assert_eq!(queued[0].request.scope, scope());
    assert!(world.service.retrain_where_due().await.unwrap().is_empty());
    // It comes to nothing, and the same trials are not tried again.
    let training = trained(&world.service, &queued[0].id).await;
    assert_eq!(training.state, JobState::Failed);
    assert!(world.service.retrain_where_due().await.unwrap().is_empty());
}
