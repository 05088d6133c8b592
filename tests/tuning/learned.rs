//! What learned models and near matrices do for a search: a model in use chooses, its name is told, its rows are kept.

use crate::bench::*;
use sparsetune::domain::learned::*;
use sparsetune::domain::*;
use sparsetune::learn::forest::Prior;
use sparsetune::learn::{Forest, Model, ModelFile, file};
use sparsetune::ops::features;
use sparsetune::service::LookupQuery;

/// A model that takes first what the analytic one predicts to be slowest: nobody else would.
fn contrary(scope: &Scope) -> (LearnedModel, Vec<u8>) {
    let (shared, own) = features::names(scope.op);
    let at = own.iter().position(|name| name == "predicted_over_best").unwrap();
    let prior = Some(Prior { feature: (shared.len() + at) as u16, weight: -1.0 });
    let forest = Forest { prior, trees: Vec::new(), scale: 1.0 };
    let file = ModelFile {
        version: file::VERSION,
        scope: scope.clone(),
        features_version: features::version(scope.op),
        shared,
        own,
        largest: None,
        model: Model::Lambdamart(forest),
    };
    let bytes = file.to_bytes().unwrap();
    let data = DataUsed { groups: 2, matrices: 2, generated: 2, trials: 77, newest: Timestamp(1) };
    let card = LearnedModel {
        version: MODEL_VERSION,
        id: ModelId("contrary".to_owned()),
        learner: Learner::Lambdamart,
        scope: scope.clone(),
        features_version: features::version(scope.op),
        data,
        quality: HeldOut { folds: 2, groups: 2, rankers: Vec::new() },
        importance: Vec::new(),
        seed: 1,
        started_from: None,
        training: None,
        digest: Digest::of(&bytes),
        created_at: Timestamp(2),
    };
    (card, bytes)
}

async fn put_to_use(bench: &Bench) -> ModelId {
    activate(bench, "contrary", &device().class()).await
}

/// Puts a model of a class of device to use.
async fn activate(bench: &Bench, id: &str, device_class: &DeviceClass) -> ModelId {
    let scope = Scope { op: Op::Spmm, device_class: device_class.clone() };
    let (card, bytes) = contrary(&scope);
    let card = LearnedModel { id: ModelId(id.to_owned()), ..card };
    assert!(bench.service.store().insert_model(&card, &bytes).await.unwrap());
    bench.service.activate_model(&card.id, "for a test").await.unwrap();
    card.id
}

/// A recording in which every candidate takes as long.
fn all_alike(bench: &Bench) -> Vec<(Candidate, sparsetune::engine::replay::Act)> {
    let all = bench.candidates(&device()).into_iter();
    all.chain([vendor()]).map(|candidate| (candidate, takes(100.0))).collect()
}

/// The slowest and the fastest by the analytic model.
fn extremes(bench: &Bench) -> [(Candidate, f64); 2] {
    let scored = bench.space(&device()).scored;
    let slowest = scored.iter().map(|(_, us)| *us).fold(0.0, f64::max);
    let mut slowest = scored.iter().filter(|(_, us)| *us >= slowest * (1.0 - 1e-6));
    let fastest = scored.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    [slowest.next().unwrap().clone(), fastest.clone()]
}

