//! How a training begins and ends in the store, where no worker says so.

use super::row::TrainingRow;
use crate::domain::training::TrainingStage;
use crate::domain::{JobState, Timestamp, Training};
use crate::store::sqlite::codec::encode;
use crate::store::{Result, StoreError};
use sqlx::SqliteConnection;

/// How often a training is taken up: what took so many workers down would take the next.
const MOST_ATTEMPTS: u32 = 3;

/// Ended trainings of a scope beyond which upkeep removes the oldest.
const MOST_ENDED: i64 = 100;

/// Removes ended trainings that are not among the newest such of their scope.
pub(in crate::store::sqlite) async fn prune(tx: &mut SqliteConnection) -> Result<()> {
    sqlx::query(
        "DELETE FROM trainings WHERE id IN (
             SELECT id FROM (
                 SELECT id, row_number() OVER (PARTITION BY op, device_class ORDER BY created_at DESC, id DESC) AS age
                 FROM trainings WHERE state NOT IN ('queued', 'running'))
             WHERE age > ?)",
    )
    .bind(MOST_ENDED)
    .execute(tx)
    .await?;
    Ok(())
}

/// Writes the beginning of a training just taken; fails it instead (`None`) where it was taken too often.
pub(super) async fn begin(
    tx: &mut SqliteConnection,
    row: &TrainingRow,
    now: Timestamp,
) -> Result<Option<Training>> {
    let mut training = row.training()?;
    if training.attempts > MOST_ATTEMPTS {
        let why = format!("given up: it took {MOST_ATTEMPTS} workers down");
        tracing::warn!(training = row.id, why, "the training is failed");
        end(tx, row, JobState::Failed, Some(why), now).await?;
        return Ok(None);
    }
    training.started_at = training.started_at.or(Some(now));
    sqlx::query("UPDATE trainings SET body = ? WHERE id = ?")
        .bind(encode(&training)?)
        .bind(&row.id)
        .execute(tx)
        .await?;
    Ok(Some(training))
}

/// Ends trainings that were asked to stop and whose worker is gone.
pub(in crate::store::sqlite) async fn end_cancelled(
    tx: &mut SqliteConnection,
    now: Timestamp,
) -> Result<()> {
    let rows: Vec<TrainingRow> = sqlx::query_as(concat!(
        "SELECT ",
        training_columns!(),
        " FROM trainings WHERE state IN ('queued', 'running')
         AND state = 'running' AND cancel_requested = 1 AND lease_until <= ?"
    ))
    .bind(now.0)
    .fetch_all(&mut *tx)
    .await?;
    for row in rows {
        end(tx, &row, JobState::Cancelled, None, now).await?;
    }
    Ok(())
}

/// Ends a training that no worker ends. A body that cannot be read stays as it is; its row has ended all the same.
pub(super) async fn end(
    tx: &mut SqliteConnection,
    row: &TrainingRow,
    state: JobState,
    error: Option<String>,
    now: Timestamp,
) -> Result<()> {
    let body = match row.training() {
        Ok(training) => Some(encode(&Training {
            state,
            stage: TrainingStage::Done,
            error,
            finished_at: Some(now),
            ..training
        })?),
        Err(StoreError::Corrupt { .. }) => None,
        Err(error) => return Err(error),
    };
    sqlx::query(
        "UPDATE trainings SET state = ?, body = coalesce(?, body), attempts = min(attempts, ?),
             owner = NULL, lease_until = NULL
         WHERE id = ?",
    )
    .bind(state.name())
    .bind(body)
    .bind(MOST_ATTEMPTS)
    .bind(&row.id)
    .execute(tx)
    .await?;
    Ok(())
}
