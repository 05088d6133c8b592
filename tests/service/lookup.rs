//! Lookup: every grade, its reasons, and the epoch that caches go by.

use crate::world::*;
use sparsetune::domain::*;
use sparsetune::service::{LookupQuery, ServiceError};
use sparsetune::store::Retention;

pub fn query(matrix: Digest, n: u32) -> LookupQuery {
    LookupQuery {
        matrix,
        problem: problem(n),
        device: None,
        l2_policy: None,
        neighbour: false,
        predicted: false,
    }
}

async fn tuned() -> (World, Matrix, Plan) {
    let world = World::new().await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    let plan = world.tune(&matrix, 32).await;
    (world, matrix, plan)
}

#[tokio::test]
async fn a_plan_is_found_by_either_digest_for_ever_after() {
    let (world, matrix, plan) = tuned().await;
    let exact = Lookup {
        grade: Grade::Exact,
        reasons: vec![],
        neighbour: None,
        distance: None,
        plan: Some(plan.clone()),
        second: None,
    };
    for round in ["stored", "deleted"] {
        for digest in [matrix.digest, matrix.pattern_digest] {
            let found = world.service.lookup(&query(digest, 32)).await.unwrap();
            assert_eq!(found, exact, "{round}");
        }
        if round == "stored" {
            world.service.delete_matrix(&matrix.digest).await.unwrap();
        }
    }
    assert_eq!(world.service.plan(&plan.id).await.unwrap(), plan);
    let nothing = world.service.plan(&PlanId("x".to_owned())).await;
    assert!(matches!(nothing, Err(ServiceError::NotFound { .. })));
}

#[tokio::test]
async fn other_values_of_the_same_pattern_share_the_plan() {
    let (world, _, plan) = tuned().await;
    let scaled = tridiagonal(20).replace(".5\n", ".25\n");
    let other = world.upload(&scaled).await.matrix;
    assert_ne!(other.digest, plan.matrix);
    let found = world.service.lookup(&query(other.digest, 32)).await.unwrap();
    assert_eq!((found.grade, found.plan), (Grade::Exact, Some(plan)));
}

