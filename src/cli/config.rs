//! The typed configuration: defaults < file < environment < flags. All mistakes are reported at startup, each with its key.

mod blobs;
mod layers;
mod sanity;

use crate::domain::retention::{Rule, Rules};
use crate::domain::{Clock, Namespace};
use crate::fence::Fence;
use crate::service::webhooks::address::Network;
use crate::store::{PostgresOptions, Secret, StorePlace, Synchronous};
use blobs::S3;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The built-in file, which contains every key with an explanation.
pub const DEFAULTS: &str = include_str!("../../config/default.toml");

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub server: Server,
    pub data: Data,
    pub postgres: Postgres,
    pub retention: Retention,
    pub devices: Devices,
    pub search: Search,
    pub limits: Limits,
    pub lookup: Lookup,
    pub worker: Worker,
    pub learning: Learning,
    pub evaluator: Evaluator,
    pub log: Log,
    pub telemetry: Telemetry,
    pub webhooks: Webhooks,
    pub drift: Drift,
    pub s3: S3,
    /// What the environment says of S3 stores, for all programs.
    #[serde(skip)]
    aws: Vec<(String, Secret)>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    pub listen: SocketAddr,
    pub tokens: Vec<Token>,
    pub namespace: Namespace,
    pub insecure: bool,
    pub session_s: f64,
    /// With the key of sessions or without: then it is a file of the data folder.
    pub session_key: Secret,
    pub wrong_tokens_per_min: u32,
    pub max_upload_bytes: usize,
    pub max_matrix_bytes: u64,
    pub reading_bytes: u64,
    pub max_ratio: u64,
    pub max_json_bytes: usize,
    pub uploads_at_once: usize,
    pub uploads_per_client: usize,
    pub event_streams: usize,
    pub event_streams_per_client: usize,
    pub forwarded_for: bool,
    pub body_idle_s: f64,
    pub body_bytes_per_s: u64,
    pub max_connections: usize,
    pub connections_per_client: usize,
    pub headers_s: f64,
    pub answer_s: f64,
    pub upload_s: f64,
    pub read_s: f64,
    pub sse_keep_alive_s: f64,
    pub shutdown_s: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    pub dir: PathBuf,
    pub max_stored_bytes: u64,
    pub blob_grace_h: f64,
    pub max_temporary_bytes: u64,
    pub min_free_bytes: u64,
    pub synchronous: Synchronous,
    /// It may have a password.
    store: Secret,
    blobs: String,
    blob_cache: String,
    pub blob_cache_max: u64,
    pub presign: bool,
}

/// How a store on a server is used.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Postgres {
    pub connections: u32,
    pub read_connections: u32,
    pub pooled: bool,
    pub statement_s: f64,
    pub wait_s: f64,
}

