//! Retention: shown before it acts, acting as shown, and never on what is pinned or needed.

use crate::world::*;
use sparsetune::domain::plan::Launch;
use sparsetune::domain::*;
use sparsetune::service::checkup::{Remedy, checkup};
use sparsetune::service::{
    Going, Gone, NewToken, Pin, Rule, Rules, Service, ServiceError, ServiceSettings,
};
use sparsetune::store::{Finish, LocalBlobs, Matrices as _, PageRequest, SqliteStore};
use sqlx::Connection as _;
use std::time::{Duration, SystemTime};
use tokio_util::sync::CancellationToken;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn count(most: u64) -> Rule {
    Rule { count: Some(most), ..Rule::default() }
}

fn digests_of(going: &Going) -> Vec<Digest> {
    going.matrices.items.iter().map(|held| held.digest).collect()
}

fn numbers(going: &Going) -> [u64; 4] {
    let Going { plans, jobs, trial_rows, matrices, .. } = going;
    [plans.items.len() as u64, jobs.items.len() as u64, *trial_rows, matrices.items.len() as u64]
}

/// Tunes with two trials and a program, and gives the plan and its program.
async fn tuned(world: &World, matrix: &Matrix, n: u32, program: &str) -> (Plan, Digest) {
    world.service.submit(&request(matrix, n), None).await.unwrap();
    let claim = world.claim().await;
    let trials = [trial(&claim.job.id, 0), trial(&claim.job.id, 1)];
    world.service.store().record_trials(&claim.fence, &trials).await.unwrap();
    let source = world.service.blobs().put(program.to_owned().into()).await.unwrap();
    let launch: Launch = serde_json::from_value(serde_json::json!({
        "entry": "k", "source": source, "cubin": null, "grid": [1, 1, 1], "block": [1, 1, 1], "shared_bytes": 0, "arguments": []
    }))
    .unwrap();
    let plan = Plan { launch: Some(launch), ..plan(&device(), matrix, &claim.job) };
    let finish: Finish = ended(&claim.job, Some(plan.clone()));
    world.service.store().finish(&claim.fence, &finish).await.unwrap();
    (plan, source)
}

#[tokio::test]
async fn what_is_shown_is_what_goes() {
    let rules = Rules { matrices: count(1), jobs: count(2), trials: count(2), plans: count(2) };
    let world = World::with(|settings| settings.retention = rules).await;
    world.service.register(device()).await.unwrap();
    let a = world.upload(&tridiagonal(5)).await.matrix;
    let b = world.upload(&tridiagonal(6)).await.matrix;
    let (oldest, _) = tuned(&world, &a, 1, "one").await;
    let (replaced, _) = tuned(&world, &a, 2, "two").await;
    let (answer, _) = tuned(&world, &a, 2, "three").await;
    let (last, shared) = tuned(&world, &b, 1, "three").await;
    assert_eq!(answer.launch.as_ref().unwrap().source, Some(shared));
    let service = &world.service;
    let nothing = service.going(&Rules::default()).await.unwrap();
    assert!(nothing.is_empty());

    let going = service.going(&rules).await.unwrap();
    assert_eq!(numbers(&going), [2, 2, 2, 1]);
    assert_eq!(
        going.plans.items,
        [replaced.id.clone(), oldest.id.clone()],
        "what was replaced goes first"
    );
    assert!(going.plans.bytes > 6, "the plans and their programs");
    assert_eq!(digests_of(&going), [a.digest]);
    let file = service.blobs().local_copy(&a.digest).await.unwrap();
    assert_eq!(going.matrices.bytes, std::fs::metadata(&file).unwrap().len());
    assert_eq!(service.going(&rules).await.unwrap(), going, "nothing was changed by looking");

    // Pins, and a job that waits, hold it back.
    service.pin(&Pin::Plan(oldest.id.clone()), true).await.unwrap();
    service.pin(&Pin::Matrix(b.digest), true).await.unwrap();
    let waiting = service.submit(&request(&a, 7), None).await.unwrap().job;
    let refused = service.delete_matrix(&b.digest).await.unwrap_err();
    assert!(matches!(&refused, ServiceError::Conflict { message } if message.contains("pinned")));
    // What was looked at before they were set removes nothing that they hold.
    assert_eq!(
        service.remove_going(&going).await.unwrap(),
        Gone { plans: 1, jobs: 1, trials: 2, matrices: 0 }
    );
    let pins = service.pins().await.unwrap();
    assert_eq!((pins.matrices, pins.plans), (vec![b.digest], vec![oldest.id.clone()]));
    for (plan, there) in [(&oldest, true), (&replaced, false), (&answer, true), (&last, true)] {
        let job = plan.provenance.job.as_ref().unwrap();
        let left = service.store().plan(&plan.id).await.unwrap().is_some();
        assert_eq!(left, there);
        if plan.id == oldest.id {
            assert_eq!(service.tried(job, 9).await.unwrap().len(), 2, "the job of a pinned plan");
        }
    }
    assert!(service.job(replaced.provenance.job.as_ref().unwrap()).await.is_err());
    service.job(&waiting.id).await.unwrap();
    service.matrix(&a.digest).await.unwrap();

    // Upkeep acts by the same rules, once they are free to go.
    service.pin(&Pin::Plan(oldest.id.clone()), false).await.unwrap();
    service.pin(&Pin::Matrix(b.digest), false).await.unwrap();
    service.cancel(&waiting.id).await.unwrap();
    let shown = numbers(&service.going(&rules).await.unwrap());
    let removed = service.remove_old().await.unwrap().retained;
    assert_eq!(shown, [removed.plans, removed.jobs, removed.trials, removed.matrices]);
    assert!(service.going(&rules).await.unwrap().is_empty());
    assert_eq!(service.remove_old().await.unwrap().retained, Gone::default());
    // Nothing is left half.
    let place = world.folder.path().join("blobs");
    let (store, blobs) =
        (SqliteStore::open(&world.store_file()).await.unwrap(), LocalBlobs::open(&place).unwrap());
    assert!(checkup(&store, &blobs, DAY, false).await.unwrap().is_whole());
    let absent = service.pin(&Pin::Plan(PlanId::fresh()), true).await.unwrap_err();
    assert!(matches!(absent, ServiceError::NotFound { .. }));
}

