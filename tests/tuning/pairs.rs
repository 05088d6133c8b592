//! The hand-over between the two jobs of both triangles: whatever happens at it, there is one second job or none, and what the first has
//! found is kept.

use crate::bench::*;
use sparsetune::domain::problem::Triangle;
use sparsetune::domain::*;
use sparsetune::engine::replay::Act;
use sparsetune::service::{
    BudgetLimits, JobFilter, NewToken, PageRequest, Service, ServiceError, ServiceSettings,
};
use sparsetune::store::{LocalBlobs, SqliteStore};
use sqlx::Connection as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn both() -> Problem {
    Problem::Sptrsv(Sptrsv { triangle: Triangle::Both, dtype: Dtype::F64, ..Sptrsv::PLAIN })
}

fn halving() -> Search {
    Search { strategy: SearchStrategy::Halving, trials: Some(8), ..Search::default() }
}

/// All schemes of both triangles.
fn acts(bench: &Bench, latency: Duration) -> BTreeMap<Candidate, Act> {
    let mut acts = BTreeMap::new();
    for part in both().parts().unwrap() {
        let space = bench.space_of(&part, &gpu());
        let all = space.scored.into_iter().map(|(candidate, _)| candidate).chain(space.vendor);
        acts.extend(all.zip(0u32..).map(|(candidate, at)| {
            let act = Act::Measured {
                samples_us: vec![100.0 + f64::from(at); 9],
                alone_us: None,
                rel_error: 0.0,
                resources: None,
                prepare_ms: None,
                latency_ms: latency.as_millis() as u64,
            };
            (candidate, act)
        }));
    }
    acts
}

fn asked(bench: &Bench) -> JobRequest {
    JobRequest {
        matrix: bench.matrix.digest,
        problem: both(),
        device: gpu().id.0,
        search: halving(),
        expected_calls: None,
    }
}

/// All jobs, oldest first.
async fn jobs(bench: &Bench) -> Vec<Job> {
    let page = PageRequest { after: None, limit: 20 };
    let mut all = bench.service.jobs(&JobFilter::default(), &page).await.unwrap().items;
    all.reverse();
    all
}

/// The worker is lost when the second job is queued and the first has not ended: whoever takes it up names the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_lost_at_the_hand_over_leaves_one_second_job() {
    let bench = Bench::new().await;
    bench.service.register(gpu()).await.unwrap();
    let id = bench.service.submit(&asked(&bench), None).await.unwrap().job.id;
    let store = bench.service.store();
    crate::claimed::claim_job(&**store, &gpu(), "lost", 1).await.unwrap();
    let Job { request, only_on, .. } = bench.service.job(&id).await.unwrap();
    let then = request.search.then.unwrap();
    let second = JobRequest {
        problem: then,
        // Of the device that was asked for.
        device: only_on.unwrap().0,
        search: Search { then: None, ..request.search.clone() },
        ..request
    };
    let once = Some(format!("second part of {id}"));
    let left = bench.service.submit(&second, once).await.unwrap().job.id;

    let worker = bench.work(&bench.service, &gpu(), acts(&bench, Duration::ZERO)).await;
    let first = bench.ended(&id).await;
    assert_eq!((first.state, first.attempts), (JobState::Succeeded, 2), "{:?}", first.error);
    assert_eq!(first.follow_up.as_ref(), Some(&left));
    bench.plan(&bench.ended(&left).await).await;
    assert_eq!(jobs(&bench).await.len(), 2, "the job and its one second part");
    worker.stop().await;
}

/// Both are admitted at once: the budget of both is reserved, and no limit of the token is asked at the hand-over.
#[tokio::test(flavor = "multi_thread")]
async fn the_second_job_is_admitted_with_the_first() {
    let bench = Bench::new().await;
    bench.service.register(gpu()).await.unwrap();
    let limits = TokenLimits {
        queued_jobs: Some(1),
        search_seconds_per_day: Some(20.0),
        ..TokenLimits::default()
    };
    let new = NewToken {
        name: "own".parse().unwrap(),
        scopes: "tune".parse().unwrap(),
        lasting: None,
        limits,
        namespace: None,
        share_plans: false,
    };
    let token = bench.service.make_token(new).await.unwrap().token;
    let own = bench.service.on_behalf_of(&Caller::from(&token));
    let mut asked = asked(&bench);
    asked.search.seconds = Some(20.5);
    let over = async |asked: &JobRequest| match own.submit(asked, None).await {
        Err(ServiceError::Quota(over)) => (over.quota, over.used, over.need),
        other => panic!("{other:?}"),
    };
    assert_eq!(over(&asked).await, ("search_seconds_per_day", 0.0, 20.5));
    asked.search.seconds = Some(19.0);
    let first = own.submit(&asked, None).await.unwrap().job;
    assert_eq!(first.request.search.seconds, Some(9.5));
    // It runs, so that it is not among the queued.
    let store = bench.service.store();
    crate::claimed::claim_job(&**store, &gpu(), "lost", 1).await.unwrap();
    let mut more = JobRequest { problem: PROBLEM, ..asked.clone() };
    more.search = Search { seconds: Some(1.5), ..Search::default() };
    assert_eq!(over(&more).await, ("search_seconds_per_day", 19.0, 1.5));
    // Another takes the one place among the queued.
    more.search.seconds = Some(1.0);
    let other = own.submit(&more, None).await.unwrap().job.id;
    bench.service.revoke_token(&token.name, None).await.unwrap();

    let worker = bench.work(&bench.service, &gpu(), acts(&bench, Duration::ZERO)).await;
    let first = bench.ended(&first.id).await;
    assert_eq!(first.state, JobState::Succeeded, "{:?}", first.error);
    let second = bench.ended(first.follow_up.as_ref().unwrap()).await;
    bench.plan(&second).await;
    let all: Vec<JobId> = jobs(&bench).await.into_iter().map(|job| job.id).collect();
    assert_eq!(all.len(), 3, "{all:?}");
    for id in [&first.id, &other, &second.id] {
        assert!(all.contains(id), "{all:?}");
    }
    worker.stop().await;
}

