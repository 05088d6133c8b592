//! What operators rely on: health, metrics, request ids, headers, slow clients, an orderly end.

use crate::app::{TestApp, lookup, problem};
use reqwest::Method;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn health_and_index() {
    let app = TestApp::new().await;
    assert_eq!(app.json("/healthz").await["status"], "ok");
    for path in ["/readyz", "/readyz?for=all", "/readyz?for=requests"] {
        assert_eq!(app.json(path).await["status"], "ready");
    }
    for path in ["/readyz?for=nobody", "/readyz?of=all"] {
        problem(app.get(path).await, 400, "invalid-parameter").await;
    }
    let index = app.json("/").await;
    assert_eq!(index["name"], "sparsetune");
    let spec = app.get("/openapi.yaml").await;
    assert_eq!(spec.headers()["content-type"], "application/yaml");
    assert!(spec.text().await.unwrap().starts_with("openapi: 3.1.0"));
    assert_eq!(app.json("/v1/devices").await["items"][0]["id"], "cpu");
}

#[tokio::test]
async fn a_nearly_full_disk_is_not_ready_and_its_free_bytes_are_told() {
    let app = TestApp::with(&[("data.min_free_bytes", toml::Value::from(i64::MAX))]).await;
    let told = problem(app.get("/readyz").await, 503, "storage-full").await;
    assert!(told["detail"].as_str().unwrap().contains("nearly full"), "{told}");
    assert_eq!((&told["need"], &told["where"]), (&i64::MAX.into(), &"disk".into()));
    assert!(told["limit"].as_u64().unwrap() > 0, "{told}");
    let text = app.get("/metrics").await.text().await.unwrap();
    for folder in ["store", "blobs"] {
        let series = format!("sparsetune_disk_free_bytes{{folder=\"{folder}\"}} ");
        let free = text.lines().find_map(|line| line.strip_prefix(series.as_str()));
        assert!(free.unwrap().parse::<f64>().unwrap() > 0.0);
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_written_is_not_ready_and_says_why() {
    let app = TestApp::new().await;
    // Root may write anything, so a file in place of the folder, and a trigger, fail as a read-only file system would.
    let staging = app.folder.path().join("blobs");
    std::fs::rename(&staging, app.folder.path().join("aside")).unwrap();
    std::fs::write(&staging, "").unwrap();
    let told = problem(app.get("/readyz").await, 503, "unavailable").await;
    let detail = told["detail"].as_str().unwrap();
    assert!(detail.starts_with("the folder of blobs cannot be written: "), "{detail}");
    assert!(!detail.contains(app.folder.path().to_str().unwrap()), "{detail}");

    let app = TestApp::new().await;
    let file = SqliteConnectOptions::new().filename(app.folder.path().join("sparsetune.db"));
    let mut raw = SqliteConnection::connect_with(&file).await.unwrap();
    let trigger = "CREATE TRIGGER stuck BEFORE UPDATE ON store_id BEGIN
                   SELECT RAISE(FAIL, 'attempt to write a readonly database'); END";
    sqlx::query(trigger).execute(&mut raw).await.unwrap();
    let told = problem(app.get("/readyz").await, 503, "unavailable").await;
    let detail = told["detail"].as_str().unwrap();
    assert!(detail.starts_with("the database cannot be written: "), "{detail}");
    assert!(detail.contains("readonly"), "{detail}");
    sqlx::query("DROP TRIGGER stuck").execute(&mut raw).await.unwrap();
    let began = Instant::now();
    while app.get("/readyz").await.status() != 200 {
        assert!(began.elapsed() < Duration::from_secs(20), "it was not asked again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn every_answer_has_an_id_and_the_headers_of_data() {
    let app = TestApp::new().await;
    let first = app.get("/healthz").await;
    let second = app.get("/nowhere").await;
    assert_ne!(first.headers()["x-request-id"], second.headers()["x-request-id"]);
    for response in [first, second] {
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        assert!(response.headers().contains_key("content-security-policy"));
    }
    let given = app.request(Method::GET, "/healthz").header("x-request-id", "mine-7");
    assert_eq!(given.send().await.unwrap().headers()["x-request-id"], "mine-7");
    let bad = app.request(Method::GET, "/healthz").header("x-request-id", "a b");
    assert_ne!(bad.send().await.unwrap().headers()["x-request-id"], "a b");
}

#[tokio::test]
async fn metrics_count_what_happens() {
    let app = TestApp::new().await;
    let (matrix, _) = app.tuned(7, 3).await;
    app.job(&matrix, 4).await;
    for _ in 0..3 {
        app.json(&lookup(&matrix, 3)).await;
    }
    app.get("/nowhere/at/all").await;
    let text = app.get("/metrics").await.text().await.unwrap();
    // The recorder is the process', which other tests share: floors, not equalities, except for this store's gauges.
    let value = |series: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("no {series} in\n{text}")).trim().parse().unwrap()
    };
    let lookups =
        |source| value(&format!("sparsetune_lookups_total{{grade=\"exact\",source=\"{source}\"}}"));
    assert!(lookups("store") >= 1.0 && lookups("cache") >= 2.0, "asked thrice within a second");
    assert!(value("sparsetune_jobs_ended_total{state=\"succeeded\"}") >= 1.0);
    assert!(value("sparsetune_uploads_total{answer=\"created\"}") >= 1.0);
    assert!(value("sparsetune_upload_bytes_bucket{le=\"1000\"}") >= 1.0);
    assert!(value("sparsetune_http_connections") >= 1.0, "this one");
    assert_eq!(value("sparsetune_build_info{version=\"0.1.0\"}"), 1.0);
    assert!(value("sparsetune_trials_total{state=\"measured\"}") >= 1.0);
    let times = "sparsetune_http_request_seconds_count";
    assert!(value(&format!("{times}{{route=\"/v1/plans\",method=\"GET\",status=\"200\"}}")) >= 3.0);
    assert!(value(&format!("{times}{{route=\"unmatched\",method=\"GET\",status=\"404\"}}")) >= 1.0);
    assert!(!text.contains("nowhere"), "paths of clients are no labels");
}

#[tokio::test]
async fn every_metric_is_explained_and_no_histogram_lacks_its_buckets() {
    let app = TestApp::new().await;
    app.tuned(11, 3).await;
    let text = app.get("/metrics").await.text().await.unwrap();
    let families = |word: &str| -> BTreeMap<String, String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(word)?.split_once(' '));
        lines.map(|(name, rest)| (name.to_owned(), rest.to_owned())).collect()
    };
    let (helps, types) = (families("# HELP "), families("# TYPE "));
    assert!(types.len() >= 15, "{types:?}");
    assert!(types.values().all(|kind| kind != "summary"), "{types:?}");
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let series = line.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| {
            let family = series.strip_suffix(end)?;
            (types.get(family)? == "histogram").then_some(family)
        });
        let family = family.unwrap_or(series);
        assert!(types.contains_key(family), "no type: {line}");
        assert!(helps.get(family).is_some_and(|help| !help.is_empty()), "no help: {line}");
    }
}