#[tokio::test]
async fn who_uploads_a_matrix_again_uses_it() {
    let age = Rule { age_ms: Some(DAY.as_millis() as i64), ..Rule::default() };
    let rules = Rules { matrices: age, ..Rules::default() };
    let world = World::new().await;
    let [old, again] = [5, 6].map(tridiagonal);
    let mut digests = Vec::new();
    for text in [&old, &again] {
        let digest = world.upload(text).await.matrix.digest;
        let mut facts = world.service.matrix(&digest).await.unwrap();
        world.service.store().delete_matrix(&digest).await.unwrap();
        facts.created_at = Timestamp::now().plus_millis(-2 * DAY.as_millis() as i64);
        world.service.store().insert_matrix(&facts).await.unwrap();
        let file = world.service.blobs().local_copy(&digest).await.unwrap();
        let file = std::fs::File::open(file).unwrap();
        file.set_modified(SystemTime::now() - 2 * DAY).unwrap();
        digests.push(digest);
    }
    assert_eq!(world.service.going(&rules).await.unwrap().matrices.items.len(), 2);
    assert!(!world.upload(&again).await.created);
    assert_eq!(digests_of(&world.service.going(&rules).await.unwrap()), [digests[0]]);
}

/// A round may take minutes; who uploads a matrix meanwhile was told that it is here.
#[tokio::test]
async fn what_is_uploaded_again_between_look_and_removal_stays() {
    let rules = Rules { matrices: count(0), ..Rules::default() };
    let world = World::new().await;
    let matrix = world.upload(&tridiagonal(5)).await.matrix;
    let going = world.service.going(&rules).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!world.upload(&tridiagonal(5)).await.created);
    assert_eq!(world.service.remove_going(&going).await.unwrap(), Gone::default());
    assert_eq!(world.service.matrix(&matrix.digest).await.unwrap(), matrix);
    world.service.blobs().local_copy(&matrix.digest).await.unwrap();
    let going = world.service.going(&rules).await.unwrap();
    assert_eq!(world.service.remove_going(&going).await.unwrap().matrices, 1);
}

/// What a token has searched in a day is counted from its jobs, which therefore stay for as long.
#[tokio::test]
async fn a_quota_outlives_the_rules_for_jobs() {
    let rules = Rules { jobs: count(0), trials: count(0), ..Rules::default() };
    let world = World::new().await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(5)).await.matrix;
    let limits = TokenLimits { search_seconds_per_day: Some(10.0), ..TokenLimits::default() };
    let owner = Caller::owner(Some("ci".parse().unwrap()), Namespace::default());
    let own = world.service.on_behalf_of(&Caller { limits, ..owner });
    let asked = |n: u32| JobRequest {
        search: Search { seconds: Some(6.0), ..Search::default() },
        ..request(&matrix, n)
    };
    let id = own.submit(&asked(1), None).await.unwrap().job.id;
    let claim = world.claim().await;
    let trials = [trial(&id, 0)];
    world.service.store().record_trials(&claim.fence, &trials).await.unwrap();
    let job = Job { search_seconds: 5.0, ..claim.job.clone() };
    let plan = plan(&device(), &matrix, &job);
    world.service.store().finish(&claim.fence, &ended(&job, Some(plan))).await.unwrap();
    tuned(&world, &matrix, 2, "nobody's").await;

    let going = world.service.going(&rules).await.unwrap();
    assert_eq!((going.jobs.items.len(), &going.trials.items), (1, &vec![id.clone()]));
    world.service.remove_going(&going).await.unwrap();
    assert!(world.service.tried(&id, 9).await.unwrap().is_empty());
    let refused = own.submit(&asked(3), None).await.unwrap_err();
    assert!(matches!(&refused, ServiceError::Quota(quota) if quota.used == 5.0), "{refused}");
    // A day later it goes as well.
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(world.store_file());
    let mut raw = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    let later = "UPDATE jobs SET finished_at = finished_at - 86400001";
    sqlx::query(later).execute(&mut raw).await.unwrap();
    assert_eq!(world.service.going(&rules).await.unwrap().jobs.items, [id]);
}

