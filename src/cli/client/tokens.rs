//! Client requests for API tokens.

use super::{Client, accepted};
use crate::domain::TokenName;
use crate::wire::{MadeToken, TokenRequest, Tokens};
use reqwest::Method;

impl Client {
    pub async fn make_token(&self, asked: &TokenRequest) -> anyhow::Result<MadeToken> {
        Ok(self.answer(self.request(Method::POST, "v1/tokens", &[])?.json(asked)).await?.view)
    }

    /// All tokens, newest first.
    pub async fn tokens(&self) -> anyhow::Result<Tokens> {
        Ok(self.answer(self.request(Method::GET, "v1/tokens", &[])?).await?.view)
    }

    pub async fn revoke_token(&self, name: &TokenName) -> anyhow::Result<()> {
        let request = self.request(Method::DELETE, &format!("v1/tokens/{name}"), &[])?;
        accepted(self.send(request).await?).await.map(drop)
    }
}
