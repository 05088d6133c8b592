//! Lookup by hash and plans by id: grades, tags, and a cache that never outlives a change.

use crate::app::{TestApp, lookup};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn a_lookup_goes_from_none_to_exact_at_once() {
    let app = TestApp::new().await;
    let matrix = app.matrix(9).await;
    let path = format!("{}&predicted=false", lookup(&matrix, 32));
    let none = app.json(&path).await;
    assert_eq!((&none["match"]["grade"], &none["plan"]), (&"none".into(), &Value::Null));
    assert!(!none["match"]["reasons"].as_array().unwrap().is_empty());
    assert_eq!(app.json(&path).await, none, "from the cache");

    app.job(&matrix, 32).await;
    let plan = app.finish(&app.claim().await).await;
    let exact = app.get(&path).await;
    let tag = exact.headers()["etag"].to_str().unwrap().to_owned();
    assert!(tag.starts_with('"'), "strong");
    let exact: Value = exact.json().await.unwrap();
    assert_eq!(
        (&exact["match"]["grade"], &exact["plan"]["id"]),
        (&"exact".into(), &plan.id.0.clone().into())
    );
    let pattern = path
        .replace(matrix["digest"].as_str().unwrap(), matrix["pattern_digest"].as_str().unwrap());
    assert_eq!(app.json(&pattern).await, exact);

    let same = app.request(Method::GET, &path).header("if-none-match", &tag).send().await.unwrap();
    assert_eq!(
        (same.status().as_u16(), same.headers()["etag"].to_str().unwrap()),
        (304, tag.as_str())
    );
    app.job(&matrix, 32).await;
    app.finish(&app.claim().await).await;
    let retuned =
        app.request(Method::GET, &path).header("if-none-match", &tag).send().await.unwrap();
    assert_eq!(retuned.status(), 200, "retuning changes the tag");
}

#[tokio::test]
async fn accumulate_and_tf32_are_part_of_the_key() {
    let app = TestApp::new().await;
    let matrix = app.matrix(9).await;
    // The host multiplies in f32 whatever is consented to.
    let problem = json!({
        "op": "spmm", "n": 8, "dtype": "f32", "layout": "row", "accumulate": false, "tf32": true, "transpose": false,
        "output": "same"
    });
    let job = app.submit(&json!({"matrix": matrix["digest"], "problem": problem})).await;
    assert_eq!(job.status(), 202);
    let plan = app.finish(&app.claim().await).await;
    let asked = lookup(&matrix, 8);
    let found = app.json(&format!("{asked}&tf32=true")).await;
    assert_eq!((&found["plan"]["id"], &found["plan"]["problem"]), (&plan.id.0.into(), &problem));
    let other = app.json(&format!("{asked}&accumulate=true&tf32=true&predicted=false")).await;
    assert_eq!(other["match"]["grade"], "none");
    let reason = other["match"]["reasons"][0].as_str().unwrap();
    assert!(reason.ends_with("differs: its accumulate is false, not true"), "{reason}");
    let other = app.json(&format!("{asked}&tf32=true&transpose=true&predicted=false")).await;
    let reason = other["match"]["reasons"][0].as_str().unwrap();
    assert!(reason.ends_with("differs: its transpose is false, not true"), "{reason}");
}

#[tokio::test]
async fn an_answer_is_not_kept_beyond_the_facts_it_was_made_from() {
    let app = TestApp::new().await;
    let matrix = app.matrix(9).await;
    let path = lookup(&matrix, 32);
    let known = app.json(&path).await;
    let stored = format!("/v1/matrices/{}", matrix["digest"].as_str().unwrap());
    assert_eq!(app.request(Method::DELETE, &stored).send().await.unwrap().status(), 204);
    assert_ne!(app.json(&path).await, known, "of a matrix that is not known here");
    app.matrix(9).await;
    assert_eq!(app.json(&path).await, known);
}

#[tokio::test]
async fn a_plan_by_id_is_the_plan_of_the_lookup() {
    let app = TestApp::new().await;
    let (matrix, plan) = app.tuned(9, 32).await;
    let path = format!("/v1/plans/{}", plan.id);
    let response = app.get(&path).await;
    let tag = response.headers()["etag"].clone();
    assert!(response.headers()["cache-control"].to_str().unwrap().contains("immutable"));
    let body: Value = response.json().await.unwrap();
    assert_eq!(app.json(&lookup(&matrix, 32)).await["plan"], body);
    assert_eq!(body["candidate"]["params"]["lanes"], 8);
    assert_eq!(body["created_at"], plan.created_at.to_rfc3339());
    let again = app.request(Method::GET, &path).header("if-none-match", tag).send().await.unwrap();
    assert_eq!((again.status().as_u16(), again.text().await.unwrap().len()), (304, 0));
}

#[tokio::test]
async fn another_process_on_the_store_is_seen_within_a_second() {
    let app = TestApp::new().await;
    let matrix = app.matrix(9).await;
    let path = format!("{}&predicted=false", lookup(&matrix, 32));
    assert_eq!(app.json(&path).await["match"]["grade"], "none");
    app.job(&matrix, 32).await;
    let claim = app.claim().await;
    // Past the server's own store: nothing in this process knows.
    let file = app.folder.path().join("sparsetune.db");
    let elsewhere = sparsetune::store::SqliteStore::open(&file).await.unwrap();
    let facts = app.running.service.matrix(&claim.job.request.matrix).await.unwrap();
    let plan = sparsetune::domain::Plan {
        matrix: facts.digest,
        pattern_digest: facts.pattern_digest,
        ..crate::app::fixture()
    };
    let job = sparsetune::domain::Job {
        state: sparsetune::domain::JobState::Succeeded,
        plan: Some(plan.id.clone()),
        ..claim.job.clone()
    };
    let finish = sparsetune::store::Finish::job(job, Some(plan));
    sparsetune::store::Jobs::finish(&elsewhere, &claim.fence, &finish).await.unwrap();
    let began = std::time::Instant::now();
    while app.json(&path).await["match"]["grade"] != "exact" {
        assert!(began.elapsed().as_secs() < 5);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(began.elapsed().as_millis() < 2500);
}
