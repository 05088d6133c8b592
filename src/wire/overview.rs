//! What the service has learnt, at a glance.

use crate::domain::{DeviceClass, ModelId, Op};
use serde::{Deserialize, Serialize};

/// The answer of `GET /v1/overview`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Overview {
    /// All measured plans.
    pub plans: u64,
    /// Those that the figures are of: the newest.
    pub counted: u64,
    pub classes: Vec<ClassFigures>,
    pub models: Vec<Learnt>,
}

/// The plans of a class of devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ClassFigures {
    pub device_class: DeviceClass,
    pub plans: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_speedup: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_limit_fraction: Option<f64>,
}

/// The models of an operation on a class of devices, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Learnt {
    pub op: Op,
    pub device_class: DeviceClass,
    pub versions: Vec<LearntVersion>,
}

/// How well a model chose on matrices that it was not trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LearntVersion {
    pub id: ModelId,
    pub created_at: String,
    pub active: bool,
    pub first: f64,
    pub tenth: f64,
}
