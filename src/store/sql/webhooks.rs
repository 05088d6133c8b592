//! Webhooks and their deliveries, which a trigger queues when a job ends (migration 16).

use super::upkeep::in_batches;
use super::{SqlStore, codec, db};
use crate::domain::webhook::{Delivery, DeliveryId, Webhook, WebhookId};
use crate::domain::{JobId, JobState, Timestamp};
use crate::store::{
    AttemptEnd, Attempted, DueDelivery, LONGEST_PAUSE, MOST_WAITING, Page, PageRequest, Result,
    Retention, StoreError, UNPAUSED, Webhooks,
};
use async_trait::async_trait;

const LIST: &str = "deliveries";

/// The next delivery of each webhook that is neither paused nor in a list: as many of each namespace, with those in the list, as the last
/// parameter says, first those of namespaces that have the fewest.
pub(super) const DUE: &str = "SELECT due FROM (SELECT due, next_at,
         row_number() OVER (PARTITION BY namespace ORDER BY next_at, due)
             + (SELECT count(*) FROM webhooks AS busy WHERE busy.namespace = next.namespace AND busy.id IN (SELECT value FROM json_each($2)))
             AS place
     FROM (
         SELECT (SELECT id FROM deliveries
                 WHERE hook = webhooks.id AND state = 'pending' AND next_at <= /*[*/$1/*|statement_ms() + 0 * $1]*/
                 ORDER BY next_at, id LIMIT 1) AS due, namespace
         FROM webhooks
         WHERE paused_until <= /*[*/$1/*|statement_ms()]*/ AND id NOT IN (SELECT value FROM json_each($2))) next
     JOIN deliveries ON deliveries.id = due) turns
     WHERE place <= $4 ORDER BY place, next_at, due LIMIT $3";

#[derive(sqlx::FromRow)]
struct WebhookRow {
    id: String,
    url: String,
    states: String,
    created_at: i64,
    paused_until: i64,
}

impl WebhookRow {
    fn webhook(self) -> Result<Webhook> {
        let names = self.states.split(',').filter(|name| !name.is_empty());
        let states = names.map(|name| codec::named("webhook state", name.to_owned()));
        Ok(Webhook {
            id: WebhookId(self.id),
            url: self.url,
            states: states.collect::<Result<Vec<JobState>>>()?,
            created_at: Timestamp(self.created_at),
            paused_until: (self.paused_until > Timestamp::now().0)
                .then_some(Timestamp(self.paused_until)),
        })
    }
}

#[derive(sqlx::FromRow)]
struct DeliveryRow {
    id: String,
    hook: String,
    job: String,
    state: String,
    attempts: i64,
    next_at: i64,
    status: Option<i64>,
    error: Option<String>,
    created_at: i64,
    ended_at: Option<i64>,
}

impl DeliveryRow {
    fn delivery(self) -> Result<Delivery> {
        let count = |value| codec::count("delivery status", value);
        Ok(Delivery {
            id: DeliveryId(self.id),
            hook: WebhookId(self.hook),
            job: JobId(self.job),
            next_at: (self.state == "pending").then_some(Timestamp(self.next_at)),
            state: codec::named("delivery state", self.state)?,
            attempts: codec::count("delivery attempts", self.attempts)?,
            status: self.status.map(count).transpose()?,
            error: self.error,
            created_at: Timestamp(self.created_at),
            ended_at: self.ended_at.map(Timestamp),
        })
    }
}

