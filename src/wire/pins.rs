//! What retention leaves alone.

use crate::domain::{Digest, PlanId};
use serde::{Deserialize, Serialize};

/// The response of `/v1/pins`: what is pinned, the newest pin first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Pins {
    pub matrices: Vec<Digest>,
    pub plans: Vec<PlanId>,
}