#[tokio::test]
async fn a_plan_whose_files_are_gone_is_made_again_or_says_how() {
    let world = World::new().await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(5)).await.matrix;
    let gone = world.upload(&tridiagonal(6)).await.matrix;
    let (replaced, first) = tuned(&world, &matrix, 2, "one").await;
    let (answer, second) = tuned(&world, &matrix, 2, "two").await;
    let (without, third) = tuned(&world, &gone, 2, "three").await;
    for file in [first, second, third] {
        assert!(world.service.blobs().delete(&file).await.unwrap());
    }
    world.service.delete_matrix(&gone.digest).await.unwrap();
    let place = world.folder.path().join("blobs");
    let (store, blobs) =
        (SqliteStore::open(&world.store_file()).await.unwrap(), LocalBlobs::open(&place).unwrap());
    let found = checkup(&store, &blobs, DAY, false).await.unwrap();
    assert_eq!((found.plan_files_missing.len(), found.plans.len()), (3, 3));
    let remedy =
        |id: &PlanId| found.plans.iter().find(|plan| plan.plan == *id).unwrap().remedy.clone();
    assert_eq!(remedy(&replaced.id), Remedy::Forget);
    let job = answer.provenance.job.clone().unwrap();
    assert_eq!(remedy(&answer.id), Remedy::Tune(job));
    assert_eq!(remedy(&without.id), Remedy::Upload);

    let found = checkup(&store, &blobs, DAY, true).await.unwrap();
    assert_eq!((found.repaired.len(), found.plans.len()), (2, 2), "{found:?}");
    assert!(world.service.store().plan(&replaced.id).await.unwrap().is_none());
    // Its job is there once, however often a repair is run; a worker makes the plan anew.
    checkup(&store, &blobs, DAY, true).await.unwrap();
    let claim = world.claim().await;
    assert_eq!(claim.job.request, request_of(&world, &answer).await);
    let source = world.service.blobs().put("two".into()).await.unwrap();
    assert_eq!(source, second, "the same program is the same file");
    let plan = Plan { id: PlanId::fresh(), ..answer.clone() };
    world.service.store().finish(&claim.fence, &ended(&claim.job, Some(plan))).await.unwrap();
    let found = checkup(&store, &blobs, DAY, true).await.unwrap();
    assert_eq!(found.plans.len(), 1, "what needs an upload remains: {found:?}");
}

async fn request_of(world: &World, plan: &Plan) -> JobRequest {
    world.service.job(plan.provenance.job.as_ref().unwrap()).await.unwrap().request
}

/// Removal may take minutes, in which other processes revoke tokens.
#[tokio::test]
async fn others_are_heard_while_old_data_is_removed() {
    let world = World::with(|settings| {
        settings.retention = Rules { matrices: count(0), ..Rules::default() };
        (settings.poll, settings.upkeep) = (Duration::from_millis(20), Duration::from_secs(3600));
    })
    .await;
    world.upload(&tridiagonal(5)).await;
    // What keeps the removal of a matrix waiting.
    let other = SqliteStore::open(&world.store_file()).await.unwrap();
    let _alone = other.publishing().await.unwrap();
    let stop = CancellationToken::new();
    let upkeep = tokio::spawn(world.service.clone().upkeep(stop.clone()));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let new = NewToken {
        name: "made-elsewhere".parse().unwrap(),
        scopes: Scopes::all(),
        lasting: None,
        limits: TokenLimits::default(),
        namespace: None,
        share_plans: false,
    };
    world.elsewhere("other").await.make_token(new).await.unwrap();
    let heard = async {
        while !world.service.ring().required() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), heard).await.unwrap();
    stop.cancel();
    upkeep.abort();
}

/// A round is one process's, of all with the same rules; what is its own each removes.
#[tokio::test]
async fn one_process_removes_old_data_for_those_with_its_rules() {
    let world = World::with(|settings| {
        settings.retention = Rules { matrices: count(0), ..Rules::default() };
        settings.upkeep = Duration::from_secs(3600);
    })
    .await;
    let stop = CancellationToken::new();
    let removes = async |service: Service, goes: bool| {
        let orphan = world.uploads().join("sparsetune-upload-a");
        let file = std::fs::File::create(&orphan).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(7 * 3600)).unwrap();
        world.upload(&tridiagonal(5)).await;
        let upkeep = tokio::spawn(service.clone().upkeep(stop.clone()));
        let left = async || service.matrices(&PageRequest::ALL).await.unwrap().items.len();
        let done = async {
            while orphan.exists() || goes && left().await > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), done).await.unwrap();
        upkeep.abort();
        assert_eq!(left().await, usize::from(!goes));
    };
    removes(world.service.clone(), true).await;
    removes(world.elsewhere("with the same").await, false).await;
    let others = |settings: &mut ServiceSettings| settings.upkeep = Duration::from_secs(1800);
    removes(world.elsewhere_with("with others", others).await, true).await;
}
