//! Settings of the use cases; filled from the configuration at start.

use super::drift::DriftSettings;
use super::room::StoredLimits;
use super::webhooks::WebhookSettings;
use crate::domain::retention::Rules;
use crate::domain::{Clock, DeviceKind, L2Policy, SearchStrategy};
use crate::environment::memory;
use crate::pool::ReaderSpec;
use crate::sparse::read::{Limits, Pool};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct ServiceSettings {
    /// Name of this process in the store; the same after a restart, so that its devices are found again. No two processes on
    /// one store have the same.
    pub owner: String,
    /// The host whose devices these are, by which devices without a number of their own are told from others'.
    pub host: String,
    /// Where a lock lets one process at a time be; see [`Process::place`](crate::domain::Process). Empty if there is none.
    pub place: String,
    /// Limits of the readers for an upload.
    pub limits: Limits,
    /// Maximum size in bytes of an upload as it arrives; `limits` has that of what it unpacks to.
    pub max_upload_bytes: u64,
    /// What may be stored.
    pub stored: StoredLimits,
    /// Folder in which uploads wait to be parsed.
    pub temp_dir: PathBuf,
    /// How a process is started that reads an upload behind a fence; without it, uploads are read in this process.
    pub reader: Option<ReaderSpec>,
    /// Maximum number of uploads parsed at once; each takes a few times the size of its CSR in memory.
    pub parses_at_once: usize,
    pub search: SearchDefaults,
    pub budget: BudgetLimits,
    pub lease_ms: i64,
    /// Maximum number of claims of a job. It fails if the worker was lost each time.
    pub max_attempts: u32,
    pub l2_policy: L2Policy,
    /// Maximum distance of a matrix whose plan is used without an explicit request; see `neighbours` for the unit.
    pub neighbour_distance: f64,
    /// Whether a lookup without a measured plan queues a measuring job, if the matrix is stored here.
    pub measure_misses: bool,
    /// How long a lookup waits for a running prediction, which continues in any case.
    pub prediction_wait: Duration,
    /// Maximum host memory in bytes for one job's operands and reference result, regardless of the device's memory.
    pub max_host_bytes: u64,
    /// Interval at which changes of other processes are checked for.
    pub poll: Duration,
    /// Folder of the locks by which one process of this host measures on a device at a time; `None` for no locks.
    pub device_locks: Option<PathBuf>,
    /// How long a job waits for a device that another process measures on before it measures beside it.
    pub device_lock_wait: Duration,
    /// Interval of a device's heartbeat; a device that misses three is offline.
    pub heartbeat: Duration,
    /// Interval at which old data is removed.
    pub upkeep: Duration,
    pub keep: Keep,
    /// What upkeep removes of matrices, jobs, trials and plans; by default nothing.
    pub retention: Rules,
    pub learning: LearningSettings,
    pub webhooks: WebhookSettings,
    pub drift: DriftSettings,
}

/// The folder of device locks, unless configured: one that every process of a host sees, whoever runs it.
pub const DEVICE_LOCKS: &str = "/tmp";

/// The largest budget that a request may name for a job; defaults above it are lowered to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetLimits {
    pub seconds: f64,
    pub trials: u32,
}

impl BudgetLimits {
    /// What no server permits more of: a day, and as many trials as rows with samples are stored of one job.
    pub const MOST: Self = Self { seconds: 24.0 * 3600.0, trials: 1_000_000 };
}

/// Defaults of a job's `search`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchDefaults {
    pub top_k: u32,
    /// Seconds of a search, and of a usual one on a GPU for a matrix of up to [`Self::GPU_ENTRIES`].
    pub seconds: f64,
    pub gpu_seconds: f64,
    pub trials: u32,
    /// Number of trials of `halving`, including vendor routines.
    pub halving_trials: u32,
    /// Number of trials of `sampled`, including vendor routines.
    pub sampled_trials: u32,
    /// Number of trials of `full`, including vendor routines.
    pub full_trials: u32,
    pub seed: u64,
    /// The clock by which candidates are chosen, if calls may follow each other here (`l2_policy`).
    pub clock: Clock,
}

impl SearchDefaults {
    /// Entries of a matrix up to which its preparation on the host hardly counts.
    pub const GPU_ENTRIES: u64 = 5_000_000;

    /// The largest factor of `gpu_seconds` for matrices with more entries.
    pub const GPU_MOST: f64 = 1.8;

