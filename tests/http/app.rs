//! A server for one test, a client for it, and a worker's part played by hand.

use crate::claimed::{Claimed, claim_job};
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use sparsetune::cli::config::Config;
use sparsetune::cli::serve::{Running, start};
use sparsetune::domain::*;
use sparsetune::store::Finish;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

pub type Setting<'a> = (&'a str, toml::Value);

pub struct TestApp {
    pub running: Running,
    pub client: Client,
    pub shutdown: CancellationToken,
    pub folder: TempDir,
}

impl TestApp {
    /// A server with one registered device.
    pub async fn new() -> Self {
        Self::with(&[]).await
    }

    pub async fn with(settings: &[Setting<'_>]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shutdown = CancellationToken::new();
        let running = served(&folder, settings, &shutdown).await;
        running.service.register(fixture().device).await.unwrap();
        Self { running, client: Client::new(), shutdown, folder }
    }

    /// Stops the server, and starts it again on its folder.
    pub async fn again(self, settings: &[Setting<'_>]) -> Self {
        self.shutdown.cancel();
        self.running.finished().await;
        let shutdown = CancellationToken::new();
        let running = served(&self.folder, settings, &shutdown).await;
        Self { running, client: Client::new(), shutdown, folder: self.folder }
    }

    /// Another server on the same folder, under a name of its own.
    pub async fn beside(&self) -> Running {
        served(&self.folder, &[("worker.name", "beside".into())], &self.shutdown).await
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.running.address)
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    pub async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    /// The JSON of a 200.
    pub async fn json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status(), 200, "{path}");
        response.json().await.unwrap()
    }

    pub async fn upload(&self, body: impl Into<reqwest::Body>) -> Response {
        self.request(Method::POST, "/v1/matrices").body(body).send().await.unwrap()
    }

    /// Uploads a tridiagonal matrix; gives its facts.
    pub async fn matrix(&self, rows: usize) -> Value {
        let response = self.upload(tridiagonal(rows)).await;
        assert!(response.status().is_success(), "{}", response.status());
        response.json().await.unwrap()
    }

    pub async fn submit(&self, body: &Value) -> Response {
        self.request(Method::POST, "/v1/jobs").json(body).send().await.unwrap()
    }

    /// Queues a job; gives it as answered.
    pub async fn job(&self, matrix: &Value, n: u32) -> Value {
        let response = self.submit(&spmm(matrix, n)).await;
        assert_eq!(response.status(), 202);
        response.json().await.unwrap()
    }

    /// Takes the oldest queued job as a worker would.
    pub async fn claim(&self) -> Claimed {
        let store = self.running.service.store();
        claim_job(&**store, &fixture().device, "worker", 60_000).await.unwrap()
    }

    /// Records a measured and a pruned trial, and ends the job with a plan.
    pub async fn finish(&self, claim: &Claimed) -> Plan {
        self.finish_in(claim, &Namespace::default()).await
    }

    /// [`Self::finish`] for a job of this namespace.
    pub async fn finish_in(&self, claim: &Claimed, namespace: &Namespace) -> Plan {
        let owner = Caller::owner(None, namespace.clone());
        let service = self.running.service.on_behalf_of(&owner);
        let store = service.store();
        store.record_trials(&claim.fence, &trials(&claim.job.id)).await.unwrap();
        let facts = service.matrix(&claim.job.request.matrix).await.unwrap();
        let plan = Plan {
            id: PlanId::fresh(),
            matrix: facts.digest,
            pattern_digest: facts.pattern_digest,
            problem: claim.job.request.problem,
            provenance: plan::Provenance {
                job: Some(claim.job.id.clone()),
                ..fixture().provenance
            },
            // Now, since consents are of tokens that were there before.
            created_at: Timestamp::now(),
            ..fixture()
        };
        let job = Job {
            state: JobState::Succeeded,
            stage: Stage::Done,
            plan: Some(plan.id.clone()),
            best: Some(job::Best {
                candidate: plan.candidate.clone(),
                median_us: 12.5,
                speedup: Some(2.0),
            }),
            stopped_by: Some(StoppedBy::Completed),
            finished_at: Some(Timestamp::now()),
            ..claim.job.clone()
        };
        let finish = Finish::job(job, Some(plan.clone()));
        store.finish(&claim.fence, &finish).await.unwrap();
        plan
    }

