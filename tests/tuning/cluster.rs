//! Servers and workers as they are run, each a process with a data folder of its own, on one database and one place for blobs.

use crate::postgres::{self, is_left_out};
use crate::server::Server;
use reqwest::header::{AUTHORIZATION, COOKIE, HeaderMap, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TOKEN: &str = "a-token-of-the-tests";
const LONG: Duration = Duration::from_secs(30);

struct Cluster {
    store: String,
    folder: TempDir,
}

impl Cluster {
    async fn new() -> Self {
        let server = postgres::shared();
        let store = server.url(&server.database().await, false);
        Self { store, folder: tempfile::tempdir().unwrap() }
    }

    /// A process with a client that has the token.
    async fn run(&self, words: &[&str], name: &str, devices: &str) -> Server {
        let data = self.folder.path().join(name);
        let blobs = self.folder.path().join("blobs");
        let mut all = words.to_vec();
        all.extend(["--data", data.to_str().unwrap()]);
        all.extend(["--store", &self.store, "--blobs", blobs.to_str().unwrap()]);
        let tokens = format!("[{TOKEN:?}]");
        let settings = [
            ("SPARSETUNE_SERVER__TOKENS", tokens.as_str()),
            ("SPARSETUNE_SERVER__SESSION_KEY", "a secret of all servers of the tests"),
            ("SPARSETUNE_POSTGRES__CONNECTIONS", "4"),
            ("SPARSETUNE_POSTGRES__READ_CONNECTIONS", "2"),
            ("SPARSETUNE_WORKER__NAME", name),
            ("SPARSETUNE_DEVICES__USE", devices),
            // They measure beside each other: what they find is not looked at.
            ("SPARSETUNE_DEVICES__LOCK_DIR", ""),
            ("SPARSETUNE_LEARNING__SHIPPED", "false"),
            ("SPARSETUNE_WORKER__LEASE_MS", "4000"),
        ];
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("Bearer {TOKEN}").parse().unwrap());
        let client = Client::builder().default_headers(headers).build().unwrap();
        Server::run(&all, &settings, Stdio::null(), client).await
    }

    async fn server(&self, name: &str) -> Server {
        self.run(&["serve", "--listen", "127.0.0.1:0"], name, "[]").await
    }

    async fn worker(&self, name: &str) -> Server {
        let words = ["worker", "--name", name, "--device", "cpu", "--listen", "127.0.0.1:0"];
        self.run(&words, name, "[]").await
    }
}

fn job(matrix: &str, n: u32, search: &Value) -> Value {
    json!({"matrix": matrix, "problem": {"op": "spmm", "n": n}, "search": search})
}

/// What a process counts under this name, with these labels.
async fn counted(of: &Server, name: &str) -> f64 {
    let answer = of.request(Method::GET, "/metrics").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let text = answer.text().await.unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{name} is not in {text}")).trim().parse().unwrap()
}

