//! Every error is problem+json, whoever refuses: a route, an extractor, a layer, the service.

use crate::app::{TestApp, problem, spmm};
use reqwest::Method;
use serde_json::{Value, json};

const DIGEST: &str = "4a1f3c5e7092b4d6f8001122334455667788990aabbccddeeff0011223344556";
const ID: &str = "0193a7c4-1111-7222-8333-444455556666";

#[tokio::test]
async fn paths_and_queries() {
    let app = TestApp::new().await;
    let cases = [
        ("/v2", 404, "not-found"),
        ("/v1/matrices/xyz", 400, "invalid-parameter"),
        ("/v1/jobs/1", 400, "invalid-parameter"),
        ("/v1/matrices?limit=0", 400, "invalid-parameter"),
        ("/v1/matrices?limit=many", 400, "invalid-parameter"),
        ("/v1/matrices?page=2", 400, "invalid-parameter"),
        ("/v1/matrices?cursor=%20", 400, "invalid-parameter"),
        ("/v1/jobs?state=lost", 400, "invalid-parameter"),
        ("/v1/plans", 400, "invalid-parameter"),
        ("/v1/plans?op=spmm&n=1&n=2", 400, "invalid-parameter"),
    ];
    for (path, status, slug) in cases {
        problem(app.get(path).await, status, slug).await;
    }
    for list in ["matrices", "jobs", "plans"] {
        let name = if list == "matrices" { DIGEST } else { ID };
        problem(app.get(&format!("/v1/{list}/{name}")).await, 404, "not-found").await;
    }
    for part in ["events", "trials"] {
        problem(app.get(&format!("/v1/jobs/{ID}/{part}")).await, 404, "not-found").await;
    }
    problem(app.get(&format!("/v1/matrices/{DIGEST}/spy.png")).await, 404, "not-found").await;
    let size = format!("/v1/matrices/{DIGEST}/spy.png?size=9");
    problem(app.get(&size).await, 400, "invalid-parameter").await;
}

#[tokio::test]
async fn lookups_say_which_parameter_is_wrong() {
    let app = TestApp::new().await;
    let with = |rest: &str| format!("/v1/plans?matrix={DIGEST}&{rest}");
    let cases = [
        ("op=spmm", "n"),
        ("op=spmm&n=0", "n"),
        ("op=spmm&n=1&rhs=1", "rhs"),
        ("op=sptrsv&rhs=1&triangle=lower", "diagonal"),
        ("op=spmm&n=1&device=nowhere", "device"),
        ("op=sptrsv&rhs=1&triangle=lower&diagonal=unit&tf32=false", "tf32"),
    ];
    for (query, parameter) in cases {
        let body = problem(app.get(&with(query)).await, 400, "invalid-parameter").await;
        assert_eq!(body["parameter"], parameter, "{query}: {body}");
    }
}

#[tokio::test]
async fn methods() {
    let app = TestApp::new().await;
    let allowed = |response: &reqwest::Response| {
        let allow = response.headers()["allow"].to_str().unwrap().to_owned();
        let mut methods: Vec<String> = allow.split(',').map(str::to_owned).collect();
        methods.sort();
        methods.join(",")
    };
    let put = app.request(Method::PUT, "/v1/jobs").send().await.unwrap();
    assert_eq!(allowed(&put), "GET,HEAD,POST");
    problem(put, 405, "method-not-allowed").await;
    let options = app.request(Method::OPTIONS, "/v1/matrices/x").send().await.unwrap();
    assert_eq!((options.status().as_u16(), allowed(&options).as_str()), (204, "DELETE,GET,HEAD"));
    let head = app.request(Method::HEAD, "/v1/jobs/1").send().await.unwrap();
    assert_eq!(head.status(), 400);
    assert_eq!(head.headers()["content-type"], "application/problem+json");
    assert!(head.text().await.unwrap().is_empty());
}

