//! Predicted plans on the wire and on the pages: said to be predicted wherever they are shown, and gone once measured.

use crate::app::{TestApp, lookup, problem, spmm};
use reqwest::Method;
use serde_json::{Value, json};
use sparsetune::domain::learned::Scope;
use sparsetune::domain::*;
use sparsetune::learn::{Forest, Model, ModelFile, file};
use sparsetune::ops::features;
use sparsetune::store::Finish;

/// A model that tells no candidates apart, put to use under this name.
async fn put_to_use(app: &TestApp, id: &str) {
    let card = crate::models::model(id, learned::Learner::Lambdamart, 1);
    let (shared, own) = features::names(Op::Spmm);
    let file = ModelFile {
        version: file::VERSION,
        scope: Scope { op: Op::Spmm, device_class: card.scope.device_class.clone() },
        features_version: features::version(Op::Spmm),
        shared,
        own,
        largest: None,
        model: Model::Lambdamart(Forest { prior: None, trees: Vec::new(), scale: 1.0 }),
    };
    let bytes = file.to_bytes().unwrap();
    let card = LearnedModel {
        digest: Digest::of(&bytes),
        features_version: features::version(Op::Spmm),
        ..card
    };
    app.running.service.store().insert_model(&card, &bytes).await.unwrap();
    let used = app.post(&format!("/v1/models/{id}/activate"), &json!({"reason": "a test"})).await;
    assert_eq!(used.status(), 200);
}

/// The answer of a lookup whose prediction is stored.
async fn kept(app: &TestApp, path: &str) -> Value {
    let answer = app.request(Method::POST, path).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    answer.json().await.unwrap()
}

async fn page(app: &TestApp, path: &str) -> String {
    let response = app.request(Method::GET, path).header("accept", "text/html").send().await;
    let response = response.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    response.text().await.unwrap()
}

#[tokio::test]
async fn a_predicted_plan_says_what_it_lacks() {
    let app = TestApp::new().await;
    let matrix = app.matrix(40).await;
    let path = lookup(&matrix, 32);
    let analytic = app.json(&path).await;
    assert_eq!(analytic["match"]["grade"], "predicted");
    assert!(analytic["plan"]["provenance"].get("model").is_none());

    put_to_use(&app, "one").await;
    let made = app.json(&path).await;
    let by_id = format!("/v1/plans/{}", made["plan"]["id"].as_str().unwrap());
    assert_eq!(app.get(&by_id).await.status(), 404, "a GET stores nothing");
    let found = kept(&app, &path).await;
    assert_eq!(found["plan"], made["plan"]);
    let plan = &found["plan"];
    assert_ne!(plan["id"], analytic["plan"]["id"], "another model, another plan");
    assert_eq!((&found["match"]["grade"], &plan["measured"]), (&json!("predicted"), &Value::Null));
    assert_eq!(
        (&plan["provenance"]["model"], &plan["predicted"]["model"]),
        (&json!("one"), &json!("one"))
    );
    assert_eq!(plan["trials"], json!({"measured": 0, "failed": {}}));
    for absent in ["baseline", "speedup", "runner_up", "preprocess_ms", "launch", "resources"] {
        assert!(plan.get(absent).is_none(), "{absent}: {plan}");
    }
    assert!(plan["provenance"].get("job").is_none());
    let next = plan["alternatives"].as_array().unwrap();
    assert!((1..=7).contains(&next.len()) && !next.contains(&plan["candidate"]));
    let fraction = plan["limit"]["fraction"].as_f64().unwrap();
    let by_hand =
        plan["limit"]["us"].as_f64().unwrap() / plan["predicted"]["median_us"].as_f64().unwrap();
    assert!((fraction / by_hand - 1.0).abs() < 1e-9);
    let reasons = found["match"]["reasons"].as_array().unwrap();
    assert!(reasons.iter().any(|why| why.as_str().unwrap().contains("predicted by one")));
    assert_eq!(app.json(&format!("/v1/plans/{}", plan["id"].as_str().unwrap())).await, *plan);
    assert_eq!(app.json(&path).await, found, "the same answer is the same plan");

    let listed = format!("/v1/matrices/{}/plans", matrix["digest"].as_str().unwrap());
    assert_eq!(app.json(&listed).await["items"], json!([]), "it was not measured");
    let odd = app.get(&format!("{path}&predicted=maybe")).await;
    problem(odd, 400, "invalid-parameter").await;
}

#[tokio::test]
async fn a_model_that_is_in_use_again_finds_its_plans() {
    let app = TestApp::new().await;
    let matrix = app.matrix(40).await;
    let path = lookup(&matrix, 32);
    put_to_use(&app, "one").await;
    let first = app.json(&path).await;
    put_to_use(&app, "two").await;
    assert_ne!(app.json(&path).await["plan"]["id"], first["plan"]["id"]);
    let digest: Digest = matrix["digest"].as_str().unwrap().parse().unwrap();
    assert!(app.running.service.blobs().delete(&digest).await.unwrap());
    let back = app.post("/v1/models/one/activate", &json!({"reason": "a test"})).await;
    assert_eq!(back.status(), 200);
    assert_eq!(app.json(&path).await, first);
}

