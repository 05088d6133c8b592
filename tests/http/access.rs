//! Tokens, and the attacks that a web page can try on a server of this machine.

use crate::app::{TestApp, problem, spmm};
use reqwest::Method;
use serde_json::json;
use toml::Value;

const TOKEN: &str = "a-token-of-some-length";

#[tokio::test]
async fn tokens_are_needed_where_there_are_any() {
    let hashed = format!("blake3:{}", blake3::hash(b"another-token-of-length"));
    let tokens = Value::try_from([TOKEN, &hashed]).unwrap();
    let app = TestApp::with(&[("server.tokens", tokens)]).await;
    let refused = app.get("/v1/jobs").await;
    assert_eq!(refused.headers()["www-authenticate"], "Bearer realm=\"sparsetune\"");
    problem(refused, 401, "unauthorized").await;
    problem(app.upload("%%").await, 401, "unauthorized").await;
    problem(app.get("/nowhere").await, 401, "unauthorized").await;
    for token in [TOKEN, "another-token-of-length"] {
        let asked = app.request(Method::GET, "/v1/jobs").bearer_auth(token).send().await.unwrap();
        assert_eq!(asked.status(), 200);
    }
    let hash = app.request(Method::GET, "/v1/jobs").bearer_auth(&hashed).send().await.unwrap();
    problem(hash, 401, "unauthorized").await;
    for open in ["/healthz", "/readyz"] {
        assert_eq!(app.get(open).await.status(), 200);
    }
}

#[tokio::test]
async fn a_web_page_cannot_use_a_loopback_server() {
    let app = TestApp::new().await;
    let rebound = app.request(Method::GET, "/v1/jobs").header("host", "evil.example");
    problem(rebound.send().await.unwrap(), 421, "unknown-host").await;
    let body = spmm(&json!({"digest": "0".repeat(64)}), 1);
    let form = app.request(Method::POST, "/v1/jobs").header("origin", "http://evil.example");
    problem(form.json(&body).send().await.unwrap(), 403, "cross-origin").await;
    let own = app.request(Method::POST, "/v1/jobs").header("origin", app.url(""));
    problem(own.json(&body).send().await.unwrap(), 422, "invalid-body").await;
}
