//! Client requests for the quarantine.

use super::{Answer, Client, PAGE, accepted};
use crate::domain::QuarantineId;
use crate::wire::{Page, Quarantined};
use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;

impl Client {
    /// All quarantined candidates, newest first, read page by page; of one device class if given.
    pub async fn quarantine(
        &self,
        class: Option<&str>,
    ) -> anyhow::Result<Vec<Answer<Quarantined>>> {
        let mut entries = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let mut query = vec![("limit", PAGE)];
            query.extend(class.map(|class| ("class", class)));
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page: Answer<Page<Value>> =
                self.answer(self.request(Method::GET, "v1/quarantine", &query)?).await?;
            for raw in page.view.items {
                entries.push(Answer { view: Quarantined::deserialize(&raw)?, raw });
            }
            cursor = page.view.next;
            if cursor.is_none() {
                return Ok(entries);
            }
        }
    }

    pub async fn lift_quarantine(&self, id: &QuarantineId) -> anyhow::Result<()> {
        let request = self.request(Method::DELETE, &format!("v1/quarantine/{id}"), &[])?;
        accepted(self.send(request).await?).await.map(drop)
    }
}
