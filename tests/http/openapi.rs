//! The contract and the server do not drift: same paths and methods, and real answers fit the schemas.

use crate::app::{TestApp, fixture, lookup, spmm};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use sparsetune::domain::{EventKind, QuarantineScope};
use sparsetune::http::{OPENAPI, PATHS};
use sparsetune::store::Quarantined;
use std::collections::{BTreeMap, BTreeSet};

fn contract() -> Value {
    serde_yaml_ng::from_str(OPENAPI).unwrap()
}

type Methods = BTreeMap<String, BTreeSet<String>>;

fn documented(contract: &Value) -> Methods {
    let paths = contract["paths"].as_object().unwrap();
    let methods = |item: &Value| {
        let names = item.as_object().unwrap().keys().filter(|name| *name != "parameters");
        names.map(|name| name.to_uppercase()).collect()
    };
    paths.iter().map(|(path, item)| (path.clone(), methods(item))).collect()
}

#[tokio::test]
async fn paths_and_methods_are_those_of_the_router() {
    let app = TestApp::new().await;
    let mut served = Methods::new();
    for path in PATHS {
        let response = app.request(Method::OPTIONS, path).send().await.unwrap();
        assert_eq!(response.status(), 204, "{path}");
        let allow = response.headers()["allow"].to_str().unwrap().to_owned();
        let methods = allow.split(',').filter(|name| *name != "HEAD").map(str::to_owned);
        served.insert((*path).to_owned(), methods.collect());
    }
    assert_eq!(documented(&contract()), served);
}

/// Checks answers against what the contract says of an operation and a status.
struct Checker {
    contract: Value,
    seen: BTreeSet<String>,
}

impl Checker {
    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(name) => self.contract.pointer(name.trim_start_matches('#')).unwrap(),
            None => value,
        }
    }

    async fn check(&mut self, path: &str, method: &str, response: Response) -> Value {
        let status = response.status().as_u16().to_string();
        let responses = &self.contract["paths"][path][method]["responses"];
        let documented =
            responses.get(&status).unwrap_or_else(|| panic!("{method} {path}: {status}"));
        let documented = self.resolve(documented).clone();
        let empty = serde_json::Map::new();
        for (name, header) in documented["headers"].as_object().unwrap_or(&empty) {
            let needed = self.resolve(header)["required"] == true;
            assert!(
                !needed || response.headers().contains_key(name.as_str()),
                "{method} {path}: no {name}"
            );
        }
        let kind =
            response.headers().get("content-type").map(|value| value.to_str().unwrap().to_owned());
        let text = response.text().await.unwrap();
        self.seen.insert(format!("{method} {path} {status}"));
        let Some(kind) = kind else {
            assert!(documented["content"].is_null() && text.is_empty(), "{method} {path} {status}");
            return Value::Null;
        };
        let schema = &documented["content"][&kind]["schema"];
        assert!(schema.is_object(), "{method} {path} {status}: {kind} is not documented");
        let body = if kind.ends_with("json") {
            serde_json::from_str(&text).unwrap()
        } else {
            Value::String(text)
        };
        self.fits(schema, &body);
        body
    }

    fn fits(&self, schema: &Value, body: &Value) {
        let mut schema = schema.clone();
        schema["components"] = self.contract["components"].clone();
        schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(body)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{errors:#?}\n{body:#}");
    }
}

