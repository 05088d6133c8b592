//! Learned models and trainings: asked for, told of as jobs, put to use and taken back.

use crate::app::{TestApp, fixture, problem};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use sparsetune::domain::learned::*;
use sparsetune::domain::training::TrainingStage;
use sparsetune::domain::*;
use sparsetune::learn::{Forest, Model, ModelFile, file};
use sparsetune::ops::features;
use sparsetune::store::{Finish, Queue};

const FILE: &[u8] = br#"{"version":1}"#;

/// A model of this name for the test's device.
pub fn model(id: &str, learner: Learner, created_at: i64) -> LearnedModel {
    let at = [1, 10].map(|k| AtK { k, share: 0.9, within_85: 0.75 }).to_vec();
    let ranker = |name: &str, ndcg10| RankerScore {
        name: name.to_owned(),
        ndcg10,
        at: at.clone(),
        regret: [0.01, 0.2, 1.5],
    };
    LearnedModel {
        version: learned::MODEL_VERSION,
        id: ModelId(id.to_owned()),
        learner,
        scope: Scope { op: Op::Spmm, device_class: fixture().device.class() },
        features_version: features::version(Op::Spmm),
        data: DataUsed {
            groups: 40,
            matrices: 30,
            generated: 29,
            trials: 2000,
            newest: Timestamp(5),
        },
        quality: HeldOut {
            folds: 5,
            groups: 40,
            rankers: vec![ranker(learner.name(), Some(0.93)), ranker("random", None)],
        },
        importance: vec![Importance { feature: "rows".to_owned(), share: 1.0 }],
        seed: 1,
        started_from: None,
        training: None,
        digest: Digest::of(FILE),
        created_at: Timestamp(created_at),
    }
}

impl TestApp {
    pub async fn insert(&self, model: &LearnedModel) {
        self.running.service.store().insert_model(model, FILE).await.unwrap();
    }

    pub async fn post(&self, path: &str, body: &Value) -> Response {
        self.request(Method::POST, path).json(body).send().await.unwrap()
    }
}

fn ids(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["id"].as_str().unwrap_or("analytic")).collect()
}

#[tokio::test]
async fn models_are_listed_by_what_they_are_for() {
    let app = TestApp::new().await;
    app.tuned(9, 4).await;
    app.insert(&model("old", Learner::Lambdamart, 1)).await;
    app.insert(&model("new", Learner::MlpRegret, 2)).await;
    let all = app.json("/v1/models").await;
    assert_eq!(ids(&all), ["analytic", "new", "old"]);
    assert_eq!(ids(&app.json("/v1/models?kind=analytic").await), ["analytic"]);
    assert_eq!(ids(&app.json("/v1/models?kind=mlp_regret&op=spmm").await), ["new"]);
    assert!(ids(&app.json("/v1/models?op=sptrsv").await).is_empty());
    assert!(ids(&app.json("/v1/models?device_class=cpu/other").await).is_empty());
    let one = &all["items"][2];
    assert_eq!((&one["kind"], &one["active"]), (&json!("lambdamart"), &json!(false)));
    assert_eq!(one["origin"], "shipped");
    assert_eq!(one["data"]["generated"], 29);
    assert_eq!(
        one["quality"]["choosers"][0]["regret"],
        json!({"p50": 0.01, "p90": 0.2, "max": 1.5})
    );
    let whole = app.json("/v1/models/old").await;
    assert_eq!(whole["importance"], json!([{"feature": "rows", "share": 1.0}]));
    for odd in ["kind=forest", "op=spmv", "version=1"] {
        problem(app.get(&format!("/v1/models?{odd}")).await, 400, "invalid-parameter").await;
    }
    problem(app.get("/v1/models/none").await, 404, "not-found").await;
    problem(app.get("/v1/models/A%20B").await, 400, "invalid-parameter").await;
}

#[tokio::test]
async fn the_newest_models_are_listed_and_each_is_told_of() {
    let app = TestApp::new().await;
    for age in 0..=200 {
        app.insert(&model(&format!("m{age}"), Learner::Lambdamart, 1000 - age)).await;
    }
    let all = app.json("/v1/models?kind=lambdamart").await;
    let listed = ids(&all);
    assert_eq!((listed.len(), listed[0], listed[199]), (200, "m0", "m199"));
    app.post("/v1/models/m200/activate", &json!({})).await;
    let oldest = app.json("/v1/models/m200").await;
    assert_eq!((&oldest["id"], &oldest["active"]), (&json!("m200"), &json!(true)));
}

