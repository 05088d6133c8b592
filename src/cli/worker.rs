//! `sparsetune worker`: a worker for each device of this host, on the store and the blobs of a server elsewhere.

use super::config::Config;
use super::{assemble, logging, serve};
use anyhow::Context;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio_util::task::TaskTracker;
use toml::Value;

#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    /// Settings on top of the built-in ones (config/default.toml explains them all)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's data folder
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Devices to work on: `auto`, `cpu`, `cuda:0`; may be given more than once
    #[arg(long = "device", value_name = "DEVICE")]
    devices: Vec<String>,
    /// What the store knows this worker by; the host's name and `-worker` when absent
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
        if !self.devices.is_empty() {
            flags.push(("devices.use", self.devices.clone().into()));
        }
        if let Some(name) = &self.name {
            flags.push(("worker.name", name.as_str().into()));
            return Ok(Config::load(self.config.as_deref(), &flags)?);
        }
        // Not the server's own name, which on the same host would be the same.
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
        tracing::info!("stopped before the store was open");
        export.finish().await;
        return Ok(ExitCode::SUCCESS);
    };
    let service = service?;
    let tasks = TaskTracker::new();
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
        tracing::warn!(left = tasks.len(), "not everything ended in time");
    }
    export.finish().await;
    verdict?;
    Ok(ExitCode::SUCCESS)
}
