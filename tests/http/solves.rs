//! Triangular solves over HTTP: accepted with their defaults, refused with the rows, looked up by query; and the blobs
//! that a plan names.

use crate::app::{TestApp, fixture, problem};
use reqwest::Method;
use serde_json::{Value, json};
use sparsetune::domain::Digest;

/// The body of a job for one right-hand side in f64.
fn solve(matrix: &Value) -> Value {
    let problem = json!({
        "op": "sptrsv", "rhs": 1, "dtype": "f64", "triangle": "lower", "diagonal": "non-unit"
    });
    json!({"matrix": matrix["digest"], "problem": problem})
}

fn lookup(matrix: &Value, rest: &str) -> String {
    let digest = matrix["digest"].as_str().unwrap();
    format!("/v1/plans?matrix={digest}&op=sptrsv&dtype=f64&triangle=lower&{rest}")
}

#[tokio::test]
async fn a_solve_is_queued_with_its_defaults_and_found_by_its_query() {
    let app = TestApp::new().await;
    let matrix = app.matrix(9).await;
    let response = app.submit(&solve(&matrix)).await;
    assert_eq!(response.status(), 202);
    let job: Value = response.json().await.unwrap();
    let problem = json!({
        "op": "sptrsv", "rhs": 1, "dtype": "f64", "triangle": "lower", "diagonal": "non-unit", "transpose": false,
        "stability": "windowed", "approximate": false
    });
    assert_eq!(job["problem"], problem);
    assert_eq!(
        (&job["search"]["strategy"], &job["search"]["trials"]),
        (&"halving".into(), &64.into())
    );
    let plan = app.finish(&app.claim().await).await;
    let found = app.json(&lookup(&matrix, "rhs=1&diagonal=non-unit&transpose=false")).await;
    assert_eq!(found["match"]["grade"], "exact");
    assert_eq!((&found["plan"]["id"], &found["plan"]["problem"]), (&plan.id.0.into(), &problem));
    let other = app.json(&lookup(&matrix, "rhs=4&diagonal=non-unit&transpose=true")).await;
    let reason = other["match"]["reasons"][0].as_str().unwrap();
    assert!(reason.contains("its rhs is 1, not 4; its transpose is false, not true"), "{reason}");
}

#[tokio::test]
async fn a_diagonal_with_holes_is_a_422_that_names_the_rows() {
    let app = TestApp::new().await;
    let text = "%%MatrixMarket matrix coordinate real general\n3 3 3\n1 1 1.0\n2 1 3.0\n3 3 2.0\n";
    let matrix: Value = app.upload(text).await.json().await.unwrap();
    let body = problem(app.submit(&solve(&matrix)).await, 422, "invalid-body").await;
    assert_eq!(body["pointer"], "/problem/diagonal");
    let detail = body["detail"].as_str().unwrap();
    assert!(detail.contains("[1] (counted from 0)"), "{detail}");
    let wide = "%%MatrixMarket matrix coordinate real general\n2 3 1\n1 1 1.0\n";
    let wide: Value = app.upload(wide).await.json().await.unwrap();
    let body = problem(app.submit(&solve(&wide)).await, 422, "unsupported").await;
    assert!(body["detail"].as_str().unwrap().contains("2 x 3"), "{body}");
    let mut many = solve(&matrix);
    many["problem"]["rhs"] = json!(65);
    let body = problem(app.submit(&many).await, 422, "invalid-body").await;
    assert_eq!(body["pointer"], "/problem/rhs");
    let mut half = solve(&matrix);
    half["problem"]["dtype"] = json!("f16");
    problem(app.submit(&half).await, 422, "unsupported").await;
}

#[tokio::test]
async fn both_triangles_are_asked_for_at_once_and_found_at_once() {
    let app = TestApp::new().await;
    let matrix = app.matrix(9).await;
    let mut asked = solve(&matrix);
    asked["problem"]["triangle"] = json!("both");
    asked["problem"]["diagonal"] = json!("unit");
    let response = app.submit(&asked).await;
    assert_eq!(response.status(), 202);
    let job: Value = response.json().await.unwrap();
    let triangle = |problem: &Value| (problem["triangle"].clone(), problem["diagonal"].clone());
    assert_eq!(triangle(&job["problem"]), (json!("lower"), json!("unit")));
    assert_eq!(triangle(&job["then"]), (json!("upper"), json!("non-unit")));
    let digest = matrix["digest"].as_str().unwrap();
    let path = format!(
        "/v1/plans?matrix={digest}&op=sptrsv&dtype=f64&triangle=both&rhs=1&diagonal=unit&predicted=false"
    );
    app.finish(&app.claim().await).await;
    let none = app.json(&path).await;
    assert_eq!((&none["match"]["grade"], &none["plan"]), (&json!("none"), &Value::Null));
    assert!(none.get("second").is_none());
    let other = json!({"matrix": matrix["digest"], "problem": job["then"]});
    assert_eq!(app.submit(&other).await.status(), 202);
    app.finish(&app.claim().await).await;
    let found = app.json(&path).await;
    assert_eq!(found["match"]["grade"], "exact");
    assert_eq!(triangle(&found["plan"]["problem"]), triangle(&job["problem"]));
    assert_eq!(triangle(&found["second"]["problem"]), triangle(&job["then"]));
    // A zero pivot of U, which L does not need.
    let text = "%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 1.0\n2 1 3.0\n2 2 0.0\n";
    let matrix: Value = app.upload(text).await.json().await.unwrap();
    asked["matrix"] = matrix["digest"].clone();
    let body = problem(app.submit(&asked).await, 422, "invalid-body").await;
    assert_eq!(body["pointer"], "/problem/diagonal");
    assert!(body["detail"].as_str().unwrap().contains("[1] (counted from 0)"), "{body}");
}