#[tokio::test]
async fn a_models_file_is_sent_once() {
    let app = TestApp::new().await;
    app.insert(&model("one", Learner::Lambdamart, 1)).await;
    let sent = app.get("/v1/models/one/file").await;
    let tag = sent.headers()["etag"].clone();
    assert!(Digest::of(FILE).to_string().starts_with(tag.to_str().unwrap().trim_matches('"')));
    assert_eq!(sent.bytes().await.unwrap(), FILE);
    let again = app.request(Method::GET, "/v1/models/one/file").header("if-none-match", tag);
    assert_eq!(again.send().await.unwrap().status(), 304);
    problem(app.get("/v1/models/none/file").await, 404, "not-found").await;
}

#[tokio::test]
async fn a_model_is_put_to_use_and_taken_back() {
    let app = TestApp::new().await;
    let back = json!({"op": "spmm", "device": "auto"});
    problem(app.post("/v1/models/roll-back", &back).await, 404, "not-found").await;
    app.insert(&model("one", Learner::Lambdamart, 1)).await;
    app.insert(&model("two", Learner::Lambdamart, 2)).await;
    let used = app.post("/v1/models/one/activate", &json!({})).await;
    let used: Value = used.json().await.unwrap();
    assert_eq!((&used["model"], &used["reason"]), (&json!("one"), &json!("by hand")));
    app.post("/v1/models/two/activate", &json!({"reason": "newer"})).await;
    let active = |list: &Value, n: usize| list["items"][n]["active"].clone();
    let all = app.json("/v1/models").await;
    assert_eq!((active(&all, 0), active(&all, 1)), (json!(true), json!(false)));
    let now: Value = app.post("/v1/models/roll-back", &back).await.json().await.unwrap();
    assert_eq!(now["model"], "one");
    let class = fixture().device.class();
    let asked = app.url("/v1/models/activations");
    let query = [("op", "spmm"), ("device_class", &class.0)];
    let asked = reqwest::Url::parse_with_params(&asked, query).unwrap();
    let history: Value = app.client.get(asked).send().await.unwrap().json().await.unwrap();
    let history = history["items"].as_array().unwrap();
    assert_eq!(history.len(), 3);
    assert_eq!((&history[1]["reason"], &history[2]["model"]), (&json!("newer"), &json!("one")));
    assert_eq!(app.json("/v1/models/two").await["activations"].as_array().unwrap(), history);

    let bare = app.request(Method::POST, "/v1/models/one/activate").send().await.unwrap();
    assert_eq!(bare.json::<Value>().await.unwrap()["reason"], "by hand");
    let text = app.request(Method::POST, "/v1/models/one/activate").body("newer");
    problem(text.send().await.unwrap(), 415, "unsupported-media-type").await;
    let other = LearnedModel { features_version: 999, ..model("other", Learner::Lambdamart, 3) };
    app.insert(&other).await;
    let refused = problem(app.post("/v1/models/other/activate", &json!({})).await, 409, "conflict");
    assert!(refused.await["detail"].as_str().unwrap().contains("version 999"));
    assert_eq!(app.json("/v1/models/other").await["active"], false);
    // In use since before the features changed: it ranks nothing, and that is what is told.
    let scope = Scope { op: Op::Spmm, device_class: class.clone() };
    let left = Activation {
        scope,
        model: Some(other.id),
        reason: "long ago".to_owned(),
        at: Timestamp(1),
    };
    app.running.service.store().activate(&left).await.unwrap();
    assert_eq!(app.json("/v1/models/other").await["active"], false);
    assert_eq!(active(&app.json("/v1/models").await, 0), json!(false));
    let page = app.get("/models").await.text().await.unwrap();
    assert!(page.contains("data-activate=\"other\"") && !page.contains(">in use<"));
    let now: Value = app.post("/v1/models/roll-back", &back).await.json().await.unwrap();
    assert_eq!(now["model"], "one");

    problem(app.post("/v1/models/none/activate", &json!({})).await, 404, "not-found").await;
    for odd in [
        json!({"reason": "rolled back"}),
        json!({"reason": ""}),
        json!({"reason": "a\nb"}),
        json!({"reason": "x".repeat(201)}),
    ] {
        let refused = problem(app.post("/v1/models/one/activate", &odd).await, 422, "invalid-body");
        assert_eq!(refused.await["pointer"], "/reason");
    }
    let odd = app.post("/v1/models/roll-back", &json!({"op": "spmm", "device": "cuda:9"})).await;
    assert_eq!(problem(odd, 422, "invalid-body").await["pointer"], "/device");
    problem(app.get("/v1/models/activations?op=spmm").await, 400, "invalid-parameter").await;
}

