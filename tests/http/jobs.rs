//! Jobs: submitted once however often asked, filtered, paged, cancelled, with every trial told.

use crate::app::{TestApp, problem, spmm};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test]
async fn equal_questions_get_one_job() {
    let app = TestApp::new().await;
    let matrix = app.matrix(6).await;
    let first = app.submit(&spmm(&matrix, 16)).await;
    assert_eq!(first.status(), 202);
    assert!(first.headers().contains_key("retry-after"));
    let location = first.headers()["location"].to_str().unwrap().to_owned();
    let job: Value = first.json().await.unwrap();
    assert_eq!((&job["state"], &job["stage"]), (&json!("queued"), &json!("waiting")));
    let problem = json!({
        "op": "spmm", "n": 16, "dtype": "f32", "layout": "row", "accumulate": false, "tf32": false, "transpose": false,
        "output": "same"
    });
    assert_eq!(job["problem"], problem);
    assert_eq!(app.json(&location).await, job);
    let second = app.submit(&spmm(&matrix, 16)).await;
    assert_eq!(
        (second.status().as_u16(), second.headers()["location"].to_str().unwrap()),
        (202, &location[..])
    );
    assert_ne!(app.job(&matrix, 17).await["id"], job["id"]);
}

#[tokio::test]
async fn an_idempotency_key_names_one_request_for_good() {
    let app = TestApp::new().await;
    let matrix = app.matrix(6).await;
    let submit = |n: u32| {
        let request = app.request(Method::POST, "/v1/jobs").header("Idempotency-Key", "k-1");
        let body = spmm(&matrix, n);
        async move { request.json(&body).send().await.unwrap() }
    };
    let job: Value = submit(4).await.json().await.unwrap();
    app.finish(&app.claim().await).await;
    let again = submit(4).await;
    assert_eq!(again.status(), 200, "the job has ended");
    let again: Value = again.json().await.unwrap();
    assert_eq!((&again["id"], &again["state"]), (&job["id"], &json!("succeeded")));
    problem(submit(5).await, 422, "idempotency-key-reused").await;
}

#[tokio::test]
async fn lists_filter_and_page() {
    let app = TestApp::new().await;
    let (one, two) = (app.matrix(3).await, app.matrix(4).await);
    for n in 1..=3 {
        app.job(&one, n).await;
    }
    let of_two = app.job(&two, 1).await;
    let newest = app.json("/v1/jobs?limit=1").await;
    assert_eq!(newest["items"][0]["id"], of_two["id"]);
    let (mut path, mut ids) = ("/v1/jobs?limit=3".to_owned(), Vec::new());
    loop {
        let page = app.json(&path).await;
        ids.extend(page["items"].as_array().unwrap().iter().map(|job| job["id"].to_string()));
        match page["next"].as_str() {
            Some(next) => path = format!("/v1/jobs?limit=3&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(ids.len(), 4);
    assert!(ids.is_sorted_by(|a, b| a > b), "newest first, none twice");
    let count = async |query: String| {
        app.json(&format!("/v1/jobs?{query}")).await["items"].as_array().unwrap().len()
    };
    assert_eq!(count(format!("matrix={}", one["digest"].as_str().unwrap())).await, 3);
    assert_eq!(count("state=queued&device=cpu".to_owned()).await, 4);
    assert_eq!(count("state=running".to_owned()).await, 0);
    assert_eq!(count("device=cuda:0".to_owned()).await, 0);
}

#[tokio::test]
async fn cancelling_ends_a_queued_job_and_asks_a_running_one() {
    let app = TestApp::new().await;
    let matrix = app.matrix(3).await;
    let path = |job: &Value| format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let running = app.job(&matrix, 1).await;
    let claim = app.claim().await;
    assert_eq!(app.json(&path(&running)).await["state"], "running");
    let asked = app.request(Method::DELETE, &path(&running)).send().await.unwrap();
    assert_eq!(asked.status(), 202);
    assert_eq!(asked.headers()["location"].to_str().unwrap(), path(&running));
    app.finish(&claim).await;
    let over = app.request(Method::DELETE, &path(&running)).send().await.unwrap();
    assert_eq!(over.status(), 200);

    let queued = app.job(&matrix, 2).await;
    let ended = app.request(Method::DELETE, &path(&queued)).send().await.unwrap();
    assert_eq!(ended.status(), 200);
    assert_eq!(ended.json::<Value>().await.unwrap()["state"], "cancelled");
}

#[tokio::test]
async fn trials_tell_what_became_of_each_candidate() {
    let app = TestApp::new().await;
    let (_, plan) = app.tuned(8, 4).await;
    let job = plan.provenance.job.unwrap().0;
    let trials = app.json(&format!("/v1/jobs/{job}/trials")).await;
    let [pruned, measured] = &trials["items"].as_array().unwrap()[..] else { panic!("{trials}") };
    assert_eq!(
        (&pruned["id"], &pruned["pruned_by"]),
        (&json!(format!("{job}/0")), &json!("load_balance"))
    );
    assert_eq!(pruned["state"], "pruned");
    assert_eq!((&measured["state"], &measured["median_us"]), (&json!("measured"), &json!(2.0)));
    assert_eq!(measured["candidate"]["params"], json!({"lanes": 8, "order": "natural"}));
    let page = app.json(&format!("/v1/jobs/{job}/trials?limit=1")).await;
    let next = page["next"].as_str().unwrap();
    let page = app.json(&format!("/v1/jobs/{job}/trials?limit=1&cursor={next}")).await;
    assert_eq!(page["items"][0], *measured);
}
