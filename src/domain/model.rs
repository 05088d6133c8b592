//! Prediction quality of the ranking models, derived from stored plans.

use super::DeviceClass;
use serde::{Deserialize, Serialize};

/// Quality of one version of a model on one device class, over the newest plans of searches that it ranked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelQuality {
    /// Name and version: `effective_intensity_v3`.
    pub model: String,
    pub device_class: DeviceClass,
    /// `spmm` or `sptrsv`.
    pub op: String,
    /// Number of plans.
    pub plans: u64,
    /// Number of measured trials of those plans that it had predicted.
    pub trials: u64,
    /// Geometric mean of measured / predicted time over those trials; above 1 if the model is too optimistic.
    pub median_ratio: f64,
    /// Geometric standard deviation of the ratio about its mean in each plan, at least 1; trials are pooled.
    pub spread: f64,
    /// Spearman's correlation of predicted and measured times, averaged over plans by their trials; absent if no plan
    /// has one.
    pub rank_correlation: Option<f64>,
}
