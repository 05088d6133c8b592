//! The funnel: how many candidates each constraint removed, and why.

use serde::{Deserialize, Serialize};

/// The cut to the best predicted.
pub const RANK: &str = "rank";
/// The cut to the schemes that halving begins with.
pub const HALVING: &str = "halving";
/// The cut to the candidates that are sampled.
pub const SAMPLE: &str = "sample";
/// What stated rules leave out of a space too large to be listed.
pub const REDUCTION: &str = "reduction";

/// Every step there is, in the order in which they apply.
pub const ORDER: [&str; 12] = [
    "register_resource",
    "local_memory",
    "hardware_utilization",
    "load_balance",
    "shared_memory",
    "alignment",
    "panel_fill",
    "applicability",
    REDUCTION,
    RANK,
    HALVING,
    SAMPLE,
];

/// One constraint's share of the pruning, in the order the constraints were applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FunnelStep {
    /// Name of the constraint (`register_resource`), or `rank` for the cut to the top K.
    pub constraint: String,
    pub removed: u64,
    pub left: u64,
    /// Why, in a sentence, when there is more to say than the name does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
