//! A statement with its parameters, executed on either database.

use super::doubt::is_spent;
use super::{Executor, Pool, dialect, noted};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, FromRow, Postgres, SqlSafeStr, SqlStr, Sqlite};
use std::borrow::Cow;
use std::marker::PhantomData;

/// A parameter. One that is empty keeps its type, which PostgreSQL asks for.
#[derive(Clone, Debug)]
pub enum Value<'q> {
    Int(Option<i64>),
    Float(Option<f64>),
    Text(Option<Cow<'q, str>>),
    Bytes(Option<Cow<'q, [u8]>>),
}

/// What may be bound.
pub trait Bind<'q> {
    const NONE: Value<'q>;
    fn value(self) -> Value<'q>;
}

macro_rules! bind {
    ($($type:ty: $kind:ident, $value:ident => $to:expr;)*) => {$(
        impl<'q> Bind<'q> for $type {
            const NONE: Value<'q> = Value::$kind(None);
            fn value(self) -> Value<'q> {
                let $value = self;
                Value::$kind(Some($to))
            }
        }
    )*};
}

bind! {
    i64: Int, value => value;
    i32: Int, value => value.into();
    u32: Int, value => value.into();
    // Flags are numbers in both databases: the terms of partial indexes name them so.
    bool: Int, value => value.into();
    f64: Float, value => value;
    String: Text, value => value.into();
    &'q str: Text, value => value.into();
    &'q String: Text, value => value.as_str().into();
    Vec<u8>: Bytes, value => value.into();
    &'q [u8]: Bytes, value => value.into();
}

impl<'q, T: Bind<'q>> Bind<'q> for Option<T> {
    const NONE: Value<'q> = T::NONE;

    fn value(self) -> Value<'q> {
        self.map_or(T::NONE, T::value)
    }
}

impl<'q> Bind<'q> for &'q Option<String> {
    const NONE: Value<'q> = Value::Text(None);

    fn value(self) -> Value<'q> {
        self.as_deref().value()
    }
}

/// A row that either database's is decoded into.
pub trait Row: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin {}

impl<T> Row for T where T: for<'r> FromRow<'r, SqliteRow> + for<'r> FromRow<'r, PgRow> + Send + Unpin
{}

#[must_use = "a statement does nothing until it is executed"]
pub struct Query<'q, O> {
    text: SqlStr,
    values: Vec<Value<'q>>,
    row: PhantomData<fn() -> O>,
}

/// A statement whose rows have one column.
#[must_use = "a statement does nothing until it is executed"]
pub struct Scalar<'q, O>(Query<'q, (O,)>);

/// A statement whose rows are not read.
pub fn query<'q>(text: impl SqlSafeStr) -> Query<'q, ()> {
    query_as(text)
}

pub fn query_as<'q, O>(text: impl SqlSafeStr) -> Query<'q, O> {
    Query { text: text.into_sql_str(), values: Vec::new(), row: PhantomData }
}

pub fn query_scalar<'q, O>(text: impl SqlSafeStr) -> Scalar<'q, O> {
    Scalar(query_as(text))
}

/// What a statement did.
#[derive(Clone, Copy, Debug)]
pub struct Done(u64);

impl Done {
    pub const fn rows_affected(self) -> u64 {
        self.0
    }
}

macro_rules! arguments {
    ($values:expr, $arguments:ty) => {{
        let mut arguments = <$arguments>::default();
        for value in $values {
            let added = match value {
                Value::Int(value) => arguments.add(value),
                Value::Float(value) => arguments.add(value),
                Value::Text(None) => arguments.add(None::<String>),
                Value::Text(Some(Cow::Borrowed(text))) => arguments.add(text),
                Value::Text(Some(Cow::Owned(text))) => arguments.add(text),
                Value::Bytes(None) => arguments.add(None::<Vec<u8>>),
                Value::Bytes(Some(Cow::Borrowed(bytes))) => arguments.add(bytes),
                Value::Bytes(Some(Cow::Owned(bytes))) => arguments.add(bytes),
            };
            added.map_err(sqlx::Error::Encode)?;
        }
        arguments
    }};
}

/// Executes on whichever connection of a server's pool is free. Behind a pooler it is a transaction, with the limits of all.
macro_rules! on_server {
    ($query:expr, $pool:expr, $method:ident) => {{
        let query = $query;
        match &$pool.pooled {
            None => $pool.doubt.of(query.$method(&$pool.pool)).await,
            Some(_) => match $pool.transaction("BEGIN").await {
                Ok(mut tx) => {
                    let Executor::Postgres { connection, doubt, .. } = Executor::from(&mut tx)
                    else {
                        return Err(sqlx::Error::BeginFailed);
                    };
                    match doubt.of(query.persistent(false).$method(connection)).await {
                        Ok(found) => tx.commit().await.map(|()| found),
                        failed => failed,
                    }
                }
                Err(error) => Err(error),
            },
        }
    }};
}

