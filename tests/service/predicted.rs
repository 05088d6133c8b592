//! What a lookup does where nothing was measured: plans from a model alone, and jobs that measure.

use crate::lookup::query;
use crate::world::*;
use sparsetune::domain::problem::{Diagonal, Triangle};
use sparsetune::domain::*;
use sparsetune::ops::spmm::family::FAMILIES;
use sparsetune::service::{JobFilter, LookupQuery, PageRequest, Quarantined, ServiceError};
use std::time::Duration;

fn asking(matrix: &Matrix, n: u32) -> LookupQuery {
    LookupQuery { predicted: true, ..query(matrix.digest, n) }
}

/// A world with a device that has kernel text for each family, and a matrix.
async fn world(change: impl FnOnce(&mut sparsetune::service::ServiceSettings)) -> (World, Matrix) {
    let world = World::with(change).await;
    let families = FAMILIES.iter().map(|family| family.name());
    let kernels = families.map(|name| (name.to_owned(), kernel_text())).collect();
    world.service.register(Device { kernels, ..device() }).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    (world, matrix)
}

/// From here on nothing can be predicted that is not known.
async fn lose_entries(world: &World, matrix: &Matrix) {
    assert!(world.service.blobs().delete(&matrix.digest).await.unwrap());
}

/// The predicted plan, which is stored.
async fn predicted(world: &World, asked: &LookupQuery) -> Plan {
    let found = world.service.lookup_and_keep(asked).await.unwrap();
    assert_eq!(found.grade, Grade::Predicted, "{:?}", found.reasons);
    found.plan.unwrap()
}

#[tokio::test]
async fn a_miss_is_predicted_once_and_a_measured_plan_wins() {
    let (world, matrix) = world(|_| {}).await;
    let asked = asking(&matrix, 32);
    let first = world.service.lookup_and_keep(&asked).await.unwrap();
    assert_eq!(first.grade, Grade::Predicted, "{:?}", first.reasons);
    let guessed = first.plan.unwrap();
    assert!(guessed.is_predicted() && guessed.launch.is_none() && guessed.predicted.is_some());
    assert!(first.reasons.iter().any(|why| why.contains("POST /v1/jobs")), "{:?}", first.reasons);
    assert_eq!(world.service.plan(&guessed.id).await.unwrap(), guessed);
    lose_entries(&world, &matrix).await;
    assert_eq!(predicted(&world, &asked).await, guessed);
    let lost = world.service.lookup(&asking(&matrix, 64)).await.unwrap();
    assert_eq!((lost.grade, lost.plan), (Grade::None, None));
    assert!(
        lost.reasons.iter().any(|why| why.contains("are not stored here")),
        "{:?}",
        lost.reasons
    );
    let refused = world.service.lookup(&query(matrix.digest, 32)).await.unwrap();
    assert_eq!((refused.grade, refused.plan), (Grade::None, None));
    let measured = world.tune(&matrix, 32).await;
    let found = world.service.lookup(&asked).await.unwrap();
    assert_eq!(found.plan, Some(measured));
}

/// A prediction is worth the same whether it is stored, and a lookup alone stores none.
#[tokio::test]
async fn who_only_looks_leaves_nothing_behind() {
    let (world, matrix) = world(|_| {}).await;
    let asked = asking(&matrix, 32);
    let first = world.service.lookup(&asked).await.unwrap();
    let guessed = first.plan.clone().unwrap();
    assert!(first.reasons.iter().any(|why| why.contains("by POST stores it")), "{first:?}");
    assert!(matches!(world.service.plan(&guessed.id).await, Err(ServiceError::NotFound { .. })));
    assert!(world.service.unmeasured_of(&matrix.digest, 9).await.unwrap().is_empty());
    lose_entries(&world, &matrix).await;
    assert_eq!(world.service.lookup(&asked).await.unwrap(), first, "it is remembered");
    assert_eq!(predicted(&world, &asked).await, guessed);
    assert_eq!(world.service.plan(&guessed.id).await.unwrap(), guessed);
    let found = world.service.lookup(&asked).await.unwrap();
    assert!(!found.reasons.iter().any(|why| why.contains("not stored")), "{found:?}");
}