impl Postgres {
    pub fn options(&self) -> PostgresOptions {
        PostgresOptions {
            connections: self.connections,
            read_connections: self.read_connections,
            pooled: self.pooled,
            statement_timeout: Duration::from_secs_f64(self.statement_s),
            lock_timeout: Duration::from_secs_f64(self.wait_s),
            ..PostgresOptions::default()
        }
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    pub matrices: Keeping,
    pub jobs: Keeping,
    pub trials: Keeping,
    pub plans: Keeping,
}

/// What is kept of one kind of thing; 0 is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keeping {
    pub days: f64,
    pub count: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Devices {
    pub r#use: Vec<String>,
    lock_dir: String,
    pub lock_wait_s: f64,
}

impl Retention {
    pub fn rules(&self) -> Rules {
        let rule = |keeping: &Keeping| Rule {
            age_ms: (keeping.days > 0.0).then_some((keeping.days * 86_400_000.0) as i64),
            count: (keeping.count > 0).then_some(keeping.count),
            bytes: (keeping.bytes > 0).then_some(keeping.bytes),
        };
        let Self { matrices, jobs, trials, plans } = self;
        Rules {
            matrices: rule(matrices),
            jobs: rule(jobs),
            trials: rule(trials),
            plans: rule(plans),
        }
    }
}

impl Devices {
    /// Folder of the device locks, if there are to be any.
    pub fn locks(&self) -> Option<&Path> {
        chosen(&self.lock_dir)
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    pub top_k: u32,
    pub seconds: f64,
    pub gpu_seconds: f64,
    pub trials: u32,
    pub halving_trials: u32,
    pub sampled_trials: u32,
    pub full_trials: u32,
    pub seed: u64,
    pub clock: Clock,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    pub job_seconds: f64,
    pub job_trials: u32,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lookup {
    pub measure_misses: bool,
    pub cache_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    name: String,
    listen: String,
    pub lease_ms: i64,
    pub poll_ms: u64,
    pub max_attempts: u32,
    pub max_host_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learning {
    pub threads: usize,
    pub retrain_trials: u64,
    pub check_s: f64,
    pub min_groups: u64,
    pub min_trials: u64,
    pub shipped: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluator {
    pub open_s: f64,
    pub load_s: f64,
    pub compile_s: f64,
    pub measure_s: f64,
    pub allow_hostile: bool,
    pub fence: Fence,
    pub user: String,
    cuda: String,
    nvrtc: String,
    cusparse: String,
    cublas: String,
    mkl: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    pub format: LogFormat,
    pub filter: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    otlp_endpoint: String,
    pub sample: f64,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Webhooks {
    allow: Vec<String>,
    pub retry_s: f64,
    ca_file: String,
}

impl Webhooks {
    /// The file of authorities that is trusted instead of the system's.
    pub fn ca_file(&self) -> Option<&Path> {
        Some(self.ca_file.as_str()).filter(|file| !file.is_empty()).map(Path::new)
    }

    /// The networks that are permitted, or what is wrong with one of them.
    pub fn allowed(&self) -> Result<Vec<Network>, String> {
        self.allow.iter().map(|text| text.parse()).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drift {
    pub check_h: f64,
    pub tolerance: f64,
    pub renewals_per_day: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    Json,
}

/// A configured API token; never displayed.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    const HASHED: &'static str = "blake3:";
    const SHORTEST: usize = 16;

    /// The hash that the server keeps; `None` if the text is neither a hash nor long enough to be a secret.
    pub fn hash(&self) -> Option<blake3::Hash> {
        match self.0.strip_prefix(Self::HASHED) {
            Some(hex) => blake3::Hash::from_hex(hex).ok(),
            None if self.0.len() < Self::SHORTEST => None,
            None => Some(blake3::hash(self.0.as_bytes())),
        }
    }
}

impl Worker {
    /// The name of this process in the store.
    pub fn name(&self) -> String {
        if !self.name.is_empty() {
            return self.name.clone();
        }
        crate::environment::host()
    }

    /// Where a process that only works answers for itself, if it does. What cannot be read was refused with the configuration.
    pub fn listen(&self) -> Option<SocketAddr> {
        self.listen.parse().ok()
    }
}

impl Data {
    /// Where the store is.
    pub fn store(&self) -> StorePlace {
        // What cannot be read was refused with the configuration.
        let named = StorePlace::parse(&self.store.0);
        named.unwrap_or_else(|| StorePlace::File(self.file()))
    }

    /// The file of the store, where it is not configured otherwise.
    fn file(&self) -> PathBuf {
        self.dir.join("sparsetune.db")
    }

    /// The name of what belongs to the store and is a file in any case.
    pub fn beside_store(&self) -> PathBuf {
        self.store().file().map_or_else(|| self.file(), Path::to_owned)
    }

    /// Folder in which uploads wait to be parsed.
    pub fn uploads(&self) -> PathBuf {
        self.dir.join("uploads")
    }
}

impl Evaluator {
    /// The keys that name vendors' libraries, each with its path if it has one.
    pub fn libraries(&self) -> [(&'static str, Option<&Path>); 5] {
        [
            ("cuda", chosen(&self.cuda)),
            ("nvrtc", chosen(&self.nvrtc)),
            ("cusparse", chosen(&self.cusparse)),
            ("cublas", chosen(&self.cublas)),
            ("mkl", chosen(&self.mkl)),
        ]
    }
}

impl Telemetry {
    /// The endpoint to which spans are exported; `None` if they are not exported.
    pub fn otlp_endpoint(&self) -> Option<&str> {
        (!self.otlp_endpoint.is_empty()).then_some(self.otlp_endpoint.as_str())
    }
}

fn chosen(path: &str) -> Option<&Path> {
    (!path.is_empty()).then(|| Path::new(path))
}

/// All mistakes of a configuration, one per line, each with its key.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("the configuration is invalid:{}", .0.iter().map(|mistake| format!("\n  {mistake}")).collect::<String>())]
pub struct ConfigError(pub Vec<String>);
