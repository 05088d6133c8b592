//! A service in this process, workers whose evaluators play recordings, and a log of what those were asked.

use crate::device::processor;
use futures_util::StreamExt;
use sparsetune::domain::protocol::{Effort, Request, RequestBody};
use sparsetune::domain::*;
use sparsetune::engine::replay::{Act, Header, Record};
use sparsetune::ops::{self, Space};
use sparsetune::pool::{Deadlines, Evaluator, EvaluatorSpec};
use sparsetune::service::tuning::{Measuring, Worker};
use sparsetune::service::{Service, ServiceSettings};
use sparsetune::sparse::canonical;
use sparsetune::store::{LocalBlobs, PageRequest, SqlStore, SqliteStore, TrialQuery};
use std::convert::Infallible;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Writes down every request before the evaluator reads it. The evaluator takes the shell's place, so that signals and
/// exit codes are its own; `tee` ends with its stdin.
const LISTENING: &str = r#"f="$LOG.$$"; mkfifo "$f"; exec 3<&0; tee -a "$LOG" <&3 >"$f" 2>/dev/null &
exec 3<&- <"$f"; rm "$f"; exec "$0" "$@""#;

/// Long enough for a busy machine; no test waits for it unless it fails.
pub const LONG: Duration = Duration::from_secs(30);

pub struct Bench {
    pub folder: tempfile::TempDir,
    pub service: Service,
    pub matrix: Matrix,
}

/// A worker at work.
pub struct Working {
    pub shutdown: CancellationToken,
    pub task: JoinHandle<()>,
}

impl Working {
    /// Tells it to stop, and waits until it has.
    pub async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(LONG, self.task).await.unwrap().unwrap();
    }
}

