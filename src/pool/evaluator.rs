//! The handle of one device's evaluator, which persists while child processes are replaced.

use super::child::EvaluatorChild;
use super::exchange::exchange;
use super::life::retriable;
use super::{Deadlines, EvaluatorSpec, PoolError};
use crate::domain::protocol::{Effort, Exported, Load, Loaded, Reply, RequestBody};
use crate::domain::recipe::Compiled;
use crate::domain::{Candidate, Clock, Device, Outcome, Timing};
use crate::environment::account::Account;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// The result of one trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub outcome: Outcome,
    /// Absent if it did not compile, or if the child died before reporting it.
    pub compiled: Option<Compiled>,
}

/// What is said of a trial that was ended because the job's time was.
const BEYOND_THE_BUDGET: &str = "it ran longer than what was left of the job's time budget";

/// How many interruptions are kept for a caller that does not ask for them.
const MOST_INTERRUPTIONS: usize = 16;

/// One device's evaluator. Children may be replaced; the device and the loaded problem are kept here.
#[derive(Debug)]
pub struct Evaluator {
    pub(super) spec: EvaluatorSpec,
    /// The child, while no request is in progress. A call that is dropped before its end kills its child.
    pub(super) idle: Option<EvaluatorChild>,
    /// A killed child that has not exited; no other is started while it may still hold the device.
    pub(super) unreaped: Option<tokio::process::Child>,
    pub(super) device: Option<Device>,
    pub(super) loaded: Option<Load>,
    pub(super) starts: u64,
    /// Whether the last child was closed in order, so that the next one is no restart.
    pub(super) closed: bool,
    /// Whether the last request lost its child before any candidate's code ran.
    pub(super) lost_early: bool,
    /// Whether the last request lost its child because the job's time was used up.
    pub(super) out_of_time: bool,
    /// Whether the last request lost its child while the kernel killed for want of memory.
    pub(super) starved: bool,
    /// The children that were killed from outside, or died between requests, until [`Self::take_interruptions`].
    pub(super) interruptions: Vec<String>,
}

impl Evaluator {
    /// Creates a handle; the first call starts the process.
    pub fn new(spec: EvaluatorSpec) -> Self {
        Self {
            spec,
            idle: None,
            unreaped: None,
            device: None,
            loaded: None,
            starts: 0,
            closed: false,
            lost_early: false,
            out_of_time: false,
            starved: false,
            interruptions: Vec::new(),
        }
    }

    /// How children were killed from outside, or died between requests, since the last call: what they were asked, the signal,
    /// and the count of kills for want of memory. At most [`MOST_INTERRUPTIONS`].
    pub fn take_interruptions(&mut self) -> Vec<String> {
        std::mem::take(&mut self.interruptions)
    }

    /// How often the child was replaced, other than after [`Self::close`].
    pub fn restarts(&self) -> u64 {
        self.starts.saturating_sub(1)
    }

    /// The process id of the idle child, if there is one.
    pub fn process_id(&self) -> Option<u32> {
        self.idle.as_ref().and_then(EvaluatorChild::id)
    }

    pub fn deadlines_mut(&mut self) -> &mut Deadlines {
        &mut self.spec.deadlines
    }

    /// Starts the process if necessary, and returns its device.
    pub async fn open(&mut self, cancel: &CancellationToken) -> Result<Device, PoolError> {
        let child = self.ready(cancel).await?;
        self.idle = Some(child);
        self.device.clone().ok_or_else(|| PoolError::Crashed("the device is not known".to_owned()))
    }

