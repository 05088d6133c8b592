//! The audit log: who changed what.

use super::{Result, Service};
use crate::domain::{AuditEntry, Timestamp};
use crate::store::{Page, PageRequest};

impl Service {
    /// Adds an entry, of which [`Self::change`] is the beginning.
    pub async fn record_change(&self, entry: &AuditEntry) -> Result<()> {
        Ok(self.store.record_change(entry).await?)
    }

    /// An entry of this caller, to be completed.
    pub fn change(&self, action: impl Into<String>) -> AuditEntry {
        AuditEntry {
            at: Timestamp::now(),
            token: self.caller.token.as_ref().map(ToString::to_string),
            namespace: self.caller.namespace.clone(),
            peer: None,
            request: None,
            action: action.into(),
            subject: None,
            status: 200,
        }
    }

    /// The log of the caller's namespace, of one token if given, newest first; the operator's callers see that of all.
    pub async fn audit(&self, token: Option<&str>, page: &PageRequest) -> Result<Page<AuditEntry>> {
        let own = (!self.caller.is_operators()).then_some(&self.caller.namespace);
        Ok(self.store.audit(own, token, page).await?)
    }
}
