//! Logs: text or JSON lines on standard error, so that standard output stays a program's to read.

use super::config::{Log, LogFormat};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// Installs the process' subscriber. Fails when the filter makes no sense or another subscriber is installed.
pub fn install(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::builder().parse(&log.filter)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match log.format {
        LogFormat::Text => builder.finish().try_init()?,
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init()?,
    }
    Ok(())
}
