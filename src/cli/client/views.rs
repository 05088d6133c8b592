//! Responses as used by the command line. Unknown members are ignored.

use crate::domain::job::Progress;
use crate::domain::{JobState, Stage, StoppedBy};
use crate::wire::Candidate;
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub struct JobView {
    pub id: String,
    pub device: String,
    pub state: JobState,
    pub stage: Stage,
    pub progress: Progress,
    pub best: Option<BestView>,
    pub plan: Option<String>,
    pub follow_up: Option<String>,
    pub stopped_by: Option<StoppedBy>,
    pub error: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct BestView {
    pub candidate: Candidate,
    pub median_us: f64,
    pub speedup: Option<f64>,
}
