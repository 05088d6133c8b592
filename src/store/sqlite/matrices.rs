//! Matrices: facts by digest, newest first.

use super::codec::{self, Stored, decode, encode};
use super::file_lock::{FileLock, Serial};
use super::{PUBLISHING_PATIENCE, SqliteStore, quotas, upkeep};
use crate::domain::{Digest, Matrix};
use crate::store::{Guard, Matrices, MatrixQuery, Page, PageRequest, Result, StoreError};
use async_trait::async_trait;
use std::collections::HashMap;

const LIST: &str = "matrices";

// Each list takes the sort key of the last row shown as its first two parameters, and its limit as the third.

pub(super) const ALL: &str =
    "SELECT digest, version, facts FROM matrices WHERE (created_at, digest) < (?1, ?2)
     ORDER BY created_at DESC, digest DESC LIMIT ?3";

/// Searches the newest 20,000 names, all in the index; facts are read only for the matches.
pub(super) const NAMED: &str = "SELECT matrices.digest, version, facts FROM (
         SELECT digest, created_at FROM (
             SELECT digest, created_at, facts ->> '$.name' AS name FROM matrices INDEXED BY matrices_named
             ORDER BY created_at DESC, digest DESC LIMIT 20000)
         WHERE instr(lower(name), lower(?4)) > 0 AND (created_at, digest) < (?1, ?2)
         ORDER BY created_at DESC, digest DESC LIMIT ?3) found
     JOIN matrices ON matrices.digest = found.digest ORDER BY found.created_at DESC, found.digest DESC";

pub(super) const BETWEEN: &str = "SELECT digest, version, facts FROM matrices WHERE digest IN (
         SELECT digest FROM matrices WHERE digest BETWEEN ?4 AND ?5
         UNION SELECT digest FROM matrices WHERE pattern_digest BETWEEN ?4 AND ?5)
     AND (created_at, digest) < (?1, ?2) ORDER BY created_at DESC, digest DESC LIMIT ?3";

/// A match of the digest precedes a match of the pattern, a stored matrix precedes the facts kept by a plan, and among equals
/// the newest is first. There is one row at most, so there is no next page.
pub(super) const KNOWN: &str = "SELECT digest, version, facts FROM (
         SELECT 0 AS place, created_at, digest, version, facts FROM matrices WHERE digest = ?4
         UNION ALL SELECT 1, created_at, matrix, facts_version, facts FROM plans WHERE matrix = ?4 AND predicted = 0
         UNION ALL SELECT 2, created_at, digest, version, facts FROM matrices WHERE pattern_digest = ?4
         UNION ALL SELECT 3, created_at, matrix, facts_version, facts FROM plans
             WHERE pattern_digest = ?4 AND predicted = 0)
     WHERE (created_at, digest) < (?1, ?2) ORDER BY place, created_at DESC LIMIT min(?3, 1)";

/// A plan keeps the facts of its matrix, which may have been deleted.
pub(super) const NAMES: &str = "SELECT unhex(value), coalesce(
         (SELECT facts ->> '$.name' FROM matrices WHERE digest = unhex(value)),
         (SELECT facts ->> '$.name' FROM plans WHERE matrix = unhex(value) ORDER BY created_at DESC LIMIT 1))
     FROM json_each(?)";

/// Decodes the facts and checks them against their key.
pub(super) fn facts(digest: &[u8], version: i64, text: &str) -> Result<Matrix> {
    let digest = codec::digest("matrix digest", digest)?;
    let matrix: Matrix = decode(version, text)?;
    if matrix.digest != digest {
        let why = format!("the facts under {digest} are those of {}", matrix.digest);
        return Err(codec::corrupt(Matrix::WHAT, why));
    }
    Ok(matrix)
}

#[async_trait]
impl Matrices for SqliteStore {
    async fn publishing(&self) -> Result<Guard> {
        let held = FileLock::wait(&self.file, Serial::Publishing, PUBLISHING_PATIENCE).await?;
        Ok(Guard::of(held))
    }

    async fn insert_matrix(&self, matrix: &Matrix) -> Result<bool> {
        let facts = encode(matrix)?;
        let mut tx = self.begin().await?;
        let known: Option<i64> = sqlx::query_scalar("SELECT 1 FROM matrices WHERE digest = ?")
            .bind(&matrix.digest.as_bytes()[..])
            .fetch_optional(&mut *tx)
            .await?;
        if known.is_some() {
            return Ok(false);
        }
        quotas::may_store(&mut tx, self.caller.as_deref(), matrix).await?;
        sqlx::query(
            "INSERT INTO matrices (digest, pattern_digest, created_at, version, facts, token, charged)
             VALUES (?, ?, ?, ?, ?, ?, ?)",
        )
        .bind(&matrix.digest.as_bytes()[..])
        .bind(&matrix.pattern_digest.as_bytes()[..])
        .bind(matrix.created_at.0)
        .bind(Matrix::VERSION)
        .bind(facts)
        .bind(self.token())
        .bind(i64::try_from(matrix.charged_bytes()).unwrap_or(i64::MAX))
        .execute(&mut *tx)
        .await?;
        let revision = upkeep::revise(&mut tx).await?;
        tx.commit([revision]).await?;
        Ok(true)
    }