#[tokio::test]
async fn an_approximate_solve_has_a_lookup_of_its_own() {
    let app = TestApp::new().await;
    let matrix = app.matrix(9).await;
    assert_eq!(app.submit(&solve(&matrix)).await.status(), 202);
    let exact = app.finish(&app.claim().await).await;
    let path =
        |rest: &str| lookup(&matrix, &format!("rhs=1&diagonal=non-unit&predicted=false{rest}"));
    let none = app.json(&path("&approximate=true")).await;
    assert_eq!((&none["match"]["grade"], &none["plan"]), (&json!("none"), &Value::Null));
    let reason = none["match"]["reasons"][0].as_str().unwrap();
    assert!(reason.contains("its approximate is false, not true"), "{reason}");
    let mut asked = solve(&matrix);
    asked["problem"]["approximate"] = json!(true);
    assert_eq!(app.submit(&asked).await.status(), 202);
    let near = app.finish(&app.claim().await).await;
    for (rest, plan) in [("&approximate=true", &near), ("&approximate=false", &exact), ("", &exact)]
    {
        let found = app.json(&path(rest)).await;
        assert_eq!(found["plan"]["id"], plan.id.0, "{rest}");
    }
    let said = app.json(&path("&approximate=true")).await["plan"]["problem"]["approximate"].clone();
    assert_eq!(said, json!(true));
    asked["problem"]["approximate"] = json!("nearly");
    let body = problem(app.submit(&asked).await, 422, "invalid-body").await;
    assert_eq!(body["pointer"], "/problem/approximate");
}

#[tokio::test]
async fn a_plans_blobs_are_fetched_by_digest_and_no_others() {
    let app = TestApp::new().await;
    let (matrix, plan) = app.tuned(9, 32).await;
    let launch = fixture().launch.unwrap();
    let array = launch.arrays[0].blob;
    // The fixture names 36 bytes of 7, which are put there by hand, and a source that is nowhere.
    let blobs = app.running.service.blobs();
    let staged = blobs.stage().await.unwrap();
    std::fs::write(&staged, [7u8; 36]).unwrap();
    blobs.put_file(staged.into_temp_path(), Some(array)).await.unwrap();
    let at = |digest: &str| format!("/v1/plans/{}/blobs/{digest}", plan.id);

    let response = app.get(&at(&array.to_string())).await;
    assert_eq!(response.status(), 200);
    let headers = response.headers().clone();
    assert_eq!(headers["content-type"], "application/octet-stream");
    assert_eq!(headers["content-length"], "36");
    assert!(headers["cache-control"].to_str().unwrap().contains("immutable"));
    assert_eq!(response.bytes().await.unwrap(), [7u8; 36][..]);
    let again = app.request(Method::GET, &at(&array.to_string()));
    let again = again.header("if-none-match", &headers["etag"]).send().await.unwrap();
    assert_eq!((again.status().as_u16(), again.bytes().await.unwrap().len()), (304, 0));
    let head = app.request(Method::HEAD, &at(&array.to_string())).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), &head.headers()["content-length"]),
        (200, &headers["content-length"])
    );

    // A blob, but not of this plan; one of this plan that has gone; none at all; no digest.
    let foreign = [matrix["digest"].as_str().unwrap().to_owned(), Digest::of(b"no").to_string()];
    let gone = launch.source.unwrap().to_string();
    for digest in foreign.iter().chain([&gone]) {
        problem(app.get(&at(digest)).await, 404, "not-found").await;
    }
    problem(app.get(&at("xyz")).await, 400, "invalid-parameter").await;
    // A client that has the bytes is told so without a look at the disk.
    assert!(blobs.delete(&array).await.unwrap());
    let again = app.request(Method::GET, &at(&array.to_string()));
    let again = again.header("if-none-match", &headers["etag"]).send().await.unwrap();
    assert_eq!(again.status(), 304);
    let nobody = format!("/v1/plans/0193a7c4-9999-7222-8333-444455556666/blobs/{array}");
    problem(app.get(&nobody).await, 404, "not-found").await;
}