/// Executes by the given method of sqlx's queries, on whichever database it is.
macro_rules! run {
    ($query:expr, $on:expr, $make:ident, $method:ident) => {{
        let Query { text, values, .. } = $query;
        let on: Executor<'_> = $on.into();
        match on {
            Executor::Pool(Pool::Sqlite(pool)) => {
                let arguments = arguments!(values, SqliteArguments);
                sqlx::$make::<Sqlite, _, _>(text, arguments).$method(pool).await
            }
            Executor::Sqlite(connection) => {
                let arguments = arguments!(values, SqliteArguments);
                sqlx::$make::<Sqlite, _, _>(text, arguments).$method(connection).await
            }
            Executor::Pool(Pool::Postgres(pool)) => {
                let text = dialect::translated(text);
                let arguments = arguments!(values.iter().cloned(), PgArguments);
                let query = sqlx::$make::<Postgres, _, _>(text.clone(), arguments);
                match on_server!(query, pool, $method) {
                    // Of a server that was started again. What is asked of a pool and answered with rows reads, or may be done twice.
                    Err(error) if is_spent(&error) => {
                        let arguments = arguments!(values, PgArguments);
                        on_server!(sqlx::$make::<Postgres, _, _>(text, arguments), pool, $method)
                    }
                    found => found,
                }
            }
            Executor::Postgres { connection, pooled, doubt, failed } => {
                let arguments = arguments!(values, PgArguments);
                let query = sqlx::$make::<Postgres, _, _>(dialect::translated(text), arguments);
                noted(failed, doubt.of(query.persistent(!pooled).$method(connection)).await)
            }
        }
    }};
}

impl<'q, O> Query<'q, O> {
    pub fn bind(mut self, value: impl Bind<'q>) -> Self {
        self.values.push(value.value());
        self
    }
}

impl Query<'_, ()> {
    pub async fn execute<'c>(self, on: impl Into<Executor<'c>>) -> sqlx::Result<Done> {
        macro_rules! affected {
            ($done:expr) => {
                $done.map(|done| Done(done.rows_affected()))
            };
        }
        let Query { text, values, .. } = self;
        match on.into() {
            Executor::Pool(Pool::Sqlite(pool)) => {
                let arguments = arguments!(values, SqliteArguments);
                affected!(sqlx::query_with::<Sqlite, _>(text, arguments).execute(pool).await)
            }
            Executor::Sqlite(connection) => {
                let arguments = arguments!(values, SqliteArguments);
                affected!(sqlx::query_with::<Sqlite, _>(text, arguments).execute(connection).await)
            }
            Executor::Pool(Pool::Postgres(pool)) => {
                let arguments = arguments!(values, PgArguments);
                let query = sqlx::query_with::<Postgres, _>(dialect::translated(text), arguments);
                affected!(on_server!(query, pool, execute))
            }
            Executor::Postgres { connection, pooled, doubt, failed } => {
                let arguments = arguments!(values, PgArguments);
                let query = sqlx::query_with::<Postgres, _>(dialect::translated(text), arguments);
                let done = doubt.of(query.persistent(!pooled).execute(connection)).await;
                affected!(noted(failed, done))
            }
        }
    }
}

impl<O: Row> Query<'_, O> {
    pub async fn fetch_all<'c>(self, on: impl Into<Executor<'c>>) -> sqlx::Result<Vec<O>> {
        run!(self, on, query_as_with, fetch_all)
    }

    pub async fn fetch_optional<'c>(self, on: impl Into<Executor<'c>>) -> sqlx::Result<Option<O>> {
        run!(self, on, query_as_with, fetch_optional)
    }

    pub async fn fetch_one<'c>(self, on: impl Into<Executor<'c>>) -> sqlx::Result<O> {
        run!(self, on, query_as_with, fetch_one)
    }
}

impl<'q, O> Scalar<'q, O> {
    pub fn bind(self, value: impl Bind<'q>) -> Self {
        Self(self.0.bind(value))
    }
}

impl<O> Scalar<'_, O>
where
    (O,): Row,
{
    pub async fn fetch_all<'c>(self, on: impl Into<Executor<'c>>) -> sqlx::Result<Vec<O>> {
        Ok(self.0.fetch_all(on).await?.into_iter().map(|(one,)| one).collect())
    }

    pub async fn fetch_optional<'c>(self, on: impl Into<Executor<'c>>) -> sqlx::Result<Option<O>> {
        Ok(self.0.fetch_optional(on).await?.map(|(one,)| one))
    }

    pub async fn fetch_one<'c>(self, on: impl Into<Executor<'c>>) -> sqlx::Result<O> {
        Ok(self.0.fetch_one(on).await?.0)
    }
}

/// A statement that is put together from parts, for lists with many filters.
pub struct Text<'q> {
    text: String,
    values: Vec<Value<'q>>,
}

impl<'q> Text<'q> {
    pub fn new(start: &'static str) -> Self {
        Self { text: start.to_owned(), values: Vec::new() }
    }

    pub fn push(&mut self, part: &'static str) -> &mut Self {
        self.text.push_str(part);
        self
    }

    /// The next parameter.
    pub fn push_bind(&mut self, value: impl Bind<'q>) -> &mut Self {
        self.values.push(value.value());
        self.text.push_str(&format!("${}", self.values.len()));
        self
    }

    #[cfg(test)]
    pub fn sql(&self) -> &str {
        &self.text
    }

    pub fn query_as<O>(self) -> Query<'q, O> {
        // The parts are of this program, and all values are bound.
        let text = sqlx::AssertSqlSafe(self.text).into_sql_str();
        Query { text, values: self.values, row: PhantomData }
    }
}