#[tokio::test]
async fn answers_fit_their_schemas() {
    let app = TestApp::new().await;
    let mut checker = Checker { contract: contract(), seen: BTreeSet::new() };
    let fixed = [
        "/",
        "/healthz",
        "/readyz",
        "/v1/devices",
        "/v1/overview",
        "/v1/quarantine",
        "/v1/operations",
        "/v1/rules",
    ];
    for path in fixed {
        checker.check(path, "get", app.get(path).await).await;
    }
    let matrices = "/v1/matrices";
    let text = crate::app::tridiagonal(9);
    let matrix = checker.check(matrices, "post", app.upload(text.clone()).await).await;
    checker.check(matrices, "post", app.upload(text).await).await;
    checker.check(matrices, "post", app.upload("x").await).await;
    checker.check(matrices, "get", app.get(matrices).await).await;
    let digest = matrix["digest"].as_str().unwrap();
    let one = app.get(&format!("/v1/matrices/{digest}")).await;
    checker.check("/v1/matrices/{digest}", "get", one).await;
    let profile = app.get(&format!("/v1/matrices/{digest}/profile")).await;
    checker.check("/v1/matrices/{digest}/profile", "get", profile).await;
    let guessed = checker.check("/v1/plans", "get", app.get(&lookup(&matrix, 4)).await).await;
    assert_eq!(guessed["match"]["grade"], "predicted");
    let guessed = app.get(&format!("/v1/plans/{}", guessed["plan"]["id"].as_str().unwrap())).await;
    checker.check("/v1/plans/{id}", "get", guessed).await;
    let measured = app.get(&format!("{}&predicted=false", lookup(&matrix, 4))).await;
    let measured = checker.check("/v1/plans", "get", measured).await;
    assert_eq!(measured["match"]["grade"], "none");

    let submitted = app.submit(&spmm(&matrix, 4)).await;
    let job = checker.check("/v1/jobs", "post", submitted).await;
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let stream = app.get(&format!("{path}/events")).await;
    let claim = app.claim().await;
    let kind = EventKind::Funnel { steps: fixture().funnel };
    app.running.service.store().log(&claim.fence, &kind).await.unwrap();
    let entry = Quarantined {
        class: fixture().device.class(),
        kernel_digest: fixture().matrix,
        candidate: fixture().candidate,
        scope: QuarantineScope::Pattern,
        reason: "timed_out: no answer".to_owned(),
        at: fixture().created_at,
    };
    app.running.service.store().quarantine(&entry, &fixture().pattern_digest).await.unwrap();
    checker.check("/v1/quarantine", "get", app.get("/v1/quarantine").await).await;
    checker.check("/v1/jobs/{id}", "get", app.get(&path).await).await;
    let plan = app.finish(&claim).await;
    checker.check("/v1/jobs/{id}", "get", app.get(&path).await).await;
    checker.check("/v1/jobs", "get", app.get("/v1/jobs").await).await;
    let trials = app.get(&format!("{path}/trials")).await;
    checker.check("/v1/jobs/{id}/trials", "get", trials).await;
    let tried = app.get(&format!("{path}/trials?state=tried")).await;
    checker.check("/v1/jobs/{id}/trials", "get", tried).await;
    let learner = sparsetune::domain::learned::Learner::Lambdamart;
    app.insert(&crate::models::model("one", learner, 1)).await;
    checker.check("/v1/models", "get", app.get("/v1/models").await).await;
    let body = json!({"reason": "a trial"});
    let used = app.post("/v1/models/one/activate", &body).await;
    checker.check("/v1/models/{id}/activate", "post", used).await;
    checker.check("/v1/models/{id}", "get", app.get("/v1/models/one").await).await;
    checker.check("/v1/models/{id}/file", "get", app.get("/v1/models/one/file").await).await;
    let back = app.post("/v1/models/roll-back", &json!({"op": "spmm"})).await;
    checker.check("/v1/models/roll-back", "post", back).await;
    let history = app.get("/v1/models/activations?op=spmm&device_class=cpu/x").await;
    checker.check("/v1/models/activations", "get", history).await;
    let body = json!({"op": "sptrsv", "activate": "never"});
    let training = app.post("/v1/models/train", &body).await;
    let training = checker.check("/v1/models/train", "post", training).await;
    checker.check("/v1/models/train", "post", app.post("/v1/models/train", &body).await).await;
    let training = format!("/v1/jobs/{}", training["id"].as_str().unwrap());
    checker.check("/v1/jobs/{id}", "get", app.get(&training).await).await;
    checker.check("/v1/jobs", "get", app.get("/v1/jobs?kind=train").await).await;
    let over = app.request(Method::DELETE, &training).send().await.unwrap();
    checker.check("/v1/jobs/{id}", "delete", over).await;
    let plans = app.get(&format!("/v1/matrices/{digest}/plans")).await;
    checker.check("/v1/matrices/{digest}/plans", "get", plans).await;
    let over = app.request(Method::DELETE, &path).send().await.unwrap();
    checker.check("/v1/jobs/{id}", "delete", over).await;
    let found = checker.check("/v1/plans", "get", app.get(&lookup(&matrix, 4)).await).await;
    assert_eq!(found["match"]["grade"], "exact");
    let path = format!("/v1/plans/{}", plan.id);
    checker.check("/v1/plans/{id}", "get", app.get(&path).await).await;
    let array = plan.launch.unwrap().arrays[0].blob;
    let nothing = app.get(&format!("{path}/blobs/{array}")).await;
    checker.check("/v1/plans/{id}/blobs/{digest}", "get", nothing).await;

    let solve =
        json!({"op": "sptrsv", "rhs": 2, "dtype": "f64", "triangle": "upper", "diagonal": "unit"});
    let job = app.submit(&json!({"matrix": matrix["digest"], "problem": solve})).await;
    let job = checker.check("/v1/jobs", "post", job).await;
    assert_eq!(job["search"]["strategy"], "halving");
    app.finish(&app.claim().await).await;
    let query = format!("/v1/plans?matrix={digest}&op=sptrsv&rhs=2&dtype=f64&triangle=upper");
    let found = app.get(&format!("{query}&diagonal=unit&transpose=false")).await;
    let found = checker.check("/v1/plans", "get", found).await;
    assert_eq!(found["match"]["grade"], "exact");

    let event = json!({"$ref": "#/components/schemas/Event"});
    let stream = stream.text().await.unwrap();
    let data: Vec<&str> = stream.lines().filter_map(|line| line.strip_prefix("data:")).collect();
    assert!(data.len() >= 4 && stream.contains("event: funnel"), "{stream}");
    for data in data {
        checker.fits(&event, &serde_json::from_str(data).unwrap());
    }
    assert!(checker.seen.len() >= 15, "{:#?}", checker.seen);
}

