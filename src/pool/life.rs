//! Life cycle of an evaluator's children: one request at a time, termination, and restart.

use super::PoolError;
use super::child::{EvaluatorChild, Start, Terminated};
use super::evaluator::Evaluator;
use super::exchange::{Broken, exchange};
use super::oom;
use super::spec::{Allowed, runs};
use crate::domain::Outcome;
use crate::domain::protocol::{PROTOCOL_VERSION, Reply, RequestBody};
use crate::environment::gpus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How long a child that closed its stdout may take to exit by itself, so that its own exit status is reported.
const LEAVING: Duration = Duration::from_secs(1);

/// A device that opens so, and only so, was kept from a file that it needs.
const UNFENCED: &str = "the device opens only if the evaluator may read all files of its user, which it may from now on: \
                        `sparsetune doctor` shows the fence, `evaluator.fence` of the configuration rules it";

impl Evaluator {
    /// Sends one request to this child, which is idle or dead afterwards.
    pub(super) async fn call_on(
        &mut self,
        mut child: EvaluatorChild,
        request: RequestBody,
        deadline: Option<Duration>,
        cancel: &CancellationToken,
    ) -> Result<Reply, PoolError> {
        let deadlines = self.spec.deadlines;
        let (ran, by_jobs_time) = (AtomicBool::new(false), AtomicBool::new(false));
        let began = Instant::now();
        let allowed = |stage: Option<&str>| {
            ran.fetch_or(stage.is_some_and(runs), Ordering::Relaxed);
            let Allowed { time, by_job } =
                deadlines.allowed(&request, stage, deadline, began.elapsed());
            by_jobs_time.store(by_job, Ordering::Relaxed);
            time
        };
        self.lost_early = false;
        self.out_of_time = false;
        self.starved = false;
        let what = request.name();
        let counted = self.spec.memory_events.clone();
        let kills_before = oom::kills(counted.as_deref());
        let broken = match exchange(&mut child, &request, allowed, deadlines.cancel, cancel).await {
            Ok(reply) => return self.settle(child, reply).await,
            Err(broken) => broken,
        };
        if let Broken::Unsendable(why) = broken {
            self.idle = Some(child);
            return Err(PoolError::Failed(why));
        }
        self.out_of_time = matches!(broken, Broken::Late { .. }) && by_jobs_time.into_inner();
        let lost = matches!(broken, Broken::Late { .. } | Broken::Gone);
        self.lost_early = lost && !ran.into_inner();
        let patience = if broken == Broken::Gone { LEAVING } else { Duration::ZERO };
        let (report, signal) = self.terminate(child, patience).await;
        let kills = oom::kills(counted.as_deref());
        self.starved = broken == Broken::Gone && oom::grew(kills_before, kills);
        let shortage = oom::since(kills_before, kills);
        let report = with(report, shortage);
        Err(match broken {
            Broken::Late { stage, after } => PoolError::TimedOut(format!(
                "no reply to {what} within {} ms of {stage}: {report}",
                after.as_millis()
            )),
            Broken::Garbage(said) => PoolError::Crashed(format!(
                "the evaluator sent an invalid message (`{said}`): {report}"
            )),
            Broken::Cancelled => PoolError::Cancelled,
            Broken::Gone | Broken::Unsendable(_) => {
                let report = format!("the evaluator died during {what}: {report}");
                if self.starved || signal.is_some_and(from_outside) {
                    self.interrupted(report.clone());
                    PoolError::Killed(report)
                } else {
                    PoolError::Crashed(report)
                }
            }
        })
    }

    /// Accepts a reply, and terminates the child if the reply says that its device is lost.
    async fn settle(&mut self, child: EvaluatorChild, reply: Reply) -> Result<Reply, PoolError> {
        if matches!(&reply, Reply::Measured { outcome: Outcome::Crashed { .. }, .. }) {
            // It gets no further request, because a failure would be attributed to the next candidate.
            self.terminate(child, LEAVING).await;
            return Ok(reply);
        }
        self.idle = Some(child);
        match reply {
            Reply::Failed { error } => Err(PoolError::Failed(error)),
            reply => Ok(reply),
        }
    }

