//! The JSON of the HTTP API as types: each request and each response is defined once, for the server, its client and the
//! tests.
//!
//! Responses are parsed leniently and requests strictly: a client ignores unknown members and uses defaults for those that
//! an older server does not send, while a server refuses a request with an unknown member. Domain types whose stored form is
//! also sent to clients (`Limit`, `Validity`, ...) are used directly; `tests.rs` compares all of them with
//! `openapi.yaml`, so a new member of such a type cannot reach clients unnoticed.

mod candidate;
mod device;
mod job;
mod matrix;
mod model;
mod operation;
mod overview;
mod pins;
mod plan;
mod problem;
mod rule;
#[cfg(test)]
mod tests;
mod token;
mod transfer;
mod trial;
mod webhook;

pub use candidate::{Candidate, Role};
pub use device::{Device, Devices, Quarantined, WorkerDevice};
pub use job::{Best, Event, Job, Search, Training, Work};
pub use matrix::{Features, Matrix, Profile};
pub use model::{
    ActivateRequest, Activation, Activations, AnalyticModel, DataUsed, HeldOut, LearnedModel,
    Model, ModelKind, Models, Ranked, Ranker, Regret, RollBackRequest, WholeModel,
};
pub use operation::Operations;
pub use overview::{ClassFigures, Learnt, LearntVersion, Overview};
pub use pins::Pins;
pub use plan::{
    Finalist, Imported, KeptBundle, Launch, Lookup, Match, Plan, Predicted, Provenance, RunnerUp,
};
pub use problem::Problem;
pub use rule::Rules;
pub use token::{AuditEntry, MadeToken, Token, TokenRequest, Tokens};
pub use transfer::{ImportReport, Taken};
pub use trial::Trial;
pub use webhook::{Delivery, MadeWebhook, Webhook, WebhookRequest, Webhooks};

use serde::{Deserialize, Serialize};

pub use crate::domain::access::given;
use std::fmt;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Page<T> {
    pub items: Vec<T>,
    /// The cursor of the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The response of `/healthz` and `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Status {
    pub status: Health,
}

/// `ok` if the process answers, `ready` if it can do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Health {
    Ok,
    Ready,
}

/// The response of `GET /` for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Index {
    pub name: String,
    pub version: String,
    pub description: String,
    /// The address of the API's description.
    pub openapi: String,
    pub paths: Vec<String>,
}

/// A value of an enumeration that later servers may extend: an unknown value is kept as text, so that the whole response
/// remains readable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Open<T> {
    Known(T),
    Unknown(String),
}

impl<T> From<T> for Open<T> {
    fn from(word: T) -> Self {
        Self::Known(word)
    }
}

impl<T: Serialize> fmt::Display for Open<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
