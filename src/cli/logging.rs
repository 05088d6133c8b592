//! Logs: text or JSON lines on standard error, so that standard output is free for results. Spans may also be exported.

use super::config::{Log, LogFormat, Telemetry};
use super::telemetry::{self, Export};
use std::io::IsTerminal;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

/// A layer of the process's subscriber.
pub(super) type AnyLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Installs the process's subscriber. Fails if the filter is invalid or another subscriber is installed. With an
/// endpoint for spans it must be called within the runtime that sends them.
pub fn install(log: &Log, telemetry: &Telemetry) -> anyhow::Result<Export> {
    let filter: Targets = log.filter.parse()?;
    let lines =
        fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    let lines: AnyLayer = match log.format {
        LogFormat::Text => lines.boxed(),
        // A line's own fields are at the top level; those of the surrounding spans are under `spans`, outermost first.
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
    };
    // The filter applies only to log lines, so that the export of spans does not depend on it.
    let mut layers: Vec<AnyLayer> = vec![lines.with_filter(filter).boxed()];
    let export = telemetry::start(telemetry, &mut layers)?;
    tracing_subscriber::registry().with(layers).try_init()?;
    Ok(export)
}
