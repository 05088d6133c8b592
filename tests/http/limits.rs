//! What one client may take of the server: memory, disk, and its time.

use crate::app::*;
use reqwest::Response;
use serde_json::{Value, json};

async fn problem(response: Response) -> (u16, Value) {
    (response.status().as_u16(), response.json().await.unwrap())
}

/// 72 bytes that are 128 MiB of row pointers once they are read.
const EMPTY: &str = "%%MatrixMarket matrix coordinate pattern general\n16777216 16777216 1\n1 1\n";

#[tokio::test]
async fn an_upload_is_read_within_the_memory_that_there_is() {
    let app = TestApp::with(&[("server.reading_bytes", toml::Value::from(64 << 20))]).await;
    let (status, body) = problem(app.upload(EMPTY).await).await;
    assert_eq!((status, body["type"].as_str()), (413, Some("/problems/too-large")));
    assert_eq!((&body["limit"], &body["where"]), (&(64 << 20).into(), &"row pointers".into()));
    assert!(body["need"].as_u64().unwrap() >= 8 << 24, "{body}");

    // What others use now may be free later.
    let memory = &app.running.service.settings().limits.memory;
    let others = memory.open(u64::MAX);
    others.charge(64 << 20, 1, "others").unwrap();
    let response = app.upload(tridiagonal(10)).await;
    assert!(response.headers().contains_key("retry-after"));
    let (status, body) = problem(response).await;
    assert_eq!((status, body["type"].as_str()), (503, Some("/problems/busy")));
    drop(others);
    assert_eq!(app.upload(tridiagonal(10)).await.status(), 201);
    assert_eq!(memory.taken(), 0);
}

#[tokio::test]
async fn empty_rows_are_not_stored() {
    let app = TestApp::new().await;
    let facts: Value = app.upload(EMPTY).await.json().await.unwrap();
    let digest = facts["digest"].as_str().unwrap();
    let file = app.running.service.matrix_file(&digest.parse().unwrap()).await.unwrap();
    assert_eq!(std::fs::metadata(&*file).unwrap().len(), 128 + 16 + 8 + 8);
    // The digest is that of the documented layout, with a pointer for every row.
    const ROWS: u64 = 1 << 24;
    let mut pattern = blake3::Hasher::new();
    pattern.update(b"sparsetune pattern v1\0");
    for word in [ROWS, ROWS, 1, 0] {
        pattern.update(&word.to_le_bytes());
    }
    let block = 1u64.to_le_bytes().repeat(1 << 12);
    for _ in 0..ROWS >> 12 {
        pattern.update(&block);
    }
    pattern.update(&0u32.to_le_bytes());
    let mut whole = blake3::Hasher::new();
    whole.update(b"sparsetune matrix v1\0").update(pattern.finalize().as_bytes());
    whole.update(&1f64.to_le_bytes());
    assert_eq!(digest, whole.finalize().to_hex().as_str());
    assert_eq!(app.get(&format!("/v1/matrices/{digest}/spy.png")).await.status(), 200);
}

#[tokio::test]
async fn disk_is_bounded() {
    let app = TestApp::with(&[("data.max_stored_bytes", toml::Value::from(2000))]).await;
    assert_eq!(app.upload(tridiagonal(10)).await.status(), 201);
    let (status, body) = problem(app.upload(tridiagonal(100)).await).await;
    assert_eq!((status, body["type"].as_str()), (503, Some("/problems/storage-full")));
    assert_eq!(body["limit"], 2000);
    // What is stored already takes nothing.
    assert_eq!(app.upload(tridiagonal(10)).await.status(), 200);

    let app = TestApp::with(&[("data.max_temporary_bytes", toml::Value::from(1000))]).await;
    assert_eq!(app.upload(tridiagonal(10)).await.status(), 201);
    let (status, body) = problem(app.upload(tridiagonal(1000)).await).await;
    assert_eq!((status, body["where"].as_str()), (413, Some("the upload as it arrived")));
    assert_eq!(app.running.service.settings().limits.disk.taken(), 0);
}

#[tokio::test]
async fn the_budget_of_a_job_is_bounded() {
    let settings =
        [("limits.job_seconds", toml::Value::from(30.5)), ("limits.job_trials", 40.into())];
    let app = TestApp::with(&settings).await;
    let matrix = app.matrix(10).await;
    let asked = |n: u32, search: Value| {
        let mut body = spmm(&matrix, n);
        body["search"] = search;
        body
    };
    for (member, value, most) in
        [("seconds", json!(31), "at most 30.5"), ("trials", json!(41), "at most 40")]
    {
        let search = json!({"strategy": "ranked", member: value});
        let (status, body) = problem(app.submit(&asked(3, search)).await).await;
        assert_eq!((status, body["type"].as_str()), (422, Some("/problems/invalid-body")));
        assert_eq!(body["pointer"], format!("/search/{member}"));
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.contains(most), "{detail}");
        assert!(detail.contains(&format!("limits.job_{member}")), "{detail}");
    }
    let search = json!({"strategy": "ranked", "seconds": 30.5, "trials": 40});
    assert_eq!(app.submit(&asked(3, search)).await.status(), 202);
    // Defaults are lowered, not refused.
    let job = app.job(&matrix, 4).await;
    assert_eq!((&job["search"]["seconds"], &job["search"]["trials"]), (&json!(30.5), &json!(40)));
}
