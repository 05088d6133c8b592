//! The server as it is run: the real binary on a port of its own, working on the host's processor.

use futures_util::StreamExt;
use reqwest::{Client, Method, RequestBuilder};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest that anything may take here.
const LONG: Duration = Duration::from_secs(30);

pub struct Server {
    child: Child,
    url: String,
    client: Client,
}

/// One event of a stream, as it was sent.
pub struct Sent {
    pub name: String,
    pub id: u64,
    pub data: Value,
}

impl Server {
    /// Starts it and waits until it can work.
    pub async fn start(data: &Path, settings: &[(&str, &str)]) -> Self {
        Self::start_heard(data, settings, Stdio::null()).await
    }

    /// Likewise, with its log going somewhere.
    pub async fn start_heard(data: &Path, settings: &[(&str, &str)], log: Stdio) -> Self {
        let words = ["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
        Self::run(&words, settings, log, Client::new()).await
    }

    /// A process of the program that answers to this client, and is ready when this returns.
    pub async fn run(
        words: &[&str],
        settings: &[(&str, &str)],
        log: Stdio,
        client: Client,
    ) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sparsetune"))
            .args(words)
            .env("SPARSETUNE_DEVICES__USE", r#"["cpu"]"#)
            // The shortest that the configuration takes.
            .env("SPARSETUNE_WORKER__LEASE_MS", "1000")
            .env("SPARSETUNE_WORKER__POLL_MS", "50")
            // Whoever else measures on this host, another test for one, would be waited for, longer than a test waits for anything.
            .env("SPARSETUNE_DEVICES__LOCK_DIR", "")
            .envs(settings.iter().copied())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        let server = Self { child, url, client };
        let started = Instant::now();
        while server.request(Method::GET, "/readyz").send().await.unwrap().status() != 200 {
            assert!(started.elapsed() < LONG, "it does not become ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server
    }

    /// SIGKILL: nothing of it has time to tidy up.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM: how it ends by itself. For those who share this file.
    #[allow(dead_code)]
    pub fn stop(mut self) -> ExitStatus {
        // SAFETY: a plain system call; the child has not been waited for, so the id is its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) }, 0);
        self.child.wait().unwrap()
    }

    /// The address of a path. For those who share this file.
    #[allow(dead_code)]
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url))
    }

    pub async fn json(&self, path: &str) -> Value {
        let answer = self.request(Method::GET, path).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.json().await.unwrap()
    }

    /// Uploads a five-point operator with this many points a side; gives its digest.
    pub async fn grid(&self, side: u32) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("grid.mtx");
        let made = Command::new(env!("CARGO_BIN_EXE_sparsetune"))
            .args(["generate", &format!("poisson2d:nx={side},ny={side},seed=3"), "-o"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        let text = std::fs::read(&file).unwrap();
        let answer = self.request(Method::POST, "/v1/matrices").body(text).send().await.unwrap();
        assert_eq!(answer.status(), 201);
        let facts: Value = answer.json().await.unwrap();
        facts["digest"].as_str().unwrap().to_owned()
    }

    /// Submits a job; gives it as answered.
    pub async fn submit(&self, body: &Value) -> Value {
        let answer = self.request(Method::POST, "/v1/jobs").json(body).send().await.unwrap();
        assert_eq!(answer.status(), 202);
        answer.json().await.unwrap()
    }

    pub async fn job(&self, id: &str) -> Value {
        self.json(&format!("/v1/jobs/{id}")).await
    }

    /// The job as soon as it is so.
    pub async fn when(&self, id: &str, so: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let job = self.job(id).await;
            if so(&job) {
                return job;
            }
            assert!(started.elapsed() < LONG, "it never came to that: {job}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The job once it has ended.
    pub async fn ended(&self, id: &str) -> Value {
        self.when(id, |job| !["queued", "running"].contains(&job["state"].as_str().unwrap())).await
    }

    /// Every trial of a job, page by page.
    pub async fn trials(&self, id: &str) -> Vec<Value> {
        let (mut all, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.json(&format!("/v1/jobs/{id}/trials?limit=10{cursor}")).await;
            all.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    }

    /// The events after one, until there are `most` of them or the stream ends, by itself or with the server.
    pub async fn events(&self, id: &str, after: Option<u64>, most: usize) -> Vec<Sent> {
        let mut request = self.request(Method::GET, &format!("/v1/jobs/{id}/events"));
        if let Some(after) = after {
            request = request.header("last-event-id", after.to_string());
        }
        let mut stream = request.send().await.unwrap().bytes_stream();
        let (mut text, mut sent) = (String::new(), Vec::new());
        while let Some(Ok(chunk)) = stream.next().await {
            text.push_str(std::str::from_utf8(&chunk).unwrap());
            while let Some((frame, rest)) = text.split_once("\n\n") {
                sent.extend(Sent::of(frame));
                text = rest.to_owned();
            }
            if sent.len() >= most {
                break;
            }
        }
        sent
    }
}

impl Sent {
    /// `None` for a comment, which is how the server shows that it is there.
    fn of(frame: &str) -> Option<Self> {
        let field =
            |name: &str| frame.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        Some(Self {
            name: field("event")?.to_owned(),
            id: field("id")?.parse().unwrap(),
            data: serde_json::from_str(field("data")?).unwrap(),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only where the child has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
