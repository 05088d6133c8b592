//! Client requests for exports and imports.

use super::{Client, accepted};
use crate::domain::transfer::Selection;
use crate::wire::ImportReport;
use anyhow::Context;
use reqwest::Method;
use std::io::Write;
use std::path::Path;

impl Client {
    /// Writes an export of the server's store. That it is complete, whoever reads it finds out.
    pub async fn export(&self, of: &Selection, to: &mut impl Write) -> anyhow::Result<()> {
        let parts = [("plans", of.plans), ("trials", of.trials), ("models", of.models)];
        let parts: Vec<&str> =
            parts.into_iter().filter(|(_, wanted)| *wanted).map(|(name, _)| name).collect();
        let parts = if parts.is_empty() { "none".to_owned() } else { parts.join(",") };
        let mut query = vec![
            ("parts", parts),
            ("files", of.files.to_string()),
            ("matrices", of.matrices.to_string()),
        ];
        query.extend(of.device_class.as_ref().map(|class| ("device", class.to_string())));
        query.extend(of.op.map(|op| ("op", op.name().to_owned())));
        query.extend(of.matrix.map(|digest| ("matrix", digest.to_string())));
        query.extend(of.since.map(|at| ("since", at.to_rfc3339())));
        query.extend(of.until.map(|at| ("until", at.to_rfc3339())));
        let query: Vec<(&str, &str)> =
            query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let request = self.request(Method::GET, "v1/export", &query)?;
        let mut response = accepted(self.send(request).await?).await?;
        let broken = "the export was interrupted";
        while let Some(piece) = response.chunk().await.context(broken)? {
            to.write_all(&piece)?;
        }
        Ok(())
    }

    pub async fn import(&self, file: &Path, dry_run: bool) -> anyhow::Result<ImportReport> {
        let opened = tokio::fs::File::open(file)
            .await
            .with_context(|| format!("cannot open {}", file.display()))?;
        let query: &[(&str, &str)] = if dry_run { &[("dry_run", "true")] } else { &[] };
        let request =
            self.request(Method::POST, "v1/import", query)?.body(reqwest::Body::from(opened));
        Ok(self.answer(request).await?.view)
    }
}
