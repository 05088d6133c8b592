//! Matrices: facts by digest, once; and who holds them, newest first.

use super::codec::{self, Stored, decode, encode};
use super::db::{self, Connection, Text};
use super::file_lock::{FileLock, Serial};
use super::sorted::{self, List};
use super::{PUBLISHING_PATIENCE, Place, SqlStore, quotas};
use crate::domain::{Digest, Matrix, Timestamp};
use crate::store::{
    Guard, Matrices, MatrixColumn, MatrixOrder, MatrixQuery, Page, PageRequest, Result, StoreError,
};
use async_trait::async_trait;
use std::collections::HashMap;

const LIST: &str = "matrices";

// Each list takes the sort key of the last row shown as its first two parameters, and its limit as the third.

/// Of a holding: the matrix's facts with the name and the time of this namespace.
macro_rules! held_columns {
    () => {
        "matrices.digest, matrices.version, matrices.facts, holdings.name, holdings.created_at"
    };
}

pub(super) const ALL: &str = concat!(
    "SELECT ",
    held_columns!(),
    " FROM holdings JOIN matrices ON matrices.digest = holdings.digest
     WHERE holdings.namespace = $4 AND (holdings.created_at, holdings.digest) < ($1, $2)
     ORDER BY holdings.created_at DESC, holdings.digest DESC LIMIT $3"
);

const ONE: &str = concat!(
    "SELECT ",
    held_columns!(),
    " FROM holdings JOIN matrices ON matrices.digest = holdings.digest
     WHERE holdings.namespace = $1 AND holdings.digest = $2"
);

/// Searches the newest 20,000 names, all in the index; facts are read only for the matches.
pub(super) const NAMED: &str = "SELECT found.digest, version, facts, found.name, found.created_at FROM (
         SELECT digest, created_at, name FROM (
             SELECT digest, created_at, name FROM holdings /*[*/INDEXED BY holdings_newest/*|]*/
             WHERE namespace = $4 ORDER BY created_at DESC, digest DESC LIMIT 20000) newest
         WHERE instr(lower(name), lower($5)) > 0 AND (created_at, digest) < ($1, $2)
         ORDER BY created_at DESC, digest DESC LIMIT $3) found
     JOIN matrices ON matrices.digest = found.digest ORDER BY found.created_at DESC, found.digest DESC";

pub(super) const BETWEEN: &str = concat!(
    "SELECT ",
    held_columns!(),
    " FROM holdings JOIN matrices ON matrices.digest = holdings.digest
     WHERE holdings.namespace = $4 AND holdings.digest IN (
         SELECT digest FROM holdings WHERE namespace = $4 AND digest BETWEEN $5 AND $6
         UNION SELECT digest FROM holdings WHERE namespace = $4 AND pattern_digest BETWEEN $5 AND $6)
     AND (holdings.created_at, holdings.digest) < ($1, $2)
     ORDER BY holdings.created_at DESC, holdings.digest DESC LIMIT $3"
);

/// A match of the digest precedes a match of the pattern, a stored matrix precedes the facts kept by a plan, which have their own name
/// and time, and among equals the newest is first. There is one row at most, so there is no next page.
pub(super) const KNOWN: &str = "SELECT digest, version, facts, name, held_at FROM (
         SELECT 0 AS place, h.created_at, h.digest, version, facts, h.name, h.created_at AS held_at
             FROM holdings h JOIN matrices ON matrices.digest = h.digest WHERE h.namespace = $4 AND h.digest = $5
         UNION ALL SELECT 1, created_at, matrix, facts_version, facts, NULL, NULL
             FROM plans WHERE namespace = $4 AND matrix = $5 AND predicted = 0
         UNION ALL SELECT 2, h.created_at, h.digest, version, facts, h.name, h.created_at
             FROM holdings h /*[*/INDEXED BY holdings_by_pattern/*|]*/ JOIN matrices ON matrices.digest = h.digest
             WHERE h.namespace = $4 AND h.pattern_digest = $5
         UNION ALL SELECT 3, created_at, matrix, facts_version, facts, NULL, NULL
             FROM plans WHERE namespace = $4 AND pattern_digest = $5 AND predicted = 0) known
     WHERE (created_at, digest) < ($1, $2) ORDER BY place, created_at DESC LIMIT min($3, 1)";

/// A plan keeps the facts of its matrix, which may have been deleted.
pub(super) const NAMES: &str = "SELECT unhex(value), coalesce(
         (SELECT name FROM holdings WHERE namespace = $1 AND digest = unhex(value)),
         (SELECT facts ->> '$.name' FROM plans WHERE namespace = $1 AND matrix = unhex(value)
             ORDER BY created_at DESC LIMIT 1))
     FROM json_each($2)";

/// The list in another order.
pub(super) const SORTED: List<MatrixColumn> = List {
    name: LIST,
    columns: held_columns!(),
    id: "holdings.digest",
    key: sorted::matrix_key,
    floor: sorted::matrix_floor,
};

