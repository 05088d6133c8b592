//! Server-sent events: in order, resumable, ended by the job's end or by the server's.

use crate::app::{TestApp, problem, spmm, tridiagonal};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use std::time::Duration;

/// One event as a browser would see it.
#[derive(Debug, PartialEq)]
struct Seen {
    name: String,
    id: u64,
    data: Value,
}

fn parse(text: &str) -> Vec<Seen> {
    let blocks = text.split("\n\n").filter(|block| block.contains("data:"));
    blocks
        .map(|block| {
            let field = |name: &str| {
                let line = block.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap_or_else(|| panic!("no {name} in {block}")).trim().to_owned()
            };
            let data = serde_json::from_str(&field("data:")).unwrap();
            Seen { name: field("event:"), id: field("id:").parse().unwrap(), data }
        })
        .collect()
}

async fn to_the_end(response: Response) -> Vec<Seen> {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = tokio::time::timeout(Duration::from_secs(20), response.text()).await;
    parse(&text.expect("the stream ends").unwrap())
}

#[tokio::test]
async fn a_job_is_told_from_its_beginning_to_its_end() {
    let app = TestApp::new().await;
    let matrix = app.matrix(8).await;
    let job = app.job(&matrix, 4).await;
    let path = format!("/v1/jobs/{}/events", job["id"].as_str().unwrap());
    let listening = app.get(&path).await;
    app.finish(&app.claim().await).await;
    let events = to_the_end(listening).await;
    assert!(events.iter().zip(1..).all(|(event, seq)| event.id == seq && event.data["seq"] == seq));
    assert_eq!(events[0].data["job"]["state"], "queued");
    let trials: Vec<_> = events.iter().filter(|event| event.name == "trial").collect();
    assert_eq!(trials.len(), 1, "pruned candidates are not announced");
    assert_eq!(trials[0].data["trial"]["state"], "measured");
    let last = events.last().unwrap();
    assert_eq!((last.name.as_str(), &last.data["job"]["state"]), ("job", &"succeeded".into()));

    let rest = to_the_end(app.get(&format!("{path}?after=2")).await).await;
    assert_eq!(rest, events[2..]);
    let resume = |id: String| app.request(Method::GET, &path).header("last-event-id", id).send();
    assert_eq!(to_the_end(resume("2".to_owned()).await.unwrap()).await, rest);
    let nothing_more = resume(last.id.to_string()).await.unwrap();
    assert_eq!(nothing_more.status(), 204, "tells EventSource to stop");
    problem(resume("x".to_owned()).await.unwrap(), 400, "invalid-parameter").await;
}

#[tokio::test]
async fn a_silent_stream_shows_that_it_lives_and_ends_with_the_server() {
    let app = TestApp::with(&[("server.sse_keep_alive_s", 0.05.into())]).await;
    let matrix = app.matrix(8).await;
    let job = app.job(&matrix, 4).await;
    let path = format!("/v1/jobs/{}/events?after=1", job["id"].as_str().unwrap());
    let mut response = app.get(&path).await;
    let comment = response.chunk().await.unwrap().unwrap();
    assert!(comment.starts_with(b":"), "{comment:?}");
    app.shutdown.cancel();
    let began = std::time::Instant::now();
    while response.chunk().await.unwrap().is_some() {}
    app.running.finished().await;
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// A stream may be open for longer than its token is in force.
#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let tokens = toml::Value::try_from(["the-first-admin-token"]).unwrap();
    let keep_alive = ("server.sse_keep_alive_s", 0.05.into());
    let app = TestApp::with(&[("server.tokens", tokens), keep_alive]).await;
    let secrets = [
        app.token(&json!({"name": "revoked"})).await,
        app.token(&json!({"name": "expired", "expires_in_s": 2})).await,
        app.token(&json!({"name": "kept"})).await,
    ];
    let upload = app.request(Method::POST, "/v1/matrices").bearer_auth(&secrets[2]);
    let matrix: Value = upload.body(tridiagonal(8)).send().await.unwrap().json().await.unwrap();
    let job = app.request(Method::POST, "/v1/jobs").bearer_auth(&secrets[2]);
    let job: Value = job.json(&spmm(&matrix, 4)).send().await.unwrap().json().await.unwrap();
    let path = format!("/v1/jobs/{}/events", job["id"].as_str().unwrap());
    let mut streams = Vec::new();
    for secret in &secrets {
        let stream = app.request(Method::GET, &path).bearer_auth(secret).send().await.unwrap();
        assert_eq!(stream.status(), 200);
        streams.push(stream);
    }
    let kept = streams.pop().unwrap();
    let revoke = app.request(Method::DELETE, "/v1/tokens/revoked");
    let revoked = revoke.bearer_auth("the-first-admin-token").send().await.unwrap();
    assert_eq!(revoked.status(), 204);
    for stream in streams {
        let told = tokio::time::timeout(Duration::from_secs(20), stream.text()).await;
        assert!(told.expect("the stream ends").unwrap().contains("queued"));
    }
    let goes_on = tokio::time::timeout(Duration::from_millis(300), kept.text()).await;
    assert!(goes_on.is_err(), "of a token in force");
}