#[tokio::test]
async fn json_bodies_are_refused_with_a_pointer() {
    let app = TestApp::new().await;
    let matrix = app.matrix(5).await;
    let good = spmm(&matrix, 8);
    let with = |pointer: &str, value: Value| {
        let mut body = good.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        body.pointer_mut(parent).unwrap()[name] = value;
        body
    };
    let cases = [
        ("/matrix", with("/matrix", json!("no digest"))),
        ("/matrix", with("/matrix", json!(DIGEST))),
        ("/problem/n", with("/problem/n", json!(0))),
        ("/problem/n", with("/problem/n", json!("8"))),
        ("/problem/n", with("/problem/n", json!(null))),
        ("/problem/dtype", with("/problem/dtype", json!("f99"))),
        ("/problem/rhs", with("/problem/rhs", json!(1))),
        ("/problem/accumulate", with("/problem/accumulate", json!(1))),
        ("/problem/tf32", with("/problem/tf32", json!(null))),
        ("/search/top_k", with("/search", json!({"top_k": 0}))),
        ("/search/seconds", with("/search", json!({"seconds": -1.5}))),
        ("/expected_calls", with("/expected_calls", json!(0))),
        ("/device", with("/device", json!("cuda:77"))),
        ("/unknown", with("/unknown", json!(1))),
    ];
    for (pointer, body) in cases {
        let answer = problem(app.submit(&body).await, 422, "invalid-body").await;
        assert_eq!(answer["pointer"], pointer, "{body}: {answer}");
    }
    let no_problem = json!({"matrix": matrix["digest"]});
    let answer = problem(app.submit(&no_problem).await, 422, "invalid-body").await;
    assert!(answer["detail"].as_str().unwrap().contains("problem"), "{answer}");
    let measured = with("/search", json!({"strategy": "ranked", "measure": true}));
    let answer = problem(app.submit(&measured).await, 422, "invalid-body").await;
    assert_eq!(answer["pointer"], "/search/measure");
}

#[tokio::test]
async fn bodies_that_are_not_json() {
    let app = TestApp::with(&[("server.max_json_bytes", 1000.into())]).await;
    let post = |kind: &'static str, body: String| {
        let request = app.request(Method::POST, "/v1/jobs").header("content-type", kind);
        async move { request.body(body).send().await.unwrap() }
    };
    let broken = problem(post("application/json", "{".to_owned()).await, 400, "malformed-body");
    assert_eq!(broken.await["line"], 1);
    problem(post("text/plain", "{}".to_owned()).await, 415, "unsupported-media-type").await;
    let long = format!("{{\"matrix\": \"{}\"}}", "x".repeat(1000));
    problem(post("application/json", long).await, 413, "too-large").await;
    let encoded = app.request(Method::POST, "/v1/jobs").header("content-encoding", "br");
    problem(encoded.json(&json!({})).send().await.unwrap(), 415, "unsupported-media-type").await;
    // A packed body is read whole, also if it has several members, and nothing may follow it.
    let packed = |text: &str| {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut out, text.as_bytes()).unwrap();
        out.finish().unwrap()
    };
    let gzip = async |body: Vec<u8>| {
        let request = app.request(Method::POST, "/v1/jobs").header("content-encoding", "gzip");
        request.header("content-type", "application/json").body(body).send().await.unwrap()
    };
    let members = [packed("{\"matrix\""), packed(": 7}")].concat();
    problem(gzip(members.clone()).await, 422, "invalid-body").await;
    let junk = problem(gzip([&members[..], b"junk"].concat()).await, 400, "malformed-body").await;
    assert!(junk["detail"].as_str().unwrap().contains("stream is corrupt"), "{junk}");
    problem(gzip(packed(&" ".repeat(2000))).await, 413, "too-large").await;
    let long = "x".repeat(256);
    for key in ["", "two words", "a\tb", "caf\u{e9}", &long] {
        let request = app.request(Method::POST, "/v1/jobs").header("idempotency-key", key);
        let answer = request.json(&spmm(&json!({"digest": DIGEST}), 1)).send().await.unwrap();
        problem(answer, 400, "invalid-parameter").await;
    }
}