    /// Loads a problem, replacing the previous one. Later children load it too.
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
                Ok(other) => return Err(self.unexpected_reply(&other).await),
                Err(error) => last = Some(retriable(error)?),
            }
        }
        Err(self.unavailable(last))
    }

    /// Forgets the loaded problem, so that new children only open the device.
    pub fn forget(&mut self) {
        self.loaded = None;
    }

    /// Lowers and compiles candidates ahead of time. If the child is lost, only the head start is lost.
    pub async fn prepare(
        &mut self,
        candidates: Vec<Candidate>,
        cancel: &CancellationToken,
    ) -> Result<(), PoolError> {
        match self.call(RequestBody::Prepare { candidates }, None, cancel).await? {
            Reply::Prepared => Ok(()),
            other => Err(self.unexpected_reply(&other).await),
        }
    }

    /// Tries one candidate. Hangs and crashes are outcomes. If the child is lost before the candidate runs (time or
    /// memory while lowering, a crashing compiler) it is refused, since the device is not involved. `deadline` replaces
    /// the default for a verifying call and for timing beyond its budget, if the caller knows better how long this
    /// kernel may take. A call that outlasts what the effort says is left of the job's time is not waited for either: it might have
    /// ended, and its outcome says so.
    ///
    /// A child that is killed from outside (for want of memory, or by an operator) says nothing about the candidate: it is tried
    /// once more in a new child, and only a second such death counts as its own. A death while the kernel killed for want of memory
    /// never does: then the candidate is refused.
    pub async fn measure(
        &mut self,
        candidate: &Candidate,
        effort: Effort,
        deadline: Option<Duration>,
        cancel: &CancellationToken,
    ) -> Result<Measured, PoolError> {
        let request = RequestBody::Measure { candidate: candidate.clone(), effort };
        let outcome = match self.call(request, deadline, cancel).await {
            Ok(Reply::Measured { outcome, compiled }) => return Ok(Measured { outcome, compiled }),
            Ok(other) => return Err(self.unexpected_reply(&other).await),
            Err(PoolError::TimedOut(why) | PoolError::Crashed(why) | PoolError::Killed(why))
                if self.lost_early =>
            {
                Outcome::Refused { detail: format!("failed before it ran on the device: {why}") }
            }
            Err(PoolError::Killed(why)) if self.starved => {
                Outcome::Refused { detail: format!("there was not enough memory to try it: {why}") }
            }
            Err(PoolError::TimedOut(detail)) if self.out_of_time => {
                Outcome::out_of_time(format!("{BEYOND_THE_BUDGET}: {detail}"))
            }
            Err(PoolError::TimedOut(detail)) => {
                Outcome::TimedOut { detail, stopped: false, out_of_time: false }
            }
            Err(PoolError::Crashed(detail) | PoolError::Killed(detail)) => {
                Outcome::Crashed { detail }
            }
            Err(error) => return Err(error),
        };
        Ok(Measured { outcome, compiled: None })
    }

    /// Times candidates alternately by one clock; returns one timing each, in the given order. A kernel with a watchdog stops
    /// itself, and the call, after `give_up_us`, or after a second.
    pub async fn pair(
        &mut self,
        candidates: Vec<Candidate>,
        rounds: u32,
        clock: Clock,
        give_up_us: Option<f64>,
        cancel: &CancellationToken,
    ) -> Result<Vec<Timing>, PoolError> {
        let asked = candidates.len();
        let request = RequestBody::Pair { candidates, rounds, clock, give_up_us };
        match self.call(request, None, cancel).await? {
            Reply::Paired { timings } if timings.len() == asked => Ok(timings),
            other => Err(self.unexpected_reply(&other).await),
        }
    }

    /// A candidate's program in the form that is stored in a plan. If a folder is given, the child writes the arrays
    /// there.
    pub async fn export(
        &mut self,
        candidate: &Candidate,
        folder: Option<&Path>,
        cancel: &CancellationToken,
    ) -> Result<Exported, PoolError> {
        let folder = folder.map(Path::to_owned);
        if let (Some(folder), Ok(Some(account))) = (&folder, Account::of(&self.spec.user)) {
            let given = account.own(folder);
            given.map_err(|error| PoolError::Failed(format!("{}: {error}", folder.display())))?;
        }
        let request = RequestBody::Export { candidate: candidate.clone(), folder };
        match self.call(request, None, cancel).await? {
            Reply::Exported(exported) => Ok(*exported),
            other => Err(self.unexpected_reply(&other).await),
        }
    }

    /// Ends the child, with a `close` request if possible. A later call starts another.
    pub async fn close(&mut self) {
        let Some(mut child) = self.idle.take() else { return };
        self.closed = true;
        let Deadlines { close, reap, .. } = self.spec.deadlines;
        let never = CancellationToken::new();
        if let Err(broken) =
            exchange(&mut child, &RequestBody::Close, |_| close, close, &never).await
        {
            tracing::debug!(device = %self.spec.device, ?broken, "the evaluator did not respond to close");
        }
        self.unreaped = child.end(close, reap).await.unreaped;
    }

    /// Keeps how a child was lost through no fault of what it was asked.
    pub(super) fn interrupted(&mut self, how: String) {
        if self.interruptions.len() < MOST_INTERRUPTIONS {
            self.interruptions.push(how);
        }
    }

    /// One request; asked a second time, of a new child, if the child was killed from outside.
    async fn call(
        &mut self,
        request: RequestBody,
        deadline: Option<Duration>,
        cancel: &CancellationToken,
    ) -> Result<Reply, PoolError> {
        let child = self.ready(cancel).await?;
        let (what, began) = (request.name(), Instant::now());
        match self.call_on(child, request.clone(), deadline, cancel).await {
            Err(PoolError::Killed(why)) => {
                if let Some(told) = self.interruptions.last_mut() {
                    told.push_str("; ");
                    told.push_str(what);
                    told.push_str(" is asked again in a new evaluator");
                }
                let child = self.ready(cancel).await?;
                let request = request.after(began.elapsed());
                let again = self.call_on(child, request, deadline, cancel).await;
                again.map_err(|error| match error {
                    PoolError::Killed(second) => {
                        PoolError::Killed(format!("killed twice in a row: {why}; then {second}"))
                    }
                    error => error,
                })
            }
            answer => answer,
        }
    }
}
