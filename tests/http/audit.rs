//! The audit log, and addresses that try out tokens.

use crate::app::{TestApp, problem, spmm, tridiagonal};
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;

const ADMIN: &str = "the-first-admin-token";

fn tokens() -> toml::Value {
    toml::Value::try_from([ADMIN]).unwrap()
}

#[tokio::test]
async fn changes_are_recorded_with_who_and_what() {
    let app = TestApp::with(&[("server.tokens", tokens())]).await;
    let secret = app.token(&json!({"name": "ci"})).await;
    let ask = |method, path: &str| app.request(method, path).bearer_auth(&secret);
    let upload = ask(Method::POST, "/v1/matrices").body(tridiagonal(5)).send().await.unwrap();
    let id = upload.headers()["x-request-id"].to_str().unwrap().to_owned();
    let matrix: Value = upload.json().await.unwrap();
    let job = ask(Method::POST, "/v1/jobs").json(&spmm(&matrix, 4)).send().await.unwrap();
    let job = format!("/v1/jobs/{}", job.json::<Value>().await.unwrap()["id"].as_str().unwrap());
    assert_eq!(ask(Method::DELETE, &job).send().await.unwrap().status(), 200);
    // What is refused or only read has changed nothing.
    ask(Method::POST, "/v1/jobs").json(&json!({})).send().await.unwrap();
    problem(ask(Method::POST, "/v1/tokens").send().await.unwrap(), 403, "missing-scope").await;
    ask(Method::GET, "/v1/jobs").send().await.unwrap();
    let form = app.request(Method::POST, "/login").header("origin", app.url(""));
    let form = form.header("content-type", "application/x-www-form-urlencoded");
    let browser = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let form = form.body(format!("token={secret}")).build().unwrap();
    assert_eq!(browser.build().unwrap().execute(form).await.unwrap().status(), 303);

    let list = app.request(Method::GET, "/v1/audit?limit=3").bearer_auth(ADMIN).send().await;
    let page: Value = list.unwrap().json().await.unwrap();
    let next = format!("/v1/audit?cursor={}", page["next"].as_str().unwrap());
    let rest: Value = app
        .request(Method::GET, &next)
        .bearer_auth(ADMIN)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let all: Vec<Value> = [&page, &rest]
        .into_iter()
        .flat_map(|page| page["items"].as_array().unwrap().clone())
        .collect();
    let told: Vec<(&str, &str)> = all
        .iter()
        .map(|entry| (entry["action"].as_str().unwrap(), entry["subject"].as_str().unwrap()))
        .collect();
    let digest = format!("/v1/matrices/{}", matrix["digest"].as_str().unwrap());
    let expected = [
        ("POST /login", "/"),
        ("DELETE /v1/jobs/{id}", job.as_str()),
        ("POST /v1/jobs", &job),
        ("POST /v1/matrices", &digest),
        ("POST /v1/tokens", "/v1/tokens/ci"),
    ];
    assert_eq!(told, expected);
    assert!(all[..4].iter().all(|entry| entry["token"] == "ci" && entry["peer"] == "127.0.0.1"));
    assert!(all[4]["token"].as_str().unwrap().starts_with("configured-"));
    assert_eq!((&all[3]["request"], &all[3]["status"]), (&json!(id), &json!(201)));
    let of = app.request(Method::GET, "/v1/audit?token=ci").bearer_auth(ADMIN).send().await;
    let of: Value = of.unwrap().json().await.unwrap();
    assert_eq!(of["items"].as_array().unwrap().len(), 4);
    assert!(!of.to_string().contains(&secret));
}

