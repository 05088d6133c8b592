//! `sparsetune serve`: opens store and blobs, creates the service, listens, and shuts down in order.

use super::config::{self, Config, LogFormat};
use super::{INTERRUPTED, admission, assemble, exposed, naming, reading, say};
use crate::environment::{account, files};
use crate::http::{App, Limits, Metrics, PAGES, PATHS, Pace, Server};
use crate::service::training::Trainer;
use crate::service::webhooks::WebhookSettings;
use crate::service::{
    BudgetLimits, DriftSettings, Keep, LearningSettings, SearchDefaults, Service, ServiceSettings,
    StoredLimits, jobs_bytes,
};
use crate::store::pairing::{self, Opening};
use crate::store::process_name::ProcessName;
use crate::store::{SqliteOptions, StoreOptions, private};
use crate::tuner::WorkerLoops;
use anyhow::Context;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toml::Value;

/// Serve the API, and run workers for the devices of this host.
#[derive(Debug, Default, clap::Args)]
pub struct ServeArgs {
    /// Configuration file (config/default.toml documents all settings).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address and port; port 0 selects a free one.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
    /// The data folder.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The store, as `data.store`; other users of this host see what is given here, so a password belongs into the environment
    /// (SPARSETUNE_DATA__STORE) or into ~/.pgpass.
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Where files are kept, as `data.blobs`: a folder, or s3:// with a bucket and a prefix.
    #[arg(long, value_name = "PLACE")]
    pub blobs: Option<String>,
    /// Serve without API tokens on addresses other than loopback too, and in a store whose tokens have all ended.
    #[arg(long)]
    pub insecure: bool,
    /// How the log is written, as `log.format`
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
}

impl ServeArgs {
    /// The configuration, overridden by these flags.
    pub fn config(&self) -> anyhow::Result<Config> {
        let mut flags: Vec<(&str, Value)> = Vec::new();
        if let Some(address) = self.listen {
            flags.push(("server.listen", address.to_string().into()));
        }
        if let Some(folder) = &self.data {
            let folder = folder.to_str().context("--data: the folder's name is not UTF-8")?;
            flags.push(("data.dir", folder.into()));
        }
        if let Some(store) = &self.store {
            flags.push(("data.store", store.as_str().into()));
        }
        if let Some(blobs) = &self.blobs {
            flags.push(("data.blobs", blobs.as_str().into()));
        }
        if self.insecure {
            flags.push(("server.insecure", true.into()));
        }
        if let Some(format) = self.log_format {
            flags.push(("log.format", Value::try_from(format)?));
        }
        Ok(Config::load(self.config.as_deref(), &flags)?)
    }
}

/// A running server.
pub struct Running {
    pub address: SocketAddr,
    pub service: Service,
    shutdown: CancellationToken,
    grace: Duration,
    tasks: TaskTracker,
    _name: Option<ProcessName>,
}

impl Running {
    /// Starts to run trainings, until shutdown.
    pub fn train(&self) {
        let trainer = Trainer::new(self.service.clone());
        self.tasks.spawn(trainer.run(self.shutdown.clone()));
    }

    /// Waits until everything has ended after a shutdown; workers and upkeep have the configured time.
    pub async fn finished(self) {
        self.ended().await;
        close(&self.service).await;
    }

    /// [`Self::finished`], but its devices are forgotten: it will not come back under its name.
    pub async fn finished_for_good(self) {
        self.ended().await;
        if let Err(error) = self.service.unregister().await {
            tracing::warn!(%error, "the devices are still listed");
        }
        close(&self.service).await;
    }

    async fn ended(&self) {
        self.shutdown.cancelled().await;
        self.tasks.close();
        let most = self.grace + AFTER_GRACE;
        if tokio::time::timeout(most, self.tasks.wait()).await.is_err() {
            tracing::warn!(left = self.tasks.len(), "some tasks did not end in time");
        }
    }
}

