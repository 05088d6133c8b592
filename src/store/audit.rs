//! The audit log.

use super::{Page, PageRequest, Result};
use crate::domain::{AuditEntry, Namespace, Timestamp};
use async_trait::async_trait;

#[async_trait]
pub trait Audit: Send + Sync {
    async fn record_change(&self, entry: &AuditEntry) -> Result<()>;
    /// Entries, of one namespace and of one token if given, newest first.
    async fn audit(
        &self,
        of: Option<&Namespace>,
        token: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<AuditEntry>>;
    /// Removes entries from before this time, and the oldest of more than `most`; returns how many.
    async fn trim_audit(&self, before: Timestamp, most: u32) -> Result<u64>;
}
