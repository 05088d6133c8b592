//! Events of a job, numbered from 1 without gaps, so a client that lost its connection can go on.

use super::{FunnelStep, Job, JobId, Timestamp, Trial};
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
    /// State, stage, progress or best changed: the job as it now stands.
    Job(Box<Job>),
    /// A candidate was measured or failed. Pruned candidates are not announced one by one.
    Trial(Box<Trial>),
    /// What the constraints and the strategy leave of the candidates, before the first is measured. A job that is taken up
    /// again tells it again.
    Funnel { steps: Vec<FunnelStep> },
    /// A line for people.
    Log { message: String },
}

impl EventKind {
    /// Every name there is.
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
    fn the_names_are_those_that_are_stored() {
        // A name that is missing among them would have its events skipped where they cannot be read.
        let unknown = serde_json::from_str::<EventKind>(r#"{"event":"?","data":1}"#).unwrap_err();
        let told = unknown.to_string();
        let names = EventKind::NAMES.map(|name| format!("`{name}`")).join(", ");
        assert!(told.contains(&format!("expected one of {names}")), "{told}");
    }
}
