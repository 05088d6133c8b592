//! Submission: what is refused, what is filled in, what is the same job.

use crate::world::*;
use sparsetune::domain::*;
use sparsetune::service::{JobFilter, PageRequest, ServiceError};
use sparsetune::store::{Queue, Retention};

async fn ready() -> (World, Matrix) {
    let world = World::new().await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    (world, matrix)
}

fn fixed(name: &str, value: i64) -> Fixed {
    Fixed([(name.to_owned(), Param::Int(value))].into())
}

#[tokio::test]
async fn nonsense_is_refused_where_it_stands() {
    let (world, matrix) = ready().await;
    let good = request(&matrix, 32);
    let with = |change: fn(&mut JobRequest)| {
        let mut request = good.clone();
        change(&mut request);
        request
    };
    let cases = [
        ("/matrix", with(|r| r.matrix = Digest::of(b"never uploaded"))),
        ("/device", with(|r| r.device = "cuda:7".to_owned())),
        ("/problem/n", with(|r| r.problem = problem(0))),
        ("/problem/n", with(|r| r.problem = problem(65_537))),
        ("/search/seconds", with(|r| r.search.seconds = Some(0.0))),
        ("/search/seconds", with(|r| r.search.seconds = Some(f64::NAN))),
        ("/search/seconds", with(|r| r.search.seconds = Some(f64::INFINITY))),
        ("/search/trials", with(|r| r.search.trials = Some(0))),
        ("/search/top_k", with(|r| r.search.top_k = Some(0))),
        ("/expected_calls", with(|r| r.expected_calls = Some(0))),
        ("/search/families", with(|r| r.search.families = vec!["tiled".to_owned()])),
        ("/search/fixed", with(|r| r.search.fixed = fixed("m1", 3))),
        ("/search/fixed", with(|r| r.search.fixed = fixed("row_split.m1", 2))),
        ("/search/fixed", with(|r| r.search.fixed = fixed("colour", 2))),
        ("/search/fixed", with(|r| r.search.fixed = fixed(".m1", 2))),
        ("/search/fixed", with(|r| r.search.fixed = fixed("row_panel.", 2))),
        ("/search/fixed", with(|r| r.search.fixed = fixed("", 2))),
        ("/search/exact", with(|r| (r.search.fixed, r.search.exact) = (fixed("n1", 8), true))),
    ];
    for (place, request) in cases {
        match world.service.submit(&request, None).await {
            Err(ServiceError::Invalid { pointer, message }) => {
                assert_eq!(pointer, place, "{message}");
                assert!(place != "/device" || message.contains("cpu"), "{message}");
                let all = "there are row_panel, row_split, vendor";
                assert!(place != "/search/families" || message.contains(all), "{message}");
                let known = [
                    "it may be 1, 2, 4, 8",
                    "there are ahead, n1, order, rows_per_task, stores",
                    "m1, n1, order, rows_per_task",
                    "`.m1` names no family before the point: it may be PARAMETER,",
                    "`row_panel.` names no parameter: it may be PARAMETER,",
                    "`` names no parameter: it may be PARAMETER,",
                ];
                let named = known.iter().any(|known| message.contains(known));
                assert!(place != "/search/fixed" || named, "{message}");
            }
            other => panic!("{place}: {other:?}"),
        }
    }
    let half = Spmm { tf32: true, ..Spmm::new(8, Dtype::F16, Layout::Row) };
    let half = Problem::Spmm(half);
    let refused = world.service.submit(&JobRequest { problem: half, ..good.clone() }, None).await;
    assert!(matches!(refused, Err(ServiceError::Unsupported { .. })), "{refused:?}");
    let measured = with(|r| r.search.measure = true);
    match world.service.submit(&measured, None).await {
        Err(ServiceError::Invalid { pointer, .. }) => assert_eq!(pointer, "/search/measure"),
        other => panic!("{other:?}"),
    }
    let page = PageRequest { after: None, limit: 10 };
    let jobs = world.service.jobs(&JobFilter::default(), &page).await.unwrap();
    assert_eq!(jobs.items, [], "nothing refused was queued");
}

