//! Strategy `predicted`: the model's first choice without a measurement, and the job that measures it afterwards.

use crate::bench::*;
use sparsetune::domain::*;
use sparsetune::engine::replay::Act;
use sparsetune::service::{JobFilter, LookupQuery, NewToken, PageRequest};

/// A recording in which every candidate works, each a little slower than the one before.
fn all_work(bench: &Bench) -> Vec<(Candidate, Act)> {
    let all = bench.candidates(&device());
    let acts = all.iter().zip(1..).map(|(c, i)| (c.clone(), takes(100.0 + f64::from(i))));
    acts.chain([(vendor(), takes(110.0))]).collect()
}

fn predicted(measure: bool) -> Search {
    Search { strategy: SearchStrategy::Predicted, measure, ..Search::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_predicted_plan_is_there_at_once_and_a_job_that_measures_follows() {
    let bench = Bench::new().await;
    let worker = bench.work(&bench.service, &device(), all_work(&bench)).await;
    let id = bench.submit(predicted(true)).await;
    let job = bench.ended(&id).await;
    let plan = bench.plan(&job).await;
    assert!(plan.is_predicted() && job.best.is_none(), "{job:?}");
    assert!(bench.tried(&id).await.is_empty(), "nothing was measured");
    let space = bench.space(&device());
    let first = space.scored.iter().map(|(_, us)| *us).reduce(f64::min).unwrap();
    let predicted = plan.predicted.as_ref().unwrap();
    assert_eq!((&*predicted.model, predicted.median_us), (space.model, first));
    assert_eq!(plan.alternatives.len(), (space.scored.len() - 1).min(7));
    assert_eq!(plan.provenance.job.as_ref(), Some(&id));

    let follow_up = bench.ended(job.follow_up.as_ref().unwrap()).await;
    let measured = bench.plan(&follow_up).await;
    assert_eq!(follow_up.request.search.strategy, SearchStrategy::Ranked);
    let query = LookupQuery {
        matrix: bench.matrix.digest,
        problem: PROBLEM,
        device: None,
        l2_policy: None,
        neighbour: false,
        predicted: true,
    };
    let found = bench.service.lookup(&query).await.unwrap();
    assert_eq!((found.grade, found.plan.unwrap().id), (Grade::Exact, measured.id));
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_will_not_compile_is_passed_over() {
    let bench = Bench::new().await;
    let mut scored = bench.space(&device()).scored;
    scored.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (first, second) = (scored[0].0.clone(), scored[1].0.clone());
    let detail = "no such instruction".to_owned();
    let mut acts = all_work(&bench);
    acts.retain(|(candidate, _)| *candidate != first);
    acts.push((first.clone(), Act::CompileFailed { detail }));
    let worker = bench.work(&bench.service, &device(), acts).await;
    let id = bench.submit(predicted(false)).await;
    let job = bench.ended(&id).await;
    let plan = bench.plan(&job).await;
    assert_eq!((&plan.candidate, &job.follow_up), (&second, &None));
    assert_eq!((plan.passed_over(), plan.alternatives.contains(&first)), (1, false));
    assert!(plan.launch.is_some(), "what compiled can be launched");
    let told = bench.logged(&id).await;
    let passed = format!("{first} was skipped: ");
    let why = told.iter().find(|told| told.starts_with(&passed));
    assert!(why.is_some_and(|why| why.contains("no such instruction")), "{told:?}");
    worker.stop().await;

    // Where nothing compiles there is no plan, and the job says why.
    let bench = Bench::new().await;
    let refused = Act::CompileFailed { detail: "no compiler".to_owned() };
    let acts: Vec<_> =
        bench.candidates(&device()).into_iter().map(|c| (c, refused.clone())).collect();
    let worker = bench.work(&bench.service, &device(), acts).await;
    let job = bench.ended(&bench.submit(predicted(true)).await).await;
    assert_eq!((job.state, &job.plan, &job.follow_up), (JobState::Failed, &None, &None));
    assert!(job.error.unwrap().contains("no compiler"));
    worker.stop().await;
}

/// The worker is lost when the follow-up is queued and the plan is not yet stored: whoever takes the job up names the
/// same.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_worker_leaves_one_follow_up() {
    let bench = Bench::new().await;
    bench.service.register(device()).await.unwrap();
    let id = bench.submit(predicted(true)).await;
    let store = bench.service.store();
    crate::claimed::claim_job(&**store, &device(), "lost", 1).await.unwrap();
    // By the clock of the job that it follows.
    let clock = bench.service.job(&id).await.unwrap().request.search.clock;
    assert_eq!(clock, Some(Clock::Pipelined));
    let search = Search { strategy: SearchStrategy::Ranked, clock, ..Search::default() };
    let asked = JobRequest {
        matrix: bench.matrix.digest,
        problem: PROBLEM,
        device: device().class().0,
        search,
        expected_calls: None,
    };
    let once = Some(format!("follow-up of {id}"));
    let left = bench.service.submit(&asked, once).await.unwrap().job.id;
    // Over already, so that nothing that is queued is taken for it.
    bench.service.cancel(&left).await.unwrap();

    let worker = bench.work(&bench.service, &device(), all_work(&bench)).await;
    let job = bench.ended(&id).await;
    assert!(bench.plan(&job).await.is_predicted());
    let told = bench.logged(&id).await;
    assert!(told.contains(&format!("the measuring job {left} was cancelled")), "{told:?}");
    assert_eq!((job.attempts, job.follow_up), (2, Some(left)));
    let page = PageRequest { after: None, limit: 10 };
    let jobs = bench.service.jobs(&JobFilter::default(), &page).await.unwrap();
    assert_eq!(jobs.items.len(), 2, "the job and its one follow-up");
    worker.stop().await;
}

/// The measuring job is of the same token as the one that it follows, and within its limits.
#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_keeps_within_the_limits_of_its_token() {
    let bench = Bench::new().await;
    bench.service.register(device()).await.unwrap();
    let limits = TokenLimits { job_seconds: Some(1.0), ..TokenLimits::default() };
    let token = async |name: &str| {
        let name = name.parse().unwrap();
        let (scopes, limits) = ("tune".parse().unwrap(), limits.clone());
        let new =
            NewToken { name, scopes, lasting: None, limits, namespace: None, share_plans: false };
        bench.service.make_token(new).await.unwrap().token
    };
    let submit = async |token: &Token| {
        let own = bench.service.on_behalf_of(&Caller::from(token));
        let search = Search { seconds: Some(0.001), ..predicted(true) };
        let asked = JobRequest {
            matrix: bench.matrix.digest,
            problem: PROBLEM,
            device: device().id.0,
            search,
            expected_calls: None,
        };
        own.submit(&asked, None).await.unwrap().job.id
    };
    let ended = token("ended").await;
    let id = submit(&ended).await;
    bench.service.revoke_token(&ended.name, None).await.unwrap();
    let worker = bench.work(&bench.service, &device(), all_work(&bench)).await;
    let job = bench.ended(&id).await;
    assert_eq!((job.state, job.follow_up), (JobState::Succeeded, None));
    let told = bench.logged(&id).await.join("\n");
    assert!(told.contains("no measuring job was submitted: the token ended was revoked"), "{told}");

    let job = bench.ended(&submit(&token("small").await).await).await;
    let follow_up = bench.ended(job.follow_up.as_ref().unwrap()).await;
    assert_eq!(follow_up.request.search.seconds, Some(1.0));
    worker.stop().await;
}
