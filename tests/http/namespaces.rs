//! Namespaces, for every operation of the contract and every page: what one token has made is there for its namespace, and for another it
//! is as if it had never been.

use crate::app::{TestApp, lookup, spmm, tridiagonal};
use crate::tokens::{ADMIN, server};
use reqwest::{Method, StatusCode, header};
use serde_json::{Value, json};
use sparsetune::domain::Namespace;
use sparsetune::http::{OPENAPI, PAGES};
use std::collections::BTreeSet;

/// What an operation or a page has to do with namespaces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    /// It names something of a namespace in its path, or in its query or body where [`asked`] says so.
    Names,
    /// It lists what is of the caller's namespace.
    Lists,
    /// It is of the whole service, and names nothing of any namespace.
    OfAll,
    /// It makes something, and names nothing: other tests ask it with what another namespace has.
    Makes,
}

/// Every operation has its case, so that a new one is not forgotten.
fn case(method: &Method, path: &str) -> Case {
    match (method.as_str(), path) {
        ("GET", "/" | "/v1/matrices" | "/v1/jobs" | "/v1/pins" | "/v1/webhooks" | "/v1/tokens")
        | ("GET", "/v1/audit" | "/jobs" | "/fragments/jobs" | "/matrices" | "/how" | "/find")
        | ("GET", "/compare" | "/v1/overview" | "/overview" | "/webhooks") => Case::Lists,
        // `an_export_is_of_a_namespace`; imports are the operator's.
        ("GET", "/v1/export") => Case::Makes,
        ("POST", "/v1/import") => Case::OfAll,
        ("GET", "/healthz" | "/readyz" | "/metrics" | "/openapi.yaml" | "/docs")
        | ("GET", "/v1/operations" | "/v1/rules" | "/v1/devices" | "/v1/quarantine")
        | ("GET", "/v1/models" | "/v1/models/activations" | "/v1/models/{id}")
        | ("GET", "/v1/models/{id}/file" | "/static/{name}" | "/login" | "/logout")
        | ("GET", "/devices" | "/fragments/devices" | "/models" | "/fragments/models")
        | ("POST", "/v1/models/train" | "/v1/models/roll-back" | "/v1/models/{id}/activate")
        | ("DELETE", "/v1/quarantine/{id}") => Case::OfAll,
        // `a_matrix_that_another_has_is_a_first_upload`, `names_and_keys_are_of_a_namespace`; bundles in `tests/bundles.rs`.
        ("POST", "/v1/matrices" | "/v1/webhooks" | "/v1/tokens" | "/v1/bundles") => Case::Makes,
        ("GET" | "POST", "/v1/plans") | ("POST", "/v1/jobs") => Case::Names,
        (_, path) if ["{digest}", "{id}", "{name}"].iter().any(|part| path.contains(part)) => {
            Case::Names
        }
        _ => panic!("say here what {method} {path} tells another namespace"),
    }
}

/// Every operation and page, as the contract and the table of pages have them.
fn operations() -> Vec<(Method, String)> {
    let contract: Value = serde_yaml_ng::from_str(OPENAPI).unwrap();
    let mut all = Vec::new();
    for (path, item) in contract["paths"].as_object().unwrap() {
        let methods = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
        all.extend(methods.map(|method| (method.to_uppercase().parse().unwrap(), path.clone())));
    }
    all.extend(PAGES.iter().map(|page| (Method::GET, (*page).to_owned())));
    assert!(all.len() > 55, "{}", all.len());
    all
}

fn of_case(wanted: Case) -> impl Iterator<Item = (Method, String)> {
    operations().into_iter().filter(move |(method, path)| case(method, path) == wanted)
}

/// What namespace `a` has made.
struct Made {
    digest: String,
    pattern: String,
    job: String,
    queued: String,
    plan: String,
    blob: String,
    hook: String,
    token: String,
}

const NAME: &str = "a-secret-name";
const TOKEN: &str = "a-secret-token";
/// What never was: a digest, an id, a name.
const NEVER: [&str; 3] = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0193a7c4-1111-7222-8333-444455556666",
    "a-strange-token",
];

/// A request.
#[derive(Clone)]
struct Asked {
    method: Method,
    path: String,
    body: Option<Value>,
}

