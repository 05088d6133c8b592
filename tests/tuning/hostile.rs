//! Candidates that hang and fault for real, in the evaluator of a real server on the host's processor.

use crate::server::Server;
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn hostile<'a>(trials: &'a [Value], kind: &str) -> Option<&'a Value> {
    trials.iter().find(|trial| trial["candidate"]["params"]["kind"] == kind)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_survives_what_hangs_and_faults_and_cancels_in_the_midst() {
    let folder = tempfile::tempdir().unwrap();
    let allowed = [("SPARSETUNE_EVALUATOR__ALLOW_HOSTILE", "true")];
    let server = Server::start(folder.path(), &allowed).await;
    let matrix = server.grid(12).await;
    let body = |seed: u32| {
        json!({
            "matrix": matrix, "problem": {"op": "spmm", "n": 8}, "device": "cpu",
            "search": {"top_k": 3, "seed": seed},
        })
    };

    // Vendor, hang: with one done, the second is a thread that spins for ever.
    let job = server.submit(&body(1)).await;
    let id = job["id"].as_str().unwrap();
    server.when(id, |job| job["progress"]["done"] == 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let asked = Instant::now();
    server.request(Method::DELETE, &format!("/v1/jobs/{id}")).send().await.unwrap();
    let job = server.ended(id).await;
    let took = asked.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!((&job["state"], &job["progress"]["done"]), (&json!("cancelled"), &json!(1)));
    assert_eq!(hostile(&server.trials(id).await, "hang"), None);

    for (seed, hung, faulted) in [(2, "timed_out", "crashed"), (3, "refused", "refused")] {
        let job = server.submit(&body(seed)).await;
        let id = job["id"].as_str().unwrap();
        let job = server.ended(id).await;
        assert_eq!((&job["state"], &job["stopped_by"]), (&json!("succeeded"), &json!("completed")));
        let trials = server.trials(id).await;
        assert_eq!(hostile(&trials, "hang").unwrap()["state"], hung);
        assert_eq!(hostile(&trials, "fault").unwrap()["state"], faulted);
        let measured = trials.iter().filter(|trial| trial["state"] == "measured").count();
        assert_eq!(measured, 4, "the vendor's and the three best ranked");
        let plan = server.json(&format!("/v1/plans/{}", job["plan"].as_str().unwrap())).await;
        assert_eq!(plan["trials"]["measured"], 4);
    }
    let devices = server.json("/v1/devices").await;
    assert_eq!(devices["items"][0]["quarantined"], 2, "{devices}");
}