    async fn matrix(&self, digest: &Digest) -> Result<Option<Matrix>> {
        let row: Option<(Vec<u8>, i64, String)> =
            sqlx::query_as("SELECT digest, version, facts FROM matrices WHERE digest = ?")
                .bind(&digest.as_bytes()[..])
                .fetch_optional(&self.readers)
                .await?;
        row.map(|(digest, version, text)| facts(&digest, version, &text)).transpose()
    }

    async fn matrices(&self, of: &MatrixQuery, page: &PageRequest) -> Result<Page<Matrix>> {
        let limit = codec::page_limit(page.limit);
        let (at, after) = match &page.after {
            Some(text) => {
                let (at, id) = codec::read_cursor(LIST, text)?;
                (at, id.parse::<Digest>().map_err(|_| StoreError::BadCursor)?.as_bytes().to_vec())
            }
            // Above every key: all times are smaller, and no digest is longer than 32 bytes.
            None => (i64::MAX, vec![0xff; 33]),
        };
        let statement = match of {
            MatrixQuery::All => ALL,
            MatrixQuery::Named(_) => NAMED,
            MatrixQuery::Between(..) => BETWEEN,
            MatrixQuery::Known(_) => KNOWN,
        };
        let query = sqlx::query_as(statement).bind(at).bind(after).bind(limit + 1);
        let query = match of {
            MatrixQuery::All => query,
            MatrixQuery::Named(part) => query.bind(part),
            MatrixQuery::Between(first, last) => {
                query.bind(&first.as_bytes()[..]).bind(&last.as_bytes()[..])
            }
            MatrixQuery::Known(digest) => query.bind(&digest.as_bytes()[..]),
        };
        let rows: Vec<(Vec<u8>, i64, String)> = query.fetch_all(&self.readers).await?;
        let items: Vec<Matrix> = rows
            .into_iter()
            .map(|(digest, version, text)| facts(&digest, version, &text))
            .collect::<Result<_>>()?;
        Ok(codec::cut(items, limit, |m| codec::cursor(LIST, m.created_at.0, &m.digest.to_string())))
    }

    async fn matrix_names(&self, digests: &[Digest]) -> Result<HashMap<Digest, String>> {
        let hex: Vec<String> = digests.iter().map(Digest::to_string).collect();
        let rows: Vec<(Vec<u8>, Option<String>)> = sqlx::query_as(NAMES)
            .bind(codec::encode_part("digests", &hex)?)
            .fetch_all(&self.readers)
            .await?;
        let mut names = HashMap::new();
        for (digest, name) in rows {
            if let Some(name) = name {
                names.insert(codec::digest("matrix digest", &digest)?, name);
            }
        }
        Ok(names)
    }

    async fn delete_matrix(&self, digest: &Digest) -> Result<bool> {
        let mut tx = self.begin().await?;
        let user: Option<String> = sqlx::query_scalar(
            "SELECT id FROM jobs WHERE matrix = ? AND state IN ('queued', 'running') LIMIT 1",
        )
        .bind(&digest.as_bytes()[..])
        .fetch_optional(&mut *tx)
        .await?;
        if let Some(job) = user {
            return Err(StoreError::InUse(format!(
                "job {job} still needs matrix {digest}; cancel it or wait for its end"
            )));
        }
        let pinned: Option<i64> = sqlx::query_scalar(
            "SELECT pinned_at FROM matrices WHERE digest = ? AND pinned_at IS NOT NULL",
        )
        .bind(&digest.as_bytes()[..])
        .fetch_optional(&mut *tx)
        .await?;
        if pinned.is_some() {
            return Err(StoreError::InUse(format!(
                "matrix {digest} is pinned; lift its pin first"
            )));
        }
        let done = sqlx::query("DELETE FROM matrices WHERE digest = ?")
            .bind(&digest.as_bytes()[..])
            .execute(&mut *tx)
            .await?;
        let gone = done.rows_affected() == 1;
        let revision = if gone { Some(upkeep::revise(&mut tx).await?) } else { None };
        tx.commit(revision).await?;
        Ok(gone)
    }
}
