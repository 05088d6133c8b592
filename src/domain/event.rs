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