/// Another server of the same store that permits less than half of the budget.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_job_that_is_refused_costs_no_plan() {
    let bench = Bench::new().await;
    bench.service.register(gpu()).await.unwrap();
    let id = bench.service.submit(&asked(&bench), None).await.unwrap().job.id;
    let budget = BudgetLimits { trials: 2, ..bench.service.settings().budget };
    let settings =
        ServiceSettings { owner: "strict".to_owned(), budget, ..bench.service.settings().clone() };
    let store = SqliteStore::open(&bench.store_file()).await.unwrap();
    let blobs = LocalBlobs::open(&bench.folder.path().join("blobs")).unwrap();
    let strict = Service::new(Arc::new(store), Arc::new(blobs), settings);
    let worker = bench.work(&strict, &gpu(), acts(&bench, Duration::ZERO)).await;
    let first = bench.ended(&id).await;
    bench.plan(&first).await;
    assert_eq!(first.follow_up, None);
    let told = bench.logged(&id).await;
    let why = told.iter().find(|told| told.starts_with("no job was submitted for the other"));
    assert!(why.is_some_and(|why| why.contains("4 trials are asked for")), "{told:?}");
    assert_eq!(jobs(&bench).await.len(), 1);
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_job_that_is_cancelled_is_followed_by_none() {
    let bench = Bench::new().await;
    let all = acts(&bench, Duration::from_millis(80));
    let worker = bench.work(&bench.service, &gpu(), all).await;
    let id = bench.service.submit(&asked(&bench), None).await.unwrap().job.id;
    // As late as it can be told from outside: the finals of the first are under way.
    bench.when(&id, |job, _| job.stage == Stage::Finals || job.state.is_final()).await;
    let asked = bench.service.cancel(&id).await.unwrap();
    let first = bench.ended(&id).await;
    let mut others = jobs(&bench).await;
    others.retain(|job| job.id != id);
    // A cancel that comes after the end changes nothing: the second goes on by itself.
    let late = asked.state() == JobState::Succeeded;
    if late {
        assert_eq!(first.follow_up.as_ref(), others.first().map(|second| &second.id));
        assert_eq!(others.len(), 1);
    }
    // Otherwise there is none, or it had been queued already and ends with the first.
    let expected = if late { JobState::Succeeded } else { JobState::Cancelled };
    for second in others {
        assert_eq!(bench.ended(&second.id).await.state, expected);
    }
    assert!([JobState::Cancelled, JobState::Succeeded].contains(&first.state), "{first:?}");
    worker.stop().await;
}

/// Servers of earlier versions refuse fields that they do not know, in requests and in events, and list what this one has queued.
#[tokio::test(flavor = "multi_thread")]
async fn what_earlier_versions_read_names_no_second_part() {
    let bench = Bench::new().await;
    let worker = bench.work(&bench.service, &gpu(), acts(&bench, Duration::ZERO)).await;
    let id = bench.service.submit(&asked(&bench), None).await.unwrap().job.id;
    let first = bench.ended(&id).await;
    bench.ended(first.follow_up.as_ref().unwrap()).await;
    let then = both().parts().unwrap()[1];
    assert_eq!(first.request.search.then, Some(then));
    let mut told = 0;
    for event in bench.events(&id).await {
        if let EventKind::Job(work) = event.kind {
            assert_eq!(work.into_job().unwrap().request.search.then, Some(then));
            told += 1;
        }
    }
    assert!(told > 2);
    worker.stop().await;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(bench.store_file());
    let mut raw = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    let count = "SELECT (SELECT count(*) FROM jobs WHERE request LIKE '%\"then\"%')
         + (SELECT count(*) FROM events WHERE body LIKE '%\"then\"%')";
    let named: i64 = sqlx::query_scalar(count).fetch_one(&mut raw).await.unwrap();
    assert_eq!(named, 0);
    let of = "SELECT needs FROM jobs WHERE second_part IS NOT NULL";
    let needs: Vec<i64> = sqlx::query_scalar(of).fetch_all(&mut raw).await.unwrap();
    assert_eq!(needs, [2]);
}
