//! Events of jobs of either kind, numbered from 1 without gaps, so that a client that lost its connection can resume.

use super::{FunnelStep, JobId, Timestamp, Trial, Work};
use serde::{Deserialize, Serialize};

/// One thing that happened to a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub job: JobId,
    pub seq: u64,
    pub at: Timestamp,
    #[serde(flatten)]
    pub kind: EventKind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", content = "data", rename_all = "snake_case")]
pub enum EventKind {
    /// State, stage, progress or best candidate changed: the job or training in its new state.
    Job(Box<Work>),
    /// A candidate was measured or failed. Pruned candidates are not announced one by one.
    Trial(Box<Trial>),
    /// The pruning steps with the numbers of candidates left, sent before the first is measured and again when a job is
    /// resumed.
    Funnel { steps: Vec<FunnelStep> },
    /// A log line.
    Log { message: String },
}

impl EventKind {
    /// The names of all kinds.
    pub const NAMES: [&str; 4] = ["job", "trial", "funnel", "log"];

    /// The SSE event name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Job(_) => "job",
            Self::Trial(_) => "trial",
            Self::Funnel { .. } => "funnel",
            Self::Log { .. } => "log",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_names_is_complete() {
        // Events of a kind missing from the list would be skipped as unknown.
        let unknown = serde_json::from_str::<EventKind>(r#"{"event":"?","data":1}"#).unwrap_err();
        let told = unknown.to_string();
        let names = EventKind::NAMES.map(|name| format!("`{name}`")).join(", ");
        assert!(told.contains(&format!("expected one of {names}")), "{told}");
    }
}
