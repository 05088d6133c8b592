//! The server killed in the midst of a job, and started again on the same folder.

use crate::server::Server;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn ids(trials: &[Value]) -> BTreeSet<&str> {
    trials.iter().map(|trial| trial["candidate"]["id"].as_str().unwrap()).collect()
}

fn tried(trials: &[Value]) -> usize {
    trials.iter().filter(|trial| trial["state"] != "pruned").count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_goes_on_from_the_trials_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]).await;
    let matrix = server.grid(50).await;
    let body = json!({
        "matrix": matrix, "problem": {"op": "spmm", "n": 96}, "device": "cpu",
        "search": {"strategy": "exhaustive"},
    });
    let job = server.submit(&body).await;
    let id = job["id"].as_str().unwrap();
    assert_eq!(server.submit(&body).await["id"], id, "the same question while it is worked on");

    let early = server.events(id, None, 8).await;
    let running = server.when(id, |job| job["progress"]["done"].as_u64().unwrap() >= 4).await;
    assert_eq!(running["state"], "running");
    assert_eq!(server.submit(&body).await["id"], id);
    let before = server.trials(id).await;
    server.kill();

    let server = Server::start(folder.path(), &[]).await;
    let again = server.job(id).await;
    assert!(["queued", "running"].contains(&again["state"].as_str().unwrap()), "{again}");
    let last = early.last().unwrap().id;
    let late = server.events(id, Some(last), usize::MAX).await;
    let job = server.job(id).await;
    assert_eq!((&job["state"], &job["stopped_by"]), (&json!("succeeded"), &json!("completed")));
    assert_eq!(job["attempts"], 2);

    // Not one event more, less or other, across the restart.
    let numbers = early.iter().chain(&late).map(|event| event.id);
    let count = (early.len() + late.len()) as u64;
    assert!(numbers.eq(1..=count));
    let all = early.iter().chain(&late);
    assert!(all.clone().all(|event| event.data["seq"] == event.id));
    assert_eq!(late.last().unwrap().data["job"]["state"], "succeeded");

    // Rows written before are the rows that are there; none is there twice, none is missing.
    let after = server.trials(id).await;
    assert!(tried(&before) >= 4 && tried(&before) < tried(&after), "it was killed in the midst");
    assert_eq!(after[..before.len()], before);
    assert_eq!(ids(&after).len(), after.len());
    assert_eq!(
        ids(&after).len(),
        after.iter().map(|t| t["id"].to_string()).collect::<BTreeSet<_>>().len()
    );
    assert_eq!(job["progress"], json!({"done": tried(&after), "total": tried(&after)}));
    let told = all.filter(|event| event.name == "trial").count();
    assert_eq!(told, tried(&after));
    found_by_its_hash(&server, &matrix, &job).await;
}

/// A job's own reading of the matrix counts as well as that for pictures, and none of it is the client's fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_stored_matrix_may_be_more_than_another_start_has_memory_for() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]).await;
    let matrix = server.grid(50).await;
    server.kill();
    let little = ("SPARSETUNE_SERVER__READING_BYTES", "100000");
    let server = Server::start(folder.path(), &[little]).await;
    for path in [
        format!("/v1/matrices/{matrix}/spy.png"),
        format!("/v1/plans?matrix={matrix}&op=spmm&n=8&device=cpu"),
    ] {
        let answer = server.request(Method::GET, &path).send().await.unwrap();
        let (status, retry) = (answer.status(), answer.headers().contains_key("retry-after"));
        let problem: Value = answer.json().await.unwrap();
        assert_eq!((status.as_u16(), retry), (503, true), "{problem}");
        assert_eq!(problem["type"], "/problems/unavailable");
        assert!(problem["need"].as_u64() > problem["limit"].as_u64(), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("the stored matrix"), "{problem}");
    }
    let body = json!({"matrix": matrix, "problem": {"op": "spmm", "n": 8}, "device": "cpu"});
    let job = server.submit(&body).await;
    let job = server.ended(job["id"].as_str().unwrap()).await;
    assert_eq!(job["state"], "failed");
    assert!(job["error"].as_str().unwrap().contains("raise server.reading_bytes"), "{job}");
}

async fn found_by_its_hash(server: &Server, matrix: &str, job: &Value) {
    let path = format!("/v1/plans?matrix={matrix}&op=spmm&n=96");
    let answer = server.request(Method::GET, &path).send().await.unwrap();
    let tag = answer.headers()["etag"].clone();
    let found: Value = answer.json().await.unwrap();
    assert_eq!(found["match"], json!({"grade": "exact", "reasons": []}));
    assert_eq!(found["plan"]["id"], job["plan"]);
    assert_eq!(found["plan"]["candidate"], job["best"]["candidate"]);
    let known =
        server.request(Method::GET, &path).header("if-none-match", tag).send().await.unwrap();
    assert_eq!(known.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(known.bytes().await.unwrap().len(), 0);
}