#[tokio::test]
async fn devices_are_named_by_id_class_or_auto() {
    let (world, matrix, plan) = tuned().await;
    let on = async |name: &str| {
        let device = Some(name.to_owned());
        world.service.lookup(&LookupQuery { device, ..query(matrix.digest, 32) }).await
    };
    for name in ["auto", "cpu", &device().class().0] {
        assert_eq!(on(name).await.unwrap().plan.as_ref(), Some(&plan), "{name}");
    }
    let elsewhere = on("cuda/other/cc9.0/132sm").await.unwrap();
    assert_eq!(elsewhere.grade, Grade::None);
    assert!(elsewhere.reasons[0].contains("its device class is cpu/"), "{:?}", elsewhere.reasons);
    match on("cuda:3").await {
        Err(ServiceError::Invalid { message, .. }) => assert!(message.contains("cpu"), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_plan_grows_stale_with_the_software() {
    let (world, matrix, plan) = tuned().await;
    let newer = Device { compiler: "rustc of tomorrow".to_owned(), ..device() };
    world.service.register(newer).await.unwrap();
    let found = world.service.lookup(&query(matrix.digest, 32)).await.unwrap();
    assert_eq!((found.grade, found.plan), (Grade::Stale, Some(plan)));
    assert!(found.reasons[0].contains("now `kernel 6; rustc of tomorrow"), "{:?}", found.reasons);
}

#[tokio::test]
async fn a_plan_grows_stale_with_its_kernel() {
    let world = World::new().await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    world.service.submit(&request(&matrix, 32), None).await.unwrap();
    let claim = world.claim().await;
    let mut old = plan(&device(), &matrix, &claim.job);
    old.provenance.kernel_digest = Some(Digest::of(b"older text"));
    world.service.store().finish(&claim.fence, &ended(&claim.job, Some(old))).await.unwrap();
    let found = world.service.lookup(&query(matrix.digest, 32)).await.unwrap();
    assert_eq!(found.grade, Grade::Stale);
    assert!(found.reasons[0].contains("family row_split"), "{:?}", found.reasons);
}

#[tokio::test]
async fn a_dense_products_plan_grows_stale_with_its_library() {
    let dense = Candidate::new("vendor").with_text("algorithm", "cublas_dense");
    for (candidate, stale) in [(dense, true), (Candidate::new("row_split"), false)] {
        let world = World::new().await;
        let then = Device { dense_vendor: Some("cuBLAS 12.0".to_owned()), ..device() };
        world.service.register(then.clone()).await.unwrap();
        let matrix = world.upload(&tridiagonal(20)).await.matrix;
        world.service.submit(&request(&matrix, 32), None).await.unwrap();
        let claim = world.claim().await;
        let mut made = plan(&then, &matrix, &claim.job);
        made.provenance.kernel_digest = then.kernels.get(&candidate.family).copied();
        made.candidate = candidate;
        world.service.store().finish(&claim.fence, &ended(&claim.job, Some(made))).await.unwrap();
        let look = async || world.service.lookup(&query(matrix.digest, 32)).await.unwrap();
        assert_eq!(look().await.grade, Grade::Exact);
        let now = Device { dense_vendor: Some("cuBLAS 13.0".to_owned()), ..then };
        world.service.register(now).await.unwrap();
        let found = look().await;
        assert_eq!(found.grade == Grade::Stale, stale, "{:?}", found.reasons);
        assert_eq!(found.reasons.iter().any(|why| why.contains("now `cuBLAS 13.0`")), stale);
    }
}

#[tokio::test]
async fn a_class_that_is_not_here_is_answered_with_a_caveat() {
    let (world, matrix, _) = tuned().await;
    let far = gpu(0, 3000.0);
    let plan = world.tune_on(&far, &matrix, 64).await;
    let asked = LookupQuery { device: Some(far.class().0), ..query(matrix.digest, 64) };
    let found = world.service.lookup(&asked).await.unwrap();
    assert_eq!((found.grade, found.plan), (Grade::Exact, Some(plan)));
    assert!(found.reasons[0].contains("could not be compared"), "{:?}", found.reasons);
}

#[tokio::test]
async fn without_devices_none_names_the_classes_to_ask_for() {
    let world = World::new().await;
    let bare = world.service.lookup(&query(Digest::of(b"?"), 32)).await.unwrap();
    assert_eq!((bare.grade, bare.plan), (Grade::None, None));
    assert!(bare.reasons[0].contains("no device is registered"), "{:?}", bare.reasons);
    assert!(bare.reasons[1].contains("no plan is known"), "{:?}", bare.reasons);

    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    let plan = world.tune(&matrix, 32).await;
    // Its worker is gone for so long that its row is, too.
    let [nothing, now] = [Timestamp(0), Timestamp::now().plus_millis(1000)];
    let old = Retention {
        idempotency_keys: nothing,
        events: nothing,
        devices: now,
        predicted: now,
        bundles: now,
        deliveries: nothing,
    };
    world.service.store().prune(&old).await.unwrap();
    let service = world.elsewhere("later").await;
    for name in [None, Some("cpu".to_owned())] {
        let asked = LookupQuery { device: name, ..query(matrix.digest, 32) };
        let found = service.lookup(&asked).await.unwrap();
        assert_eq!((found.grade, found.plan), (Grade::None, None));
        assert!(found.reasons[1].contains(&device().class().0), "{:?}", found.reasons);
    }
    let class = Some(device().class().0);
    let asked = LookupQuery { device: class, ..query(matrix.digest, 32) };
    assert_eq!(service.lookup(&asked).await.unwrap().plan, Some(plan));
}

#[tokio::test]
async fn none_says_what_differs() {
    let (world, matrix, _) = tuned().await;
    let found = world.service.lookup(&query(matrix.digest, 64)).await.unwrap();
    assert_eq!((found.grade, &found.plan), (Grade::None, &None));
    assert_eq!(found.reasons, ["the closest plan differs: its n is 32, not 64"]);
    let cold = LookupQuery { l2_policy: Some(L2Policy::Cold), ..query(matrix.digest, 32) };
    let found = world.service.lookup(&cold).await.unwrap();
    assert_eq!(found.reasons, ["the closest plan differs: its L2 policy is warm, not cold"]);
    let unknown = world.service.lookup(&query(Digest::of(b"?"), 32)).await.unwrap();
    assert_eq!((unknown.grade, unknown.reasons.len()), (Grade::None, 2));
    assert!(unknown.reasons[1].contains("not known here"), "{:?}", unknown.reasons);
}

#[tokio::test]
async fn a_neighbour_is_named_and_never_exact() {
    let (world, matrix, plan) = tuned().await;
    let near = world.upload(&tridiagonal(22)).await.matrix;
    let found = world.service.lookup(&query(near.digest, 32)).await.unwrap();
    assert_eq!((found.grade, found.neighbour), (Grade::Neighbour, Some(matrix.digest)));
    assert_eq!(found.plan, Some(plan));
    let distance = found.distance.unwrap();
    assert!(distance > 0.0 && distance < 0.5, "{distance}");

    let far = "%%MatrixMarket matrix coordinate real general\n4000 9 3\n1 1 1\n1 2 1\n9 9 1\n";
    let far = world.upload(far).await.matrix;
    let refused = world.service.lookup(&query(far.digest, 32)).await.unwrap();
    assert_eq!((refused.grade, refused.distance), (Grade::None, None));
    assert!(refused.reasons.iter().any(|reason| reason.contains("ask for neighbours")));
    let asked = LookupQuery { neighbour: true, ..query(far.digest, 32) };
    let found = world.service.lookup(&asked).await.unwrap();
    assert_eq!((found.grade, found.neighbour), (Grade::Neighbour, Some(matrix.digest)));
    assert!(found.distance.unwrap() > 0.5);
}

#[tokio::test]
async fn a_plan_for_certain_values_serves_only_those() {
    let world = World::new().await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    let other = world.upload(&tridiagonal(20).replace(".5\n", ".25\n")).await.matrix;
    world.service.submit(&request(&matrix, 32), None).await.unwrap();
    let claim = world.claim().await;
    let mut fixed = plan(&device(), &matrix, &claim.job);
    fixed.validity.values_may_change = false;
    world.service.store().finish(&claim.fence, &ended(&claim.job, Some(fixed))).await.unwrap();
    let found = world.service.lookup(&query(matrix.digest, 32)).await.unwrap();
    assert_eq!(found.grade, Grade::Exact);
    let found = world.service.lookup(&query(other.digest, 32)).await.unwrap();
    assert_eq!((found.grade, found.distance), (Grade::Neighbour, Some(0.0)));
    assert!(found.reasons[0].contains("only for the values"), "{:?}", found.reasons);
}

#[tokio::test]
async fn the_epoch_moves_when_answers_may() {
    let (world, matrix, _) = tuned().await;
    let service = &world.service;
    let before = service.plans_epoch();
    service.submit(&request(&matrix, 64), None).await.unwrap();
    world.upload(&tridiagonal(20)).await;
    service.lookup(&query(matrix.digest, 32)).await.unwrap();
    assert_eq!(service.plans_epoch(), before, "no plan was stored");
    let claim = world.claim().await;
    let found = plan(&device(), &matrix, &claim.job);
    service.store().finish(&claim.fence, &ended(&claim.job, Some(found))).await.unwrap();
    let stored = service.plans_epoch();
    assert!(stored > before);
    service.register(gpu(0, 100.0)).await.unwrap();
    let registered = service.plans_epoch();
    assert!(registered > stored);
    // Lookups read the facts of stored matrices.
    let other = world.upload(&tridiagonal(9)).await.matrix;
    let uploaded = service.plans_epoch();
    assert!(uploaded > registered);
    service.delete_matrix(&other.digest).await.unwrap();
    assert!(service.plans_epoch() > uploaded);
}