/// Opens everything and starts to serve; returns once requests are accepted. `workers` receives the service and the
/// token, and returns the loops to run beside the server.
pub async fn start<F>(
    config: &Config,
    shutdown: CancellationToken,
    workers: F,
) -> anyhow::Result<Running>
where
    F: FnOnce(&Service, &CancellationToken) -> WorkerLoops,
{
    let (service, name) = open(config).await?;
    for found in exposed::sentences(config, None) {
        tracing::warn!("{found}");
    }
    let at = ("server.listen", config.server.listen);
    let access = admission::of(config, &service, at).await?;
    let (server, address) = bound(at).await?;
    let metrics = Arc::new(Metrics::new(PATHS.iter().chain(PAGES).copied())?);
    // The metrics recorder is installed from here on.
    if let Err(error) = service.tell_models().await {
        tracing::warn!(%error, "the metric of active models is set only when one is first used");
    }
    let limits = limits(config);
    let app = App::new(service.clone(), limits, access, metrics, shutdown.clone());

    let tasks = TaskTracker::new();
    tasks.spawn(server.run(app));
    tasks.spawn(service.clone().upkeep(shutdown.clone()));
    tasks.spawn(service.clone().deliver(shutdown.clone()));
    for worker in workers(&service, &shutdown) {
        tasks.spawn(worker);
    }
    Ok(Running { address, service, shutdown, grace: limits.shutdown, tasks, _name: name })
}

/// A listener at the address that a setting names, and the address that it has.
pub(super) async fn bound(
    (setting, address): (&str, SocketAddr),
) -> anyhow::Result<(Server, SocketAddr)> {
    let server = Server::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address} ({setting})"))?;
    let address = server.address()?;
    Ok((server, address))
}

/// To standard output, for scripts that use port 0. A closed standard output is no reason not to serve.
pub(super) fn say_where(address: SocketAddr) {
    if let Err(error) = say(format_args!("listening on http://{address}")) {
        tracing::debug!(%error, "the address could not be printed");
    }
}

/// The server's own grace period comes first, so the total is a little longer.
const AFTER_GRACE: Duration = Duration::from_secs(1);

/// How long connections of tasks that did not end in time are waited for.
const CLOSE: Duration = Duration::from_secs(5);

/// Moves everything into the database file, so that it alone can be copied. What is only dropped loses nothing either.
pub async fn close(service: &Service) {
    // Where the store is gone, the name is free when nobody was heard of under it for long.
    match tokio::time::timeout(CLOSE, service.leave_name()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the name of this process was not given back"),
        Err(_) => tracing::warn!("the name of this process was not given back in time"),
    }
    if tokio::time::timeout(CLOSE, service.close()).await.is_err() {
        tracing::warn!("the store was not closed in time: its write-ahead log remains beside it");
    }
}

/// Starts the server, prints its address, and waits for its end.
pub async fn serve<F>(
    config: &Config,
    shutdown: CancellationToken,
    workers: F,
) -> anyhow::Result<()>
where
    F: FnOnce(&Service, &CancellationToken) -> WorkerLoops,
{
    // Another process may hold the store for long; a start that is interrupted meanwhile has not changed anything.
    let starting = start(config, shutdown.clone(), workers);
    let Some(running) = shutdown.run_until_cancelled(starting).await else {
        tracing::info!("stopped before the server was started");
        return Ok(());
    };
    let running = running?;
    // Not for `tune` and similar commands, which end before a training could.
    running.train();
    say_where(running.address);
    tracing::info!(address = %running.address, data = %config.data.dir.display(), "serving");
    running.finished().await;
    tracing::info!("stopped");
    Ok(())
}

