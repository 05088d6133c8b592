//! A service on a temporary folder, and a worker's part played by hand.

use crate::claimed::{Claimed, HOST, claim_job};
use crate::device::processor;
use crate::plan as fixture;
use bytes::Bytes;
use futures_util::stream;
use sparsetune::domain::*;
use sparsetune::service::{Service, ServiceSettings, Uploaded};
use sparsetune::store::{Finish, LocalBlobs, SqliteStore};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const STORE: &str = "store.sqlite";

pub struct World {
    pub service: Service,
    pub folder: TempDir,
}

/// The digest of the one family's kernel text, in these tests.
pub fn kernel_text() -> Digest {
    Digest::of(b"text")
}

impl World {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut ServiceSettings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("uploads")).unwrap();
        let mut settings = ServiceSettings {
            owner: "here".to_owned(),
            host: HOST.to_owned(),
            temp_dir: folder.path().join("uploads"),
            poll: Duration::from_millis(50),
            ..ServiceSettings::default()
        };
        change(&mut settings);
        let service = serve(&folder, settings).await;
        Self { service, folder }
    }

    /// Another process on the same store and blobs, without devices of its own.
    pub async fn elsewhere(&self, owner: &str) -> Service {
        self.elsewhere_with(owner, |_| {}).await
    }

    pub async fn elsewhere_with(
        &self,
        owner: &str,
        change: impl FnOnce(&mut ServiceSettings),
    ) -> Service {
        let mut settings =
            ServiceSettings { owner: owner.to_owned(), ..self.service.settings().clone() };
        change(&mut settings);
        serve(&self.folder, settings).await
    }

    pub fn store_file(&self) -> PathBuf {
        self.folder.path().join(STORE)
    }

    pub fn uploads(&self) -> PathBuf {
        self.folder.path().join("uploads")
    }

    /// Where blobs are written before they have their name.
    pub fn staging(&self) -> PathBuf {
        self.folder.path().join("blobs/staging")
    }

    /// Files that uploads and blobs under way have left.
    pub fn litter(&self) -> usize {
        let count = |folder: PathBuf| std::fs::read_dir(folder).unwrap().count();
        count(self.uploads()) + count(self.staging())
    }

    pub async fn upload(&self, text: &str) -> Uploaded {
        self.service.upload(body(text), None).await.unwrap()
    }

    pub async fn claim(&self) -> Claimed {
        claim_job(&**self.service.store(), &device(), "worker", 60_000).await.unwrap()
    }

    /// Queues a job for spmm of this width, plays its worker, and gives the plan.
    pub async fn tune(&self, matrix: &Matrix, n: u32) -> Plan {
        self.tune_on(&device(), matrix, n).await
    }

    pub async fn tune_on(&self, device: &Device, matrix: &Matrix, n: u32) -> Plan {
        let submitted = self.service.submit(&request(matrix, n), None).await.unwrap();
        assert!(submitted.created);
        let claim = self.claim().await;
        let plan = plan(device, matrix, &claim.job);
        self.service
            .store()
            .finish(&claim.fence, &ended(&claim.job, Some(plan.clone())))
            .await
            .unwrap();
        plan
    }
}

async fn serve(folder: &TempDir, settings: ServiceSettings) -> Service {
    let store = SqliteStore::open(&folder.path().join(STORE)).await.unwrap();
    let blobs = LocalBlobs::open(&folder.path().join("blobs")).unwrap();
    Service::new(Arc::new(store), Arc::new(blobs), settings)
}

pub fn body(
    text: &str,
) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send + 'static {
    let chunks: Vec<_> =
        text.as_bytes().chunks(7).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
    stream::iter(chunks)
}

/// A tridiagonal matrix as Matrix Market text.
pub fn tridiagonal(rows: usize) -> String {
    use std::fmt::Write;
    let mut text =
        format!("%%MatrixMarket matrix coordinate real general\n{rows} {rows} {}\n", 3 * rows - 2);
    for row in 1..=rows {
        for col in row.saturating_sub(1).max(1)..=(row + 1).min(rows) {
            writeln!(text, "{row} {col} {}.5", row + col).unwrap();
        }
    }
    text
}

pub fn device() -> Device {
    Device { kernels: [("row_split".to_owned(), kernel_text())].into(), ..processor() }
}

pub fn gpu(index: u32, copy_gbps: f64) -> Device {
    Device {
        id: DeviceId(format!("cuda:{index}")),
        kind: DeviceKind::Cuda,
        name: "a GPU".to_owned(),
        compute_capability: "9.0".to_owned(),
        copy_gbps,
        ..device()
    }
}

pub fn problem(n: u32) -> Problem {
    Problem::Spmm(Spmm::new(n, Dtype::F32, Layout::Row))
}

pub fn request(matrix: &Matrix, n: u32) -> JobRequest {
    JobRequest {
        matrix: matrix.digest,
        problem: problem(n),
        device: "auto".to_owned(),
        search: Search::default(),
        expected_calls: None,
    }
}

pub fn trial(job: &JobId, ordinal: u32) -> Trial {
    let timing = Timing::of(vec![1.0; 3], 0).unwrap();
    Trial {
        job: job.clone(),
        ordinal,
        candidate: Candidate::new("row_split").with("lanes", ordinal.into()),
        state: TrialState::Tried(Outcome::Measured {
            timing,
            rel_error: 1e-7,
            resources: None,
            preprocess_ms: 0.1,
        }),
        predicted_us: None,
        despite: None,
        features: None,
        created_at: Timestamp::now(),
    }
}

pub fn ended(job: &Job, plan: Option<Plan>) -> Finish {
    let job = Job {
        state: if plan.is_some() { JobState::Succeeded } else { JobState::Failed },
        stage: Stage::Done,
        finished_at: Some(Timestamp::now()),
        ..job.clone()
    };
    Finish::job(job, plan)
}

pub fn plan(device: &Device, matrix: &Matrix, job: &Job) -> Plan {
    fixture::plan(device, matrix, job.request.problem, &job.id, Timestamp::now())
}
