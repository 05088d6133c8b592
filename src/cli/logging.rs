//! Logs: text or JSON lines on standard error, so that standard output stays a program's to read. Spans may go elsewhere too.

use super::config::{Log, LogFormat, Telemetry};
use super::telemetry::{self, Export};
use std::io::IsTerminal;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

/// A layer of the process' subscriber, whatever it does.
pub(super) type AnyLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Installs the process' subscriber. Fails when the filter makes no sense or another subscriber is installed. With an
/// endpoint for spans it must be called within the runtime that is to send them.
pub fn install(log: &Log, telemetry: &Telemetry) -> anyhow::Result<Export> {
    let filter: Targets = log.filter.parse()?;
    let lines =
        fmt::layer().with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr);
    let lines: AnyLayer = match log.format {
        LogFormat::Text => lines.boxed(),
        // A line's own fields at the top; those of the spans around it under `spans`, outermost first.
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
    };
    // The filter is the lines' own: what is exported does not depend on what is logged.
    let mut layers: Vec<AnyLayer> = vec![lines.with_filter(filter).boxed()];
    let export = telemetry::start(telemetry, &mut layers)?;
    tracing_subscriber::registry().with(layers).try_init()?;
    Ok(export)
}
