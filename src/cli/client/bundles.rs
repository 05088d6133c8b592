//! Client requests for bundles.

use super::{Answer, Client, accepted};
use crate::wire::Plan;
use anyhow::Context;
use reqwest::{Method, StatusCode};
use std::path::Path;

impl Client {
    /// The bundle of a plan, as its file.
    pub async fn bundle(&self, plan: &str, without_values: bool) -> anyhow::Result<Vec<u8>> {
        let query: &[(&str, &str)] = if without_values { &[("values", "external")] } else { &[] };
        let request = self.request(Method::GET, &format!("v1/plans/{plan}/bundle"), query)?;
        // The server's store may want TLS, which this client does not speak.
        let request = request.header("sparsetune-redirect", "never");
        let response = accepted(self.send(request).await?).await?;
        Ok(response.bytes().await.context("the download of the bundle was interrupted")?.into())
    }

    /// Stores a bundle's plan on the server, and returns whether it is new there.
    pub async fn import_bundle(&self, file: &Path) -> anyhow::Result<(Answer<Plan>, bool)> {
        let opened = tokio::fs::File::open(file)
            .await
            .with_context(|| format!("cannot open {}", file.display()))?;
        let request =
            self.request(Method::POST, "v1/bundles", &[])?.body(reqwest::Body::from(opened));
        let (answer, status) = self.answer_with_status(request).await?;
        Ok((answer, status == StatusCode::CREATED))
    }
}
