//! Lists in another order than newest first: along the index of what they are sorted by, and then, along the same, what has no value.

use super::codec::{self, page_limit};
use super::db::{self, Pool, Text};
use crate::store::order::{Column, Direction, JobColumn, MatrixColumn, Order};
use crate::store::{Page, PageRequest, Result, StoreError};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a list is sorted by, as its index has it.
pub(super) const fn matrix_key(column: MatrixColumn) -> &'static str {
    match column {
        MatrixColumn::CreatedAt => "holdings.created_at",
        MatrixColumn::Name => "lower(substr(holdings.name, 1, 64))",
        MatrixColumn::Rows => "holdings.n_rows",
        MatrixColumn::Nnz => "holdings.nnz",
    }
}

pub(super) const fn job_key(column: JobColumn) -> &'static str {
    match column {
        // A time in milliseconds is a whole number that a double has exactly; the index has it as it is, and so have statements.
        JobColumn::CreatedAt => "created_at",
        JobColumn::Took => "CAST(finished_at - started_at AS DOUBLE PRECISION)",
        JobColumn::MedianUs => "CAST(best ->> '$.median_us' AS DOUBLE PRECISION)",
        JobColumn::Speedup => "CAST(best ->> '$.speedup' AS DOUBLE PRECISION)",
    }
}

/// Below all that an index has of it. SQLite goes to where values begin for this, and not for IS NOT NULL: it would read all without one.
pub(super) const fn matrix_floor(column: MatrixColumn) -> &'static str {
    match column {
        MatrixColumn::Name => "''",
        MatrixColumn::CreatedAt | MatrixColumn::Rows | MatrixColumn::Nnz => "-9223372036854775807",
    }
}

pub(super) const fn job_floor(column: JobColumn) -> &'static str {
    match column {
        JobColumn::CreatedAt => "-9223372036854775807",
        JobColumn::Took | JobColumn::MedianUs | JobColumn::Speedup => "-1e308",
    }
}

/// A list that can be read in many orders.
pub(super) struct List<C> {
    /// Its name in cursors.
    pub name: &'static str,
    pub columns: &'static str,
    /// What tells its rows apart, as its indexes have it behind what they are sorted by.
    pub id: &'static str,
    pub key: fn(C) -> &'static str,
    pub floor: fn(C) -> &'static str,
}

/// A row with what it is sorted by. The database says it, and gets it back: a number that was read from JSON by another would not
/// always be the same to the last bit.
#[derive(sqlx::FromRow)]
pub(super) struct Keyed<W, K> {
    #[sqlx(flatten)]
    pub row: W,
    pub sort_key: Option<K>,
}

/// Where a page begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Start<K, I> {
    /// With the first row that has a value,
    First,
    /// behind this one,
    Behind(K, I),
    /// with the first without a value,
    Absent,
    /// or behind this one.
    BehindAbsent(I),
}

impl<C: Column> List<C> {
    fn cursor_name(&self, order: Order<C>) -> String {
        format!("{} by {} {}", self.name, order.by.name(), order.direction.name())
    }

    fn cursor<K: Serialize>(&self, order: Order<C>, key: &Option<K>, id: &str) -> Result<String> {
        let place = codec::encode_part("cursor", &(self.cursor_name(order), key, id))?;
        Ok(URL_SAFE_NO_PAD.encode(place))
    }

