//! The funnel: the pruning steps of a search, with how many candidates each removed and why.

use serde::{Deserialize, Serialize};

/// Combinations of parameter values that no family lists for the problem: they are counted and are no candidates.
pub const COMBINATIONS: &str = "combinations";
/// The restriction to the families that the request names.
pub const REQUESTED: &str = "requested";
/// The restriction to the parameter values that the request fixes.
pub const FIXED: &str = "fixed";
/// The restriction to the best predicted candidates.
pub const RANK: &str = "rank";
/// The restriction to the schemes that successive halving tries.
pub const HALVING: &str = "halving";
/// The restriction to the sampled candidates.
pub const SAMPLE: &str = "sample";
/// The restriction of a full search to the candidates drawn.
pub const DRAW: &str = "draw";
/// Rules that reduce a space too large to be enumerated.
pub const REDUCTION: &str = "reduction";

/// All steps, in the order in which they apply.
pub const ORDER: [&str; 21] = [
    COMBINATIONS,
    REQUESTED,
    FIXED,
    "duplicates",
    "register_resource",
    "local_memory",
    "launch_limits",
    "whole_warps",
    "capability",
    "row_order",
    "panel_fill",
    "applicability",
    "hardware_utilization",
    "load_balance",
    "shared_memory",
    "alignment",
    REDUCTION,
    RANK,
    HALVING,
    SAMPLE,
    DRAW,
];

/// What a rule computed for one candidate, and what it compared that with, in the rule's own unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Judged {
    /// Name of the rule.
    pub constraint: String,
    pub value: f64,
    pub limit: f64,
    /// Whether the candidate keeps to the limit. A soft rule may spare one that does not.
    pub kept: bool,
}

/// The steps that remove candidates: all but the first, which says what never was one. Searches of earlier versions lack that.
pub fn of_candidates(steps: &[FunnelStep]) -> impl Iterator<Item = &FunnelStep> {
    steps.iter().filter(|step| step.constraint != COMBINATIONS)
}

/// One pruning step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FunnelStep {
    /// Name of the constraint (`register_resource`), or `rank` for the restriction to the top K.
    pub constraint: String,
    pub removed: u64,
    pub left: u64,
    /// Explanation beyond the name, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
