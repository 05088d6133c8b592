//! `sparsetune worker`: runs a worker for each device of this host, on the store and blobs of a server in another
//! process.

use super::config::Config;
use super::{admission, assemble, logging, serve};
use crate::http::{App, CHECKS, Metrics};
use crate::service::Service;
use anyhow::Context;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toml::Value;

#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    /// Configuration file (config/default.toml documents all settings)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's data folder
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The store, as `data.store`; other users of this host see what is given here, so a password belongs into the environment
    /// (SPARSETUNE_DATA__STORE) or into ~/.pgpass
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Where files are kept, as `data.blobs`: a folder, or s3:// with a bucket and a prefix
    #[arg(long, value_name = "PLACE")]
    blobs: Option<String>,
    /// Device to work on: `auto`, `cpu`, `cuda:0`; may be given more than once
    #[arg(long = "device", value_name = "DEVICE")]
    devices: Vec<String>,
    /// Address and port for /metrics, /healthz and /readyz of this worker, as `worker.listen`
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Name of this worker in the store [default: the host name and `-worker`]
    #[arg(long)]
    name: Option<String>,
}

impl WorkerArgs {
    fn config(&self) -> anyhow::Result<Config> {
        let mut flags: Vec<(&str, Value)> = Vec::new();
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
        if let Some(address) = self.listen {
            flags.push(("worker.listen", address.to_string().into()));
        }
        if !self.devices.is_empty() {
            flags.push(("devices.use", self.devices.clone().into()));
        }
        if let Some(name) = &self.name {
            flags.push(("worker.name", name.as_str().into()));
            return Ok(Config::load(self.config.as_deref(), &flags)?);
        }
        // Different from the server's default name on the same host.
        let config = Config::load(self.config.as_deref(), &flags)?;
        flags.push(("worker.name", format!("{}-worker", config.worker.name()).into()));
        Ok(Config::load(self.config.as_deref(), &flags)?)
    }
}

pub async fn run(args: WorkerArgs) -> anyhow::Result<ExitCode> {
    let config = args.config()?;
    let export = logging::install(&config.log, &config.telemetry)?;
    let shutdown = serve::stop_on_signals()?;
    let (workers, opening) = assemble::workers(&config)?;
    let Some(service) = shutdown.run_until_cancelled(serve::open(&config)).await else {
        tracing::info!("stopped before the store was opened");
        export.finish().await;
        return Ok(ExitCode::SUCCESS);
    };
    let (service, _name) = service?;
    let tasks = TaskTracker::new();
    // The first, so that everything is counted.
    if let Some(address) = config.worker.listen() {
        answer(&config, &service, address, (&shutdown, &tasks)).await?;
    }
    tasks.spawn(service.clone().upkeep(shutdown.clone()));
    for worker in workers.loops(&service, &shutdown) {
        tasks.spawn(worker);
    }
    tasks.close();
    let verdict = opening.verdict().await;
    if verdict.is_ok() {
        shutdown.cancelled().await;
    }
    shutdown.cancel();
    let grace = Duration::from_secs_f64(config.server.shutdown_s);
    if tokio::time::timeout(grace, tasks.wait()).await.is_err() {
        tracing::warn!(left = tasks.len(), "some tasks did not end in time");
    }
    serve::close(&service).await;
    export.finish().await;
    verdict?;
    Ok(ExitCode::SUCCESS)
}

/// Answers for this worker.
async fn answer(
    config: &Config,
    service: &Service,
    address: SocketAddr,
    (shutdown, tasks): (&CancellationToken, &TaskTracker),
) -> anyhow::Result<()> {
    let at = ("worker.listen", address);
    let access = admission::of(config, service, at).await?;
    let (server, address) = serve::bound(at).await?;
    let metrics = Arc::new(Metrics::new(CHECKS.iter().copied())?);
    let limits = serve::limits(config);
    let app = App::new(service.clone(), limits, access, metrics, shutdown.clone());
    tasks.spawn(server.run_checks(app));
    serve::say_where(address);
    tracing::info!(%address, "answering for this worker");
    Ok(())
}