#[tokio::test]
async fn operands_that_fit_nowhere_are_refused() {
    // 20 x 20 with 58 entries. On the host: 16 bytes an element of C, 8 of B; of A 20 an entry, and in another order 8 more and 12
    // a row or end of one.
    let of_a = 28 * 58 + 12 * 21;
    let world = World::with(|settings| settings.max_host_bytes = 24 * 20 * 100 + of_a).await;
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    let submit = async |n| world.service.submit(&request(&matrix, n), None).await;
    let refused = async |n, numbers: [u64; 2]| match submit(n).await {
        Err(ServiceError::TooLarge { message }) => {
            for number in numbers {
                assert!(message.contains(&number.to_string()), "{number}: {message}");
            }
        }
        other => panic!("{other:?}"),
    };
    assert!(matches!(submit(1).await, Err(ServiceError::Unavailable { .. })), "no device yet");
    world.service.register(device()).await.unwrap();
    submit(100).await.unwrap();
    refused(101, [24 * 20 * 101 + of_a, 24 * 20 * 100 + of_a]).await;
    // A processor's memory is the host's.
    let small = Device { memory_bytes: 24 * 20 * 5 + of_a, ..device() };
    world.service.register(small).await.unwrap();
    submit(5).await.unwrap();
    refused(6, [24 * 20 * 6 + of_a, 24 * 20 * 5 + of_a]).await;
    // A GPU holds A, B and C in f32, and of the reference what fits beside them.
    let a = 8 * 58 + 4 * 21;
    let small = Device { memory_bytes: a + 4 * 40 * 5, ..gpu(0, 1000.0) };
    world.service.register(small).await.unwrap();
    assert_eq!(submit(5).await.unwrap().job.device.0, "cuda:0");
    refused(6, [a + 4 * 40 * 6, a + 4 * 40 * 5]).await;
}

#[tokio::test]
async fn defaults_are_written_into_the_job() {
    let (world, matrix) = ready().await;
    let job = world.service.submit(&request(&matrix, 32), None).await.unwrap().job;
    let search = &job.request.search;
    let filled = (search.top_k, search.seconds, search.trials, search.seed);
    assert_eq!(filled, (Some(16), Some(60.0), Some(512), Some(1)));
    assert_eq!((job.state, job.device), (JobState::Queued, device().id));
    assert_eq!(job.request.device, "auto");
}

#[tokio::test]
async fn equal_requests_share_a_job_and_others_do_not() {
    let (world, matrix) = ready().await;
    let service = &world.service;
    let first = service.submit(&request(&matrix, 32), None).await.unwrap();
    let named = |name: String| JobRequest { device: name, ..request(&matrix, 32) };
    let same = service.submit(&named(device().class().0), None).await.unwrap();
    assert_eq!((same.created, &same.job), (false, &first.job));
    // For one device alone, which another of its class would not answer.
    assert!(service.submit(&named("cpu".to_owned()), None).await.unwrap().created);
    let mut others = vec![request(&matrix, 33), request(&matrix, 32), request(&matrix, 32)];
    others.extend([request(&matrix, 32), request(&matrix, 32), request(&matrix, 32)]);
    others[4].search.fixed = fixed("m1", 2);
    others[5].search.fixed = fixed("row_panel.m1", 2);
    others[3].search.families = ["vendor", "row_split", "vendor"].map(str::to_owned).into();
    others[1].search.seconds = Some(5.0);
    others[2].expected_calls = Some(10);
    for other in others {
        assert!(service.submit(&other, None).await.unwrap().created);
    }
    service.cancel(&first.job.id).await.unwrap();
    assert!(service.submit(&named(device().class().0), None).await.unwrap().created);
}

#[tokio::test]
async fn an_idempotency_key_answers_for_its_request() {
    let (world, matrix) = ready().await;
    let key = || Some("k".to_owned());
    let first = world.service.submit(&request(&matrix, 32), key()).await.unwrap();
    assert!(first.created);
    world.service.cancel(&first.job.id).await.unwrap();
    let again = world.service.submit(&request(&matrix, 32), key()).await.unwrap();
    assert_eq!((again.created, again.job.id), (false, first.job.id));
    let other = world.service.submit(&request(&matrix, 33), key()).await;
    assert!(matches!(other, Err(ServiceError::KeyReused)));
}

