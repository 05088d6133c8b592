//! What overviews tell of many plans at once.

use crate::domain::DeviceClass;

/// The plans of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanTally {
    pub plans: u64,
    /// The largest speed-up over the vendor's routine, by the clock that decided; `None` if no plan has one.
    pub speedup: Option<f64>,
}

/// Figures of one measured plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanFigures {
    pub class: DeviceClass,
    /// Over the vendor's routine, by the clock that decided.
    pub speedup: Option<f64>,
    /// The share of the device's limit that is reached; above 1 where data stays in a cache.
    pub fraction: Option<f64>,
}