impl Bench {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut ServiceSettings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = ServiceSettings {
            host: crate::claimed::HOST.to_owned(),
            owner: "here".to_owned(),
            temp_dir: folder.path().to_owned(),
            poll: Duration::from_millis(50),
            ..ServiceSettings::default()
        };
        change(&mut settings);
        let service = serve(&folder, settings).await;
        let matrix = upload(&service, 300).await;
        Self { folder, service, matrix }
    }

    /// On a store that is there.
    pub async fn on(store: SqlStore, change: impl FnOnce(&mut ServiceSettings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = ServiceSettings {
            owner: "here".to_owned(),
            temp_dir: folder.path().to_owned(),
            poll: Duration::from_millis(50),
            ..ServiceSettings::default()
        };
        change(&mut settings);
        let blobs = LocalBlobs::open(&folder.path().join("blobs")).unwrap();
        let service = Service::new(Arc::new(store), Arc::new(blobs), settings);
        let matrix = upload(&service, 300).await;
        Self { folder, service, matrix }
    }

    /// Another matrix of the same kind, with so many rows.
    pub async fn upload(&self, rows: usize) -> Matrix {
        upload(&self.service, rows).await
    }

    /// Another process on the same store and blobs.
    pub async fn elsewhere(&self) -> Service {
        let settings =
            ServiceSettings { owner: "elsewhere".to_owned(), ..self.service.settings().clone() };
        serve(&self.folder, settings).await
    }

    pub fn store_file(&self) -> PathBuf {
        self.folder.path().join("store.sqlite")
    }

    /// Where blobs are written before they have their name.
    pub fn staging(&self) -> PathBuf {
        self.folder.path().join("blobs/staging")
    }

    /// What a job for this matrix finds on a device.
    pub fn space(&self, device: &Device) -> Space {
        self.space_of(&PROBLEM, device)
    }

    pub fn space_of(&self, problem: &Problem, device: &Device) -> Space {
        let name = self.matrix.digest.to_string();
        let path = self.folder.path().join("blobs").join(&name[..2]).join(name);
        let (csr, _) = canonical::open(&path).unwrap();
        ops::space(&csr, problem, device).unwrap()
    }

    /// The candidates of an exhaustive job, in its order.
    pub fn candidates(&self, device: &Device) -> Vec<Candidate> {
        let mut strategy = sparsetune::search::exhaustive(self.space(device).scored);
        std::iter::from_fn(|| strategy.next()).collect()
    }

    /// A worker whose evaluator plays these acts on the device; it is open when this returns.
    pub async fn work(
        &self,
        service: &Service,
        device: &Device,
        acts: impl IntoIterator<Item = (Candidate, Act)>,
    ) -> Working {
        let mut text = serde_json::to_string(&Header { device: device.clone() }).unwrap();
        for (candidate, act) in acts {
            let line = serde_json::to_string(&Record { candidate, act }).unwrap();
            write!(text, "\n{line}").unwrap();
        }
        let recording = self.folder.path().join(format!("{}.jsonl", uuid::Uuid::now_v7()));
        std::fs::write(&recording, text).unwrap();
        let script = format!("LOG='{}'; {LISTENING}", self.log().display());
        let binary = env!("CARGO_BIN_EXE_sparsetune");
        let selector = format!("replay:{}", recording.display());
        // The script passes bytes on, so that the matrix has to be opened by its path.
        let fence = ["--fence", "without_files"];
        let args = ["-c", &script, binary, "evaluator", "--device", &selector];
        let args = args.into_iter().chain(fence);
        let mut spec = EvaluatorSpec::new(device.id.clone(), "sh", args);
        spec.deadlines = Deadlines { open: LONG, verify: LONG, time: LONG, ..spec.deadlines };
        let opened = Worker::open(service.clone(), Evaluator::new(spec), Measuring::default());
        let worker = opened.await.unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(worker.run(shutdown.clone()));
        Working { shutdown, task }
    }

    pub fn log(&self) -> PathBuf {
        self.folder.path().join("requests.jsonl")
    }

    /// Every candidate that an evaluator was asked to measure, in order.
    pub fn measured(&self) -> Vec<Candidate> {
        let log = std::fs::read_to_string(self.log()).unwrap();
        // The last line may be half written.
        let requests = log.lines().filter_map(|line| serde_json::from_str::<Request>(line).ok());
        requests
            .filter_map(|request| match request.body {
                RequestBody::Measure { candidate, .. } => Some(candidate),
                _ => None,
            })
            .collect()
    }

    /// How often and how long an evaluator was asked to time, and how many were timed in turn with how many rounds.
    pub fn asked(&self) -> (Vec<Effort>, Vec<(usize, u32)>) {
        let log = std::fs::read_to_string(self.log()).unwrap();
        let (mut efforts, mut turns) = (Vec::new(), Vec::new());
        for request in log.lines().filter_map(|line| serde_json::from_str::<Request>(line).ok()) {
            match request.body {
                RequestBody::Measure { effort, .. } => efforts.push(effort),
                RequestBody::Pair { candidates, rounds, .. } => {
                    turns.push((candidates.len(), rounds))
                }
                _ => {}
            }
        }
        (efforts, turns)
    }

    pub async fn submit(&self, search: Search) -> JobId {
        self.submit_for(PROBLEM, "auto", search).await
    }

    pub async fn submit_for(&self, problem: Problem, device: &str, search: Search) -> JobId {
        let request = JobRequest {
            matrix: self.matrix.digest,
            problem,
            device: device.to_owned(),
            search,
            expected_calls: None,
        };
        let submitted = self.service.submit(&request, None).await.unwrap();
        assert!(submitted.created);
        submitted.job.id
    }

    /// The job once it has ended.
    pub async fn ended(&self, id: &JobId) -> Job {
        self.when(id, |job, _| job.state.is_final()).await.0
    }

    /// The job and its tried candidates as soon as they are so.
    pub async fn when(&self, id: &JobId, so: impl Fn(&Job, &[Trial]) -> bool) -> (Job, Vec<Trial>) {
        let started = Instant::now();
        loop {
            let job = self.service.job(id).await.unwrap();
            let tried = self.tried(id).await;
            if so(&job, &tried) {
                return (job, tried);
            }
            assert!(started.elapsed() < LONG, "it never came to that: {job:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The job's plan; the job must have succeeded.
    pub async fn plan(&self, job: &Job) -> Plan {
        assert_eq!(job.state, JobState::Succeeded, "{job:?}");
        self.service.plan(job.plan.as_ref().unwrap()).await.unwrap()
    }

    pub async fn trials(&self, id: &JobId) -> Vec<Trial> {
        self.service.store().trials(id, &TrialQuery::All, &PageRequest::ALL).await.unwrap().items
    }

    /// The trials that were not pruned.
    pub async fn tried(&self, id: &JobId) -> Vec<Trial> {
        let mut trials = self.trials(id).await;
        trials.retain(|trial| trial.state.outcome().is_some());
        trials
    }

    /// The events of a job that has ended, which must be numbered from 1 without gaps.
    pub async fn events(&self, id: &JobId) -> Vec<Event> {
        let events = self.service.events(id, 0).await.unwrap();
        let events: Vec<Event> = events.map(Result::unwrap).collect().await;
        assert!(events.iter().map(|event| event.seq).eq(1..=events.len() as u64));
        events
    }

    /// What a job that has ended told in words.
    pub async fn logged(&self, id: &JobId) -> Vec<String> {
        let told = self.events(id).await.into_iter().filter_map(|event| match event.kind {
            EventKind::Log { message } => Some(message),
            _ => None,
        });
        told.collect()
    }
}

async fn upload(service: &Service, rows: usize) -> Matrix {
    let body = futures_util::stream::iter([Ok::<_, Infallible>(tridiagonal(rows).into())]);
    service.upload(body, None).await.unwrap().matrix
}

async fn serve(folder: &tempfile::TempDir, settings: ServiceSettings) -> Service {
    let store = SqliteStore::open(&folder.path().join("store.sqlite")).await.unwrap();
    let blobs = LocalBlobs::open(&folder.path().join("blobs")).unwrap();
    Service::new(Arc::new(store), Arc::new(blobs), settings)
}

pub const PROBLEM: Problem = Problem::Spmm(Spmm::new(32, Dtype::F32, Layout::Row));

pub fn exhaustive() -> Search {
    Search { strategy: SearchStrategy::Exhaustive, ..Search::default() }
}

pub fn vendor() -> Candidate {
    Candidate::new("vendor").with_text("algorithm", "mkl_mm")
}

/// Always this time, without noise.
pub fn takes(us: f64) -> Act {
    samples(vec![us; 9], Duration::ZERO)
}

/// Always this time, and so long until it is told.
pub fn takes_and_waits(us: f64, latency: Duration) -> Act {
    samples(vec![us; 9], latency)
}

pub fn samples(samples_us: Vec<f64>, latency: Duration) -> Act {
    let latency_ms = latency.as_millis() as u64;
    Act::Measured {
        samples_us,
        alone_us: None,
        rel_error: 1e-8,
        resources: None,
        prepare_ms: None,
        latency_ms,
    }
}

/// Whether no two trials are of one candidate.
pub fn distinct<'a>(candidates: impl IntoIterator<Item = &'a Candidate>) -> bool {
    let mut seen = std::collections::BTreeSet::new();
    candidates.into_iter().all(|candidate| seen.insert(candidate.id()))
}

/// A processor as a recording describes it.
pub fn device() -> Device {
    let text = |family: &str| (family.to_owned(), Digest::of(family.as_bytes()));
    Device {
        name: "Recorded".to_owned(),
        kernels: ["row_panel", "row_split", "vendor"].map(text).into(),
        ..processor()
    }
}

/// A GPU as a recording describes it.
pub fn gpu() -> Device {
    Device {
        id: DeviceId("cuda:0".to_owned()),
        kind: DeviceKind::Cuda,
        compute_capability: "9.0".to_owned(),
        multiprocessors: 132,
        warp_size: 32,
        max_threads_per_block: 1024,
        max_threads_per_multiprocessor: 2048,
        max_blocks_per_multiprocessor: 32,
        registers_per_thread: 255,
        registers_per_block: 65_536,
        registers_per_multiprocessor: 65_536,
        shared_bytes_per_block: 99_000,
        shared_bytes_per_multiprocessor: 228_000,
        ..device()
    }
}

fn tridiagonal(rows: usize) -> String {
    let mut text =
        format!("%%MatrixMarket matrix coordinate real general\n{rows} {rows} {}\n", 3 * rows - 2);
    for row in 1..=rows {
        for col in row.saturating_sub(1).max(1)..=(row + 1).min(rows) {
            writeln!(text, "{row} {col} {}.5", row + col).unwrap();
        }
    }
    text
}