#[tokio::test]
async fn what_is_quarantined_is_predicted_no_more() {
    let (world, matrix) = world(|_| {}).await;
    let asked = asking(&matrix, 32);
    let first = predicted(&world, &asked).await;
    let entry = Quarantined {
        class: first.device.class(),
        kernel_digest: kernel_text(),
        candidate: first.candidate.clone(),
        scope: QuarantineScope::Pattern,
        reason: "timed_out".to_owned(),
        at: Timestamp::now(),
    };
    world.service.store().quarantine(&entry, &matrix.pattern_digest).await.unwrap();
    let second = predicted(&world, &asked).await;
    assert_ne!((&second.id, &second.candidate), (&first.id, &first.candidate));
    assert!(!second.alternatives.contains(&first.candidate));
    lose_entries(&world, &matrix).await;
    assert_eq!(predicted(&world, &asked).await, second, "it is stored as well");
}

#[tokio::test]
async fn a_prediction_ends_whoever_waits() {
    let (world, matrix) = world(|settings| settings.prediction_wait = Duration::ZERO).await;
    let asked = asking(&matrix, 32);
    let first = world.service.lookup(&asked).await.unwrap();
    assert_eq!((first.grade, first.plan), (Grade::None, None));
    assert!(first.reasons.iter().any(|why| why.contains("try again")), "{:?}", first.reasons);
    let made = async {
        while world.service.lookup(&asked).await.unwrap().plan.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), made).await.unwrap();
    predicted(&world, &asked).await;
}

#[tokio::test]
async fn that_nothing_can_be_predicted_is_remembered() {
    let (world, _) = world(|_| {}).await;
    let text = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1.0\n2 1 1.0\n";
    let matrix = world.upload(text).await.matrix;
    let solve = Sptrsv {
        rhs: 1,
        dtype: Dtype::F64,
        triangle: Triangle::Lower,
        diagonal: Diagonal::NonUnit,
        transpose: false,
        ..Sptrsv::PLAIN
    };
    let asked = LookupQuery { problem: Problem::Sptrsv(solve), ..asking(&matrix, 32) };
    let first = world.service.lookup(&asked).await.unwrap();
    assert_eq!(first.grade, Grade::None);
    assert!(first.reasons.iter().any(|why| why.contains("nothing is predicted: ")), "{first:?}");
    lose_entries(&world, &matrix).await;
    assert_eq!(world.service.lookup(&asked).await.unwrap(), first);
}

#[tokio::test]
async fn lookups_do_not_fill_the_store() {
    let (world, matrix) = world(|_| {}).await;
    for n in 1..=64 {
        let plan = predicted(&world, &asking(&matrix, n)).await;
        world.service.plan(&plan.id).await.unwrap();
    }
    let one_more = world.service.lookup_and_keep(&asking(&matrix, 65)).await.unwrap();
    assert!(
        one_more.reasons.iter().any(|why| why.contains("not stored")),
        "{:?}",
        one_more.reasons
    );
    let plan = one_more.plan.unwrap();
    let gone = world.service.plan(&plan.id).await;
    assert!(matches!(gone, Err(ServiceError::NotFound { .. })), "{gone:?}");
    lose_entries(&world, &matrix).await;
    assert_eq!(predicted(&world, &asking(&matrix, 65)).await, plan, "it is remembered");
}

/// What would be left behind is refused, and not the answer.
#[tokio::test]
async fn a_token_without_room_is_answered_and_told_what_is_not_stored() {
    let (world, matrix) = world(|settings| settings.measure_misses = true).await;
    let limits =
        TokenLimits { stored_bytes: Some(1), queued_jobs: Some(0), ..TokenLimits::default() };
    let token = Some("small".parse().unwrap());
    let caller = Caller { limits, ..Caller::owner(token, Namespace::default()) };
    let own = world.service.on_behalf_of(&caller);
    let found = own.lookup_and_keep(&asking(&matrix, 32)).await.unwrap();
    assert_eq!(found.grade, Grade::Predicted, "{:?}", found.reasons);
    let told = |what: &str, limit: &str| {
        found.reasons.iter().any(|why| why.starts_with(what) && why.contains(limit))
    };
    assert!(told("it is not stored", "stored_bytes"), "{:?}", found.reasons);
    assert!(told("no measuring job is queued", "queued_jobs"), "{:?}", found.reasons);
    let gone = world.service.plan(&found.plan.unwrap().id).await;
    assert!(matches!(gone, Err(ServiceError::NotFound { .. })), "{gone:?}");
}