/// Gives up what waited too long, and of what waits for one webhook all but the newest [`MOST_WAITING`]; forgets what ended long ago.
pub(super) async fn prune(store: &SqlStore, retention: &Retention) -> Result<()> {
    let now = Timestamp::now().0;
    let hooks: Vec<String> =
        db::query_scalar("SELECT id FROM webhooks").fetch_all(&store.readers).await?;
    for hook in hooks {
        // The newest of those beyond.
        let full: Option<(i64, String)> = db::query_as(
            "SELECT created_at, id FROM deliveries WHERE hook = $1 AND state = 'pending'
             ORDER BY created_at DESC, id DESC LIMIT 1 OFFSET $2",
        )
        .bind(&hook)
        .bind(MOST_WAITING)
        .fetch_optional(&store.readers)
        .await?;
        for (before, why) in [
            (Some((retention.deliveries.0, String::new())), "it waited for its turn for too long"),
            (full, "too much waited for this webhook"),
        ] {
            let Some((at, id)) = before else { continue };
            in_batches(store, |most| {
                db::query(
                    "UPDATE deliveries SET state = 'failed', ended_at = $1, error = coalesce(error || '; ', '') || $2
                     WHERE id IN (
                         SELECT id FROM deliveries WHERE hook = $3 AND state = 'pending' AND (created_at, id) <= ($4, $5)
                         LIMIT $6 /*[*//*|FOR UPDATE SKIP LOCKED]*/)",
                )
                .bind(now)
                .bind(why)
                .bind(&hook)
                .bind(at)
                .bind(&id)
                .bind(most)
            })
            .await?;
        }
    }
    in_batches(store, |most| {
        db::query(
            "DELETE FROM deliveries WHERE id IN (
                 SELECT id FROM deliveries WHERE state <> 'pending' AND ended_at < $1 LIMIT $2)",
        )
        .bind(retention.events.0)
        .bind(most)
    })
    .await?;
    Ok(())
}

#[derive(sqlx::FromRow)]
struct DueRow {
    id: String,
    hook: String,
    body: String,
    attempts: i64,
    url: String,
    secret: String,
}

