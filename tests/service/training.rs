//! Trainings over a real store: from recorded trials to a model in use, and every way in which that may end otherwise.

use crate::measured::ROWS;
use crate::world::{World, device};
use sparsetune::domain::Op;
use sparsetune::domain::learned::{Activation, DataUsed, HeldOut, Learner, MODEL_VERSION, Scope};
use sparsetune::domain::training::Activate;
use sparsetune::domain::*;
use sparsetune::learn::{Forest, Model, ModelFile, file};
use sparsetune::ops::features;
use sparsetune::service::training::Trainer;
use sparsetune::service::{LearningSettings, PageRequest, Service};
use sparsetune::store::Queue;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const GROUPS: usize = 24;

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

async fn measured(world: &World, groups: usize) {
    crate::measured::measured(&world.service, &device(), groups).await;
}

/// A trainer at work.
struct AtWork {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl AtWork {
    fn on(service: &Service) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(Trainer::new(service.clone()).run(stop.clone()));
        Self { stop, task }
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// The training once this holds of it.
async fn once(service: &Service, id: &JobId, holds: impl Fn(&Training) -> bool) -> Training {
    let begun = Instant::now();
    loop {
        let training = service.store().training(id).await.unwrap().unwrap();
        if holds(&training) {
            return training;
        }
        assert!(begun.elapsed() < Duration::from_secs(240), "{training:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs a trainer until the training has ended.
async fn trained(service: &Service, id: &JobId) -> Training {
    let trainer = AtWork::on(service);
    let training = once(service, id, |training| training.state.is_final()).await;
    trainer.end().await;
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
    assert_eq!(Some(&active.card().id), training.model.as_ref());
    assert_eq!(active.card().data.groups, GROUPS as u64);
    assert_eq!(active.card().data.trials, GROUPS as u64 * u64::from(ROWS));
    // A ranked search without a learned model was judged on the same trials, as far as it goes.
    let rankers = &active.card().quality.rankers;
    let of = |name: &str| rankers.iter().find(|ranker| ranker.name == name).unwrap();
    let unlearned = of("analytic_corrected");
    assert_eq!(unlearned.at.iter().map(|at| at.k).collect::<Vec<_>>(), [1, 2, 4, 8, 10]);
    assert_eq!(unlearned.at[0], of("analytic").at[0], "with one try nothing was measured before");
    assert!(unlearned.at[4].share >= of("random").at[4].share, "{rankers:?}");
    // Another process on the store uses the same model, and this one sees when it is taken back there.
    let other = world.elsewhere("elsewhere").await;
    assert_eq!(other.active_model(&scope()).await.unwrap().unwrap().card(), active.card());
    other.roll_back(&scope()).await.unwrap();
    assert!(other.active_model(&scope()).await.unwrap().is_none());
    service.store().revision().await.unwrap();
    assert!(service.active_model(&scope()).await.unwrap().is_none());
    service.activate_model(&active.card().id, "by hand").await.unwrap();
    assert!(service.active_model(&scope()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_training_continues_from_the_nearest_class_and_has_to_beat_it() {
    let world = world().await;
    measured(&world, GROUPS).await;
    let service = &world.service;
    let (first, _) = service.train(&wanted(Activate::Always)).await.unwrap();
    let alone = trained(service, &first.id).await.model.unwrap();
    let card = service.learned_model(&alone).await.unwrap().model;
    assert_eq!((card.learner, &card.started_from), (Learner::Lambdamart, &None));
    assert!(card.quality.rankers.iter().all(|ranker| ranker.name != "borrowed"));

    // Another folder, where the same model is of a neighbour: nothing chooses better than what knows the trials.
    let world = self::world().await;
    measured(&world, GROUPS).await;
    let bytes = service.model_file(&alone).await.unwrap().unwrap();
    let service = &world.service;
    let mut file = ModelFile::parse(&bytes).unwrap();
    let near = Device { name: "Its neighbour".to_owned(), ..device() }.class();
    file.scope.device_class = near;
    used(service, "lent", &file.scope, &file).await;
    let ranker = service.active_model(&scope()).await.unwrap().unwrap();
    assert_eq!(ranker.borrowed_from(), Some(&file.scope.device_class));
    let (second, _) = service.train(&wanted(Activate::IfBetter)).await.unwrap();
    let training = trained(service, &second.id).await;
    let card = service.learned_model(training.model.as_ref().unwrap()).await.unwrap().model;
    let names: Vec<&str> = card.quality.rankers.iter().map(|one| one.name.as_str()).collect();
    let all = "lambdamart lambdamart_continued analytic random analytic_corrected borrowed";
    assert_eq!(names.join(" "), all);
    let continued = card.learner == Learner::LambdamartContinued;
    let lender = continued.then(|| ModelId("lent".to_owned()));
    assert_eq!(card.started_from, lender);
    let own = service.model_file(&card.id).await.unwrap().unwrap();
    let (Model::Lambdamart(base), Model::Lambdamart(own)) =
        (&file.model, &ModelFile::parse(&own).unwrap().model)
    else {
        panic!("they are forests");
    };
    assert!(!continued || own.trees.starts_with(&base.trees));
    // What is used now decides, by the same figures.
    let sum = |name: &str| {
        let ranker = card.quality.rankers.iter().find(|one| one.name == name).unwrap();
        ranker.at.iter().filter(|at| [1, 10].contains(&at.k)).map(|at| at.share).sum::<f64>()
    };
    assert!(sum(card.learner.name()) > sum("borrowed") || !training.activated);
    assert!(!training.activated || training.message.unwrap().contains("borrowed"));
}

#[tokio::test]
async fn too_little_is_told_with_what_makes_more() {
    let world = world().await;
    measured(&world, 3).await;
    let (queued, _) = world.service.train(&wanted(Activate::IfBetter)).await.unwrap();
    let training = trained(&world.service, &queued.id).await;
    assert_eq!(training.state, JobState::Failed);
    let why = training.error.unwrap();
    assert!(why.contains("3 jobs over 3 matrices with 36 trials"), "{why}");
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
    service.store().claim(&Queue::Trainings, "gone", 1, u32::MAX).await.unwrap().unwrap();
    service.cancel(&queued.id).await.unwrap();
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

#[tokio::test]
async fn a_clean_end_gives_a_training_back() {
    let world = world().await;
    measured(&world, GROUPS).await;
    let service = &world.service;
    // A training that ends before the trainer was told to gives nothing back.
    for _ in 0..20 {
        let (queued, _) = service.train(&wanted(Activate::Never)).await.unwrap();
        let trainer = AtWork::on(service);
        once(service, &queued.id, |training| training.state != JobState::Queued).await;
        trainer.end().await;
        let stands = service.store().training(&queued.id).await.unwrap().unwrap();
        if stands.state == JobState::Succeeded {
            continue;
        }
        assert_eq!(stands, queued);
        let training = trained(service, &queued.id).await;
        assert_eq!((training.state, training.attempts), (JobState::Succeeded, 1), "{training:?}");
        return;
    }
    panic!("every training ended before its trainer did");
}

#[tokio::test]
async fn a_trainer_that_loses_its_lease_leaves_the_training_to_the_other() {
    let world = world().await;
    measured(&world, GROUPS).await;
    let service = &world.service;
    // Its lease has always run out, as that of a process that is stopped for a while.
    let slow = world.elsewhere_with("slow", |settings| settings.lease_ms = 0).await;
    let slow = AtWork::on(&slow);
    // Where it ends its training before the other comes, there is nothing to see yet.
    let mut taken_over = false;
    for round in 1..=20 {
        let (queued, _) = service.train(&wanted(Activate::Always)).await.unwrap();
        once(service, &queued.id, |training| training.state != JobState::Queued).await;
        let training = trained(service, &queued.id).await;
        assert_eq!(training.state, JobState::Succeeded, "{training:?}");
        let models = service.learned_models().await.unwrap();
        assert_eq!(models.len(), round, "one model of each training");
        assert!(models[0].active && Some(&models[0].model.id) == training.model.as_ref());
        taken_over = training.attempts == 2;
        if taken_over {
            break;
        }
    }
    slow.end().await;
    assert!(taken_over);
    // Nothing comes of it later, either.
    let trainings = service.trainings(&PageRequest { after: None, limit: 50 }).await.unwrap().items;
    let models = service.learned_models().await.unwrap();
    assert_eq!((trainings.len(), trainings[0].attempts), (models.len(), 2));
}

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn errors(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let layer = tracing_subscriber::fmt().with_ansi(false).with_writer(move || log.clone());
        tracing::subscriber::set_default(layer.with_max_level(tracing::Level::ERROR).finish())
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// Puts a model of the scope to use whose file says something else.
async fn used(service: &Service, id: &str, scope: &Scope, file: &ModelFile) {
    let bytes = file.to_bytes().unwrap();
    let model = LearnedModel {
        version: MODEL_VERSION,
        id: ModelId(id.to_owned()),
        learner: Learner::Lambdamart,
        scope: scope.clone(),
        features_version: file.features_version,
        data: DataUsed { groups: 9, matrices: 8, generated: 7, trials: 99, newest: Timestamp(1) },
        quality: HeldOut { folds: 5, groups: 9, rankers: Vec::new() },
        importance: Vec::new(),
        seed: 1,
        started_from: None,
        training: None,
        digest: Digest::of(&bytes),
        created_at: Timestamp(1),
    };
    let reason = "by hand".to_owned();
    let activation = Activation {
        scope: scope.clone(),
        model: Some(model.id.clone()),
        reason,
        at: Timestamp(2),
    };
    service.store().insert_model(&model, &bytes).await.unwrap();
    service.store().activate(&activation).await.unwrap();
}

#[tokio::test]
async fn a_model_in_use_for_something_else_is_passed_over_and_told() {
    let world = World::new().await;
    let service = &world.service;
    let log = Log::default();
    let _listening = log.errors();
    let (shared, own) = features::names(Op::Spmm);
    let sound = ModelFile {
        version: file::VERSION,
        scope: scope(),
        features_version: features::version(Op::Spmm),
        shared,
        own,
        largest: None,
        model: Model::Lambdamart(Forest { prior: None, trees: Vec::new(), scale: 1.0 }),
    };
    used(service, "sound", &scope(), &sound).await;
    assert!(service.active_model(&scope()).await.unwrap().is_some());
    assert_eq!(log.text(), "");

    let elsewhere = Scope { device_class: DeviceClass("cpu/other".to_owned()), ..scope() };
    used(service, "foreign", &elsewhere, &sound).await;
    assert!(service.active_model(&elsewhere).await.unwrap().is_none());
    let told = log.text();
    assert!(
        told.contains("foreign") && told.contains("the model was trained for spmm on"),
        "{told}"
    );

    let newer = ModelFile { features_version: features::version(Op::Spmm) + 1, ..sound };
    used(service, "newer", &scope(), &newer).await;
    assert!(service.active_model(&scope()).await.unwrap().is_none());
    let told = log.text();
    let version = format!("version {} of the features", newer.features_version);
    assert!(told.contains("newer") && told.contains(&version), "{told}");
    // Once for each, however often they are asked for.
    assert!(service.active_model(&scope()).await.unwrap().is_none());
    assert_eq!(log.text(), told);
}

#[tokio::test]
async fn the_class_with_the_most_trials_is_found_without_its_device() {
    let world = World::new().await;
    let missing = world.service.most_recorded_class(Op::Spmm).await.unwrap_err();
    assert!(missing.to_string().contains("no trials of spmm"), "{missing}");
    let other = Device { name: "another".to_owned(), ..device() };
    crate::measured::measured(&world.service, &other, 1).await;
    assert_eq!(world.service.most_recorded_class(Op::Spmm).await.unwrap(), other.class());
    measured(&world, 2).await;
    assert_eq!(world.service.most_recorded_class(Op::Spmm).await.unwrap(), device().class());
    assert!(world.service.most_recorded_class(Op::Sptrsv).await.is_err());
}
