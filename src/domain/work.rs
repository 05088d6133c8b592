//! Work: what waits in the queue, whatever its kind. A job finds a plan, a training makes a model.

use super::{EventKind, Job, JobId, JobState, Timestamp, Training};
use serde::{Deserialize, Serialize};

/// What work produces: a plan or a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    /// Kernels are tuned for a matrix; the result is a plan.
    #[default]
    Tune,
    /// Recorded trials are learned from; the result is a model.
    Train,
}

impl WorkKind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Tune, Self::Train];

    /// As it is stored and sent.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tune => "tune",
            Self::Train => "train",
        }
    }
}

/// One unit of work as it stands. Its JSON is that of the job or the training itself, which no field of the other fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Work {
    Tune(Box<Job>),
    Train(Box<Training>),
}

/// The format of work that this version writes at most, and understands. It grows with each change of requests or problems that an
/// earlier version would misread; work notes which it needs, so that workers of earlier versions leave it.
pub const FORMAT: u32 = 2;

impl Work {
    /// The least format by which the work is understood.
    pub const fn needs(&self) -> u32 {
        match self {
            // Earlier versions know no second part, and would refuse to read the request.
            Self::Tune(job) if job.request.search.then.is_some() => 2,
            _ => 1,
        }
    }

    pub const fn kind(&self) -> WorkKind {
        match self {
            Self::Tune(_) => WorkKind::Tune,
            Self::Train(_) => WorkKind::Train,
        }
    }

    /// Ids are unique over both kinds.
    pub const fn id(&self) -> &JobId {
        match self {
            Self::Tune(job) => &job.id,
            Self::Train(training) => &training.id,
        }
    }

    pub const fn state(&self) -> JobState {
        match self {
            Self::Tune(job) => job.state,
            Self::Train(training) => training.state,
        }
    }

    /// How often a worker has claimed it; attempts that were given back do not count.
    pub const fn attempts(&self) -> u32 {
        match self {
            Self::Tune(job) => job.attempts,
            Self::Train(training) => training.attempts,
        }
    }

    pub const fn created_at(&self) -> Timestamp {
        match self {
            Self::Tune(job) => job.created_at,
            Self::Train(training) => training.created_at,
        }
    }

    /// When it was first claimed.
    pub const fn started_at(&self) -> Option<Timestamp> {
        match self {
            Self::Tune(job) => job.started_at,
            Self::Train(training) => training.started_at,
        }
    }

    pub const fn finished_at(&self) -> Option<Timestamp> {
        match self {
            Self::Tune(job) => job.finished_at,
            Self::Train(training) => training.finished_at,
        }
    }

    /// The job, where it is one.
    pub fn into_job(self) -> Option<Job> {
        match self {
            Self::Tune(job) => Some(*job),
            Self::Train(_) => None,
        }
    }

    /// The training, where it is one.
    pub fn into_training(self) -> Option<Training> {
        match self {
            Self::Train(training) => Some(*training),
            Self::Tune(_) => None,
        }
    }

    /// The event that says how it stands now.
    pub fn into_event(self) -> EventKind {
        EventKind::Job(Box::new(self))
    }
}

impl From<Job> for Work {
    fn from(job: Job) -> Self {
        Self::Tune(Box::new(job))
    }
}

impl From<Training> for Work {
    fn from(training: Training) -> Self {
        Self::Train(Box::new(training))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::learned::Scope;
    use crate::domain::training::Activate;
    use crate::domain::{DeviceClass, Op, TrainRequest};

    #[test]
    fn either_kind_is_read_back_as_what_it_was() {
        let scope = Scope { op: Op::Spmm, device_class: DeviceClass("cpu/x".to_owned()) };
        let request = TrainRequest { scope, activate: Activate::IfBetter, seed: 1 };
        let job: Job = serde_json::from_value(serde_json::json!({
            "id": "j", "device": "cpu", "state": "running", "stage": "measuring", "best": null, "plan": null,
            "request": {"matrix": "0".repeat(64), "problem": {"op": "spmm", "n": 4}},
            "progress": {"done": 0, "total": 0}, "stopped_by": null, "error": null, "attempts": 1,
            "search_seconds": 0.0, "created_at": 0, "started_at": null, "finished_at": null
        }))
        .unwrap();
        for work in [Work::from(job), Work::from(Training::queued(request))] {
            let json = serde_json::to_string(&work).unwrap();
            assert_eq!(serde_json::from_str::<Work>(&json).unwrap(), work);
        }
    }
}
