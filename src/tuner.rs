//! The library's entry point: read a matrix, tune it in this process, get a plan.

mod bundle;
mod matrix;
mod pair;
mod workers;

pub use matrix::Matrix;
pub use workers::{Opening, OpeningError, WorkerLoops, Workers};

use crate::domain::{
    DeviceId, Digest, Job, JobId, JobRequest, JobState, Lookup, Plan, PlanId, Problem, Search,
    SearchStrategy,
};
use crate::pool::EvaluatorSpec;
use crate::service::{
    DEVICE_LOCKS, LearningSettings, LookupQuery, Service, ServiceError, ServiceSettings,
};
use crate::sparse::CsrError;
use crate::sparse::generate::{GenerateError, SpecError};
use crate::sparse::read::{Limits, ReadError, Spooling};
use crate::store::LocalBlobs;
use crate::store::pairing::{self, OpenError};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Interval at which a running job is polled.
const PAUSE: Duration = Duration::from_millis(20);
/// Time limit for the worker and its evaluator to end when a tuner is dropped.
const GRACE: Duration = Duration::from_secs(5);

/// Why no plan was created.
#[derive(Debug, thiserror::Error)]
pub enum TunerError {
    #[error("{path} cannot be read as a matrix: {source}")]
    Read { path: PathBuf, source: Box<ReadError> },
    #[error("the arrays are not a canonical CSR: {0}")]
    Csr(#[from] CsrError),
    #[error("`{spec}` is not a valid matrix specification: {source}")]
    Specification { spec: String, source: SpecError },
    #[error("the matrix cannot be generated: {0}")]
    Generate(#[from] GenerateError),
    #[error("{path} cannot be used as a data folder: {source}")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("{path} cannot be written: {source}")]
    Written { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error("the runtime cannot be started: {0}")]
    Runtime(std::io::Error),
    #[error(transparent)]
    Opening(#[from] OpeningError),
    #[error(transparent)]
    Service(#[from] ServiceError),
    #[error("the job has failed: {0}")]
    Failed(String),
    #[error("the job was cancelled")]
    Cancelled,
}

/// The configuration of a [`Tuner`]. Created by [`Tuner::options`].
#[derive(Clone, Debug, Default)]
pub struct TunerOptions {
    data: Option<PathBuf>,
    evaluator: Option<PathBuf>,
    evaluator_arguments: Vec<OsString>,
    libraries: Vec<PathBuf>,
}

impl TunerOptions {
    /// Keeps matrices, trials and plans in this folder, which has the format of a server's `--data` folder. Several tuners and
    /// a server may use one folder at the same time; a job is then run by any of them that serves its device. Without it,
    /// they are kept in a temporary folder that is removed with the tuner.
    #[must_use]
    pub fn data(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data = Some(folder.into());
        self
    }

    /// The `sparsetune` binary that runs the measurements, if it is not found automatically ([`Tuner`] describes the
    /// search).
    #[must_use]
    pub fn evaluator(mut self, binary: impl Into<PathBuf>) -> Self {
        self.evaluator = Some(binary.into());
        self
    }

    /// Arguments of that program before `evaluator --device ...`, for a program that is not the binary itself but runs it:
    /// `.evaluator("python").evaluator_arguments(["-m", "sparsetune"])`.
    #[must_use]
    pub fn evaluator_arguments(
        mut self,
        leading: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        self.evaluator_arguments = leading.into_iter().map(Into::into).collect();
        self
    }

    /// A CUDA library (driver, NVRTC, cuSPARSE, cuBLAS), or a folder with them, that takes precedence over the system's.
    /// `cusparse=PATH` and the like (`cuda=`, `nvrtc=`, `cublas=`) are for one library alone.
    #[must_use]
    pub fn library(mut self, path: impl Into<PathBuf>) -> Self {
        self.libraries.push(path.into());
        self
    }

    /// Opens the device: `cpu`, or `cuda:0` for the first GPU. Returns once it is open.
    ///
    /// # Errors
    /// The data folder or the store cannot be used, the binary is not found, or the device does not open.
    pub fn open(self, device: &str) -> Result<Tuner, TunerError> {
        Tuner::start(self, device)
    }
}

/// Tunes matrices on one device, in this process, without a server.
///
/// Candidates run in a child process, the `evaluator` of the `sparsetune` binary: a kernel that hangs or faults costs one
/// trial, never the caller. That binary is looked for beside the running program, in the two folders above it, and then on the
/// `PATH`; [`TunerOptions::evaluator`] names another. It should be of this library's version.
///
/// Calls block, [`Tuner::tune`] until there is a plan; [`Tuner::submit`] and [`Tuner::job`] are for callers that poll. Within an
/// async runtime all of them belong on a thread for blocking work.
///
/// ```
/// use sparsetune::{Matrix, Search, Tuner};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let built = concat!(env!("CARGO_MANIFEST_DIR"), "/target/debug/sparsetune");
/// # if !std::path::Path::new(built).is_file() { return Ok(()) }
/// # let tuner = Tuner::options().evaluator(built).open("cpu")?;
/// # /*
/// let tuner = Tuner::options().data("sparsetune-data").open("cpu")?;
/// # */
/// let matrix = Matrix::generate("poisson2d:nx=24,ny=24")?;
/// let problem = serde_json::from_str(r#"{"op": "spmm", "n": 16}"#)?;
/// let search = Search { top_k: Some(2), seconds: Some(5.0), ..Search::default() };
/// let plan = tuner.tune_with(&matrix, &problem, search, None)?;
/// println!("{} in {:?} us", plan.candidate, plan.median_us());
/// # assert_eq!(plan.matrix, matrix.facts().digest);
/// # Ok(())
/// # }
/// ```
pub struct Tuner {
    runtime: Runtime,
    service: Service,
    device: String,
    shutdown: CancellationToken,
    tasks: TaskTracker,
    /// Removed after everything that writes to it has ended.
    _temporary: Option<tempfile::TempDir>,
}

impl Tuner {
    /// Everything at its default; change what is to be different, then [`TunerOptions::open`].
    pub fn options() -> TunerOptions {
        TunerOptions::default()
    }

    fn start(options: TunerOptions, device: &str) -> Result<Self, TunerError> {
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |source| TunerError::Folder { path, source }
        };
        let temporary = match &options.data {
            Some(_) => None,
            None => {
                let folder = tempfile::Builder::new().prefix("sparsetune-").tempdir();
                Some(folder.map_err(unusable(&std::env::temp_dir()))?)
            }
        };
        let data = match (&options.data, &temporary) {
            (Some(folder), _) => folder.clone(),
            (None, Some(folder)) => folder.path().to_owned(),
            (None, None) => PathBuf::new(),
        };
        let uploads = data.join("uploads");
        crate::store::private::folder(&uploads).map_err(unusable(&data))?;
        let spec = options.spec(device, &data);

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(TunerError::Runtime)?;
        let shutdown = CancellationToken::new();
        let tasks = TaskTracker::new();
        let service = runtime.block_on(open(&data, uploads))?;
        let (workers, opening) = Workers::new(vec![spec], false);
        let opened = runtime.block_on(async {
            for worker in workers.loops(&service, &shutdown) {
                tasks.spawn(worker);
            }
            opening.verdict().await
        });
        let device = device.to_owned();
        let tuner = Self { runtime, service, device, shutdown, tasks, _temporary: temporary };
        // After an error the tuner is dropped, which ends the worker.
        opened?;
        Ok(tuner)
    }

    /// Tunes with the search that suits the operation, and its default budget.
    ///
    /// # Errors
    /// As [`Self::tune_with`].
    pub fn tune(&self, matrix: &Matrix, problem: &Problem) -> Result<Plan, TunerError> {
        let strategy = SearchStrategy::default_for(problem);
        self.tune_with(matrix, problem, Search { strategy, ..Search::default() }, None)
    }

    /// Tunes with a search of the caller's, and waits for the plan. With `expected_calls` the plan is the one with the least
    /// preprocessing time plus that many calls; without, preprocessing time is not considered.
    ///
    /// # Errors
    /// The problem does not suit the matrix or the device, the search is out of its bounds, or the job fails.
    pub fn tune_with(
        &self,
        matrix: &Matrix,
        problem: &Problem,
        search: Search,
        expected_calls: Option<u64>,
    ) -> Result<Plan, TunerError> {
        if problem.parts().is_some() {
            let why = "a problem with both triangles has two plans: `tune_both` tunes them";
            return Err(TunerError::Failed(why.to_owned()));
        }
        self.runtime.block_on(async {
            let job = self.submitted(matrix, problem, search, expected_calls).await?;
            let job = self.ended(job).await?;
            self.plan_of(job).await
        })
    }

    async fn ended(&self, mut job: Job) -> Result<Job, TunerError> {
        while !job.state.is_final() {
            tokio::time::sleep(PAUSE).await;
            job = self.service.job(&job.id).await?;
        }
        Ok(job)
    }

    /// Queues a job as [`Self::tune_with`] does, without waiting for it; an equal job that is queued or running is returned
    /// instead. It runs in the background for as long as the tuner lives.
    ///
    /// # Errors
    /// As [`Self::tune_with`], but for the failure of the job.
    pub fn submit(
        &self,
        matrix: &Matrix,
        problem: &Problem,
        search: Search,
        expected_calls: Option<u64>,
    ) -> Result<JobId, TunerError> {
        let submitted = self.submitted(matrix, problem, search, expected_calls);
        self.runtime.block_on(submitted).map(|job| job.id)
    }

    async fn submitted(
        &self,
        matrix: &Matrix,
        problem: &Problem,
        search: Search,
        expected_calls: Option<u64>,
    ) -> Result<Job, TunerError> {
        let stored = self.service.store_csr(matrix.csr().clone(), matrix.name()).await?;
        let request = JobRequest {
            matrix: stored.matrix.digest,
            problem: *problem,
            device: self.device.clone(),
            search,
            expected_calls,
        };
        Ok(self.service.submit(&request, None).await?.job)
    }

    /// A job as it stands: its state, progress, best candidate so far and, once it has succeeded, the id of its plan.
    ///
    /// # Errors
    /// The job is unknown, or the store fails.
    pub fn job(&self, id: &JobId) -> Result<Job, TunerError> {
        Ok(self.runtime.block_on(self.service.job(id))?)
    }

    /// A stored plan.
    ///
    /// # Errors
    /// The plan is unknown, or the store fails.
    pub fn plan(&self, id: &PlanId) -> Result<Plan, TunerError> {
        Ok(self.runtime.block_on(self.service.plan(id))?)
    }

    /// The best stored plan of this device's class for a matrix, by its digest or its pattern digest. The answer says how well
    /// the plan matches and why not better; without a plan its grade is `none`. Nothing is measured or predicted for it.
    ///
    /// # Errors
    /// The store fails.
    pub fn lookup(&self, matrix: &Digest, problem: &Problem) -> Result<Lookup, TunerError> {
        let query = LookupQuery {
            matrix: *matrix,
            problem: *problem,
            device: Some(self.device.clone()),
            l2_policy: None,
            neighbour: false,
            predicted: false,
        };
        Ok(self.runtime.block_on(self.service.lookup(&query))?)
    }

    async fn plan_of(&self, job: Job) -> Result<Plan, TunerError> {
        match (job.state, job.plan) {
            (JobState::Succeeded, Some(plan)) => Ok(self.service.plan(&plan).await?),
            (JobState::Cancelled, _) => Err(TunerError::Cancelled),
            _ => {
                Err(TunerError::Failed(job.error.unwrap_or_else(|| "there is no plan".to_owned())))
            }
        }
    }
}

impl Drop for Tuner {
    fn drop(&mut self) {
        self.shutdown.cancel();
        self.tasks.close();
        // Within another runtime nothing may block; the tasks have been told to stop and are given up with this runtime.
        if Handle::try_current().is_ok() {
            return;
        }
        let ended = async {
            self.tasks.wait().await;
            // The next tuner has another name, and would leave one entry after the other.
            if let Err(error) = self.service.unregister().await {
                tracing::warn!(%error, "the device is still listed");
            }
            // Whoever removes or copies the folder next must not meet files that are about to change.
            self.service.close().await;
        };
        let ended = self.runtime.block_on(async { tokio::time::timeout(GRACE, ended).await });
        if ended.is_err() {
            tracing::warn!("the worker did not end in time");
        }
    }
}

impl TunerOptions {
    fn spec(&self, device: &str, data: &Path) -> EvaluatorSpec {
        let program = self.evaluator.clone().unwrap_or_else(beside_this_program);
        let own = ["evaluator", "--device", device].map(OsString::from);
        let arguments = self.evaluator_arguments.iter().cloned().chain(own);
        let mut spec = EvaluatorSpec::new(DeviceId(device.to_owned()), program, arguments)
            .arg("--cubin-cache")
            .arg(data.join("cubins"))
            .fenced("auto", "", &LocalBlobs::exports(&data.join("blobs")));
        for path in &self.libraries {
            spec = spec.arg("--library-path").arg(path);
        }
        spec
    }
}

/// Cargo puts examples and tests one folder below the binary. A bare name is searched on the `PATH` when it is started.
fn beside_this_program() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let folders = program.ancestors().skip(1).take(3);
    let beside = folders.map(|folder| folder.join("sparsetune")).find(|file| file.is_file());
    beside.unwrap_or_else(|| PathBuf::from("sparsetune"))
}

/// The service on a data folder.
async fn open(data: &Path, uploads: PathBuf) -> Result<Service, TunerError> {
    let (store, blobs) = pairing::open(&data.join("sparsetune.db"), &data.join("blobs")).await?;
    let defaults = ServiceSettings::default();
    let settings = ServiceSettings {
        // Other tuners and a server may use the folder, and each must know its own devices from theirs.
        owner: format!("tuner/{}", uuid::Uuid::now_v7()),
        limits: Limits { spool: Spooling::Folder(uploads.clone()), ..defaults.limits },
        temp_dir: uploads,
        device_locks: Some(PathBuf::from(DEVICE_LOCKS)),
        // No trainer runs here to execute a training.
        learning: LearningSettings { retrain_trials: 0, ..LearningSettings::default() },
        ..defaults
    };
    let service = Service::new(Arc::new(store), blobs, settings);
    // Without the shipped models, the analytic model ranks.
    if let Err(error) = service.ship_models().await {
        tracing::warn!(%error, "the models shipped with sparsetune could not be imported");
    }
    Ok(service)
}

#[cfg(test)]
mod tests {
    use super::{Tuner, TunerError};

    #[test]
    fn a_binary_that_is_not_there_is_an_error() {
        let opened = Tuner::options().evaluator("/no/such/sparsetune").open("cpu");
        let error = opened.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("device cpu: "), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let opened = Tuner::options().data(file.path().join("data")).open("cpu");
        assert!(matches!(opened, Err(TunerError::Folder { .. })));
    }
}
