//! Puts the rooms together: configuration to store, service, workers and HTTP. `serve`, `worker`, `tune` and
//! `quickstart` all stand on this.

use super::config::Config;
use crate::domain::{Candidate, Device, DeviceId, DeviceKind, Digest};
use crate::engine::cuda;
use crate::http::{Access, App, Limits as HttpLimits, Metrics, PATHS, Server};
use crate::pool::{Deadlines, Evaluator, EvaluatorSpec};
use crate::service::tuning::{Measuring, Worker, WorkerSettings};
use crate::service::{KernelDigests, SearchDefaults, Service, ServiceSettings};
use crate::store::Blobs;
use crate::store::sqlite::SqliteStore;
use anyhow::{Context, bail};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Everything that runs in this process, from `start` to `stop`.
pub struct Running {
    pub service: Service,
    /// Where HTTP is served; absent for workers alone.
    pub address: Option<SocketAddr>,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
    store: SqliteStore,
    patience: Duration,
}

/// Which parts of the whole to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// HTTP and a worker for each device.
    Whole,
    /// Workers alone, on the store and the blobs of a server.
    Workers,
}

impl Running {
    /// Opens store and devices and begins to work. HTTP answers before the devices are open; `/readyz` tells when.
    pub async fn start(config: &Config, parts: Parts) -> anyhow::Result<Self> {
        let data = &config.data.dir;
        std::fs::create_dir_all(data)
            .with_context(|| format!("cannot make the data folder {}", data.display()))?;
        let store = open_store(config).await?;
        let blobs = Blobs::open(&config.data.blobs()).context("cannot open the blob folder")?;
        let texts = KernelTexts::default();
        let settings = service_settings(config, parts)?;
        let service = Service::new(Arc::new(store.clone()), blobs, settings, texts.asked());
        let shutdown = CancellationToken::new();
        let mut running = Self {
            service,
            address: None,
            shutdown,
            tasks: JoinSet::new(),
            store,
            patience: Duration::from_secs_f64(config.server.shutdown_s),
        };
        if parts == Parts::Whole {
            running.serve(config).await?;
        }
        let upkeep = running.service.clone().upkeep(running.shutdown.clone());
        running.tasks.spawn(upkeep);
        if let Err(error) = running.work(config, &texts).await {
            running.stop().await;
            return Err(error);
        }
        Ok(running)
    }

    async fn serve(&mut self, config: &Config) -> anyhow::Result<()> {
        let server = Server::bind(config.server.listen)
            .await
            .with_context(|| format!("cannot listen on {}", config.server.listen))?;
        self.address = Some(server.address()?);
        let metrics = Metrics::new(PATHS.iter().copied()).context("cannot count")?;
        let app = App::new(
            self.service.clone(),
            http_limits(config),
            access(config),
            Arc::new(metrics),
            self.shutdown.clone(),
        );
        self.tasks.spawn(server.run(app));
        Ok(())
    }

    /// Opens every device that the configuration asks for, all at once, and gives each a worker.
    async fn work(&mut self, config: &Config, texts: &KernelTexts) -> anyhow::Result<()> {
        let wanted = devices(config);
        let automatic = config.devices.r#use.iter().any(|name| name == "auto");
        let mut opening = JoinSet::new();
        for id in wanted {
            let service = self.service.clone();
            let evaluator = Evaluator::new(evaluator_spec(config, &id)?);
            let settings = worker_settings(config, service.settings(), &id);
            opening.spawn(async move { (id, Worker::open(service, evaluator, settings).await) });
        }
        let mut open = 0;
        while let Some(opened) = opening.join_next().await {
            let (id, worker) = opened.context("opening a device")?;
            match worker {
                Ok(worker) => {
                    open += 1;
                    texts.learn(worker.device());
                    self.tasks.spawn(worker.run(self.shutdown.clone()));
                }
                // A GPU that does not work must not keep the host from working, unless it was asked for by name.
                Err(error) if automatic => tracing::warn!(device = %id, %error, "device left out"),
                Err(error) => bail!("device {id}: {error}"),
            }
        }
        if open == 0 && !config.devices.r#use.is_empty() {
            bail!("no device could be opened; `sparsetune doctor` says what is missing");
        }
        Ok(())
    }

    /// Ends everything within the configured time: jobs in hand go back to the queue.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.patience, ended).await.is_err() {
            tracing::warn!("not everything ended in time");
            self.tasks.abort_all();
        }
        self.store.close().await;
    }
}

async fn open_store(config: &Config) -> anyhow::Result<SqliteStore> {
    let url = config.data.store_url();
    let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:"));
    let path = Path::new(path.context("the store must be an sqlite: URL")?);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    SqliteStore::open(path).await.with_context(|| format!("cannot open the store {url}"))
}

