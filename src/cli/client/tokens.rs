//! Client requests for API tokens and the audit log.

use super::{Client, accepted};
use crate::domain::{Namespace, TokenName};
use crate::wire::{AuditEntry, MadeToken, Page, TokenRequest, Tokens};
use reqwest::Method;

impl Client {
    pub async fn make_token(&self, asked: &TokenRequest) -> anyhow::Result<MadeToken> {
        Ok(self.answer(self.request(Method::POST, "v1/tokens", &[])?.json(asked)).await?.view)
    }

    /// All tokens, newest first.
    pub async fn tokens(&self) -> anyhow::Result<Tokens> {
        Ok(self.answer(self.request(Method::GET, "v1/tokens", &[])?).await?.view)
    }

    /// The newest entries of the audit log, of one token if given.
    pub async fn audit(
        &self,
        token: Option<&TokenName>,
        limit: u32,
    ) -> anyhow::Result<Page<AuditEntry>> {
        let limit = limit.to_string();
        let mut query = vec![("limit", limit.as_str())];
        query.extend(token.map(|token| ("token", token.as_str())));
        Ok(self.answer(self.request(Method::GET, "v1/audit", &query)?).await?.view)
    }

    /// Of the client's namespace unless another is given.
    pub async fn revoke_token(
        &self,
        name: &TokenName,
        of: Option<&Namespace>,
    ) -> anyhow::Result<()> {
        let of: Vec<(&str, &str)> = of.map(|of| ("namespace", of.as_str())).into_iter().collect();
        let request = self.request(Method::DELETE, &format!("v1/tokens/{name}"), &of)?;
        accepted(self.send(request).await?).await.map(drop)
    }
}
