//! The handle of one device's evaluator: calls that outlive the children that answer them.

use super::child::EvaluatorChild;
use super::exchange::exchange;
use super::life::retriable;
use super::{Deadlines, EvaluatorSpec, PoolError};
use crate::domain::protocol::{Effort, Exported, Load, Loaded, Reply, RequestBody};
use crate::domain::recipe::Compiled;
use crate::domain::{Candidate, Device, Outcome, Timing};
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What one trial came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub outcome: Outcome,
    /// Absent when it did not compile, or the child did not live to say.
    pub compiled: Option<Compiled>,
}

/// One device's evaluator. Children come and go; the device and the loaded problem are kept here.
#[derive(Debug)]
pub struct Evaluator {
    pub(super) spec: EvaluatorSpec,
    /// The child, while no request is under way. A call that is dropped half-way takes its child with it.
    pub(super) idle: Option<EvaluatorChild>,
    /// A killed child that would not go: no other is started while it may hold the device.
    pub(super) undead: Option<tokio::process::Child>,
    pub(super) device: Option<Device>,
    pub(super) loaded: Option<Load>,
    pub(super) starts: u64,
    /// The last request lost its child before any candidate's code ran.
    pub(super) lost_early: bool,
}

impl Evaluator {
    /// A handle; the first call starts the process.
    pub fn new(spec: EvaluatorSpec) -> Self {
        Self {
            spec,
            idle: None,
            undead: None,
            device: None,
            loaded: None,
            starts: 0,
            lost_early: false,
        }
    }

    /// How often a child had to be replaced.
    pub fn restarts(&self) -> u64 {
        self.starts.saturating_sub(1)
    }

    /// The process id of the child, while there is one at rest.
    pub fn process_id(&self) -> Option<u32> {
        self.idle.as_ref().and_then(EvaluatorChild::id)
    }

    pub fn deadlines_mut(&mut self) -> &mut Deadlines {
        &mut self.spec.deadlines
    }

    /// Starts the process if there is none, and describes its device.
    pub async fn open(&mut self, cancel: &CancellationToken) -> Result<Device, PoolError> {
        let child = self.ready(cancel).await?;
        self.idle = Some(child);
        self.device.clone().ok_or_else(|| PoolError::Crashed("the device is not known".to_owned()))
    }

    /// Loads a problem in place of the last one. Every later child gets it, too.
    pub async fn load(
        &mut self,
        load: Load,
        cancel: &CancellationToken,
    ) -> Result<Loaded, PoolError> {
        self.loaded = None;
        let mut last = None;
        for attempt in 0..self.spec.restarts.attempts {
            self.pause(attempt, cancel).await?;
            let child = self.ready(cancel).await?;
            match self.call_on(child, RequestBody::Load(load.clone()), None, cancel).await {
                Ok(Reply::Loaded(facts)) => {
                    self.loaded = Some(load);
                    return Ok(facts);
                }
                Ok(other) => return Err(self.absurd(&other).await),
                Err(error) => last = Some(retriable(error)?),
            }
        }
        Err(self.unavailable(last))
    }

    /// Forgets the loaded problem: a child that is started from now on opens the device and no more.
    pub fn forget(&mut self) {
        self.loaded = None;
    }

    /// Has candidates lowered and compiled ahead. Losing the child here loses only the head start.
    pub async fn prepare(
        &mut self,
        candidates: Vec<Candidate>,
        cancel: &CancellationToken,
    ) -> Result<(), PoolError> {
        match self.call(RequestBody::Prepare { candidates }, None, cancel).await? {
            Reply::Prepared => Ok(()),
            other => Err(self.absurd(&other).await),
        }
    }

    /// Tries one candidate. A hang and a crash are outcomes, and one that is too much for the host before it runs (time or
    /// memory to lower it, a compiler that dies) is refused, since the device has no part in it; `deadline` replaces the default for one verifying call and
    /// for timing beyond its budget, where the caller knows better how long this kernel may take.
    pub async fn measure(
        &mut self,
        candidate: &Candidate,
        effort: Effort,
        deadline: Option<Duration>,
        cancel: &CancellationToken,
    ) -> Result<Measured, PoolError> {
        let child = self.ready(cancel).await?;
        let request = RequestBody::Measure { candidate: candidate.clone(), effort };
        let outcome = match self.call_on(child, request, deadline, cancel).await {
            Ok(Reply::Measured { outcome, compiled }) => return Ok(Measured { outcome, compiled }),
            Ok(other) => return Err(self.absurd(&other).await),
            Err(PoolError::TimedOut(why) | PoolError::Crashed(why)) if self.lost_early => {
                Outcome::Refused { detail: format!("lost before it ran on the device: {why}") }
            }
            Err(PoolError::TimedOut(detail)) => Outcome::TimedOut { detail, stopped: false },
            Err(PoolError::Crashed(detail)) => Outcome::Crashed { detail },
            Err(error) => return Err(error),
        };
        Ok(Measured { outcome, compiled: None })
    }

    /// Times candidates in turn; one timing each, in the order given. A kernel with a watchdog ends itself, and the call,
    /// after `give_up_us`, or after a second.
    pub async fn pair(
        &mut self,
        candidates: Vec<Candidate>,
        rounds: u32,
        give_up_us: Option<f64>,
        cancel: &CancellationToken,
    ) -> Result<Vec<Timing>, PoolError> {
        let asked = candidates.len();
        match self.call(RequestBody::Pair { candidates, rounds, give_up_us }, None, cancel).await? {
            Reply::Paired { timings } if timings.len() == asked => Ok(timings),
            other => Err(self.absurd(&other).await),
        }
    }

    /// What a plan keeps of a candidate's program. With a folder, the child writes the recipe's arrays there.
    pub async fn export(
        &mut self,
        candidate: &Candidate,
        folder: Option<&Path>,
        cancel: &CancellationToken,
    ) -> Result<Exported, PoolError> {
        let folder = folder.map(Path::to_owned);
        let request = RequestBody::Export { candidate: candidate.clone(), folder };
        match self.call(request, None, cancel).await? {
            Reply::Exported(exported) => Ok(*exported),
            other => Err(self.absurd(&other).await),
        }
    }

    /// Ends the child, politely if it listens. A later call starts another.
    pub async fn close(&mut self) {
        let Some(mut child) = self.idle.take() else { return };
        let Deadlines { close, reap, .. } = self.spec.deadlines;
        let never = CancellationToken::new();
        if let Err(broken) =
            exchange(&mut child, &RequestBody::Close, |_| close, close, &never).await
        {
            tracing::debug!(device = %self.spec.device, ?broken, "the evaluator did not answer close");
        }
        self.undead = child.end(close, reap).await.undead;
    }

    async fn call(
        &mut self,
        request: RequestBody,
        deadline: Option<Duration>,
        cancel: &CancellationToken,
    ) -> Result<Reply, PoolError> {
        let child = self.ready(cancel).await?;
        self.call_on(child, request, deadline, cancel).await
    }
}