/// A token that is cancelled by the first SIGTERM or Ctrl-C. The second ends the process immediately.
pub fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let token = CancellationToken::new();
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = token.clone();
    tokio::spawn(async move {
        for _ in 0..2 {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if stop.is_cancelled() {
                std::process::exit(INTERRUPTED.into());
            }
            tracing::info!("stopping: in-flight requests may finish");
            stop.cancel();
        }
    });
    Ok(token)
}

/// How long another process of this name may take to end, if it is configured as this one: as long as [`Running::finished`] takes.
fn succession(config: &Config) -> Duration {
    Duration::from_secs_f64(config.server.shutdown_s) + AFTER_GRACE + CLOSE + Duration::from_secs(1)
}

/// How the store is opened.
pub(super) fn opening(config: &Config) -> Opening {
    let synchronous = config.data.synchronous;
    let sqlite = SqliteOptions { synchronous, ..Default::default() };
    let store = StoreOptions { sqlite, postgres: config.postgres.options() };
    Opening { store, ..Default::default() }
}

/// The service on the configured store and blobs, which are created if missing, and the name of this process in them.
pub async fn open(config: &Config) -> anyhow::Result<(Service, Option<ProcessName>)> {
    // Tokens pass through its memory, and evaluators run as the same user unless they have one of their own.
    account::hide_this_process().context("hide the memory of this process from others")?;
    let uploads = config.data.uploads();
    private::folder(&uploads)
        .with_context(|| format!("cannot create {} (data.dir)", uploads.display()))?;
    let (place, folder) = (config.data.store(), config.blobs());
    let (store, blobs) = pairing::open_with(&place, &folder, opening(config)).await?;
    // Servers without devices have nothing under their names.
    let name = match config.devices.r#use.is_empty() {
        true => None,
        false => {
            let beside = config.data.beside_store();
            Some(ProcessName::take(&beside, &config.worker.name(), succession(config)).await?)
        }
    };
    let settings =
        ServiceSettings { reader: Some(reading::processes(config)?), ..settings(config) };
    let service = Service::new(Arc::new(store), blobs, settings);
    // Not fatal: without them the analytic model ranks.
    if config.learning.shipped
        && let Err(error) = service.ship_models().await
    {
        tracing::error!(%error, "the models that ship with sparsetune could not be imported");
    }
    if name.is_some() {
        naming::take(&service, succession(config)).await?;
    }
    Ok((service, name))
}

pub(super) fn settings(config: &Config) -> ServiceSettings {
    let search = &config.search;
    let most = config.server.max_upload_bytes as u64;
    ServiceSettings {
        owner: config.worker.name(),
        place: naming::place(config),
        limits: reading::limits(config),
        max_upload_bytes: most,
        stored: StoredLimits {
            folder: Some(config.blobs().folder().to_owned()),
            store_folder: config.data.beside_store().parent().map(Path::to_owned),
            most: config.data.max_stored_bytes,
            least_free: config.data.min_free_bytes,
        },
        temp_dir: config.data.uploads(),
        search: SearchDefaults {
            top_k: search.top_k,
            seconds: search.seconds,
            gpu_seconds: search.gpu_seconds,
            trials: search.trials,
            halving_trials: search.halving_trials,
            sampled_trials: search.sampled_trials,
            full_trials: search.full_trials,
            seed: search.seed,
            clock: search.clock,
        },
        budget: BudgetLimits {
            seconds: config.limits.job_seconds,
            trials: config.limits.job_trials,
        },
        keep: Keep {
            blobs: Duration::from_secs_f64(config.data.blob_grace_h * 3600.0),
            ..ServiceSettings::default().keep
        },
        retention: config.retention.rules(),
        measure_misses: config.lookup.measure_misses,
        lease_ms: config.worker.lease_ms,
        max_attempts: config.worker.max_attempts,
        max_host_bytes: match config.worker.max_host_bytes {
            // Each device may have a job at the same time.
            0 => jobs_bytes() / assemble::devices(config).len().max(1) as u64,
            bytes => bytes,
        },
        poll: Duration::from_millis(config.worker.poll_ms),
        device_locks: config.devices.locks().map(Path::to_owned),
        device_lock_wait: Duration::from_secs_f64(config.devices.lock_wait_s),
        learning: learning(config),
        drift: DriftSettings {
            check: Duration::from_secs_f64(config.drift.check_h * 3600.0),
            tolerance: config.drift.tolerance,
            renewals_per_day: config.drift.renewals_per_day,
        },
        webhooks: WebhookSettings {
            // What cannot be read was refused with the configuration.
            allow: config.webhooks.allowed().unwrap_or_default(),
            retry: Duration::from_secs_f64(config.webhooks.retry_s),
            ca_file: config.webhooks.ca_file().map(Path::to_owned),
        },
        ..ServiceSettings::default()
    }
}

