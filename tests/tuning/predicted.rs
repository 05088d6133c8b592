//! Strategy `predicted`: the model's first choice without a measurement, and the job that measures it afterwards.

use crate::bench::*;
use sparsetune::domain::*;
use sparsetune::service::LookupQuery;

#[tokio::test(flavor = "multi_thread")]
async fn a_predicted_plan_is_there_at_once_and_a_job_that_measures_follows() {
    let bench = Bench::new().await;
    let all = bench.candidates(&device());
    let acts = all.iter().zip(1..).map(|(c, i)| (c.clone(), takes(100.0 + f64::from(i))));
    let acts: Vec<_> = acts.chain([(vendor(), takes(110.0))]).collect();
    let worker = bench.work(&bench.service, &device(), acts).await;
    let search = Search { strategy: Strategy::Predicted, measure: true, ..Search::default() };
    let id = bench.submit(search).await;
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
    assert_eq!(follow_up.request.search.strategy, Strategy::Ranked);
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
