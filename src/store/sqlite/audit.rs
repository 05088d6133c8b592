//! The audit log: rows that are only added, until they are old or too many.

use super::{SqliteStore, codec};
use crate::domain::{AuditEntry, Namespace, Timestamp};
use crate::store::{Audit, Page, PageRequest, Result};
use async_trait::async_trait;

const LIST: &str = "audit";

#[derive(sqlx::FromRow)]
struct AuditRow {
    seq: i64,
    at: i64,
    token: Option<String>,
    namespace: String,
    peer: Option<String>,
    request: Option<String>,
    action: String,
    subject: Option<String>,
    status: i64,
}

impl AuditRow {
    fn entry(self) -> Result<AuditEntry> {
        Ok(AuditEntry {
            at: Timestamp(self.at),
            token: self.token,
            namespace: codec::namespace(self.namespace)?,
            peer: self.peer,
            request: self.request,
            action: self.action,
            subject: self.subject,
            status: codec::count("audit status", self.status)?,
        })
    }
}

#[async_trait]
impl Audit for SqliteStore {
    async fn record_change(&self, entry: &AuditEntry) -> Result<()> {
        sqlx::query(
            "INSERT INTO audit (at, token, namespace, peer, request, action, subject, status)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(entry.at.0)
        .bind(&entry.token)
        .bind(entry.namespace.as_str())
        .bind(&entry.peer)
        .bind(&entry.request)
        .bind(&entry.action)
        .bind(&entry.subject)
        .bind(i64::from(entry.status))
        .execute(&self.writer)
        .await?;
        Ok(())
    }

    async fn audit(
        &self,
        of: Option<&Namespace>,
        token: Option<&str>,
        page: &PageRequest,
    ) -> Result<Page<AuditEntry>> {
        let limit = codec::page_limit(page.limit);
        let after = page.after.as_deref().map(|text| codec::read_cursor(LIST, text)).transpose()?;
        let rows: Vec<AuditRow> = sqlx::query_as(
            "SELECT seq, at, token, namespace, peer, request, action, subject, status FROM audit
             WHERE seq < ?1 AND (?2 IS NULL OR token = ?2) AND (?3 IS NULL OR namespace = ?3)
             ORDER BY seq DESC LIMIT ?4",
        )
        .bind(after.map_or(i64::MAX, |(seq, _)| seq))
        .bind(token)
        .bind(of.map(Namespace::as_str))
        .bind(limit + 1)
        .fetch_all(&self.readers)
        .await?;
        let Page { items, next } = codec::cut(rows, limit, |row| codec::cursor(LIST, row.seq, ""));
        let items = items.into_iter().map(AuditRow::entry).collect::<Result<_>>()?;
        Ok(Page { items, next })
    }

    async fn trim_audit(&self, before: Timestamp, most: u32) -> Result<u64> {
        // Rows are numbered in the order of their times, but for clocks that were set; old ones are at the beginning.
        let done = sqlx::query(
            "DELETE FROM audit WHERE at < ?1 OR seq <= (SELECT seq FROM audit ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
        )
        .bind(before.0)
        .bind(i64::from(most))
        .execute(&self.writer)
        .await?;
        Ok(done.rows_affected())
    }
}