#[tokio::test]
async fn the_model_in_use_is_told_from_the_start() {
    let app = TestApp::new().await;
    // A class of its own: the recorder is the process', which other tests share.
    let scope = Scope { op: Op::Spmm, device_class: DeviceClass("cpu/gauged".to_owned()) };
    let (shared, own) = features::names(Op::Spmm);
    let file = ModelFile {
        version: file::VERSION,
        scope: scope.clone(),
        features_version: features::version(Op::Spmm),
        shared,
        own,
        largest: None,
        model: Model::Lambdamart(Forest { prior: None, trees: Vec::new(), scale: 1.0 }),
    };
    let bytes = file.to_bytes().unwrap();
    let card = LearnedModel {
        scope,
        features_version: features::version(Op::Spmm),
        digest: Digest::of(&bytes),
        ..model("gauged", Learner::Lambdamart, 1)
    };
    app.running.service.store().insert_model(&card, &bytes).await.unwrap();
    app.post("/v1/models/gauged/activate", &json!({})).await;
    let series = |learner: &str, now: u8| {
        format!(
            "sparsetune_model_in_use{{op=\"spmm\",device_class=\"cpu/gauged\",learner=\"{learner}\"}} {now}\n"
        )
    };
    let before = app.get("/metrics").await.text().await.unwrap();
    assert!(!before.contains("cpu/gauged"), "nobody asked for a model yet");
    let again = app.beside().await;
    let told = reqwest::get(format!("http://{}/metrics", again.address)).await.unwrap();
    let told = told.text().await.unwrap();
    assert!(told.contains(&series("lambdamart", 1)) && told.contains(&series("mlp", 0)), "{told}");
}

#[tokio::test]
async fn a_training_is_a_job_like_others() {
    let app = TestApp::new().await;
    let asked = app.post("/v1/models/train", &json!({"op": "spmm", "seed": 7})).await;
    assert_eq!(asked.status(), 202);
    let path = asked.headers()["location"].to_str().unwrap().to_owned();
    let training: Value = asked.json().await.unwrap();
    assert_eq!((&training["kind"], &training["state"]), (&json!("train"), &json!("queued")));
    assert_eq!(training["progress"], json!({"done": 0, "total": 1000}));
    assert_eq!((&training["seed"], &training["activate"]), (&json!(7), &json!("if_better")));
    assert_eq!(training["device_class"], fixture().device.class().0);
    let again =
        app.post("/v1/models/train", &json!({"op": "spmm", "device": "auto", "seed": 7})).await;
    assert_eq!(again.status(), 200);
    assert_eq!(again.json::<Value>().await.unwrap()["id"], training["id"]);
    for other in [json!({"op": "spmm"}), json!({"op": "spmm", "seed": 7, "activate": "never"})] {
        let refused = problem(app.post("/v1/models/train", &other).await, 409, "conflict").await;
        let named = refused["detail"].as_str().unwrap();
        assert!(named.contains(training["id"].as_str().unwrap()), "{named}");
    }
    assert_eq!(app.json(&path).await, training);
    problem(app.get(&format!("{path}/trials")).await, 404, "not-found").await;
    assert_eq!(app.json("/v1/jobs").await, json!({"items": []}));
    assert_eq!(app.json("/v1/jobs?kind=train").await["items"], json!([training]));
    assert_eq!(app.json("/v1/jobs?kind=train&state=queued").await["items"], json!([training]));
    problem(app.get("/v1/jobs?kind=train&device=cpu").await, 400, "invalid-parameter").await;
    let over = app.request(Method::DELETE, &path).send().await.unwrap();
    assert_eq!(over.status(), 200);
    assert_eq!(app.json(&path).await["state"], "cancelled");

    for (body, pointer) in [
        (json!({"op": "spmv"}), "/op"),
        (json!({"op": "spmm", "device": "cuda:9"}), "/device"),
        (json!({"op": "spmm", "device": "cuda/nobody has it/cc9.0/1sm"}), "/device"),
        (json!({"op": "spmm", "activate": "soon"}), "/activate"),
        (json!({"op": "spmm", "seed": -1}), "/seed"),
    ] {
        let refused = app.post("/v1/models/train", &body).await;
        assert_eq!(problem(refused, 422, "invalid-body").await["pointer"], pointer, "{body}");
    }
}