impl Made {
    /// What an operation is asked about what `a` has made.
    fn asked(&self, method: &Method, path: &str) -> Asked {
        let digest = if path.contains("/blobs/") { &self.blob } else { &self.digest };
        let id = match path.trim_start_matches("/v1").trim_start_matches("/fragments") {
            p if p.starts_with("/jobs") => &self.job,
            p if p.starts_with("/plans") => &self.plan,
            p if p.starts_with("/webhooks") => &self.hook,
            p => match p.contains("{id}") {
                true => panic!("say here whose {p} is"),
                false => "",
            },
        };
        let path = match path {
            "/v1/plans" => lookup(&json!({"digest": self.digest}), 3),
            path => path.replace("{digest}", digest).replace("{id}", id).replace("{name}", TOKEN),
        };
        let body = path.ends_with("/v1/jobs").then(|| spmm(&json!({"digest": self.digest}), 3));
        Asked { method: method.clone(), path, body }
    }

    /// With what never was in the place of what is `a`'s.
    fn never(&self, text: &str) -> String {
        let text = [&self.digest, &self.pattern, &self.blob]
            .iter()
            .fold(text.to_owned(), |text, own| text.replace(own.as_str(), NEVER[0]));
        let text = [&self.job, &self.plan, &self.hook]
            .iter()
            .fold(text, |text, own| text.replace(own.as_str(), NEVER[1]));
        text.replace(TOKEN, NEVER[2])
    }

    fn is_told_in(&self, text: &str) -> bool {
        [&self.digest, &self.pattern, &self.job, &self.queued, &self.plan, &self.hook]
            .iter()
            .any(|own| text.contains(own.as_str()))
            || text.contains(NAME)
            || text.contains(TOKEN)
    }
}

impl TestApp {
    /// The JSON of a success.
    pub async fn got(&self, method: Method, path: &str, token: &str, body: Option<Value>) -> Value {
        let asked = self.with_token(method.clone(), path, token);
        let asked = match body {
            Some(body) => asked.json(&body),
            None => asked,
        };
        let answer = asked.send().await.unwrap();
        assert!(answer.status().is_success(), "{method} {path}: {}", answer.status());
        answer.json().await.unwrap()
    }

    pub async fn status_of(&self, method: Method, path: &str, token: &str) -> StatusCode {
        self.with_token(method, path, token).send().await.unwrap().status()
    }

    async fn read(&self, path: &str, token: &str) -> String {
        self.with_token(Method::GET, path, token).send().await.unwrap().text().await.unwrap()
    }

    pub async fn put_matrix(&self, token: &str, name: &str) -> (StatusCode, Value) {
        let path = format!("/v1/matrices?name={name}");
        let asked = self.with_token(Method::POST, &path, token).body(tridiagonal(6));
        let answer = asked.send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }

    /// Measures a plan for the matrix with a token of the namespace: the ids of job and plan.
    pub async fn measured(
        &self,
        token: &str,
        of: &str,
        matrix: &Value,
        n: u32,
    ) -> (String, String) {
        let job = self.got(Method::POST, "/v1/jobs", token, Some(spmm(matrix, n))).await;
        let claim = self.claim().await;
        assert_eq!(job["id"], json!(claim.job.id.0));
        let plan = self.finish_in(&claim, &of.parse::<Namespace>().unwrap()).await;
        (claim.job.id.0, plan.id.0)
    }

    /// The grade of a lookup.
    pub async fn grade(&self, path: &str, token: &str) -> Value {
        self.got(Method::GET, path, token, None).await["match"]["grade"].clone()
    }

    /// Status, headers and text of an answer, without what is of each request.
    async fn plain(&self, asked: &Asked, tag: Option<&str>, token: &str) -> (StatusCode, String) {
        let request = self.with_token(asked.method.clone(), &asked.path, token);
        let request = match &asked.body {
            Some(body) => request.json(body),
            None => request,
        };
        let request = match tag {
            Some(tag) => request.header(header::IF_NONE_MATCH, tag),
            None => request,
        };
        let answer = request.send().await.unwrap();
        let own = |name: &str| answer.headers().get(name).map(|own| own.to_str().unwrap());
        let id = own("x-request-id").unwrap().to_owned();
        let mut told = String::new();
        for (name, value) in answer.headers() {
            if !["x-request-id", "date", "etag", "content-length"].contains(&name.as_str()) {
                told += &format!("{name}: {}\n", value.to_str().unwrap());
            }
        }
        let status = answer.status();
        told += &answer.text().await.unwrap().replace(&id, "");
        (status, told)
    }
}