/// The devices to work on: those listed, or every CUDA device that the driver shows and the CPU. The driver is asked
/// for names only; no context is opened in this process.
pub fn devices(config: &Config) -> Vec<DeviceId> {
    let listed = &config.devices.r#use;
    if !listed.iter().any(|name| name == "auto") {
        return listed.iter().map(|name| DeviceId(name.clone())).collect();
    }
    let found = cuda::probe::devices(&library_paths(config)).into_iter().map(|device| device.id);
    found.chain([DeviceId("cpu".to_owned())]).collect()
}

/// CUDA libraries named by the configuration, which win over those that are found.
pub fn library_paths(config: &Config) -> Vec<PathBuf> {
    let evaluator = &config.evaluator;
    let named = [evaluator.cuda(), evaluator.nvrtc(), evaluator.cusparse()];
    named.into_iter().flatten().map(Path::to_owned).collect()
}

fn evaluator_spec(config: &Config, device: &DeviceId) -> anyhow::Result<EvaluatorSpec> {
    let mut spec = EvaluatorSpec::of_this_binary(device.clone(), &device.0)?
        .arg("--cubin-cache")
        .arg(config.data.dir.join("cubins"));
    for path in library_paths(config) {
        spec = spec.arg("--library-path").arg(path);
    }
    let seconds = Duration::from_secs_f64;
    let evaluator = &config.evaluator;
    spec.deadlines = Deadlines {
        open: seconds(evaluator.open_s),
        load: seconds(evaluator.load_s),
        compile: seconds(evaluator.compile_s),
        verify: seconds(evaluator.measure_s),
        time: seconds(evaluator.measure_s),
        ..Deadlines::default()
    };
    Ok(spec)
}

fn worker_settings(config: &Config, service: &ServiceSettings, device: &DeviceId) -> WorkerSettings {
    WorkerSettings {
        // A claim made before a restart must not look like one of this process.
        owner: format!("{}/{device}/{}", service.owner, uuid::Uuid::now_v7()),
        lease: Duration::from_millis(config.worker.lease_ms.unsigned_abs()),
        poll: Duration::from_millis(config.worker.poll_ms),
        measuring: Measuring::default(),
    }
}

fn service_settings(config: &Config, parts: Parts) -> anyhow::Result<ServiceSettings> {
    let temp_dir = config.data.dir.join("uploads");
    std::fs::create_dir_all(&temp_dir)
        .with_context(|| format!("cannot make the folder {}", temp_dir.display()))?;
    let role = match parts {
        Parts::Whole => "serve",
        Parts::Workers => "worker",
    };
    let search = &config.search;
    Ok(ServiceSettings {
        owner: format!("{}/{role}", host_name()),
        max_upload_bytes: config.server.max_upload_bytes as u64,
        temp_dir,
        search: SearchDefaults {
            top_k: search.top_k,
            seconds: search.seconds,
            trials: search.trials,
            seed: search.seed,
        },
        lease_ms: config.worker.lease_ms,
        ..ServiceSettings::default()
    })
}

/// Names this machine among those that share a store.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "local".to_owned() } else { name.to_owned() }
}

fn http_limits(config: &Config) -> HttpLimits {
    let server = &config.server;
    let seconds = Duration::from_secs_f64;
    HttpLimits {
        upload_bytes: server.max_upload_bytes,
        json_bytes: server.max_json_bytes,
        uploads_at_once: server.uploads_at_once,
        connections: server.max_connections,
        headers: seconds(server.headers_s),
        answer: seconds(server.answer_s),
        upload: seconds(server.upload_s),
        sse_keep_alive: seconds(server.sse_keep_alive_s),
        shutdown: seconds(server.shutdown_s),
    }
}

/// Tokens if there are any; else this machine alone, unless the operator said otherwise.
fn access(config: &Config) -> Access {
    let server = &config.server;
    let tokens: Vec<_> = server.tokens.iter().filter_map(|token| token.hash()).collect();
    match (tokens.is_empty(), server.insecure && !server.listen.ip().is_loopback()) {
        (false, _) => Access::Tokens(tokens.into()),
        (true, false) => Access::Loopback,
        (true, true) => Access::Everybody,
    }
}

/// The kernel texts that the evaluators of this process run today, by kind of device and family: what the devices say
/// of themselves, so that the engines are asked in one place only.
#[derive(Clone, Default)]
struct KernelTexts(Arc<RwLock<HashMap<(DeviceKind, String), Digest>>>);

impl KernelTexts {
    fn learn(&self, device: &Device) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for (family, digest) in &device.kernels {
            known.insert((device.kind, family.clone()), *digest);
        }
    }

    fn asked(&self) -> KernelDigests {
        let texts = self.0.clone();
        Arc::new(move |kind: DeviceKind, candidate: &Candidate| {
            let known = texts.read().unwrap_or_else(PoisonError::into_inner);
            known.get(&(kind, candidate.family.clone())).copied()
        })
    }
}
