//! A store that is busy or full, over HTTP: 503 with a time to come back, and all is well once the cause has gone.

use crate::app::{fixture, problem, spmm, tridiagonal};
use reqwest::{Client, Response};
use serde_json::Value;
use sparsetune::http::{
    Access, App, Attempts, Limits, Metrics, PAGES, PATHS, Pace, Server, Tokens, Without,
};
use sparsetune::service::{Service, ServiceSettings};
use sparsetune::sparse::read::Pool;
use sparsetune::store::{LocalBlobs, SqliteOptions, SqliteStore};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};

struct Served {
    address: String,
    client: Client,
    _running: DropGuard,
}

impl Served {
    /// A server with one device on a store in this folder.
    async fn on(folder: &Path, options: SqliteOptions) -> Self {
        Self::with_disk(folder, options, Pool::disk(u64::MAX)).await
    }

    /// [`Self::on`], with so much disk for temporary files.
    async fn with_disk(folder: &Path, options: SqliteOptions, disk: Pool) -> Self {
        let store = SqliteStore::open_with(&folder.join("store"), options).await.unwrap();
        let blobs = LocalBlobs::open(&folder.join("blobs")).unwrap();
        let mut settings =
            ServiceSettings { temp_dir: folder.to_owned(), ..ServiceSettings::default() };
        settings.limits.disk = disk;
        let service = Service::new(Arc::new(store), Arc::new(blobs), settings);
        service.register(fixture().device).await.unwrap();
        let minute = Duration::from_secs(60);
        let limits = Limits {
            upload_bytes: 1 << 20,
            json_bytes: 1 << 20,
            uploads_at_once: 4,
            uploads_each: 4,
            streams_at_once: 4,
            streams_each: 4,
            lookup_bytes: 1 << 20,
            forwarded: false,
            pace: Pace { idle: minute, bytes_per_s: 1 },
            connections: 64,
            connections_each: 64,
            headers: minute,
            answer: minute,
            upload: minute,
            sse_keep_alive: minute,
            shutdown: minute,
        };
        let metrics = Arc::new(Metrics::new(PATHS.iter().chain(PAGES).copied()).unwrap());
        let stop = CancellationToken::new();
        let tokens = Tokens::new(Arc::clone(service.ring()), &[1; 32]);
        let attempts = Attempts::new(0);
        let access = Access { tokens, without: Without::Loopback, attempts, forwarded: false };
        let app = App::new(service, limits, access, metrics, stop.clone());
        let server = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = format!("http://{}", server.address().unwrap());
        tokio::spawn(server.run(app));
        Self { address, client: Client::new(), _running: stop.drop_guard() }
    }

    async fn upload(&self, rows: usize) -> Response {
        let url = format!("{}/v1/matrices", self.address);
        self.client.post(url).body(tridiagonal(rows)).send().await.unwrap()
    }

    async fn submit(&self, matrix: &Value) -> Response {
        let url = format!("{}/v1/jobs", self.address);
        self.client.post(url).json(&spmm(matrix, 32)).send().await.unwrap()
    }
}

async fn raw(folder: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(folder.join("store"));
    SqliteConnection::connect_with(&options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_locked_by_another_is_busy_for_now() {
    let folder = tempfile::tempdir().unwrap();
    let short = Duration::from_millis(50);
    let options = SqliteOptions { busy_timeout: short, ..SqliteOptions::default() };
    let served = Served::on(folder.path(), options).await;
    let matrix: Value = served.upload(5).await.json().await.unwrap();

    let mut other = raw(folder.path()).await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    for response in [served.submit(&matrix).await, served.upload(6).await] {
        assert_eq!(response.headers()["retry-after"], "5");
        let told = problem(response, 503, "busy").await;
        assert!(!told["detail"].as_str().unwrap().contains("locked"), "the log's alone: {told}");
    }
    // It can be written to, as soon as the other has ended.
    let ready = served.client.get(format!("{}/readyz", served.address)).send().await.unwrap();
    problem(ready, 503, "busy").await;
    // Readers are not held up.
    let url = format!("{}/v1/matrices", served.address);
    assert_eq!(served.client.get(url).send().await.unwrap().status(), 200);
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    assert_eq!(served.submit(&matrix).await.status(), 202);
    assert_eq!(served.upload(6).await.status(), 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_database_is_said_to_be_and_takes_more_once_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    Served::on(folder.path(), SqliteOptions::default()).await;
    let pages: u32 = sqlx::query_scalar("PRAGMA page_count")
        .fetch_one(&mut raw(folder.path()).await)
        .await
        .unwrap();
    let options = SqliteOptions { max_pages: Some(pages + 4), ..SqliteOptions::default() };
    let served = Served::on(folder.path(), options).await;
    let mut kept = Vec::new();
    let refused = loop {
        let response = served.upload(5 + kept.len()).await;
        if response.status() != 201 {
            break response;
        }
        let matrix: Value = response.json().await.unwrap();
        let digest = matrix["digest"].as_str().unwrap().to_owned();
        kept.push(format!("{}/v1/matrices/{digest}", served.address));
    };
    assert_eq!(refused.headers()["retry-after"], "60");
    problem(refused, 503, "storage-full").await;
    // What is there can be read, and removed, which makes room.
    for url in &kept {
        assert_eq!(served.client.get(url).send().await.unwrap().status(), 200);
        assert_eq!(served.client.delete(url).send().await.unwrap().status(), 204);
    }
    assert_eq!(served.upload(5 + kept.len()).await.status(), 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_without_room_for_an_upload_is_full_for_now() {
    static FREE: AtomicU64 = AtomicU64::new(100);
    let folder = tempfile::tempdir().unwrap();
    let disk = Pool::disk_at_present(u64::MAX, Box::new(|_| FREE.load(Ordering::Relaxed)));
    let served = Served::with_disk(folder.path(), SqliteOptions::default(), disk).await;
    let refused = served.upload(50).await;
    assert_eq!(refused.headers()["retry-after"], "60");
    let told = problem(refused, 503, "storage-full").await;
    assert_eq!(told["limit"], 100, "{told}");
    FREE.store(1 << 20, Ordering::Relaxed);
    assert_eq!(served.upload(50).await.status(), 201);
}
