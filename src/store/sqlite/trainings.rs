//! Trainings: queued, claimed under a lease, ended.

#[macro_use]
mod row;
mod turns;

pub(super) use turns::{end_cancelled, prune};

use super::codec::{self, encode};
use super::{SqliteStore, models};
use crate::domain::{
    JobId, JobState, LearnedModel, Timestamp, Training, TrainingId, training::TrainingStage,
};
use crate::store::{
    Page, PageRequest, PutToUse, Renewal, Result, StoreError, TrainingFence, Trainings,
};
use async_trait::async_trait;
use row::{TrainingRow, by_id};
use turns::{begin, end};

const LIST: &str = "trainings";

/// The states are said twice because a partial index is used only where its very condition is among the terms.
pub(super) const WAITING: &str = "SELECT 1 FROM trainings WHERE state IN ('queued', 'running')
     AND (state = 'queued' OR (state = 'running' AND lease_until <= ?)) LIMIT 1";

const TAKE: &str = concat!(
    "UPDATE trainings SET state = 'running', owner = ?1, epoch = epoch + 1, lease_until = ?2, attempts = attempts + 1
     WHERE id = (
         SELECT id FROM trainings WHERE state IN ('queued', 'running')
         AND (state = 'queued' OR (state = 'running' AND lease_until <= ?3))
         ORDER BY created_at, id LIMIT 1)
     RETURNING ",
    training_columns!()
);

pub(super) const PAGE: &str = concat!(
    "SELECT ",
    training_columns!(),
    " FROM trainings WHERE (created_at, id) < (?, ?) ORDER BY created_at DESC, id DESC LIMIT ?"
);

#[async_trait]
impl Trainings for SqliteStore {
    async fn submit_training(&self, training: &Training) -> Result<(Training, bool)> {
        if training.state != JobState::Queued {
            let state = training.state.name();
            return Err(StoreError::Misuse(format!("a training cannot begin as {state}").into()));
        }
        let scope = &training.request.scope;
        let mut tx = self.begin().await?;
        let live: Option<TrainingRow> = sqlx::query_as(concat!(
            "SELECT ",
            training_columns!(),
            " FROM trainings WHERE op = ? AND device_class = ?
             AND state IN ('queued', 'running') AND cancel_requested = 0"
        ))
        .bind(scope.op.name())
        .bind(&scope.device_class.0)
        .fetch_optional(&mut *tx)
        .await?;
        if let Some(live) = live {
            return Ok((live.training()?, false));
        }
        sqlx::query(
            "INSERT INTO trainings (id, op, device_class, state, version, body, attempts, created_at)
             VALUES (?, ?, ?, 'queued', ?, ?, ?, ?)",
        )
        .bind(&training.id.0)
        .bind(scope.op.name())
        .bind(&scope.device_class.0)
        .bind(i64::from(training.version))
        .bind(encode(training)?)
        .bind(training.attempts)
        .bind(training.created_at.0)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok((training.clone(), true))
    }

    async fn training(&self, id: &TrainingId) -> Result<Option<Training>> {
        let mut reader = self.readers.acquire().await?;
        by_id(&mut reader, id).await?.map(|row| row.training()).transpose()
    }

    async fn trainings(&self, page: &PageRequest) -> Result<Page<Training>> {
        let limit = codec::page_limit(page.limit);
        let (at, after) = match &page.after {
            Some(text) => codec::read_cursor(LIST, text)?,
            // Above every key: ids are UUIDs.
            None => (i64::MAX, "~".to_owned()),
        };
        let rows: Vec<TrainingRow> = sqlx::query_as(PAGE)
            .bind(at)
            .bind(after)
            .bind(limit + 1)
            .fetch_all(&self.readers)
            .await?;
        let rows = codec::cut(rows, limit, |row| codec::cursor(LIST, row.created_at, &row.id));
        let mut items = Vec::with_capacity(rows.items.len());
        for row in rows.items {
            match row.training() {
                Ok(training) => items.push(training),
                Err(error) => {
                    tracing::error!(training = row.id, %error, "a training is left out of the list");
                }
            }
        }
        Ok(Page { items, next: rows.next })
    }

    async fn claim_training(
        &self,
        owner: &str,
        lease_ms: i64,
    ) -> Result<Option<(Training, TrainingFence)>> {
        let now = Timestamp::now();
        // Asked often and mostly in vain: that must not cost the write lock.
        let waiting: Option<i64> =
            sqlx::query_scalar(WAITING).bind(now.0).fetch_optional(&self.readers).await?;
        if waiting.is_none() {
            return Ok(None);
        }
        let mut tx = self.begin().await?;
        end_cancelled(&mut tx, now).await?;
        let claim = loop {
            let row: Option<TrainingRow> = sqlx::query_as(TAKE)
                .bind(owner)
                .bind(now.plus_millis(lease_ms).0)
                .bind(now.0)
                .fetch_optional(&mut *tx)
                .await?;
            let Some(row) = row else { break None };
            match begin(&mut tx, &row, now).await {
                Ok(Some(training)) => {
                    let fence = TrainingFence {
                        training: training.id.clone(),
                        owner: owner.to_owned(),
                        epoch: row.epoch,
                    };
                    break Some((training, fence));
                }
                Ok(None) => {}
                // Every claim would meet it again, and none come past it.
                Err(error @ StoreError::Corrupt { .. }) => {
                    tracing::error!(training = row.id, %error, "the training is failed: its row cannot be read");
                    end(&mut tx, &row, JobState::Failed, Some(error.to_string()), now).await?;
                }
                Err(error) => return Err(error),
            }
        };
        tx.commit().await?;
        Ok(claim)
    }