    /// Uploads, submits, works: a matrix with its plan.
    pub async fn tuned(&self, rows: usize, n: u32) -> (Value, Plan) {
        let matrix = self.matrix(rows).await;
        self.job(&matrix, n).await;
        let plan = self.finish(&self.claim().await).await;
        (matrix, plan)
    }
}

async fn served(
    folder: &TempDir,
    settings: &[Setting<'_>],
    shutdown: &CancellationToken,
) -> Running {
    let mut flags: Vec<Setting> = vec![
        ("server.listen", "127.0.0.1:0".into()),
        ("data.dir", folder.path().to_str().unwrap().into()),
        ("worker.name", "here".into()),
        // Tests say which models there are.
        ("learning.shipped", false.into()),
    ];
    flags.extend(settings.iter().cloned());
    // Uploads are read by a process of the program, which this one is not.
    sparsetune::pool::set_program(env!("CARGO_BIN_EXE_sparsetune").into(), Vec::new());
    let config = Config::load(None, &flags).unwrap();
    start(&config, shutdown.clone(), |_, _| Vec::new()).await.unwrap()
}

/// A plan with every member there is.
pub fn fixture() -> Plan {
    serde_json::from_str(include_str!("plan.json")).unwrap()
}

fn trials(job: &JobId) -> [Trial; 2] {
    let trial = |ordinal, lanes, state| Trial {
        job: job.clone(),
        ordinal,
        candidate: Candidate::new("row_split").with("lanes", lanes).with_text("order", "natural"),
        state,
        predicted_us: Some(2.5),
        despite: None,
        features: None,
        created_at: Timestamp::now(),
    };
    let measured = Outcome::Measured {
        timing: Timing::of(vec![1.0, 2.0, 3.0], 0).unwrap(),
        rel_error: 1e-7,
        resources: fixture().resources,
        preprocess_ms: 0.25,
    };
    let pruned = TrialState::Pruned(Removal::by("load_balance"));
    [trial(0, 32, pruned), trial(1, 8, TrialState::Tried(measured))]
}

/// The body of a job for spmm of this width.
pub fn spmm(matrix: &Value, n: u32) -> Value {
    json!({"matrix": matrix["digest"], "problem": {"op": "spmm", "n": n}})
}

/// The path that looks up what `spmm` asks for.
pub fn lookup(matrix: &Value, n: u32) -> String {
    format!("/v1/plans?matrix={}&op=spmm&n={n}", matrix["digest"].as_str().unwrap())
}

/// A tridiagonal matrix as Matrix Market text.
pub fn tridiagonal(rows: usize) -> String {
    let mut text =
        format!("%%MatrixMarket matrix coordinate real general\n{rows} {rows} {}\n", 3 * rows - 2);
    for row in 1..=rows {
        for col in row.saturating_sub(1).max(1)..=(row + 1).min(rows) {
            text.push_str(&format!("{row} {col} {}.5\n", row + col));
        }
    }
    text
}

/// Checks that an answer is a problem in every respect; gives its body.
pub async fn problem(response: Response, status: u16, slug: &str) -> Value {
    assert_eq!(response.status(), status, "{slug}");
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["type"], format!("/problems/{slug}"), "{body}");
    assert_eq!((&body["status"], &body["instance"]), (&json!(status), &json!(id)));
    assert!(!body["title"].as_str().unwrap().is_empty());
    assert!(!body["detail"].as_str().unwrap().is_empty());
    body
}
