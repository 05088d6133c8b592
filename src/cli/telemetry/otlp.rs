//! Sends spans to a collector: batches of protobuf over HTTP, with the HTTP client that is linked anyway.

use anyhow::Context;
use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use std::time::Duration;
use tokio::runtime::Handle;

/// The standard OTLP path for traces.
const TRACES: &str = "/v1/traces";

/// Time limit for one batch, including the last one at shutdown.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends within the runtime, because batches come from a thread without one.
#[derive(Debug)]
struct Courier {
    client: reqwest::Client,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for Courier {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        self.runtime.spawn(async move { client.send_bytes(request).await }).await?
    }
}

/// Exports a share of the traces that begin here; for other traces the caller's decision applies.
pub(super) fn provider(endpoint: &str, sample: f64) -> anyhow::Result<SdkTracerProvider> {
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build()?;
    let runtime =
        Handle::try_current().context("spans can only be exported within an async runtime")?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Courier { client, runtime })
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(traces(endpoint)?)
        .with_timeout(PATIENCE)
        .build()
        .context("telemetry.otlp_endpoint")?;
    let resource = Resource::builder()
        .with_service_name(env!("CARGO_PKG_NAME"))
        .with_attributes([
            opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            opentelemetry::KeyValue::new("service.instance.id", uuid::Uuid::now_v7().to_string()),
            opentelemetry::KeyValue::new("process.pid", i64::from(std::process::id())),
        ])
        .build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sample))))
        .with_resource(resource)
        .build())
}

/// Appends the standard path to a collector's address; a URL with a path is used unchanged.
fn traces(endpoint: &str) -> anyhow::Result<String> {
    let mut url = reqwest::Url::parse(endpoint).context("telemetry.otlp_endpoint")?;
    if url.path() == "/" {
        url.set_path(TRACES);
    }
    Ok(url.into())
}

/// Runs in a blocking thread, since it waits until the last batch is sent.
pub(super) async fn finish(provider: SdkTracerProvider) {
    let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(PATIENCE)).await;
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the last spans were not exported"),
        Err(error) => tracing::warn!(%error, "the export of spans did not shut down properly"),
    }
}

#[cfg(test)]
mod tests {
    use super::traces;

    #[test]
    fn the_traces_path_is_appended_to_a_collectors_address() {
        for given in ["http://host:4318", "http://host:4318/"] {
            assert_eq!(traces(given).unwrap(), "http://host:4318/v1/traces");
        }
        assert_eq!(traces("http://host/otlp/traces").unwrap(), "http://host/otlp/traces");
        assert!(traces("host").is_err());
    }
}