/// Tokens with all rights in the namespaces `a` and `b`.
pub async fn two(app: &TestApp) -> (String, String) {
    let make = |of: &str| json!({"name": "ci", "namespace": of, "scopes": ["admin"]});
    (app.token(&make("a")).await, app.token(&make("b")).await)
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

async fn made(app: &TestApp, a: &str) -> Made {
    let (status, matrix) = app.put_matrix(a, NAME).await;
    assert_eq!(status, 201);
    let (job, plan) = app.measured(a, "a", &matrix, 3).await;
    let queued = app.got(Method::POST, "/v1/jobs", a, Some(spmm(&matrix, 5))).await;
    let hook = json!({"url": "http://example.com/"});
    let hook = app.got(Method::POST, "/v1/webhooks", a, Some(hook)).await;
    let token = app.got(Method::POST, "/v1/tokens", a, Some(json!({"name": TOKEN}))).await;
    // A program that the plan names.
    let whole = app.got(Method::GET, &format!("/v1/plans/{plan}"), a, None).await;
    let digest = text(&matrix["digest"]);
    for pin in [format!("/v1/matrices/{digest}/pin"), format!("/v1/plans/{plan}/pin")] {
        assert_eq!(app.status_of(Method::PUT, &pin, a).await, 204);
    }
    Made {
        pattern: text(&matrix["pattern_digest"]),
        digest,
        job,
        queued: text(&queued["id"]),
        blob: text(&whole["launch"]["source"]),
        plan,
        hook: text(&hook["id"]),
        token: text(&token["token"]),
    }
}

#[tokio::test]
async fn what_another_namespace_has_is_answered_as_what_never_was() {
    let app = server().await;
    let (a, b) = two(&app).await;
    let made = made(&app, &a).await;
    let mut names = 0;
    for (method, path) in of_case(Case::Names) {
        let asked = made.asked(&method, &path);
        let never = Asked {
            path: made.never(&asked.path),
            body: asked.body.as_ref().map(|b| made.never(&b.to_string()).parse().unwrap()),
            ..asked.clone()
        };
        names += 1;
        // What is kept in memory has been asked for by its own, and may be known by its tag.
        let mut tag = None;
        if method == Method::GET {
            let own = app.with_token(Method::GET, &asked.path, &a).send().await.unwrap();
            tag = own.headers().get(header::ETAG).map(|tag| tag.to_str().unwrap().to_owned());
            // The plan's files are not stored.
            let no_file = ["/blobs/", "/bundle", "/source"].iter().any(|part| path.contains(part));
            assert_eq!(own.status().is_success(), !no_file, "{path}: {}", own.status());
        }
        for tag in [None, Some("*"), tag.as_deref()] {
            let (found, missing) =
                (app.plain(&asked, tag, &b).await, app.plain(&never, tag, &b).await);
            assert_eq!((found.0, made.never(&found.1)), missing, "{method} {path}");
            let status = match path.as_str() {
                "/v1/plans" if method == Method::GET && tag == Some("*") => 304,
                "/v1/plans" => 200,
                "/v1/jobs" => 422,
                _ => 404,
            };
            assert_eq!(found.0, status, "{method} {path}: {found:?}");
        }
    }
    assert!(names >= 25, "{names}");
    // It is all still there for its own.
    let pins = app.got(Method::GET, "/v1/pins", &a, None).await;
    assert_eq!(pins, json!({"matrices": [made.digest], "plans": [made.plan]}));
    let state = app.got(Method::GET, &format!("/v1/jobs/{}", made.queued), &a, None).await;
    assert_eq!((&state["state"], &state["priority"]), (&json!("queued"), &json!(0)));
    assert_eq!(app.grade(&lookup(&json!({"digest": made.digest}), 3), &a).await, "exact");
    assert_eq!(app.status_of(Method::GET, "/v1/jobs", &made.token).await, 200);
    let hooks = app.got(Method::GET, "/v1/webhooks", &a, None).await;
    assert_eq!(hooks["items"][0]["id"], json!(made.hook));
}

#[tokio::test]
async fn no_list_nor_page_tells_of_another_namespace() {
    let app = server().await;
    let (a, b) = two(&app).await;
    let made = made(&app, &a).await;
    let mut told = BTreeSet::new();
    let by_digest = lookup(&json!({"digest": made.digest}), 3);
    let by_pattern = lookup(&json!({"digest": made.pattern}), 3);
    let more = [
        by_digest.clone(),
        by_pattern,
        format!("{by_digest}&neighbour=true"),
        format!("/v1/jobs?matrix={}", made.digest),
        "/v1/jobs?kind=any".to_owned(),
        "/v1/audit?token=ci".to_owned(),
        format!("/compare?matrix={}", made.digest),
        format!("/compare?matrix={NAME}"),
        format!("/find?q={NAME}"),
        format!("/find?q={}", &made.digest[..12]),
        format!("/jobs?matrix={}", &made.digest[..12]),
    ];
    for path in of_case(Case::Lists).map(|(_, path)| path).chain(more) {
        // What was asked for is repeated.
        let asked = path.split_once('=').map(|(_, asked)| asked.split('&').next().unwrap());
        let theirs = app.read(&path, &b).await.replace(asked.unwrap_or("nothing"), "");
        assert!(!made.is_told_in(&theirs), "{path}: {theirs}");
        if made.is_told_in(&app.read(&path, &a).await) {
            told.insert(path);
        }
    }
    for path in [
        "/v1/matrices",
        "/v1/jobs",
        "/v1/pins",
        "/v1/webhooks",
        "/v1/tokens",
        "/v1/audit",
        "/jobs",
        "/matrices",
        "/how",
        "/compare",
        "/fragments/jobs",
        by_digest.as_str(),
    ] {
        assert!(told.contains(path), "{path} tells its own namespace nothing: {told:?}");
    }
    // Nor does what is of the whole service name anything of a namespace, whoever asks, also while a job runs.
    app.claim().await;
    for (_, path) in of_case(Case::OfAll).filter(|(method, _)| method == Method::GET) {
        let all = app.read(&path, &b).await;
        assert!(!made.is_told_in(&all), "{path}: {all}");
    }
}

#[tokio::test]
async fn names_and_keys_are_of_a_namespace() {
    let app = server().await;
    let (a, b) = two(&app).await;
    let mut ids = BTreeSet::new();
    for token in [&a, &b] {
        // The same name, the same webhook, the same job under the same key.
        let named = app.got(Method::POST, "/v1/tokens", token, Some(json!({"name": "x"}))).await;
        let secret = text(&named["token"]);
        let hook = json!({"url": "http://example.com/"});
        ids.insert(text(&app.got(Method::POST, "/v1/webhooks", token, Some(hook)).await["id"]));
        let (status, matrix) = app.put_matrix(token, "one").await;
        assert_eq!(status, 201);
        for _ in 0..2 {
            let asked = app.with_token(Method::POST, "/v1/jobs", &secret).json(&spmm(&matrix, 3));
            let answer = asked.header("idempotency-key", "once").send().await.unwrap();
            assert_eq!(answer.status(), 202);
            ids.insert(text(&answer.json::<Value>().await.unwrap()["id"]));
        }
    }
    assert_eq!(ids.len(), 4, "{ids:?}");
}

#[tokio::test]
async fn an_export_is_of_a_namespace() {
    let app = server().await;
    let (a, b) = two(&app).await;
    made(&app, &a).await;
    let path = "/v1/export?files=true&matrices=true";
    for (token, all) in [(&a, 1u64), (&b, 0)] {
        let export = app.with_token(Method::GET, path, token).send().await.unwrap();
        assert_eq!(export.status(), 200);
        let import = app.with_token(Method::POST, "/v1/import?dry_run=true", ADMIN);
        let taken = import.body(export.bytes().await.unwrap()).send().await.unwrap();
        let taken: Value = taken.json().await.unwrap();
        // The operator is told that an id is another namespace's.
        for kind in ["plans", "jobs", "matrices"] {
            let counted =
                ["new", "known", "left_out"].map(|how| taken[kind][how].as_u64().unwrap());
            assert_eq!(counted.iter().sum::<u64>(), all, "{kind}: {taken}");
        }
    }
}

#[tokio::test]
async fn a_matrix_that_another_has_is_a_first_upload() {
    let app = server().await;
    let (a, b) = two(&app).await;
    let (status, first) = app.put_matrix(&a, "first").await;
    assert_eq!(status, 201);
    assert_eq!(app.put_matrix(&a, "again").await.0, 200);
    let (status, second) = app.put_matrix(&b, "second").await;
    assert_eq!((status, &second["name"]), (StatusCode::CREATED, &json!("second")));
    assert_eq!(first["digest"], second["digest"]);
    app.measured(&a, "a", &first, 3).await;
    // Answers are kept by query and namespace.
    let path = lookup(&first, 3);
    for _ in 0..2 {
        assert_eq!(app.grade(&path, &a).await, "exact");
        assert_ne!(app.grade(&path, &b).await, "exact");
    }
    let one = format!("/v1/matrices/{}", text(&first["digest"]));
    assert_eq!(app.got(Method::GET, &one, &a, None).await["name"], "first");
    assert_eq!(app.status_of(Method::DELETE, &one, &a).await, 204);
    assert_eq!(app.status_of(Method::GET, &one, &a).await, 404);
    // Its file is still there for the other.
    assert_eq!(app.got(Method::GET, &one, &b, None).await["name"], "second");
    let picture = app.status_of(Method::GET, &format!("{one}/spy.png"), &b).await;
    assert_eq!(picture, 200);
    assert_eq!(app.status_of(Method::DELETE, &one, &b).await, 204);
    let blobs = app.running.service.blobs();
    assert!(!blobs.exists(&text(&first["digest"]).parse().unwrap()).await.unwrap());
}