fn learning(config: &Config) -> LearningSettings {
    let learning = &config.learning;
    LearningSettings {
        threads: match learning.threads {
            0 => LearningSettings::default().threads,
            threads => threads,
        },
        retrain_trials: learning.retrain_trials,
        check: Duration::from_secs_f64(learning.check_s),
        min_groups: learning.min_groups,
        min_trials: learning.min_trials,
    }
}

pub(super) fn limits(config: &Config) -> Limits {
    let server = &config.server;
    let seconds = Duration::from_secs_f64;
    let connections = connections(server.max_connections);
    Limits {
        upload_bytes: server.max_upload_bytes,
        json_bytes: server.max_json_bytes,
        uploads_at_once: server.uploads_at_once,
        uploads_each: server.uploads_per_client,
        streams_at_once: server.event_streams,
        streams_each: server.event_streams_per_client,
        lookup_bytes: config.lookup.cache_bytes,
        forwarded: server.forwarded_for,
        pace: Pace { idle: seconds(server.body_idle_s), bytes_per_s: server.body_bytes_per_s },
        connections,
        connections_each: of_one_address(server, connections),
        headers: seconds(server.headers_s),
        answer: seconds(server.answer_s),
        upload: seconds(server.upload_s),
        sse_keep_alive: seconds(server.sse_keep_alive_s),
        shutdown: seconds(server.shutdown_s),
    }
}

/// Connections of one address: all where a proxy has them all, and fewer than configured where the limit of files left too few.
const fn of_one_address(server: &config::Server, connections: usize) -> usize {
    let each = server.connections_per_client;
    match (server.forwarded_for, connections < server.max_connections) {
        (true, _) => connections,
        (false, true) if each > connections / 2 => connections.div_ceil(2),
        (false, _) => each,
    }
}

/// Files that a server needs beside its connections: the database, blobs, uploads, children.
const OTHER_FILES: u64 = 256;

/// As many connections as configured, if this process may have so many files open.
fn connections(configured: usize) -> usize {
    let Some(files) = files::raise() else { return configured };
    let most = usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX).max(16);
    if most < configured {
        tracing::warn!(
            files,
            most,
            configured,
            "this process may have too few files open for server.max_connections (ulimit -n)"
        );
    }
    configured.min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_all_devices_share_the_memory_that_there_is() {
        let with = |devices: &[&str]| {
            let flag = ("devices.use", Value::try_from(devices).unwrap());
            settings(&Config::load(None, &[flag]).unwrap()).max_host_bytes
        };
        let (one, two) = (with(&["cpu"]), with(&["cpu", "cuda:0"]));
        assert_eq!((one, two), (jobs_bytes(), jobs_bytes() / 2));
    }

    #[test]
    fn a_successor_waits_as_long_as_its_predecessor_may_take_to_end() {
        for seconds in [0.5, 10.0, 60.0] {
            let config = Config::load(None, &[("server.shutdown_s", seconds.into())]).unwrap();
            let ending = limits(&config).shutdown + AFTER_GRACE + CLOSE;
            assert!(succession(&config) > ending);
        }
    }
}
