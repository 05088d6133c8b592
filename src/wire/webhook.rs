//! Webhooks, and what they were told.

use super::given;
use crate::domain::webhook::{self, DeliveryId, DeliveryState, WebhookId};
use crate::domain::{JobId, JobState, Timestamp};
use serde::{Deserialize, Serialize};

/// A webhook without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Webhook {
    pub id: WebhookId,
    pub url: String,
    /// The ends of jobs that it is told of.
    pub states: Vec<JobState>,
    pub created_at: String,
    /// Nothing is sent before, since attempts failed one after another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<String>,
}

impl From<webhook::Webhook> for Webhook {
    fn from(hook: webhook::Webhook) -> Self {
        let created_at = hook.created_at.to_rfc3339();
        let paused_until = hook.paused_until.map(Timestamp::to_rfc3339);
        Self { id: hook.id, url: hook.url, states: hook.states, created_at, paused_until }
    }
}

/// All webhooks, on one page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Webhooks {
    pub items: Vec<Webhook>,
}

/// A webhook that has just been made.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MadeWebhook {
    /// The secret that signs what it is told, which is itself told only here.
    pub secret: String,
    #[serde(flatten)]
    pub facts: Webhook,
}

/// The request for a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WebhookRequest {
    pub url: String,
    /// All ends unless given.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub states: Option<Vec<JobState>>,
}

/// What a webhook was or will be told of one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Delivery {
    pub id: DeliveryId,
    pub job: JobId,
    pub state: DeliveryState,
    /// How often it was sent.
    pub attempts: u32,
    /// When it is sent next; absent once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<String>,
    /// The status of the last answer; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub created_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

impl From<webhook::Delivery> for Delivery {
    fn from(told: webhook::Delivery) -> Self {
        let text = |time: Option<Timestamp>| time.map(Timestamp::to_rfc3339);
        Self {
            id: told.id,
            job: told.job,
            state: told.state,
            attempts: told.attempts,
            next_at: text(told.next_at),
            status: told.status,
            error: told.error,
            created_at: told.created_at.to_rfc3339(),
            ended_at: text(told.ended_at),
        }
    }
}
