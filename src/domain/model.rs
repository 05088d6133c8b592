//! How well the models that rank candidates have done, by their own plans.

use super::DeviceClass;
use serde::{Deserialize, Serialize};

/// One version of a model on one class of device, over the newest plans that it helped to find.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelQuality {
    /// Name and version: `effective_intensity_v3`.
    pub model: String,
    pub device_class: DeviceClass,
    /// `spmm` or `sptrsv`.
    pub op: String,
    /// Plans counted.
    pub plans: u64,
    /// Measured trials of those plans that it had predicted.
    pub trials: u64,
    /// Geometric mean over those trials of measured over predicted time: above 1 where it promises too much.
    pub median_ratio: f64,
    /// Geometric standard deviation of the same about its mean in each plan, at least 1; trials pooled.
    pub spread: f64,
    /// Spearman's correlation of predicted and measured, averaged over plans by their trials; absent where no plan has one.
    pub rank_correlation: Option<f64>,
}