    /// A child with an open device and the last problem loaded.
    pub(super) async fn ready(
        &mut self,
        cancel: &CancellationToken,
    ) -> Result<EvaluatorChild, PoolError> {
        if cancel.is_cancelled() {
            return Err(PoolError::Cancelled);
        }
        if let Some(mut child) = self.idle.take() {
            if child.is_well() {
                return Ok(child);
            }
            // It died while idle, so no candidate is the cause.
            let (report, _) = self.terminate(child, LEAVING).await;
            self.interrupted(format!("the evaluator died between requests: {report}"));
        }
        let mut last = None;
        for attempt in 0..self.spec.restarts.attempts {
            self.pause(attempt, cancel).await?;
            let resort = self.resort(last.as_ref(), attempt);
            let args = self.spec.args.len();
            if resort {
                self.spec.args.extend(self.spec.last_resort.iter().cloned());
            }
            match self.start(cancel).await {
                Ok(child) => {
                    if resort {
                        let why = last.map(|error| error.to_string()).unwrap_or_default();
                        tracing::warn!(device = %self.spec.device, why, "{UNFENCED}");
                    }
                    return Ok(child);
                }
                // It said so with the fence and without: the fence is not the reason.
                Err(PoolError::Failed(why)) if resort => {
                    self.spec.args.truncate(args);
                    return Err(match last {
                        Some(PoolError::Failed(first)) => PoolError::Failed(first),
                        _ => PoolError::Failed(why),
                    });
                }
                Err(error @ PoolError::Failed(_)) if self.may_resort() => last = Some(error),
                Err(error) => {
                    self.spec.args.truncate(args);
                    last = Some(retriable(error)?);
                }
            }
        }
        Err(self.unavailable(last))
    }

    /// Whether another start may have less of a fence: only as long as the device was never open, so that nothing that was given to an
    /// evaluator decides it.
    fn may_resort(&self) -> bool {
        self.device.is_none() && !self.spec.last_resort.is_empty()
    }

    /// Whether the next start should: after the device did not open, or if the process ended by itself each time. One that was killed
    /// or took too long says nothing about the fence.
    fn resort(&self, last: Option<&PoolError>, attempt: u32) -> bool {
        self.may_resort()
            && match last {
                Some(PoolError::Failed(_)) => true,
                Some(PoolError::Crashed(_)) => attempt + 1 == self.spec.restarts.attempts,
                _ => false,
            }
    }

    /// One attempt to start a child, open the device and load the problem. On failure the child is terminated.
    async fn start(&mut self, cancel: &CancellationToken) -> Result<EvaluatorChild, PoolError> {
        self.wait_for_unreaped(cancel).await?;
        let start_up = self.start_up(cancel).await;
        if start_up.is_err() {
            self.discard().await;
        }
        start_up
    }

    async fn start_up(&mut self, cancel: &CancellationToken) -> Result<EvaluatorChild, PoolError> {
        let reopened = std::mem::take(&mut self.closed);
        self.starts += u64::from(!reopened);
        let again = self.starts > 1 && !reopened;
        let device = self.spec.device.to_string();
        // The first start adds zero, which makes the device's time series appear.
        metrics::counter!("sparsetune_evaluator_restarts_total", "device" => device)
            .increment(again.into());
        if again {
            tracing::warn!(device = %self.spec.device, restarts = self.restarts(), "evaluator restarted");
        }
        if !again && self.spec.device.0.starts_with("cuda") {
            // A fenced child cannot.
            let created = tokio::task::spawn_blocking(gpus::create_device_files).await;
            created.map_err(|error| PoolError::Crashed(error.to_string()))?;
        }
        let child = EvaluatorChild::spawn(Start::evaluator(&self.spec)).map_err(|error| {
            let program = self.spec.program.display();
            PoolError::Crashed(format!("{program} could not be started: {error}"))
        })?;
        let open = RequestBody::Open { protocol: PROTOCOL_VERSION };
        match self.call_on(child, open, None, cancel).await? {
            Reply::Opened(device) => self.device = Some(*device),
            other => return Err(self.unexpected_reply(&other).await),
        }
        if let Some(load) = self.loaded.clone() {
            let child = self.take_idle()?;
            match self.call_on(child, RequestBody::Load(load), None, cancel).await? {
                Reply::Loaded(_) => {}
                other => return Err(self.unexpected_reply(&other).await),
            }
        }
        self.take_idle()
    }