#[tokio::test]
async fn predicted_plans_go_with_age_or_once_measured() {
    let (world, matrix) = world(|_| {}).await;
    let outdone = predicted(&world, &asking(&matrix, 32)).await;
    let young = predicted(&world, &asking(&matrix, 64)).await;
    world.service.submit(&request(&matrix, 32), None).await.unwrap();
    let claim = world.claim().await;
    let measured = plan(&outdone.device, &matrix, &claim.job);
    world.service.store().finish(&claim.fence, &ended(&claim.job, Some(measured))).await.unwrap();
    assert_eq!(world.service.remove_old().await.unwrap().rows.predicted, 1);
    assert!(world.service.plan(&outdone.id).await.is_err());
    world.service.plan(&young.id).await.unwrap();
    let later = world.elsewhere_with("later", |s| s.keep.predicted = Duration::ZERO).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(later.remove_old().await.unwrap().rows.predicted, 1);
    assert!(world.service.plan(&young.id).await.is_err());
}

#[tokio::test]
async fn misses_wait_for_a_short_queue() {
    let (world, matrix) = world(|settings| settings.measure_misses = true).await;
    for n in 1..=33 {
        world.service.submit(&request(&matrix, n), None).await.unwrap();
    }
    let missed = world.service.lookup_and_keep(&query(matrix.digest, 64)).await.unwrap();
    assert!(
        missed.reasons.iter().any(|why| why.contains("more than 32 jobs are waiting")),
        "{:?}",
        missed.reasons
    );
    let page = PageRequest { after: None, limit: 100 };
    let jobs = world.service.jobs(&JobFilter::default(), &page).await.unwrap().items;
    assert_eq!(jobs.len(), 33);
}

#[tokio::test]
async fn a_miss_is_measured_once_where_the_operator_consents() {
    let queued = async |world: &World| {
        let page = PageRequest { after: None, limit: 10 };
        world.service.jobs(&JobFilter::default(), &page).await.unwrap().items
    };
    for consent in [false, true] {
        let world = World::with(|settings| settings.measure_misses = consent).await;
        world.service.register(device()).await.unwrap();
        let matrix = world.upload(&tridiagonal(20)).await.matrix;
        let asked = query(matrix.digest, 32);
        world.service.lookup(&asked).await.unwrap();
        assert!(queued(&world).await.is_empty(), "who only reads queues nothing");
        let missed = world.service.lookup_and_keep(&asked).await.unwrap();
        let jobs = queued(&world).await;
        if !consent {
            assert!(jobs.is_empty(), "nothing is measured unasked");
            continue;
        }
        let [job] = jobs.as_slice() else { panic!("{jobs:?}") };
        assert_eq!(job.request.search.strategy, SearchStrategy::Ranked);
        assert_eq!((job.request.matrix, job.request.problem), (matrix.digest, problem(32)));
        let said = format!("job {} measures it", job.id);
        assert!(missed.reasons.contains(&said), "{:?}", missed.reasons);
        // Plans of another policy are not what this service measures.
        let cold = LookupQuery { l2_policy: Some(L2Policy::Cold), ..query(matrix.digest, 64) };
        world.service.lookup_and_keep(&cold).await.unwrap();
        // A job that failed is not tried again at every look.
        let claim = world.claim().await;
        world.service.store().finish(&claim.fence, &ended(&claim.job, None)).await.unwrap();
        let again = world.service.lookup_and_keep(&asked).await.unwrap();
        let said = format!("the measuring job {} failed", job.id);
        assert!(again.reasons.contains(&said), "{:?}", again.reasons);
        assert_eq!(queued(&world).await.len(), 1);
        // A hit is none.
        let planned = world.tune(&matrix, 8).await;
        let found = world.service.lookup(&query(matrix.digest, 8)).await.unwrap();
        assert_eq!((found.grade, found.plan), (Grade::Exact, Some(planned)));
        assert_eq!(queued(&world).await.len(), 2);
    }
}