#[tokio::test]
async fn what_has_changed_nothing_is_no_entry() {
    let app = TestApp::with(&[("server.tokens", tokens())]).await;
    let ask = |method, path: &str| app.request(method, path).bearer_auth(ADMIN);
    let mut statuses = Vec::new();
    let mut sent = async |request: reqwest::RequestBuilder| {
        let answer = request.send().await.unwrap();
        statuses.push(answer.status().as_u16());
        answer.json::<Value>().await.unwrap_or_default()
    };
    let mut matrix = Value::Null;
    for _ in 0..2 {
        matrix = sent(ask(Method::POST, "/v1/matrices").body(tridiagonal(5))).await;
    }
    for _ in 0..2 {
        sent(ask(Method::POST, "/v1/jobs").json(&spmm(&matrix, 4))).await;
    }
    let pin = format!("/v1/matrices/{}/pin", matrix["digest"].as_str().unwrap());
    for method in [Method::PUT, Method::PUT, Method::DELETE, Method::DELETE] {
        sent(ask(method, &pin)).await;
    }
    assert_eq!(statuses, [201, 200, 202, 202, 204, 204, 204, 204]);
    let list = ask(Method::GET, "/v1/audit").send().await.unwrap();
    let list: Value = list.json().await.unwrap();
    let told: Vec<&str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["action"].as_str().unwrap())
        .collect();
    let pin = "/v1/matrices/{digest}/pin";
    let expected =
        [&format!("DELETE {pin}"), &format!("PUT {pin}"), "POST /v1/jobs", "POST /v1/matrices"];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn who_closes_the_connection_is_recorded_as_well() {
    let app = TestApp::with(&[("server.tokens", tokens())]).await;
    let address = app.running.address;
    for number in 0..60 {
        let body = format!(r#"{{"name":"gone-{number}"}}"#);
        let request = format!(
            "POST /v1/tokens HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ADMIN}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_micros(500 * (number % 12))).await;
    }
    // The end of a server waits for what its clients have left.
    let app = app.again(&[("server.tokens", tokens())]).await;
    let all = async |path: &str| -> Vec<Value> {
        let list = app.request(Method::GET, path).bearer_auth(ADMIN).send().await.unwrap();
        list.json::<Value>().await.unwrap()["items"].as_array().unwrap().clone()
    };
    let made: BTreeSet<String> = all("/v1/tokens")
        .await
        .iter()
        .filter(|token| token["configured"] == false)
        .map(|token| format!("/v1/tokens/{}", token["name"].as_str().unwrap()))
        .collect();
    let told = all("/v1/audit?limit=100").await;
    let told: BTreeSet<String> =
        told.iter().map(|entry| entry["subject"].as_str().unwrap().to_owned()).collect();
    assert!(made.len() > 10, "{}", made.len());
    assert_eq!(told, made);
}

#[tokio::test]
async fn an_address_may_send_a_few_wrong_tokens() {
    let app = TestApp::with(&[
        ("server.tokens", tokens()),
        ("server.wrong_tokens_per_min", 3.into()),
        ("server.forwarded_for", true.into()),
    ])
    .await;
    let ask = |token: &str, client: &str| {
        let request = app.request(Method::GET, "/v1/jobs").bearer_auth(token);
        request.header("x-forwarded-for", client).send()
    };
    let late = app.token(&json!({"name": "late"})).await;
    assert_eq!(ask(ADMIN, "10.0.0.1").await.unwrap().status(), 200);
    for _ in 0..3 {
        problem(ask("wrong", "10.0.0.1").await.unwrap(), 401, "unauthorized").await;
    }
    let refused = ask("wrong", "10.0.0.1").await.unwrap();
    assert_eq!(refused.headers()["retry-after"], "20");
    problem(refused, 429, "too-many-attempts").await;
    // Whoever guesses is not told that it was the right one; who was there before stays, and so do others.
    problem(ask(&late, "10.0.0.1").await.unwrap(), 429, "too-many-attempts").await;
    assert_eq!(ask(ADMIN, "10.0.0.1").await.unwrap().status(), 200);
    assert_eq!(ask(&late, "10.0.0.2").await.unwrap().status(), 200);
    let login = app.request(Method::POST, "/login").header("x-forwarded-for", "10.0.0.1");
    let login = login.header("content-type", "application/x-www-form-urlencoded").body("token=x");
    problem(login.send().await.unwrap(), 429, "too-many-attempts").await;
}

#[tokio::test]
async fn what_is_stored_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let top = tempfile::tempdir().unwrap();
    let data = top.path().join("data");
    let settings = [("data.dir", toml::Value::from(data.to_str().unwrap()))];
    let app = TestApp::with(&settings).await;
    app.matrix(5).await;
    let mut open = vec![data];
    let (mut files, mut folders) = (0, 0);
    while let Some(path) = open.pop() {
        let facts = std::fs::metadata(&path).unwrap();
        let mode = facts.permissions().mode() & 0o777;
        if facts.is_dir() {
            folders += 1;
            assert_eq!(mode, 0o700, "{}", path.display());
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            files += 1;
            assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
        }
    }
    assert!(files >= 6 && folders >= 4, "{files} {folders}");
}