    /// The child that has just become idle.
    fn take_idle(&mut self) -> Result<EvaluatorChild, PoolError> {
        self.idle.take().ok_or_else(|| PoolError::Crashed("the evaluator is gone".to_owned()))
    }

    pub(super) async fn pause(
        &self,
        attempt: u32,
        cancel: &CancellationToken,
    ) -> Result<(), PoolError> {
        tokio::select! {
            () = tokio::time::sleep(self.spec.restarts.pause_before(attempt)) => Ok(()),
            () = cancel.cancelled() => Err(PoolError::Cancelled),
        }
    }

    /// Waits for a killed child that did not exit in time.
    async fn wait_for_unreaped(&mut self, cancel: &CancellationToken) -> Result<(), PoolError> {
        let Some(mut process) = self.unreaped.take() else { return Ok(()) };
        let answer = tokio::select! {
            waited = tokio::time::timeout(self.spec.deadlines.open, process.wait()) => match waited {
                Ok(_) => return Ok(()),
                Err(_) => Err(PoolError::Crashed("a killed evaluator process does not exit".to_owned())),
            },
            () = cancel.cancelled() => Err(PoolError::Cancelled),
        };
        self.unreaped = Some(process);
        answer
    }

    /// Ends the child; returns how it ended, and the signal that ended it if this process did not send it.
    pub(super) async fn terminate(
        &mut self,
        child: EvaluatorChild,
        patience: Duration,
    ) -> (String, Option<i32>) {
        let Terminated { report, signal, unreaped, .. } =
            child.end(patience, self.spec.deadlines.reap).await;
        tracing::warn!(device = %self.spec.device, report, "evaluator ended");
        self.unreaped = unreaped;
        (report, signal)
    }

    pub(super) fn unavailable(&self, last: Option<PoolError>) -> PoolError {
        PoolError::Unavailable {
            device: self.spec.device.clone(),
            attempts: self.spec.restarts.attempts,
            last: last
                .map_or_else(|| "no start was attempted".to_owned(), |error| error.to_string()),
        }
    }

    /// Handles a well-formed reply of the wrong kind. The child is terminated, since it can no longer be trusted.
    pub(super) async fn unexpected_reply(&mut self, reply: &Reply) -> PoolError {
        self.discard().await;
        PoolError::Crashed(format!("the evaluator sent an unexpected reply: {reply:?}"))
    }

    /// Terminates the idle child.
    async fn discard(&mut self) {
        if let Some(child) = self.idle.take() {
            self.terminate(child, Duration::ZERO).await;
        }
    }
}

/// Returns the error if another start may help; other errors are returned to the caller.
pub(super) fn retriable(error: PoolError) -> Result<PoolError, PoolError> {
    match error {
        PoolError::TimedOut(_) | PoolError::Crashed(_) | PoolError::Killed(_) => Ok(error),
        PoolError::Cancelled | PoolError::Failed(_) | PoolError::Unavailable { .. } => Err(error),
    }
}

fn with(report: String, shortage: Option<String>) -> String {
    match shortage {
        Some(shortage) => format!("{report}; {shortage}"),
        None => report,
    }
}

/// Whether a process does not send itself this signal: faulting and aborting have others, so somebody else, or the kernel for want
/// of memory or time, killed it.
pub(super) fn from_outside(signal: i32) -> bool {
    matches!(
        signal,
        libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT | libc::SIGXCPU
    )
}
