//! Export of spans by OpenTelemetry, where the binary is built with the feature `otel`; nothing otherwise.

use super::config::Telemetry;
use super::logging::AnyLayer;

#[cfg(feature = "otel")]
mod carrier;
#[cfg(feature = "otel")]
mod otlp;

/// The export under way, if there is one.
#[derive(Default)]
pub struct Export {
    #[cfg(feature = "otel")]
    provider: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

/// Adds the layers that export, if the configuration names an endpoint.
#[cfg(feature = "otel")]
pub(super) fn start(telemetry: &Telemetry, layers: &mut Vec<AnyLayer>) -> anyhow::Result<Export> {
    let Some(endpoint) = telemetry.otlp_endpoint() else { return Ok(Export::default()) };
    let provider = otlp::provider(endpoint, telemetry.sample)?;
    layers.extend(carrier::layers(&provider));
    Ok(Export { provider: Some(provider) })
}

/// An endpoint was refused with the configuration.
#[cfg(not(feature = "otel"))]
pub(super) fn start(_: &Telemetry, _: &mut Vec<AnyLayer>) -> anyhow::Result<Export> {
    Ok(Export::default())
}

impl Export {
    /// Sends what has not been sent. A collector that does not answer costs seconds, never the end.
    pub async fn finish(self) {
        #[cfg(feature = "otel")]
        if let Some(provider) = self.provider {
            otlp::finish(provider).await;
        }
    }
}