    async fn update_training(
        &self,
        fence: &TrainingFence,
        training: &Training,
        lease_ms: i64,
    ) -> Result<Renewal> {
        held(fence, training)?;
        let cancel_requested: Option<bool> = sqlx::query_scalar(
            "UPDATE trainings SET version = ?, body = ?, lease_until = ?
             WHERE id = ? AND owner = ? AND epoch = ? AND state = 'running' RETURNING cancel_requested",
        )
        .bind(i64::from(training.version))
        .bind(encode(training)?)
        .bind(Timestamp::now().plus_millis(lease_ms).0)
        .bind(&fence.training.0)
        .bind(&fence.owner)
        .bind(fence.epoch)
        .fetch_optional(&self.writer)
        .await?;
        cancel_requested
            .map(|cancel_requested| Renewal { cancel_requested })
            .ok_or_else(|| fenced(fence))
    }

    async fn finish_training(
        &self,
        fence: &TrainingFence,
        training: &Training,
        model: Option<(&LearnedModel, &[u8])>,
        change: Option<PutToUse<'_>>,
    ) -> Result<Training> {
        held(fence, training)?;
        if !training.state.is_final() {
            let state = training.state.name();
            return Err(StoreError::Misuse(format!("a training cannot end as {state}").into()));
        }
        let mut tx = self.begin().await?;
        let cancelled: Option<bool> = sqlx::query_scalar(
            "SELECT cancel_requested FROM trainings
             WHERE id = ? AND owner = ? AND epoch = ? AND state = 'running'",
        )
        .bind(&fence.training.0)
        .bind(&fence.owner)
        .bind(fence.epoch)
        .fetch_optional(&mut *tx)
        .await?;
        let mut ended = training.clone();
        match cancelled.ok_or_else(|| fenced(fence))? {
            true => {
                ended.state = JobState::Cancelled;
                (ended.model, ended.activated, ended.error) = (None, false, None);
                if training.state == JobState::Succeeded {
                    ended.message = Some("cancelled as it ended".to_owned());
                }
            }
            false => {
                if let Some((model, file)) = model {
                    models::insert(&mut tx, model, file).await?;
                }
                if let Some(change) = change
                    && !models::put_to_use(&mut tx, &change).await?
                {
                    ended.activated = false;
                    ended.message = Some(
                        "not activated: the active model was changed during the training"
                            .to_owned(),
                    );
                }
            }
        }
        sqlx::query(
            "UPDATE trainings SET state = ?, version = ?, body = ?, owner = NULL, lease_until = NULL
             WHERE id = ?",
        )
        .bind(ended.state.name())
        .bind(i64::from(ended.version))
        .bind(encode(&ended)?)
        .bind(&fence.training.0)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(ended)
    }

    async fn release_training(&self, fence: &TrainingFence) -> Result<()> {
        let mut tx = self.begin().await?;
        // One that was asked to stop is not given to another worker: its lease ends now, and it with it. An attempt that ends
        // so did the worker no harm and is not held against the training.
        let row: Option<TrainingRow> = sqlx::query_as(concat!(
            "UPDATE trainings SET
                 lease_until = CASE cancel_requested WHEN 1 THEN 0 END,
                 owner = CASE cancel_requested WHEN 1 THEN owner END,
                 state = CASE cancel_requested WHEN 1 THEN state ELSE 'queued' END,
                 attempts = max(attempts - 1, 0)
             WHERE id = ? AND owner = ? AND epoch = ? AND state = 'running' RETURNING ",
            training_columns!()
        ))
        .bind(&fence.training.0)
        .bind(&fence.owner)
        .bind(fence.epoch)
        .fetch_optional(&mut *tx)
        .await?;
        let row = row.ok_or_else(|| fenced(fence))?;
        if row.state == JobState::Queued.name() {
            // Nothing of what was done is kept.
            let waiting = Training {
                stage: TrainingStage::Waiting,
                progress: 0.0,
                message: None,
                started_at: None,
                features_version: None,
                ..row.training()?
            };
            sqlx::query("UPDATE trainings SET body = ? WHERE id = ?")
                .bind(encode(&waiting)?)
                .bind(&row.id)
                .execute(&mut *tx)
                .await?;
        }
        end_cancelled(&mut tx, Timestamp::now()).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn cancel_training(&self, id: &TrainingId) -> Result<Option<Training>> {
        let now = Timestamp::now();
        let mut tx = self.begin().await?;
        sqlx::query("UPDATE trainings SET cancel_requested = 1 WHERE id = ? AND state = 'running'")
            .bind(&id.0)
            .execute(&mut *tx)
            .await?;
        end_cancelled(&mut tx, now).await?;
        if let Some(row) = by_id(&mut tx, id).await?
            && row.state == JobState::Queued.name()
        {
            end(&mut tx, &row, JobState::Cancelled, None, now).await?;
        }
        let row = by_id(&mut tx, id).await?;
        tx.commit().await?;
        row.map(|row| row.training()).transpose()
    }
}

/// The words of a write under a fence are those of its training.
fn held(fence: &TrainingFence, training: &Training) -> Result<()> {
    if training.id == fence.training {
        return Ok(());
    }
    let why = format!("the lease is on training {}, not on {}", fence.training, training.id);
    Err(StoreError::Misuse(why.into()))
}

/// A training is a job like others.
fn fenced(fence: &TrainingFence) -> StoreError {
    StoreError::Fenced(JobId(fence.training.0.clone()))
}
