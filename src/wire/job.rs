//! Jobs of both kinds, and the events of their streams.

use super::{Candidate, Open, Problem, Trial};
use crate::domain;
use crate::domain::job::Progress;
use crate::domain::learned::Scope;
use crate::domain::training::{Activate, TrainingStage};
use crate::domain::{
    Clock, DeviceClass, DeviceId, DeviceKey, Digest, EventKind, FunnelStep, JobId, JobState,
    ModelId, Op, Param, PlanId, SearchStrategy, Stage, StoppedBy, Timestamp, WorkKind,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The progress of a training is sent in thousandths.
const WHOLE: u32 = 1000;

/// The current state of a job that tunes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Job {
    pub kind: WorkKind,
    pub id: JobId,
    pub matrix: Digest,
    pub problem: Problem,
    /// What its worker calls the device that it runs on or ran on; before, a device of its class.
    pub device: DeviceId,
    /// Any device of this class may run it; absent in jobs of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_class: Option<DeviceClass>,
    /// The one device that may, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only_on: Option<DeviceKey>,
    /// The device that it runs on or ran on last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ran_on: Option<DeviceKey>,
    pub search: Search,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_calls: Option<u64>,
    pub state: JobState,
    pub stage: Stage,
    pub progress: Progress,
    /// Of a running job, if its stage has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlook: Option<Outlook>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<PlanId>,
    /// Of a job for both triangles the problem of the other one, which a job tunes that follows this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<Problem>,
    /// The job that measures what this one predicted, or that goes on with `then`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_up: Option<JobId>,
    /// Jobs of a higher one come first.
    #[serde(default)]
    pub priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<StoppedBy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub attempts: u32,
    pub created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
}

/// How a job searches; what is absent has the server's default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Search {
    pub strategy: Open<SearchStrategy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trials: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub measure: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<String>,
    /// Values of parameters, by `PARAMETER` or `FAMILY.PARAMETER`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fixed: BTreeMap<String, Param>,
    /// Only the candidate that has these parameters and no others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    /// Absent in jobs of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Open<Clock>>,
}

/// When the current stage began, and about how long it takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Outlook {
    pub began: String,
    pub seconds: f64,
}

/// The fastest candidate so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Best {
    pub candidate: Candidate,
    pub median_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
}

/// The current state of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Training {
    pub kind: WorkKind,
    pub id: JobId,
    pub op: Op,
    pub device_class: DeviceClass,
    pub activate: Activate,
    pub seed: u64,
    pub state: JobState,
    pub stage: TrainingStage,
    /// In thousandths.
    pub progress: Progress,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The trained model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelId>,
    pub activated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub attempts: u32,
    pub created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
}

/// A job of either kind; its member `kind` tells which, and only one of the two has all members of its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Work {
    Tune(Box<Job>),
    Train(Box<Training>),
}

/// The data of one event; the event's name tells which member is present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub seq: u64,
    pub at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Work>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial: Option<Box<Trial>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub funnel: Option<Vec<FunnelStep>>,
}

fn time(at: Option<Timestamp>) -> Option<String> {
    at.map(|at| at.to_rfc3339())
}

impl From<domain::Job> for Job {
    fn from(job: domain::Job) -> Self {
        let then = job.request.search.then.map(Problem::from);
        Self {
            kind: WorkKind::Tune,
            id: job.id,
            matrix: job.request.matrix,
            problem: job.request.problem.into(),
            device: job.device,
            device_class: job.device_class,
            only_on: job.only_on,
            ran_on: job.ran_on,
            search: job.request.search.into(),
            expected_calls: job.request.expected_calls,
            state: job.state,
            stage: job.stage,
            progress: job.progress,
            outlook: job.outlook.map(|outlook| Outlook {
                began: outlook.began.to_rfc3339(),
                seconds: outlook.seconds,
            }),
            best: job.best.map(Best::from),
            plan: job.plan,
            then,
            follow_up: job.follow_up,
            priority: job.priority,
            stopped_by: job.stopped_by,
            error: job.error,
            attempts: job.attempts,
            created_at: job.created_at.to_rfc3339(),
            started_at: time(job.started_at),
            finished_at: time(job.finished_at),
        }
    }
}

impl From<domain::Search> for Search {
    fn from(search: domain::Search) -> Self {
        Self {
            strategy: search.strategy.into(),
            top_k: search.top_k,
            seconds: search.seconds,
            trials: search.trials,
            seed: search.seed,
            measure: search.measure,
            families: search.families,
            fixed: search.fixed.0,
            exact: search.exact,
            clock: search.clock.map(Open::from),
        }
    }
}

impl From<domain::job::Best> for Best {
    fn from(best: domain::job::Best) -> Self {
        Self { candidate: best.candidate.into(), median_us: best.median_us, speedup: best.speedup }
    }
}

impl From<domain::Training> for Training {
    fn from(training: domain::Training) -> Self {
        let Scope { op, device_class } = training.request.scope;
        // The cast saturates, and turns NaN into 0.
        let done = (training.progress.clamp(0.0, 1.0) * f64::from(WHOLE)).floor() as u32;
        Self {
            kind: WorkKind::Train,
            id: training.id,
            op,
            device_class,
            activate: training.request.activate,
            seed: training.request.seed,
            state: training.state,
            stage: training.stage,
            progress: Progress { done, total: WHOLE },
            message: training.message,
            model: training.model,
            activated: training.activated,
            error: training.error,
            attempts: training.attempts,
            created_at: training.created_at.to_rfc3339(),
            started_at: time(training.started_at),
            finished_at: time(training.finished_at),
        }
    }
}

impl From<domain::Work> for Work {
    fn from(work: domain::Work) -> Self {
        match work {
            domain::Work::Tune(job) => Self::Tune(Box::new((*job).into())),
            domain::Work::Train(training) => Self::Train(Box::new((*training).into())),
        }
    }
}

impl From<domain::Event> for Event {
    fn from(event: domain::Event) -> Self {
        let at = event.at.to_rfc3339();
        let mut out =
            Self { seq: event.seq, at, job: None, trial: None, message: None, funnel: None };
        match event.kind {
            EventKind::Job(work) => out.job = Some((*work).into()),
            EventKind::Trial(trial) => out.trial = Some(Box::new((*trial).into())),
            EventKind::Funnel { steps } => out.funnel = Some(steps),
            EventKind::Log { message } => out.message = Some(message),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::TrainRequest;

    #[test]
    fn progress_is_sent_in_thousandths_whatever_it_is() {
        let scope = Scope { op: Op::Spmm, device_class: DeviceClass("cpu/x".to_owned()) };
        let request = TrainRequest { scope, activate: Activate::IfBetter, seed: 1 };
        let done = |progress| {
            let queued = domain::Training::queued(request.clone());
            Training::from(domain::Training { progress, ..queued }).progress.done
        };
        let told = [0.0, 0.4567, 1.0, 7.0, -1.0, f64::NAN].map(done);
        assert_eq!(told, [0, 456, 1000, 1000, 0, 0]);
    }
}
