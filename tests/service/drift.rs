//! Plans in use are measured anew once the software around their device has changed, within a budget.

use crate::world::{World, device, problem, tridiagonal};
use sparsetune::domain::drift::{Check, Verdict};
use sparsetune::domain::*;
use sparsetune::service::{JobFilter, LookupQuery, PageRequest, Service};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

async fn used(service: &Service, matrix: &Matrix, n: u32) -> Lookup {
    let query = LookupQuery {
        matrix: matrix.digest,
        problem: problem(n),
        device: None,
        l2_policy: None,
        neighbour: false,
        predicted: false,
    };
    service.lookup(&query).await.unwrap()
}

async fn queued(service: &Service) -> Vec<Job> {
    let filter = JobFilter { state: Some(JobState::Queued), ..JobFilter::default() };
    service.store().jobs(&filter, &PageRequest::ALL).await.unwrap().items
}

#[tokio::test]
async fn the_most_used_plans_are_measured_anew_within_the_budget() {
    let world = World::with(|settings| {
        settings.drift.renewals_per_day = 2;
        settings.heartbeat = Duration::from_millis(20);
    })
    .await;
    let service = &world.service;
    service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(5)).await.matrix;
    for n in 1..=4 {
        world.tune(&matrix, n).await;
    }
    // Of four plans three are used, the third most.
    let stop = CancellationToken::new();
    let upkeep = tokio::spawn(service.clone().upkeep(stop.clone()));
    for (n, times) in [(1, 1), (2, 2), (3, 3)] {
        for _ in 0..times {
            assert_eq!(used(service, &matrix, n).await.grade, Grade::Exact);
        }
    }
    let class = device().class();
    let started = Instant::now();
    while service.store().most_used(&class, Timestamp(0), 9).await.unwrap().len() < 3 {
        assert!(started.elapsed() < Duration::from_secs(30), "uses are not stored");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stop.cancel();
    upkeep.await.unwrap();
    assert_eq!(service.renew_outdated().await.unwrap(), 0, "nothing has changed");

    let newer = Device { driver: "another driver".to_owned(), ..device() };
    service.register(newer).await.unwrap();
    assert_eq!(used(service, &matrix, 3).await.grade, Grade::Stale);
    assert_eq!(service.renew_outdated().await.unwrap(), 2);
    let mut wanted: Vec<Problem> =
        queued(service).await.into_iter().map(|job| job.request.problem).collect();
    wanted.sort_by_key(ToString::to_string);
    assert_eq!(wanted, [problem(2), problem(3)]);
    // Neither again for the same change, nor beyond the budget.
    assert_eq!(service.renew_outdated().await.unwrap(), 0);
    let other = world.elsewhere_with("there", |settings| settings.drift.renewals_per_day = 0).await;
    assert_eq!(other.renew_outdated().await.unwrap(), 0);
    assert_eq!(queued(service).await.len(), 2);
}

#[tokio::test]
async fn what_is_known_of_a_plan_goes_with_it() {
    let world = World::new().await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(5)).await.matrix;
    let plan = world.tune(&matrix, 1).await;
    let check = Check {
        plan: plan.id.clone(),
        at: Timestamp::now(),
        verdict: Verdict::Drifted,
        why: "it takes 9 us".to_owned(),
        median_us: Some(9.0),
        vendor_us: None,
    };
    let store = world.service.store();
    assert!(store.record_check(&check).await.unwrap());
    assert_eq!(store.checks(5).await.unwrap(), std::slice::from_ref(&check));
    let answer = used(&world.service, &matrix, 1).await;
    assert_eq!(answer.grade, Grade::Stale);
    assert!(answer.reasons.iter().any(|why| why.ends_with("it takes 9 us")), "{answer:?}");
    // Another process hears of it with the next revision.
    let other = world.elsewhere("there").await;
    assert_eq!(used(&other, &matrix, 1).await.grade, Grade::Stale);
    assert_eq!(store.delete_plans(std::slice::from_ref(&plan.id)).await.unwrap(), 1);
    assert!(store.checks(5).await.unwrap().is_empty());
    assert!(!store.record_check(&check).await.unwrap(), "the plan is gone");
}