#[tokio::test]
async fn several_servers_are_one_and_workers_share_the_problems_of_a_matrix() {
    if is_left_out() {
        return;
    }
    let cluster = Cluster::new().await;
    // No server need be there first.
    let workers = [cluster.worker("first").await, cluster.worker("second").await];
    let (a, b) = tokio::join!(cluster.server("a"), cluster.server("b"));
    let stranger = Client::builder().redirect(Policy::none()).build().unwrap();
    devices_are_seen(&b, &workers, &stranger).await;

    let matrix = a.grid(24).await;
    let search = json!({"strategy": "ranked", "top_k": 3, "seconds": 20});
    let mut jobs = Vec::new();
    for n in [1, 2, 3, 4, 8, 12, 16, 32] {
        let mut ids = BTreeSet::new();
        // The same request, which reaches another server when it is sent again.
        for server in [&a, &b, &a] {
            let asked = server.request(Method::POST, "/v1/jobs").json(&job(&matrix, n, &search));
            let answer = asked.header("idempotency-key", format!("job {n}").replace(' ', "-"));
            let answer: Value = answer.send().await.unwrap().json().await.unwrap();
            ids.insert(answer["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned());
        }
        assert_eq!(ids.len(), 1, "{ids:?}");
        jobs.extend(ids);
    }
    // A stream that breaks is taken up at another server.
    let last = jobs.last().unwrap();
    let begun = a.events(last, None, 2).await;
    let rest = b.events(last, Some(begun.last().unwrap().id), usize::MAX).await;
    let all: Vec<u64> = begun.iter().chain(&rest).map(|event| event.id).collect();
    assert!(all.iter().copied().eq(1..=all.len() as u64), "{all:?}");
    assert_eq!(b.ended(last).await["state"], "succeeded");
    for id in &jobs {
        let ended = a.ended(id).await;
        assert_eq!((&ended["state"], &ended["attempts"]), (&json!("succeeded"), &json!(1)));
    }
    let succeeded = "sparsetune_jobs_ended_total{state=\"succeeded\"}";
    let mut done = Vec::new();
    for worker in &workers {
        done.push(counted(worker, succeeded).await);
    }
    assert!(done.iter().all(|one| *one >= 1.0), "both take part: {done:?}");
    assert_eq!(done.iter().sum::<f64>(), jobs.len() as f64);
    sessions_and_tokens_hold_at_both(&a, &b, &stranger).await;
    for process in workers.into_iter().chain([a, b]) {
        assert!(process.stop().success());
    }
}

/// With what tells an operator where they are; and what the workers tell of themselves.
async fn devices_are_seen(server: &Server, workers: &[Server; 2], stranger: &Client) {
    let devices = server.json("/v1/devices").await;
    let devices = devices["items"].as_array().unwrap();
    let names: BTreeSet<&str> = devices.iter().filter_map(|one| one["worker"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(["first", "second"]));
    for one in devices {
        assert_eq!(one["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!((&one["restarts"], &one["online"]), (&json!(0), &json!(true)));
        let host = one["host"].as_str().unwrap();
        assert_eq!(one["key"], format!("cpu@{host}"));
        assert!(one["seen_at"].is_string());
    }
    for worker in workers {
        assert_eq!(worker.json("/readyz").await["status"], "ready");
        let without = stranger.get(worker.url("/metrics")).send().await.unwrap();
        assert_eq!(without.status(), 401);
        let nothing = worker.request(Method::GET, "/v1/jobs").send().await.unwrap();
        assert_eq!(nothing.status(), 404, "a worker is no server");
        assert_eq!(counted(worker, "sparsetune_ready").await, 1.0);
    }
}

async fn sessions_and_tokens_hold_at_both(a: &Server, b: &Server, stranger: &Client) {
    let form = stranger.post(a.url("/login")).header("accept", "text/html");
    let form = form.header("content-type", "application/x-www-form-urlencoded");
    let signed = form.header("origin", a.url("")).body(format!("token={TOKEN}"));
    let signed = signed.send().await.unwrap();
    let cookie = signed.headers()[SET_COOKIE].to_str().unwrap().split(';').next().unwrap();
    for (cookie, status) in [(cookie, 200), ("sparsetune_session=1.2.3", 303)] {
        let page =
            stranger.get(b.url("/jobs")).header("accept", "text/html").header(COOKIE, cookie);
        assert_eq!(page.send().await.unwrap().status(), status);
    }

    // What a token may store is counted for all servers.
    let asked = json!({"name": "small", "scopes": ["read", "submit"], "limits": {"matrices": 1}});
    let made = a.request(Method::POST, "/v1/tokens").json(&asked).send().await.unwrap();
    let made: Value = made.json().await.unwrap();
    let secret = made["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    let upload = async |server: &Server, rows: usize| {
        let entries: String = (1..=rows).map(|row| format!("{row} {row} 1\n")).collect();
        let head = "%%MatrixMarket matrix coordinate real general";
        let sent = stranger.post(server.url("/v1/matrices")).bearer_auth(&secret);
        let sent = sent.body(format!("{head}\n{rows} {rows} {rows}\n{entries}"));
        sent.send().await.unwrap().status().as_u16()
    };
    let begun = Instant::now();
    while upload(b, 5).await == 401 {
        assert!(begun.elapsed() < LONG, "the other server does not hear of a new token");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(upload(a, 5).await, 200, "it is there");
    assert_eq!((upload(a, 6).await, upload(b, 7).await), (403, 403));
    let revoked = b.request(Method::DELETE, "/v1/tokens/small").send().await.unwrap();
    assert!(revoked.status().is_success());
    let begun = Instant::now();
    while upload(a, 5).await != 401 {
        assert!(begun.elapsed() < LONG, "the other server does not hear of its end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn what_a_drained_worker_gives_back_another_goes_on_with() {
    if is_left_out() {
        return;
    }
    let cluster = Cluster::new().await;
    let first = cluster.worker("first").await;
    let server = cluster.server("a").await;
    let matrix = server.grid(40).await;
    let search = json!({"strategy": "exhaustive", "seconds": 60});
    let submitted = server.submit(&job(&matrix, 16, &search)).await;
    let id = submitted["id"].as_str().unwrap();
    server.when(id, |job| job["progress"]["done"].as_u64() >= Some(2)).await;
    // Its lease need not end, for which the next one would wait.
    assert!(first.stop().success());
    let tried = server.job(id).await;
    assert_eq!((&tried["state"], &tried["attempts"]), (&json!("queued"), &json!(0)));
    let second = cluster.worker("second").await;
    let ended = server.ended(id).await;
    assert_eq!((&ended["state"], &ended["attempts"]), (&json!("succeeded"), &json!(1)));
    let trials = server.trials(id).await;
    let tried: Vec<&Value> = trials
        .iter()
        .filter(|trial| trial["state"] != "pruned")
        .map(|it| &it["candidate"])
        .collect();
    let distinct: BTreeSet<String> = tried.iter().map(ToString::to_string).collect();
    assert_eq!(distinct.len(), tried.len(), "none is measured twice");
    assert!(second.stop().success() && server.stop().success());
}
