//! The way of spans to a collector: batches of protobuf over HTTP, sent by the client that is linked in anyway.

use anyhow::Context;
use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use std::time::Duration;
use tokio::runtime::Handle;

/// The path that OTLP gives traces.
const TRACES: &str = "/v1/traces";

/// Time for one batch, and for the last of them at the end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends within the runtime: batches come from a thread that has none.
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

/// Exports a share of the traces that begin here, and of the others what their callers chose.
pub(super) fn provider(endpoint: &str, sample: f64) -> anyhow::Result<SdkTracerProvider> {
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build()?;
    let runtime =
        Handle::try_current().context("spans are sent by a runtime, and there is none")?;
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

/// A collector's address becomes that of its traces; a URL with a path of its own is taken as it is.
fn traces(endpoint: &str) -> anyhow::Result<String> {
    let mut url = reqwest::Url::parse(endpoint).context("telemetry.otlp_endpoint")?;
    if url.path() == "/" {
        url.set_path(TRACES);
    }
    Ok(url.into())
}

/// Blocks until the last batch is sent, so it has a thread of its own.
pub(super) async fn finish(provider: SdkTracerProvider) {
    let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(PATIENCE)).await;
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the last spans were not exported"),
        Err(error) => tracing::warn!(%error, "the export of spans did not end in order"),
    }
}

#[cfg(test)]
mod tests {
    use super::traces;

    #[test]
    fn a_collector_has_a_place_for_traces() {
        for given in ["http://host:4318", "http://host:4318/"] {
            assert_eq!(traces(given).unwrap(), "http://host:4318/v1/traces");
        }
        assert_eq!(traces("http://host/otlp/traces").unwrap(), "http://host/otlp/traces");
        assert!(traces("host").is_err());
    }
}
