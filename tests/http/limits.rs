//! What one client may take of the server: memory, disk, and its time.

use crate::app::*;
use reqwest::Response;
use serde_json::Value;

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
