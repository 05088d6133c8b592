//! Webhooks, and the durable queue of what they are told.

use super::{Page, PageRequest, Result};
use crate::domain::Timestamp;
use crate::domain::webhook::{Delivery, DeliveryId, Webhook, WebhookId};
use async_trait::async_trait;

/// A delivery that is to be sent now.
#[derive(Clone, PartialEq, Eq)]
pub struct DueDelivery {
    pub id: DeliveryId,
    pub hook: WebhookId,
    pub url: String,
    /// The secret that signs it.
    pub secret: String,
    pub body: String,
    /// With this one.
    pub attempts: u32,
}

/// What became of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempted {
    /// The status of the answer, if there was one.
    pub status: Option<u16>,
    pub end: AttemptEnd,
    /// For how long the webhook is paused if the attempt failed, in milliseconds; once for the third failure in a row of any of its
    /// deliveries, twice for the fourth, and so on up to [`LONGEST_PAUSE`] times.
    pub pause_ms: i64,
}

/// The longest pause of a webhook, in multiples of the first.
pub const LONGEST_PAUSE: i64 = 360;
/// Failures in a row that pause nothing.
pub const UNPAUSED: i64 = 2;
/// Most deliveries that wait for a webhook; upkeep gives the oldest up.
pub const MOST_WAITING: u32 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    Delivered,
    /// Its receiver took so long that the webhook is paused as after a failure.
    DeliveredLate,
    /// It failed, with the reason, and is due again.
    Again(Timestamp, String),
    /// It failed, with the reason, and is given up.
    GivenUp(String),
}

#[async_trait]
pub trait Webhooks: Send + Sync {
    /// `InUse` if there are `most`.
    async fn insert_webhook(&self, hook: &Webhook, secret: &str, most: u32) -> Result<()>;
    /// All of them, newest first.
    async fn webhooks(&self) -> Result<Vec<Webhook>>;
    /// Also removes its deliveries. False if there is none.
    async fn delete_webhook(&self, id: &WebhookId) -> Result<bool>;
    /// What a webhook was or will be told, newest first. Jobs queue it when they end, in the same transaction.
    async fn deliveries(&self, hook: &WebhookId, page: &PageRequest) -> Result<Page<Delivery>>;
    /// The oldest due delivery of each webhook that is not paused except those in `busy`: at most `limit` in all, and as many of one namespace
    /// as the second number says, with those that are busy; namespaces take turns. Each counts one attempt more, and is due
    /// again at `until` unless its end is recorded: whoever dies while sending it has not lost it.
    async fn claim_deliveries(
        &self,
        busy: &[WebhookId],
        until: Timestamp,
        limit: (u32, u32),
    ) -> Result<Vec<DueDelivery>>;
    /// Records the end of an attempt; of an earlier one than the last, nothing but that it was delivered.
    async fn delivery_attempted(
        &self,
        id: &DeliveryId,
        attempts: u32,
        end: &Attempted,
    ) -> Result<()>;
}
