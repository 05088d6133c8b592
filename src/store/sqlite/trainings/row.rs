//! One training as its row has it.

use crate::domain::{Training, TrainingId};
use crate::store::Result;
use crate::store::sqlite::codec::{self, Stored, decode};
use sqlx::SqliteConnection;

/// The columns of [`TrainingRow`], for the statements that return one.
macro_rules! training_columns {
    () => {
        "id, state, version, body, attempts, created_at, epoch"
    };
}

#[derive(sqlx::FromRow)]
pub(super) struct TrainingRow {
    pub id: String,
    pub state: String,
    version: i64,
    body: String,
    attempts: i64,
    pub created_at: i64,
    pub epoch: i64,
}

impl TrainingRow {
    /// The body, with what columns know better.
    pub fn training(&self) -> Result<Training> {
        let mut training: Training = decode(self.version, &self.body)?;
        if training.id.0 != self.id {
            let why = format!("the training under {} is {}", self.id, training.id);
            return Err(codec::corrupt(Training::WHAT, why));
        }
        training.state = codec::named("training state", self.state.clone())?;
        training.attempts = codec::count("training attempts", self.attempts)?;
        Ok(training)
    }
}

pub(super) async fn by_id(
    connection: &mut SqliteConnection,
    id: &TrainingId,
) -> Result<Option<TrainingRow>> {
    let row =
        sqlx::query_as(concat!("SELECT ", training_columns!(), " FROM trainings WHERE id = ?"))
            .bind(&id.0)
            .fetch_optional(connection)
            .await?;
    Ok(row)
}