#[tokio::test]
async fn a_trainings_events_tell_each_change_to_its_end() {
    let app = TestApp::new().await;
    let training = app.post("/v1/models/train", &json!({"op": "spmm"})).await;
    let training: Value = training.json().await.unwrap();
    let path = format!("/v1/jobs/{}/events", training["id"].as_str().unwrap());
    let listening = app.get(&path).await;
    assert_eq!(listening.headers()["content-type"], "text/event-stream");
    let store = app.running.service.store();
    let claim = store.claim(&Queue::Trainings, "here", 60_000, u32::MAX).await.unwrap().unwrap();
    let (mut now, fence) = (claim.work.into_training().unwrap(), claim.fence);
    now = Training { stage: TrainingStage::Reading, progress: 0.25, ..now };
    store.update(&fence, &now.clone().into()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
    let ended = Training {
        state: JobState::Failed,
        stage: TrainingStage::Done,
        error: Some("too little data".to_owned()),
        finished_at: Some(Timestamp::now()),
        ..now
    };
    store.finish(&fence, &Finish::training(ended, None)).await.unwrap();
    let text = tokio::time::timeout(std::time::Duration::from_secs(20), listening.text()).await;
    let text = text.expect("the stream ends").unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let done = |event: &Value| event["job"]["progress"]["done"].as_u64().unwrap();
    assert_eq!(events[0]["job"]["state"], "queued");
    assert!(events.iter().any(|event| done(event) == 250 && event["job"]["stage"] == "reading"));
    let last = events.last().unwrap();
    assert_eq!(last["job"]["state"], "failed");
    assert_eq!(last["job"]["error"], "too little data");
    let numbers: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 3, 4], "as a job's: queued, claimed, at work, ended");
    assert!(text.matches("event: job").count() == events.len());
    let resumed = app.request(Method::GET, &path).header("last-event-id", numbers[0].to_string());
    assert!(resumed.send().await.unwrap().text().await.unwrap().contains("too little data"));
    let nothing_more = app.request(Method::GET, &path).header("last-event-id", "4");
    assert_eq!(nothing_more.send().await.unwrap().status(), 204);
}

#[tokio::test]
async fn the_page_shows_learned_models_and_what_trains() {
    let app = TestApp::new().await;
    let page = async |path: &str| app.get(path).await.text().await.unwrap();
    let idle = page("/models").await;
    assert!(idle.contains("No model has been trained yet"));
    assert!(idle.contains("data-refresh=\"30\"") && !idle.contains("data-hurry"));
    app.insert(&model("old", Learner::Lambdamart, 1)).await;
    app.insert(&model("new", Learner::Lambdamart, 2)).await;
    let reason = json!({"reason": "<b>better</b>"});
    app.post("/v1/models/old/activate", &reason).await;
    let text = page("/models").await;
    assert!(text.contains("data-activate=\"new\"") && !text.contains("data-activate=\"old\""));
    assert!(text.contains("data-roll-back=\"spmm\"") && !text.contains("<b>better"));
    assert!(text.contains("rows <code class=\"soft\">rows</code>") && text.contains(">random<"));
    assert!(text.contains("<rect class=\"ink\"") && text.contains("90 %"));
    assert_eq!(text.matches(">in use</span>").count(), 1);
    assert!(text.contains("data-train=\"spmm\"") && !text.contains("style=\""));
    let training = app.post("/v1/models/train", &json!({"op": "spmm"})).await;
    let training: Value = training.json().await.unwrap();
    let live = page("/fragments/models").await;
    assert!(live.contains(&format!("data-cancel=\"{}\"", training["id"].as_str().unwrap())));
    assert!(!live.contains("<html") && live.contains("data-hurry=\"2\""));
}
