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
    /// Removes entries from before this time, and of more than `most` the oldest of those tokens that have most of them, so that nobody's
    /// entries displace another's who has few; returns how many.
    async fn trim_audit(&self, before: Timestamp, most: u32) -> Result<u64>;
}
