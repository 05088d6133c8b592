//! The name of a process in its store, which no other has at the same time.

use super::config::Config;
use crate::environment;
use crate::service::Service;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Waits until no other process that uses the store has this one's name. The lock beside the store tells at once that one of this host has
/// ended; of another host's it is known when it gave the name back, or was silent for long.
pub async fn take(service: &Service, patience: Duration) -> anyhow::Result<()> {
    let settings = service.settings();
    let end = Instant::now() + patience.max(settings.heartbeat.saturating_mul(4));
    loop {
        let Some(holder) = service.keep_name().await? else { return Ok(()) };
        if Instant::now() >= end {
            anyhow::bail!(
                "another process named {:?} uses this store on host {:?}, and was seen {} s ago: give each its own name (worker.name, or \
                 `sparsetune worker --name`)",
                settings.owner,
                holder.host,
                holder.silent_ms / 1000
            );
        }
        tracing::info!(
            name = settings.owner,
            host = holder.host,
            "another process has this name: waiting for its end"
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The folder in which the lock of the name is, as no other host and no other folder can be.
pub fn place(config: &Config) -> String {
    let beside = config.data.beside_store();
    let folder = beside.parent().unwrap_or(Path::new("."));
    let number = std::fs::metadata(folder).map(|facts| (facts.dev(), facts.ino()));
    number
        .map_or_else(|_| String::new(), |(dev, ino)| format!("{}/{dev}/{ino}", environment::boot()))
}