    /// Who asks for more than a usual search is ready to wait for it. A usual one on a GPU has time in proportion to the entries from
    /// [`Self::GPU_ENTRIES`] on, up to [`Self::GPU_MOST`] times as much.
    pub fn seconds_of(&self, strategy: SearchStrategy, kind: DeviceKind, nnz: u64) -> f64 {
        match (kind, strategy) {
            (DeviceKind::Cuda, SearchStrategy::Ranked | SearchStrategy::Halving) => {
                let times = nnz as f64 / Self::GPU_ENTRIES as f64;
                self.gpu_seconds * times.clamp(1.0, Self::GPU_MOST)
            }
            _ => self.seconds,
        }
    }

    pub const fn trials_of(&self, strategy: SearchStrategy) -> u32 {
        match strategy {
            SearchStrategy::Halving => self.halving_trials,
            SearchStrategy::Sampled => self.sampled_trials,
            SearchStrategy::Full => self.full_trials,
            SearchStrategy::Ranked | SearchStrategy::Exhaustive | SearchStrategy::Predicted => {
                self.trials
            }
        }
    }
}

/// When models are trained, and how much of the machine a training uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearningSettings {
    pub threads: usize,
    /// Number of new trials of an operation on a device class that triggers a training automatically; 0 for never.
    pub retrain_trials: u64,
    /// Interval at which they are counted.
    pub check: Duration,
    /// Minimum number of searches and trials for a training.
    pub min_groups: u64,
    pub min_trials: u64,
}

impl Default for LearningSettings {
    fn default() -> Self {
        Self {
            threads: spare_cores(),
            retrain_trials: 5000,
            check: Duration::from_secs(300),
            min_groups: 24,
            min_trials: 1000,
        }
    }
}

/// All cores but one, which is left for requests; at least one.
fn spare_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() - 1).max(1))
}

/// Retention times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    pub idempotency_keys: Duration,
    /// After the end of the job.
    pub events: Duration,
    /// After the device was last seen.
    pub devices: Duration,
    /// Predicted plans that no job created, after their creation.
    pub predicted: Duration,
    /// Bundles that can be built again, after they were built.
    pub bundles: Duration,
    /// Blobs that nothing names: so long after they were put they go to the trash, and so long they stay there.
    pub blobs: Duration,
    /// Files of uploads that no process works on any more.
    pub temp_files: Duration,
    /// Entries of the audit log, and tokens that were revoked or expired.
    pub audit: Duration,
    /// Most entries of the audit log; of more, those go of the tokens that have most of them.
    pub audit_entries: u32,
}

const HOUR: Duration = Duration::from_secs(3600);

impl Default for ServiceSettings {
    fn default() -> Self {
        Self {
            owner: "local".to_owned(),
            host: crate::environment::host(),
            place: String::new(),
            limits: Limits { memory: Pool::memory(reading_bytes()), ..Limits::default() },
            max_upload_bytes: 4 << 30,
            stored: StoredLimits::default(),
            temp_dir: std::env::temp_dir(),
            reader: None,
            parses_at_once: 2,
            search: SearchDefaults {
                top_k: 16,
                seconds: 60.0,
                gpu_seconds: 4.5,
                trials: 512,
                halving_trials: 64,
                sampled_trials: 96,
                full_trials: 600,
                seed: 1,
                clock: Clock::Pipelined,
            },
            budget: BudgetLimits::MOST,
            lease_ms: 15_000,
            max_attempts: 5,
            l2_policy: L2Policy::Warm,
            neighbour_distance: 0.5,
            measure_misses: false,
            prediction_wait: Duration::from_secs(2),
            max_host_bytes: jobs_bytes(),
            poll: Duration::from_secs(1),
            device_locks: None,
            device_lock_wait: Duration::from_secs(7200),
            heartbeat: Duration::from_secs(10),
            upkeep: Duration::from_secs(600),
            keep: Keep {
                idempotency_keys: 24 * HOUR,
                events: 30 * 24 * HOUR,
                devices: 30 * 24 * HOUR,
                predicted: 7 * 24 * HOUR,
                bundles: 7 * 24 * HOUR,
                blobs: 24 * HOUR,
                temp_files: 6 * HOUR,
                audit: HOUR * 24 * 400,
                audit_entries: 100_000,
            },
            retention: Rules::default(),
            learning: LearningSettings::default(),
            webhooks: WebhookSettings::default(),
            drift: DriftSettings::default(),
        }
    }
}

/// The memory that this process and its evaluators may use, in bytes; a usual amount if the system does not tell.
fn host_bytes() -> u64 {
    memory::limit().unwrap_or(32 << 30)
}

/// Memory for the jobs of all devices of this process. The rest is for what this process reads, and for all else.
pub fn jobs_bytes() -> u64 {
    host_bytes() / 2
}

/// Memory for all uploads and stored matrices that this process reads at once.
pub fn reading_bytes() -> u64 {
    host_bytes() / 3
}