/// Where the rows of a sorted list come from: all that the namespace holds, or the newest 20,000 by their names.
pub(super) fn source(
    query: &mut Text<'static>,
    namespace: &str,
    named: Option<&str>,
    by: MatrixColumn,
) {
    let Some(part) = named else {
        // SQLite would go through the whole namespace by digest for what has no value.
        query.push(" FROM holdings ").push(match by {
            MatrixColumn::CreatedAt => "",
            MatrixColumn::Name => "/*[*/INDEXED BY holdings_by_name/*|]*/",
            MatrixColumn::Rows => "/*[*/INDEXED BY holdings_by_rows/*|]*/",
            MatrixColumn::Nnz => "/*[*/INDEXED BY holdings_by_nnz/*|]*/",
        });
        query.push(
            " JOIN matrices ON matrices.digest = holdings.digest WHERE holdings.namespace = ",
        );
        query.push_bind(namespace.to_owned());
        return;
    };
    query.push(
        " FROM (SELECT digest, created_at, name, n_rows, nnz FROM holdings WHERE namespace = ",
    );
    query.push_bind(namespace.to_owned());
    query.push(
        " ORDER BY created_at DESC, digest DESC LIMIT 20000) holdings
         JOIN matrices ON matrices.digest = holdings.digest WHERE instr(lower(holdings.name), lower(",
    );
    query.push_bind(part.to_owned()).push(")) > 0");
}

fn digest_of(text: &str) -> Result<Digest> {
    text.parse().map_err(|_| StoreError::BadCursor)
}

/// Digest, version and facts of a matrix, and its name and time where it is held.
type Row = (Vec<u8>, i64, String, Option<String>, Option<i64>);

/// Decodes the facts and checks them against their key.
fn facts((digest, version, text, name, held_at): Row) -> Result<Matrix> {
    let digest = codec::digest("matrix digest", &digest)?;
    let matrix: Matrix = decode(version, &text)?;
    if matrix.digest != digest {
        let why = format!("the facts under {digest} are those of {}", matrix.digest);
        return Err(codec::corrupt(Matrix::WHAT, why));
    }
    Ok(match held_at {
        Some(at) => Matrix { name, created_at: Timestamp(at), ..matrix },
        None => matrix,
    })
}

/// The matrix as it is held in a namespace.
pub(super) async fn held(
    connection: &mut Connection,
    namespace: &str,
    digest: &Digest,
) -> Result<Option<Matrix>> {
    let row: Option<Row> = db::query_as(ONE)
        .bind(namespace)
        .bind(&digest.as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    row.map(facts).transpose()
}

#[async_trait]
impl Matrices for SqlStore {
    async fn publishing(&self) -> Result<Guard> {
        Ok(match &*self.place {
            Place::File(file) => {
                Guard::of(FileLock::wait(file, Serial::Publishing, PUBLISHING_PATIENCE).await?)
            }
            Place::Server(server) => server.publishing(&self.writer).await?,
        })
    }

    async fn insert_matrix(&self, matrix: &Matrix) -> Result<bool> {
        // The name is not of the contents, and no other namespace's business.
        let facts = encode(&Matrix { name: None, ..matrix.clone() })?;
        let mut tx = self.begin_within().await?;
        if let Place::Server(server) = &*self.place {
            server.still_publishes(&mut tx).await?;
        }
        let known: Option<i64> = db::query_scalar(
            "SELECT CAST(1 AS BIGINT) FROM holdings WHERE namespace = $1 AND digest = $2",
        )
        .bind(self.namespace())
        .bind(&matrix.digest.as_bytes()[..])
        .fetch_optional(&mut *tx)
        .await?;
        if known.is_some() {
            return Ok(false);
        }
        quotas::may_store(&mut tx, &self.caller, matrix.charged_bytes(), 1).await?;
        db::query(
            "INSERT INTO matrices (digest, pattern_digest, created_at, version, facts) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (digest) DO NOTHING",
        )
        .bind(&matrix.digest.as_bytes()[..])
        .bind(&matrix.pattern_digest.as_bytes()[..])
        .bind(matrix.created_at.0)
        .bind(Matrix::VERSION)
        .bind(facts)
        .execute(&mut *tx)
        .await?;
        db::query(
            "INSERT INTO holdings (namespace, digest, pattern_digest, name, created_at, token, charged, n_rows, nnz)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(self.namespace())
        .bind(&matrix.digest.as_bytes()[..])
        .bind(&matrix.pattern_digest.as_bytes()[..])
        .bind(&matrix.name)
        .bind(matrix.created_at.0)
        .bind(self.token())
        .bind(i64::try_from(matrix.charged_bytes()).unwrap_or(i64::MAX))
        .bind(i64::try_from(matrix.rows).unwrap_or(i64::MAX))
        .bind(i64::try_from(matrix.nnz).unwrap_or(i64::MAX))
        .execute(&mut *tx)
        .await?;
        tx.revise();
        tx.commit(None).await?;
        Ok(true)
    }

    async fn may_store(&self, bytes: u64, matrices: u64) -> Result<()> {
        let mut reader = self.readers.acquire().await?;
        quotas::may_store(&mut reader, &self.caller, bytes, matrices).await
    }

    async fn matrix(&self, digest: &Digest) -> Result<Option<Matrix>> {
        let mut reader = self.readers.acquire().await?;
        held(&mut reader, self.namespace(), digest).await
    }

    async fn matrices(&self, of: &MatrixQuery, page: &PageRequest) -> Result<Page<Matrix>> {
        let limit = codec::page_limit(page.limit);
        let (at, after) = match &page.after {
            Some(text) => {
                let (at, id) = codec::read_cursor(LIST, text)?;
                (at, digest_of(&id)?.as_bytes().to_vec())
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
        let query = db::query_as(statement).bind(at).bind(after).bind(limit + 1);
        let query = query.bind(self.namespace());
        let query = match of {
            MatrixQuery::All => query,
            MatrixQuery::Named(part) => query.bind(part),
            MatrixQuery::Between(first, last) => {
                query.bind(&first.as_bytes()[..]).bind(&last.as_bytes()[..])
            }
            MatrixQuery::Known(digest) => query.bind(&digest.as_bytes()[..]),
        };
        let rows: Vec<Row> = query.fetch_all(&self.readers).await?;
        let items: Vec<Matrix> = rows.into_iter().map(facts).collect::<Result<_>>()?;
        Ok(codec::cut(items, limit, |m| codec::cursor(LIST, m.created_at.0, &m.digest.to_string())))
    }

    async fn sorted_matrices(
        &self,
        named: Option<&str>,
        order: MatrixOrder,
        page: &PageRequest,
    ) -> Result<Page<Matrix>> {
        if order.is_default() {
            let of = named.map_or(MatrixQuery::All, |part| MatrixQuery::Named(part.to_owned()));
            return self.matrices(&of, page).await;
        }
        let of = |query: &mut Text<'static>| source(query, self.namespace(), named, order.by);
        let own = |id: &str| Ok(digest_of(id)?.as_bytes().to_vec());
        let id = |row: &Row| Ok(codec::digest("matrix digest", &row.0)?.to_string());
        let rows = match order.by {
            MatrixColumn::Name => {
                SORTED.page::<_, String, _>(&self.readers, order, page, of, own, id).await?
            }
            _ => SORTED.page::<_, i64, _>(&self.readers, order, page, of, own, id).await?,
        };
        let items = rows.items.into_iter().map(facts).collect::<Result<_>>()?;
        Ok(Page { items, next: rows.next })
    }

    async fn matrix_names(&self, digests: &[Digest]) -> Result<HashMap<Digest, String>> {
        let hex: Vec<String> = digests.iter().map(Digest::to_string).collect();
        let rows: Vec<(Vec<u8>, Option<String>)> = db::query_as(NAMES)
            .bind(self.namespace())
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
        let user: Option<String> = db::query_scalar(
            "SELECT id FROM jobs WHERE namespace = $1 AND matrix = $2 AND state IN ('queued', 'running') LIMIT 1",
        )
        .bind(self.namespace())
        .bind(&digest.as_bytes()[..])
        .fetch_optional(&mut *tx)
        .await?;
        if let Some(job) = user {
            return Err(StoreError::InUse(format!(
                "job {job} still needs matrix {digest}; cancel it or wait for its end"
            )));
        }
        let pinned: Option<i64> = db::query_scalar(
            "SELECT pinned_at FROM holdings WHERE namespace = $1 AND digest = $2 AND pinned_at IS NOT NULL",
        )
        .bind(self.namespace())
        .bind(&digest.as_bytes()[..])
        .fetch_optional(&mut *tx)
        .await?;
        if pinned.is_some() {
            return Err(StoreError::InUse(format!(
                "matrix {digest} is pinned; lift its pin first"
            )));
        }
        let done = db::query("DELETE FROM holdings WHERE namespace = $1 AND digest = $2")
            .bind(self.namespace())
            .bind(&digest.as_bytes()[..])
            .execute(&mut *tx)
            .await?;
        let gone = done.rows_affected() == 1;
        db::query(
            "DELETE FROM matrices WHERE digest = $1 AND NOT EXISTS (SELECT 1 FROM holdings WHERE digest = $1)",
        )
        .bind(&digest.as_bytes()[..])
        .execute(&mut *tx)
        .await?;
        if gone {
            tx.revise();
        }
        tx.commit(None).await?;
        Ok(gone)
    }

    async fn is_held(&self, digest: &Digest) -> Result<bool> {
        let held: Option<i64> =
            db::query_scalar("SELECT CAST(1 AS BIGINT) FROM matrices WHERE digest = $1")
                .bind(&digest.as_bytes()[..])
                .fetch_optional(&self.readers)
                .await?;
        Ok(held.is_some())
    }
}
