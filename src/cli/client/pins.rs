//! Client requests for pins.

use super::{Answer, Client, accepted};
use crate::store::Pin;
use crate::wire::Pins;
use reqwest::Method;

impl Client {
    pub async fn pins(&self) -> anyhow::Result<Answer<Pins>> {
        self.answer(self.request(Method::GET, "v1/pins", &[])?).await
    }

    /// Pins it, or lifts its pin.
    pub async fn pin(&self, what: &Pin, pinned: bool) -> anyhow::Result<()> {
        let path = match what {
            Pin::Matrix(digest) => format!("v1/matrices/{digest}/pin"),
            Pin::Plan(id) => format!("v1/plans/{id}/pin"),
        };
        let method = if pinned { Method::PUT } else { Method::DELETE };
        let request = self.request(method, &path, &[])?;
        accepted(self.send(request).await?).await.map(drop)
    }
}
