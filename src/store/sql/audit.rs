//! The audit log: rows that are only added, until they are old or too many.

use super::{SqlStore, codec, db};
use crate::domain::{AuditEntry, Namespace, Timestamp};
use crate::store::{Audit, Page, PageRequest, Result};
use async_trait::async_trait;
use std::collections::BTreeMap;

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
impl Audit for SqlStore {
    async fn record_change(&self, entry: &AuditEntry) -> Result<()> {
        db::query(
            "INSERT INTO audit (at, token, namespace, peer, request, action, subject, status)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
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
        let rows: Vec<AuditRow> = db::query_as(
            "SELECT seq, at, token, namespace, peer, request, action, subject, status FROM audit
             WHERE seq < $1 AND ($2 IS NULL OR token = $2) AND ($3 IS NULL OR namespace = $3)
             ORDER BY seq DESC LIMIT $4",
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
        let mut tx = self.begin().await?;
        let old = db::query("DELETE FROM audit WHERE at < $1").bind(before.0).execute(&mut *tx);
        let mut gone = old.await?.rows_affected();
        let counts: Vec<(String, Option<String>, i64)> =
            db::query_as("SELECT namespace, token, count(*) FROM audit GROUP BY namespace, token")
                .fetch_all(&mut *tx)
                .await?;
        // First among namespaces: in one of them tokens of any number of names may be made.
        let mut namespaces: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        for (namespace, _, count) in &counts {
            namespaces.entry(namespace).or_default().push(*count);
        }
        let totals = namespaces.values().map(|counts| counts.iter().sum()).collect();
        let of_each = share(totals, i64::from(most)).max(1);
        let shares: BTreeMap<&str, i64> = namespaces
            .into_iter()
            .map(|(namespace, counts)| (namespace, share(counts, of_each)))
            .collect();
        for (namespace, _) in shares.iter().filter(|(_, each)| **each == 0) {
            // More names than entries may stay: the newest do.
            let done = db::query(
                "DELETE FROM audit WHERE namespace = $1 AND seq <= (
                     SELECT seq FROM audit WHERE namespace = $1 ORDER BY seq DESC LIMIT 1 OFFSET $2)",
            )
            .bind(*namespace)
            .bind(of_each)
            .execute(&mut *tx)
            .await?;
            gone += done.rows_affected();
        }
        for (namespace, token, count) in &counts {
            let each = shares.get(namespace.as_str()).copied().unwrap_or(i64::MAX);
            if each == 0 || *count <= each {
                continue;
            }
            // Rows are numbered in the order in which they were written.
            let done = db::query(
                "DELETE FROM audit WHERE namespace = $1 AND token IS NOT DISTINCT FROM $2 AND seq <= (
                     SELECT seq FROM audit WHERE namespace = $1 AND token IS NOT DISTINCT FROM $2 ORDER BY seq DESC LIMIT 1 OFFSET $3)",
            )
            .bind(namespace)
            .bind(token)
            .bind(each)
            .execute(&mut *tx)
            .await?;
            gone += done.rows_affected();
        }
        tx.commit(None).await?;
        Ok(gone)
    }
}

/// How many entries each may keep, so that all keep `most` together: who has less keeps all, and leaves the rest to the others.
fn share(mut counts: Vec<i64>, most: i64) -> i64 {
    counts.sort_unstable();
    let mut left = most;
    for (at, count) in counts.iter().enumerate() {
        let others = i64::try_from(counts.len() - at).unwrap_or(i64::MAX);
        if count.saturating_mul(others) > left {
            return left / others;
        }
        left -= count;
    }
    i64::MAX
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn who_has_little_keeps_it() {
        assert_eq!(share(vec![], 4), i64::MAX);
        assert_eq!(share(vec![1, 3], 4), i64::MAX);
        assert_eq!(share(vec![1_000_000, 1, 3], 100), 96);
        assert_eq!(share(vec![50, 60, 1_000_000], 100), 33);
        assert_eq!(share(vec![5, 5], 1), 0);
    }
}