#[tokio::test]
async fn a_learned_model_is_not_called_analytic() {
    let app = TestApp::new().await;
    let (_, plan) = app.tuned(9, 4).await;
    let error = plan.model_error.unwrap();
    app.insert(&crate::models::model(&error.model, learned::Learner::Mlp, 1)).await;
    let all = app.json("/v1/models").await;
    let [model] = all["items"].as_array().unwrap().as_slice() else { panic!("{all}") };
    assert_eq!((&model["id"], &model["kind"]), (&json!(error.model), &json!("mlp")));
    let ranked = json!({
        "plans": 1, "trials": error.trials, "rank_correlation": error.rank_correlation,
    });
    assert_eq!(model["ranked"], ranked);
    assert_eq!(app.json("/v1/models?kind=analytic").await, json!({"items": []}));
    let text = page(&app, "/models").await;
    assert!(text.contains("0.75, 15 trials") && text.contains("No data yet"), "{text}");
}

#[tokio::test]
async fn its_page_says_predicted_and_leads_on() {
    let app = TestApp::new().await;
    put_to_use(&app, "one").await;
    let matrix = app.matrix(40).await;
    let digest = matrix["digest"].as_str().unwrap();
    let found = kept(&app, &lookup(&matrix, 32)).await;
    let plan = found["plan"]["id"].as_str().unwrap();
    let text = page(&app, &format!("/plans/{plan}")).await;
    for said in [
        "predicted, not measured</span>",
        "id=\"predicted\"",
        "The learned model <a href=\"/models\"><code>one</code></a>",
        "\">Measure it</a>",
        "by a lookup",
        "<h2 id=\"winner-title\">Choice:",
        "Time per call (predicted)",
        "the kernel has not been compiled",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    for unsaid in [
        "Winner:",
        "95 % interval",
        "Every chosen candidate",
        "Speed-up over the baseline</dt><dd><span class=\"figure\">0",
    ] {
        assert!(!text.contains(unsaid), "{unsaid}");
    }
    // The form's fields by their names, in whatever order.
    let href = text.split("id=\"measure\" href=\"").nth(1).unwrap().split('"').next().unwrap();
    let (form, query) = href.split_once('#').unwrap();
    let mut filled: Vec<&str> = query.split("&#38;").collect();
    filled.sort_unstable();
    let matrix_filled = format!("submit={digest}");
    let fields =
        ["device=cpu", "problem.accumulate=false", "problem.dtype=f32", "problem.layout=row"];
    let more = [
        "problem.n=32",
        "problem.op=spmm",
        "problem.output=same",
        "problem.tf32=false",
        "problem.transpose=false",
    ];
    assert_eq!((form, filled), ("/", [&fields[..], &more, &[matrix_filled.as_str()]].concat()));
    let alternatives = found["plan"]["alternatives"].as_array().unwrap().len();
    let list = text.split("id=\"alternatives\"").nth(1).unwrap().split("</ol>").next().unwrap();
    assert_eq!(list.matches("<li>").count(), alternatives);

    let row = format!("data-plan=\"{plan}\"");
    let badge = ">predicted</span>";
    let of_matrix = page(&app, &format!("/matrices/{digest}")).await;
    assert!(of_matrix.contains(&row) && of_matrix.contains(badge));
    app.job(&matrix, 32).await;
    let measured = app.finish(&app.claim().await).await;
    let of_matrix = page(&app, &format!("/matrices/{digest}")).await;
    assert!(of_matrix.contains(&format!("data-plan=\"{}\"", measured.id)));
    assert!(!of_matrix.contains(&row) && !of_matrix.contains(badge), "it was measured");
    assert!(page(&app, &format!("/plans/{plan}")).await.contains("id=\"predicted\""), "kept");
}

#[tokio::test]
async fn a_job_that_predicts_names_the_one_that_measures() {
    let app = TestApp::new().await;
    let matrix = app.matrix(40).await;
    let guessed = kept(&app, &lookup(&matrix, 32)).await;
    let guessed = PlanId(guessed["plan"]["id"].as_str().unwrap().to_owned());
    let guessed = app.running.service.plan(&guessed).await.unwrap();
    let mut body = spmm(&matrix, 32);
    body["search"] = json!({"strategy": "predicted", "measure": true});
    let asked: Value = app.submit(&body).await.json().await.unwrap();
    assert_eq!(asked["search"]["measure"], true);
    assert!(asked.get("follow_up").is_none());
    let claim = app.claim().await;
    let follow_up = app.job(&matrix, 32).await;
    let follow_up = follow_up["id"].as_str().unwrap();
    let plan = Plan { id: PlanId::fresh(), ..guessed };
    let job = Job {
        state: JobState::Succeeded,
        stage: Stage::Done,
        plan: Some(plan.id.clone()),
        follow_up: Some(JobId(follow_up.to_owned())),
        stopped_by: Some(StoppedBy::Completed),
        finished_at: Some(Timestamp::now()),
        ..claim.job.clone()
    };
    let finish = Finish::job(job, Some(plan));
    app.running.service.store().finish(&claim.fence, &finish).await.unwrap();
    let id = asked["id"].as_str().unwrap();
    assert_eq!(app.json(&format!("/v1/jobs/{id}")).await["follow_up"], follow_up);
    let text = page(&app, &format!("/jobs/{id}")).await;
    let link = format!("id=\"follow-up\" href=\"/jobs/{follow_up}\"");
    assert!(text.contains(&link) && text.contains("The model chose; nothing was measured."));
    assert!(!page(&app, &format!("/jobs/{follow_up}")).await.contains("id=\"follow-up\""));

    let mut odd = spmm(&matrix, 8);
    odd["search"] = json!({"strategy": "ranked", "measure": true});
    problem(app.submit(&odd).await, 422, "invalid-body").await;
}