#[async_trait]
impl Webhooks for SqlStore {
    async fn insert_webhook(&self, hook: &Webhook, secret: &str, most: u32) -> Result<()> {
        let names: Vec<&str> = hook.states.iter().map(|state| state.name()).collect();
        let mut tx = self.begin().await?;
        let there: i64 = db::query_scalar("SELECT count(*) FROM webhooks WHERE namespace = $1")
            .bind(self.namespace())
            .fetch_one(&mut *tx)
            .await?;
        if there >= i64::from(most) {
            return Err(StoreError::InUse(format!(
                "there are {there} webhooks, as many as there may be: delete some first"
            )));
        }
        db::query(
            "INSERT INTO webhooks (id, namespace, url, secret, states, created_at) VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(&hook.id.0)
        .bind(self.namespace())
        .bind(&hook.url)
        .bind(secret)
        .bind(format!(",{},", names.join(",")))
        .bind(hook.created_at.0)
        .execute(&mut *tx)
        .await?;
        tx.commit([]).await
    }

    async fn webhooks(&self) -> Result<Vec<Webhook>> {
        let rows: Vec<WebhookRow> = db::query_as(
            "SELECT id, url, states, created_at, paused_until FROM webhooks WHERE namespace = $1
             ORDER BY created_at DESC, id DESC",
        )
        .bind(self.namespace())
        .fetch_all(&self.readers)
        .await?;
        rows.into_iter().map(WebhookRow::webhook).collect()
    }

    async fn delete_webhook(&self, id: &WebhookId) -> Result<bool> {
        let mut tx = self.begin().await?;
        let done = db::query("DELETE FROM webhooks WHERE id = $1 AND namespace = $2")
            .bind(&id.0)
            .bind(self.namespace())
            .execute(&mut *tx)
            .await?;
        tx.commit([]).await?;
        Ok(done.rows_affected() == 1)
    }

    async fn deliveries(&self, hook: &WebhookId, page: &PageRequest) -> Result<Page<Delivery>> {
        let limit = codec::page_limit(page.limit);
        let (at, after) = match &page.after {
            Some(text) => codec::read_cursor(LIST, text)?,
            // Above every key: ids are hex digits.
            None => (i64::MAX, "~".to_owned()),
        };
        let rows: Vec<DeliveryRow> = db::query_as(
            "SELECT id, hook, job, state, attempts, next_at, status, error, created_at, ended_at FROM deliveries
             WHERE hook = (SELECT id FROM webhooks WHERE id = $1 AND namespace = $2) AND (created_at, id) < ($3, $4)
             ORDER BY created_at DESC, id DESC LIMIT $5",
        )
        .bind(&hook.0)
        .bind(self.namespace())
        .bind(at)
        .bind(after)
        .bind(limit + 1)
        .fetch_all(&self.readers)
        .await?;
        let items = rows.into_iter().map(DeliveryRow::delivery).collect::<Result<Vec<_>>>()?;
        Ok(codec::cut(items, limit, |one| codec::cursor(LIST, one.created_at.0, &one.id.0)))
    }

    async fn claim_deliveries(
        &self,
        busy: &[WebhookId],
        until: Timestamp,
        (limit, of_one): (u32, u32),
    ) -> Result<Vec<DueDelivery>> {
        let now = Timestamp::now().0;
        let busy: Vec<&str> = busy.iter().map(|hook| hook.0.as_str()).collect();
        // Mostly nothing is due, and then nothing is written. One step in an index for each webhook, however much waits for it.
        let due: Vec<String> = db::query_scalar(DUE)
            .bind(now)
            .bind(codec::encode_part("webhooks", &busy)?)
            .bind(i64::from(limit))
            .bind(i64::from(of_one))
            .fetch_all(&self.readers)
            .await?;
        if due.is_empty() {
            return Ok(Vec::new());
        }
        // What another process has just claimed is passed over.
        let mut tx = self.begin_beside().await?;
        let rows: Vec<DueRow> = db::query_as(
            "UPDATE deliveries SET attempts = attempts + 1, next_at = /*[*/$1/*|clock_ms() + ($1 - $2)]*/
             WHERE id IN (
                 SELECT id FROM deliveries
                 WHERE id IN (SELECT value FROM json_each($3)) AND state = 'pending' AND next_at <= /*[*/$2/*|statement_ms() + 0 * $2]*/
                 ORDER BY next_at, id LIMIT $4 /*[*//*|FOR UPDATE SKIP LOCKED]*/)
             RETURNING id, hook, body, attempts,
                 (SELECT url FROM webhooks WHERE webhooks.id = deliveries.hook) AS url,
                 (SELECT secret FROM webhooks WHERE webhooks.id = deliveries.hook) AS secret",
        )
        .bind(until.0)
        .bind(now)
        .bind(codec::encode_part("deliveries", &due)?)
        .bind(i64::from(limit))
        .fetch_all(&mut *tx)
        .await?;
        tx.commit([]).await?;
        let due = |row: DueRow| {
            Ok(DueDelivery {
                id: DeliveryId(row.id),
                hook: WebhookId(row.hook),
                url: row.url,
                secret: row.secret,
                body: row.body,
                attempts: codec::count("delivery attempts", row.attempts)?,
            })
        };
        rows.into_iter().map(due).collect()
    }

    async fn delivery_attempted(
        &self,
        id: &DeliveryId,
        attempts: u32,
        end: &Attempted,
    ) -> Result<()> {
        let (state, next_at, error) = match &end.end {
            AttemptEnd::Delivered | AttemptEnd::DeliveredLate => ("delivered", None, None),
            AttemptEnd::Again(at, why) => ("pending", Some(at.0), Some(why)),
            AttemptEnd::GivenUp(why) => ("failed", None, Some(why)),
        };
        let mut tx = self.begin_beside().await?;
        // The webhook first, as whoever deletes it does.
        match end.end {
            AttemptEnd::Delivered => {
                db::query(
                    "UPDATE webhooks SET failures = 0, paused_until = 0
                     WHERE id = (SELECT hook FROM deliveries WHERE id = $1) AND failures > 0",
                )
                .bind(&id.0)
                .execute(&mut *tx)
                .await?;
            }
            AttemptEnd::DeliveredLate | AttemptEnd::Again(..) | AttemptEnd::GivenUp(_) => {
                db::query(
                    "UPDATE webhooks SET failures = failures + 1,
                         paused_until = /*[*/$2/*|clock_ms() + 0 * $2]*/ + $3 * min(max(failures + 1 - $4, 0), $5)
                     WHERE id = (SELECT hook FROM deliveries WHERE id = $1)",
                )
                .bind(&id.0)
                .bind(Timestamp::now().0)
                .bind(end.pause_ms)
                .bind(UNPAUSED)
                .bind(LONGEST_PAUSE)
                .execute(&mut *tx)
                .await?;
            }
        }
        db::query(
            "UPDATE deliveries SET state = $2, next_at = coalesce(/*[*/$3/*|clock_ms() + $3 - $6]*/, next_at), status = $4, error = $5,
                 ended_at = CASE $2 WHEN 'pending' THEN CAST(NULL AS BIGINT) ELSE $6 END
             WHERE id = $1 AND state = 'pending' AND (attempts = $7 OR $2 = 'delivered')",
        )
        .bind(&id.0)
        .bind(state)
        .bind(next_at)
        .bind(end.status.map(i64::from))
        .bind(error)
        .bind(Timestamp::now().0)
        .bind(i64::from(attempts))
        .execute(&mut *tx)
        .await?;
        tx.commit([]).await
    }
}