    fn read<K: DeserializeOwned>(
        &self,
        order: Order<C>,
        text: &str,
    ) -> Result<(Option<K>, String)> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| StoreError::BadCursor)?;
        let (name, key, id): (String, Option<K>, String) =
            serde_json::from_slice(&bytes).map_err(|_| StoreError::BadCursor)?;
        if name != self.cursor_name(order) {
            return Err(StoreError::BadCursor);
        }
        Ok((key, id))
    }

    /// The statement of one part of a page; `of` adds where the rows are taken from, and at least one term of which.
    pub(super) fn query<K, I>(
        &self,
        order: Order<C>,
        of: &impl Fn(&mut Text<'static>),
        from: Start<K, I>,
        limit: i64,
    ) -> Text<'static>
    where
        K: db::Bind<'static> + Clone,
        I: db::Bind<'static>,
    {
        let key = (self.key)(order.by);
        let mut query = Text::new("SELECT ");
        query.push(self.columns).push(", ").push(key).push(" AS sort_key");
        of(&mut query);
        query.push(" AND ").push(key);
        // What has no value is read newest first whichever way the list goes: an identifier begins with a time, and of digests nobody minds.
        let (beyond, way) = match (&from, order.direction) {
            (Start::Absent | Start::BehindAbsent(_), _) | (_, Direction::Desc) => ("<", " DESC"),
            _ => (">", " ASC"),
        };
        let absent = matches!(from, Start::Absent | Start::BehindAbsent(_));
        match from {
            Start::First => _ = query.push(" >= ").push((self.floor)(order.by)),
            Start::Behind(value, id) => {
                // SQLite goes to a place of an index by a pair of columns, but not of an expression and a column.
                query.push(" IS NOT NULL AND ").push(key).push(" ").push(beyond).push("= ");
                query.push_bind(value.clone());
                query.push(" AND (").push(key).push(", ").push(self.id).push(") ");
                query.push(beyond).push(" (").push_bind(value).push(", ").push_bind(id).push(")");
            }
            Start::Absent => _ = query.push(" IS NULL"),
            Start::BehindAbsent(id) => {
                query.push(" IS NULL AND ").push(self.id).push(" < ").push_bind(id);
            }
        }
        query.push(" ORDER BY ");
        match absent {
            // PostgreSQL goes along the index only if it is named in full; SQLite knows that what is absent is all alike.
            true => query.push("/*[*//*|").push(key).push(" DESC, ]*/"),
            false => query.push(key).push(way).push(", "),
        };
        query.push(self.id).push(way);
        query.push(" LIMIT ").push_bind(limit);
        query
    }

    /// A page, in one statement or, where values end, in two that read one state: what gets a value or loses it between them would be missing
    /// or twice.
    pub(super) async fn page<W, K, I>(
        &self,
        readers: &Pool,
        order: Order<C>,
        request: &PageRequest,
        of: impl Fn(&mut Text<'static>),
        read_id: impl Fn(&str) -> Result<I>,
        id_of: impl Fn(&W) -> Result<String>,
    ) -> Result<Page<W>>
    where
        K: db::Bind<'static> + Clone + Serialize + DeserializeOwned,
        I: db::Bind<'static>,
        Keyed<W, K>: db::Row,
    {
        let limit = page_limit(request.limit);
        let after = request.after.as_deref().map(|text| self.read::<K>(order, text)).transpose()?;
        let from = match after {
            None => Start::First,
            Some((Some(key), id)) => Start::Behind(key, read_id(&id)?),
            Some((None, id)) => Start::BehindAbsent(read_id(&id)?),
        };
        let absent = matches!(from, Start::BehindAbsent(_));
        let query = self.query(order, &of, from, limit + 1);
        let mut reader = readers.snapshot().await?;
        let mut rows: Vec<Keyed<W, K>> = query.query_as().fetch_all(&mut reader).await?;
        let left = limit + 1 - i64::try_from(rows.len()).unwrap_or(i64::MAX);
        if left > 0 && !absent {
            let rest = self.query(order, &of, Start::<K, I>::Absent, left);
            rows.extend(rest.query_as::<Keyed<W, K>>().fetch_all(&mut reader).await?);
        }
        let shown = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = rows.len() > shown;
        rows.truncate(shown);
        let next = match rows.last().filter(|_| more) {
            Some(last) => Some(self.cursor(order, &last.sort_key, &id_of(&last.row)?)?),
            None => None,
        };
        Ok(Page { items: rows.into_iter().map(|keyed| keyed.row).collect(), next })
    }
}
