//! The JSON of the HTTP API as types: each request and each answer once, for the server, its client and the tests.
//!
//! Answers are read leniently and requests strictly: a client ignores members that it does not know and defaults those
//! that an older server does not send, while a server refuses a request with an unknown member. Types of the domain whose
//! stored form is also what clients see (`Limit`, `Validity`, ...) are used as they are; `contract.rs` compares all of
//! them with `openapi.yaml`, so a new member of such a type cannot reach clients unnoticed.

mod candidate;
#[cfg(test)]
mod contract;
mod device;
mod matrix;
mod model;
mod operation;
mod plan;
mod problem;
mod trial;

pub use candidate::{Candidate, Role};
pub use device::{Device, Devices, Quarantined, WorkerDevice};
pub use matrix::{Features, Matrix, Profile};
pub use model::{
    ActivateRequest, Activation, Activations, AnalyticModel, DataUsed, HeldOut, LearnedModel,
    Model, ModelKind, Models, Ranked, Ranker, Regret, RollBackRequest, WholeModel,
};
pub use operation::Operations;
pub use plan::{Launch, Lookup, Match, Plan, Predicted, Provenance, RunnerUp};
pub use problem::Problem;
pub use trial::Trial;

use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Page<T> {
    pub items: Vec<T>,
    /// The cursor of the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What `/healthz` and `/readyz` answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Status {
    pub status: Health,
}

/// `ok` where the process answers, `ready` where it can do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Health {
    Ok,
    Ready,
}

/// What `GET /` answers to programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Index {
    pub name: String,
    pub version: String,
    pub description: String,
    /// Where the API's description is.
    pub openapi: String,
    pub paths: Vec<String>,
}

/// A word of a list that later servers may extend: an unknown word is kept as text, so that it does not make the whole
/// answer unreadable.
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

/// Deserialises an `Option` of a request that may be absent but not null: absence is the one way to leave it out.
pub fn given<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}