#[tokio::test]
async fn headers_that_trickle_in_are_cut_off() {
    let app = TestApp::with(&[("server.headers_s", 0.2.into())]).await;
    let mut socket = TcpStream::connect(app.running.address).await.unwrap();
    socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: local").await.unwrap();
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(5), socket.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "the connection was kept");
}

#[tokio::test]
async fn shutdown_lets_requests_in_flight_finish_and_drops_the_rest() {
    let app = TestApp::with(&[("server.shutdown_s", 3.0.into())]).await;
    let mut idle = TcpStream::connect(app.running.address).await.unwrap();
    let mut upload = TcpStream::connect(app.running.address).await.unwrap();
    let body = crate::app::tridiagonal(3);
    let head = format!(
        "POST /v1/matrices HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    upload.write_all(head.as_bytes()).await.unwrap();
    let (first, second) = body.split_at(20);
    upload.write_all(first.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;

    let (began, address) = (Instant::now(), app.running.address);
    app.shutdown.cancel();
    let ended = tokio::spawn(app.running.finished());
    let mut nothing = [0; 1];
    assert_eq!(idle.read(&mut nothing).await.unwrap(), 0, "idle connections close at once");
    upload.write_all(second.as_bytes()).await.unwrap();
    let mut answer = String::new();
    upload.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    ended.await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(2500), "nothing to wait for");
    assert!(TcpStream::connect(address).await.is_err(), "no longer listening");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_ever() {
    let app = TestApp::with(&[("server.shutdown_s", 0.2.into())]).await;
    let mut stuck = TcpStream::connect(app.running.address).await.unwrap();
    let head = b"POST /v1/matrices HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n%";
    stuck.write_all(head).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    app.shutdown.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(5), app.running.finished()).await;
    assert!(ended.is_ok());
}
