//! Rows of any table, as they are.

use super::query::{Bind, Value};
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::{Column as _, FromRow, Row, TypeInfo as _};
use std::borrow::Cow;

/// The values of a row.
#[derive(Clone, Debug)]
pub struct Cells(pub Vec<Value<'static>>);

impl Cells {
    /// Adds the row to a hash, so that no two rows, nor one row and two, add the same.
    pub fn add_to(&self, hasher: &mut blake3::Hasher) {
        for cell in &self.0 {
            let bytes: Option<Cow<'_, [u8]>> = match cell {
                Value::Int(value) => value.map(|value| value.to_le_bytes().to_vec().into()),
                Value::Float(value) => value.map(|value| value.to_le_bytes().to_vec().into()),
                Value::Text(value) => value.as_deref().map(|text| text.as_bytes().into()),
                Value::Bytes(value) => value.as_deref().map(Cow::Borrowed),
            };
            match bytes {
                Some(bytes) => {
                    hasher.update(&(bytes.len() as u64).to_le_bytes()).update(&bytes);
                }
                None => _ = hasher.update(&u64::MAX.to_le_bytes()),
            }
        }
    }
}

impl<'q> Bind<'q> for &'q Value<'static> {
    const NONE: Value<'q> = Value::Int(None);

    fn value(self) -> Value<'q> {
        self.clone()
    }
}

macro_rules! cells {
    ($row:expr) => {{
        let columns = $row.columns();
        let cells = columns.iter().map(|column| {
            let at = column.ordinal();
            Ok(match column.type_info().name() {
                // SQLite knows no type of its own numbers of rows.
                "INTEGER" | "INT8" | "NULL" => Value::Int($row.try_get(at)?),
                "INT2" => Value::Int($row.try_get::<Option<i16>, _>(at)?.map(i64::from)),
                "REAL" | "FLOAT8" => Value::Float($row.try_get(at)?),
                "BLOB" | "BYTEA" => {
                    Value::Bytes($row.try_get::<Option<Vec<u8>>, _>(at)?.map(Cow::Owned))
                }
                _ => Value::Text($row.try_get::<Option<String>, _>(at)?.map(Cow::Owned)),
            })
        });
        cells.collect::<sqlx::Result<Vec<_>>>().map(Cells)
    }};
}

impl FromRow<'_, SqliteRow> for Cells {
    fn from_row(row: &SqliteRow) -> sqlx::Result<Self> {
        cells!(row)
    }
}

impl FromRow<'_, PgRow> for Cells {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        cells!(row)
    }
}