fn asked(bench: &Bench) -> LookupQuery {
    LookupQuery {
        matrix: bench.matrix.digest,
        problem: PROBLEM,
        device: None,
        l2_policy: None,
        neighbour: false,
        predicted: true,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_in_use_chooses() {
    let bench = Bench::new().await;
    let worker = bench.work(&bench.service, &device(), all_alike(&bench)).await;
    let [(_, worst_us), (best, _)] = extremes(&bench);
    let looked = async || bench.service.lookup(&asked(&bench)).await.unwrap();
    let analytic = looked().await.plan.unwrap();
    assert_eq!((&analytic.candidate, &analytic.provenance.model), (&best, &None));

    let id = put_to_use(&bench).await;
    let found = looked().await;
    let guessed = found.plan.unwrap();
    assert_eq!((found.grade, &guessed.provenance.model), (Grade::Predicted, &Some(id.clone())));
    let said = guessed.predicted.as_ref().unwrap();
    assert_eq!(said.model, "contrary");
    assert!((said.median_us / worst_us - 1.0).abs() < 1e-6, "its own analytic time");
    assert!(found.reasons.iter().any(|why| why.contains("predicted by contrary")));

    let search = Search { strategy: SearchStrategy::Predicted, ..Search::default() };
    let job = bench.ended(&bench.submit(search).await).await;
    let plan = bench.plan(&job).await;
    assert_eq!((&plan.candidate, &plan.provenance.model), (&guessed.candidate, &Some(id.clone())));
    assert_eq!(plan.alternatives, guessed.alternatives);
    assert!(plan.launch.is_some() && guessed.launch.is_none(), "a job compiles, a lookup does not");

    let search = Search { top_k: Some(3), ..Search::default() };
    let ranked = bench.submit(search).await;
    let job = bench.ended(&ranked).await;
    let plan = bench.plan(&job).await;
    assert_eq!((&plan.provenance.model, plan.is_predicted()), (&Some(id), false));
    assert!(plan.predicted.is_none_or(|said| said.model == "contrary"));
    let tried = bench.tried(&ranked).await;
    let own: Vec<&Trial> = tried.iter().filter(|t| !t.candidate.is_baseline()).collect();
    assert_eq!(own.len(), 3);
    assert_eq!(own[0].candidate, guessed.candidate);
    assert!(own.iter().all(|trial| trial.candidate != best));
    let scope = Scope { op: Op::Spmm, device_class: device().class() };
    let store = bench.service.store();
    let groups =
        store.training_groups(&scope, features::version(scope.op), None, 10).await.unwrap();
    let group = groups.iter().find(|group| group.job == ranked).unwrap();
    let (shared, width) = features::names(Op::Spmm);
    assert_eq!(group.features.shared.len(), shared.len());
    let kept: Vec<&Candidate> = group.rows.iter().map(|row| &row.candidate).collect();
    assert_eq!(kept, own.iter().map(|trial| &trial.candidate).collect::<Vec<_>>());
    assert!(group.rows.iter().all(|row| row.own.len() == width.len() && row.us == Some(100.0)));
    let told = bench.logged(&ranked).await;
    let named = "ranked by model contrary (lambdamart, 77 trials of 2 matrices)";
    assert!(told.iter().any(|told| told.contains(named)), "{told:?}");

    bench.service.roll_back(&scope).await.unwrap();
    let search = Search { strategy: SearchStrategy::Predicted, seed: Some(2), ..Search::default() };
    let job = bench.ended(&bench.submit(search).await).await;
    assert_eq!(bench.plan(&job).await.candidate, best, "the analytic model ranks again");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_of_the_nearest_class_ranks_and_is_named_as_such() {
    let bench = Bench::new().await;
    let worker = bench.work(&bench.service, &device(), all_alike(&bench)).await;
    let [_, (best, _)] = extremes(&bench);
    let near = Device { name: "Its neighbour".to_owned(), ..device() }.class();
    let id = activate(&bench, "lent", &near).await;
    let found = bench.service.lookup(&asked(&bench)).await.unwrap();
    let (plan, reasons) = (found.plan.unwrap(), found.reasons);
    let from = &plan.provenance;
    assert_eq!((&from.model, &from.model_of), (&Some(id.clone()), &Some(near.clone())));
    assert_ne!(plan.candidate, best);
    let named = format!("predicted by lent (of {near}, the nearest class of device");
    assert!(reasons.iter().any(|why| why.contains(&named)), "{reasons:?}");
    let again = bench.service.lookup(&asked(&bench)).await.unwrap();
    assert_eq!(again.plan.unwrap().id, plan.id);

    let ranked = bench.submit(Search { top_k: Some(4), ..Search::default() }).await;
    let job = bench.ended(&ranked).await;
    let measured = bench.plan(&job).await.provenance;
    assert_eq!((measured.model, measured.model_of), (Some(id), Some(near.clone())));
    let told = bench.logged(&ranked).await;
    let named = format!("77 trials of 2 matrices, of {near}, the nearest class");
    assert!(told.iter().any(|told| told.contains(&named)), "{told:?}");
    let tried = bench.tried(&ranked).await;
    let own: Vec<&Trial> = tried.iter().filter(|t| !t.candidate.is_baseline()).collect();
    assert_eq!((own.len(), &own[0].candidate), (4, &plan.candidate));

    let own = put_to_use(&bench).await;
    let search = Search { strategy: SearchStrategy::Predicted, ..Search::default() };
    let job = bench.ended(&bench.submit(search).await).await;
    let from = bench.plan(&job).await.provenance;
    assert_eq!((from.model, from.model_of), (Some(own), None), "its own model is preferred");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_won_on_a_near_matrix_is_tried_first() {
    let bench = Bench::new().await;
    let [(winner, _), _] = extremes(&bench);
    let mut acts = all_alike(&bench);
    acts.iter_mut().filter(|(c, _)| *c == winner).for_each(|(_, act)| *act = takes(5.0));
    let worker = bench.work(&bench.service, &device(), acts).await;
    let job = bench.ended(&bench.submit(exhaustive()).await).await;
    assert_eq!(bench.plan(&job).await.candidate, winner);

    let near = bench.upload(310).await;
    let request = JobRequest {
        matrix: near.digest,
        problem: PROBLEM,
        device: "auto".to_owned(),
        search: Search { top_k: Some(4), ..Search::default() },
        expected_calls: None,
    };
    let id = bench.service.submit(&request, None).await.unwrap().job.id;
    let job = bench.ended(&id).await;
    assert_eq!(bench.plan(&job).await.candidate, winner);
    let tried = bench.tried(&id).await;
    let mut own = tried.iter().filter(|trial| !trial.candidate.is_baseline());
    assert_eq!(own.next().unwrap().candidate, winner);
    assert_eq!(own.count(), 3, "it takes one of the four places");
    let told = bench.logged(&id).await;
    let start = format!("{winner} won on a matrix ");
    let distance = told.iter().find_map(|told| told.strip_prefix(&start)).unwrap();
    let distance = distance.strip_suffix(" away: tried first").unwrap();
    let distance: f64 = distance.parse().unwrap();
    assert!((0.0..0.5).contains(&distance), "{distance}");
    worker.stop().await;
}
