//! Webhooks: addresses that are told of the ends of jobs.

use super::{JobId, JobState, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! ids {
    ($($name:ident, $what:literal;)*) => {$(
        #[doc = $what]
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
ids! {
    WebhookId, "A webhook's id: a UUIDv7.";
    DeliveryId, "A delivery's id: 32 hex digits, the same at every attempt.";
}

impl WebhookId {
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

/// An address that is told of the ends of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    pub id: WebhookId,
    pub url: String,
    /// The final states of jobs that it is told of.
    pub states: Vec<JobState>,
    pub created_at: Timestamp,
    /// Nothing is sent before, since so many attempts failed in a row.
    pub paused_until: Option<Timestamp>,
}

/// How a delivery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// It has not been sent, or will be sent again.
    Pending,
    Delivered,
    /// Given up.
    Failed,
}

/// What a webhook is told of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub id: DeliveryId,
    pub hook: WebhookId,
    pub job: JobId,
    pub state: DeliveryState,
    pub attempts: u32,
    /// When it is sent next, if it is pending.
    pub next_at: Option<Timestamp>,
    /// The status of the last answer, if there was one.
    pub status: Option<u16>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}
