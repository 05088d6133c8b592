//! The audit log: who changed what.

use super::upkeep::before;
use super::{Result, Service};
use crate::domain::{AuditEntry, Timestamp};
use crate::store::{Page, PageRequest};
use std::sync::atomic::Ordering::Relaxed;

/// After so many entries of a process the log is trimmed.
const TRIMMED_EVERY: u64 = 1000;

impl Service {
    /// Adds an entry, of which [`Self::change`] is the beginning.
    pub async fn record_change(&self, entry: &AuditEntry) -> Result<()> {
        self.store.record_change(entry).await?;
        // Between two rounds of upkeep one client may write more than all that is kept.
        if self.inner.recorded.fetch_add(1, Relaxed) % TRIMMED_EVERY == TRIMMED_EVERY - 1
            && let Err(error) = self.trim_audit().await
        {
            tracing::warn!(%error, "the audit log could not be trimmed");
        }
        Ok(())
    }

    /// Removes entries that are too old or too many; returns how many.
    pub(super) async fn trim_audit(&self) -> Result<u64> {
        let keep = self.inner.settings.keep;
        Ok(self.store.trim_audit(before(keep.audit), keep.audit_entries).await?)
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