/// Examples are what readers copy: they fit their schemas, too.
#[test]
fn examples_of_plans_fit_their_schemas() {
    let checker = Checker { contract: contract(), seen: BTreeSet::new() };
    for path in ["/v1/plans", "/v1/plans/{id}"] {
        let content = &checker.contract["paths"][path]["get"]["responses"]["200"]["content"];
        let content = &content["application/json"];
        let examples = content["examples"].as_object().unwrap();
        assert!(examples.contains_key("predicted"), "{path}");
        for example in examples.values() {
            checker.fits(&content["schema"], &example["value"]);
        }
        let plan = &examples["predicted"]["value"];
        let plan = plan.get("plan").unwrap_or(plan);
        let first = sparsetune::domain::Candidate::new("row_split").with("lanes", 8);
        assert_eq!(plan["candidate"]["id"], first.id().to_string());
        let next = sparsetune::domain::Candidate::new("row_panel").with("m1", 4);
        assert_eq!(plan["alternatives"][0]["id"], next.id().to_string());
    }
}

#[test]
fn every_problem_type_is_documented_once() {
    let contract = contract();
    let types = contract["components"]["schemas"]["Problem"]["properties"]["type"]["enum"].clone();
    let documented: BTreeSet<String> = serde_json::from_value(types).unwrap();
    let served: BTreeSet<String> =
        sparsetune::http::error::Kind::ALL.iter().map(|kind| kind.type_uri()).collect();
    assert_eq!(documented, served);
}

/// The engine's own words for arguments are its private matter; its text has them all.
#[test]
fn every_form_of_an_argument_is_explained() {
    let text = include_str!("../../src/engine/cuda/export.rs");
    let (_, names) = text.split_once("fn argument_name").unwrap();
    let quoted = names.split('"').skip(1).step_by(2).filter(|form| *form != "?");
    let forms: Vec<&str> = quoted.map(|form| form.split('{').next().unwrap()).collect();
    assert!(forms.contains(&"diagonal") && forms.contains(&"turn:") && forms.len() >= 15);
    let contract = contract();
    let told = contract.pointer("/components/schemas/Arguments/description").unwrap();
    let told = told.as_str().unwrap();
    for form in forms {
        let close = if form.ends_with(':') { "" } else { "`" };
        assert!(told.contains(&format!("`{form}{close}")), "{form}");
    }
}