#[tokio::test]
async fn a_retry_gets_its_job_whatever_has_gone_since() {
    let (world, matrix) = ready().await;
    let key = || Some("k".to_owned());
    let first = world.service.submit(&request(&matrix, 32), key()).await.unwrap();
    let cancelled = world.service.cancel(&first.job.id).await.unwrap().into_job().unwrap();
    world.service.delete_matrix(&matrix.digest).await.unwrap();
    // Another process, started after the device went away.
    let later = world.elsewhere("later").await;
    let [nothing, now] = [Timestamp(0), Timestamp::now().plus_millis(1000)];
    let old = Retention {
        idempotency_keys: nothing,
        events: nothing,
        devices: now,
        predicted: now,
        bundles: now,
        deliveries: nothing,
    };
    later.store().prune(&old).await.unwrap();
    let again = later.submit(&request(&matrix, 32), key()).await.unwrap();
    assert_eq!((again.created, again.job), (false, cancelled));
    // Nonsense under a used key is the key's mistake first.
    let other = later.submit(&request(&matrix, 0), key()).await;
    assert!(matches!(other, Err(ServiceError::KeyReused)), "{other:?}");
}

#[tokio::test]
async fn a_job_keeps_its_matrix_until_it_is_cancelled() {
    let (world, matrix) = ready().await;
    let job = world.service.submit(&request(&matrix, 32), None).await.unwrap().job;
    let kept = world.service.delete_matrix(&matrix.digest).await;
    assert!(matches!(kept, Err(ServiceError::Conflict { .. })));
    assert!(world.service.blobs().exists(&matrix.digest).await.unwrap());
    let cancelled = world.service.cancel(&job.id).await.unwrap().into_job().unwrap();
    assert_eq!(cancelled.state, JobState::Cancelled);
    world.service.delete_matrix(&matrix.digest).await.unwrap();
    assert!(!world.service.blobs().exists(&matrix.digest).await.unwrap());
    assert_eq!(world.service.job(&job.id).await.unwrap(), cancelled);
}

#[tokio::test]
async fn unknown_jobs_are_not_found_and_foreign_cursors_invalid() {
    let (world, matrix) = ready().await;
    let nobody = JobId("nobody".to_owned());
    let page = PageRequest { after: None, limit: 10 };
    assert!(matches!(world.service.job(&nobody).await, Err(ServiceError::NotFound { .. })));
    assert!(matches!(world.service.cancel(&nobody).await, Err(ServiceError::NotFound { .. })));
    let trials = world.service.trials(&nobody, None, &page).await;
    assert!(matches!(trials, Err(ServiceError::NotFound { .. })));
    assert!(matches!(world.service.events(&nobody, 0).await, Err(ServiceError::NotFound { .. })));
    let job = world.service.submit(&request(&matrix, 32), None).await.unwrap().job;
    let odd = PageRequest { after: Some("?".to_owned()), limit: 10 };
    match world.service.trials(&job.id, None, &odd).await {
        Err(ServiceError::Invalid { pointer, .. }) => assert_eq!(pointer, "cursor"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_job_that_kills_its_workers_fails_with_a_reason() {
    let world = World::with(|settings| (settings.max_attempts, settings.lease_ms) = (2, 0)).await;
    world.service.register(device()).await.unwrap();
    let matrix = world.upload(&tridiagonal(20)).await.matrix;
    let job = world.service.submit(&request(&matrix, 32), None).await.unwrap().job;
    let queue = Queue::of(&device(), &world.service.settings().host);
    let claim = async || world.service.claim(&queue, "w").await.unwrap();
    for _ in 0..4 {
        let claim = claim().await.unwrap();
        world.service.store().release(&claim.fence).await.unwrap();
    }
    assert!(claim().await.is_some());
    assert!(claim().await.is_some());
    assert_eq!(claim().await, None);
    let failed = world.service.job(&job.id).await.unwrap();
    assert_eq!((failed.state, failed.attempts), (JobState::Failed, 2));
    assert!(failed.error.unwrap().contains("worker was lost"));
}
