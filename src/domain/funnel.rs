//! The funnel: how many candidates each constraint removed, and why.

use serde::{Deserialize, Serialize};

/// One constraint's share of the pruning, in the order the constraints were applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunnelStep {
    /// Name of the constraint (`register_resource`), or `rank` for the cut to the top K.
    pub constraint: String,
    pub removed: u64,
    pub left: u64,
    /// Why, in a sentence, when there is more to say than the name does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
