//! Export of spans by OpenTelemetry, if the binary is built with the feature `otel`.

use super::config::Telemetry;
use super::logging::AnyLayer;

#[cfg(feature = "otel")]
mod carrier;
#[cfg(feature = "otel")]
mod otlp;

/// The running export, if any.
#[derive(Default)]
pub struct Export {
    #[cfg(feature = "otel")]
    provider: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

/// Adds the export layers if an endpoint is configured.
#[cfg(feature = "otel")]
pub(super) fn start(telemetry: &Telemetry, layers: &mut Vec<AnyLayer>) -> anyhow::Result<Export> {
    let Some(endpoint) = telemetry.otlp_endpoint() else { return Ok(Export::default()) };
    let provider = otlp::provider(endpoint, telemetry.sample)?;
    layers.extend(carrier::layers(&provider));
    Ok(Export { provider: Some(provider) })
}

/// A configured endpoint was already refused with the configuration.
#[cfg(not(feature = "otel"))]
pub(super) fn start(_: &Telemetry, _: &mut Vec<AnyLayer>) -> anyhow::Result<Export> {
    Ok(Export::default())
}

impl Export {
    /// Sends the remaining spans. A collector that does not respond delays the exit by seconds at most.
    pub async fn finish(self) {
        #[cfg(feature = "otel")]
        if let Some(provider) = self.provider {
            otlp::finish(provider).await;
        }
    }
}
