//! The life of an evaluator's children: one request each at a time, their ends, and what is done to start the next.

use super::PoolError;
use super::child::{EvaluatorChild, Remains};
use super::evaluator::Evaluator;
use super::exchange::{Broken, exchange};
use super::spec::runs;
use crate::domain::Outcome;
use crate::domain::protocol::{PROTOCOL_VERSION, Reply, RequestBody};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long a child that hung up may take to end by itself, so that its own exit status is the one reported.
const LEAVING: Duration = Duration::from_millis(300);

impl Evaluator {
    /// One request to this child, which is at rest again or dead afterwards.
    pub(super) async fn call_on(
        &mut self,
        mut child: EvaluatorChild,
        request: RequestBody,
        deadline: Option<Duration>,
        cancel: &CancellationToken,
    ) -> Result<Reply, PoolError> {
        let deadlines = self.spec.deadlines;
        let ran = AtomicBool::new(false);
        let allowed = |stage: Option<&str>| {
            ran.fetch_or(stage.is_some_and(runs), Ordering::Relaxed);
            deadlines.allowed(&request, stage, deadline)
        };
        self.lost_early = false;
        let what = name_of(&request);
        let broken = match exchange(&mut child, &request, allowed, deadlines.cancel, cancel).await {
            Ok(reply) => return self.settle(child, reply).await,
            Err(broken) => broken,
        };
        if let Broken::Unsendable(why) = broken {
            self.idle = Some(child);
            return Err(PoolError::Failed(why));
        }
        let lost = matches!(broken, Broken::Late { .. } | Broken::Gone);
        self.lost_early = lost && !ran.into_inner();
        let patience = if broken == Broken::Gone { LEAVING } else { Duration::ZERO };
        let report = self.bury(child, patience).await;
        Err(match broken {
            Broken::Late { stage, after } => PoolError::TimedOut(format!(
                "no answer to {what} within {} ms of {stage}: {report}",
                after.as_millis()
            )),
            Broken::Garbage(said) => {
                PoolError::Crashed(format!("the evaluator spoke nonsense (`{said}`): {report}"))
            }
            Broken::Cancelled => PoolError::Cancelled,
            Broken::Gone | Broken::Unsendable(_) => {
                PoolError::Crashed(format!("the evaluator died in {what}: {report}"))
            }
        })
    }

    /// Takes a reply, and the child's leave where the reply says that its device is lost.
    async fn settle(&mut self, child: EvaluatorChild, reply: Reply) -> Result<Reply, PoolError> {
        if matches!(&reply, Reply::Measured { outcome: Outcome::Crashed { .. }, .. }) {
            // Not asked for anything more: what it left unanswered would be blamed on the next candidate.
            self.bury(child, LEAVING).await;
            return Ok(reply);
        }
        self.idle = Some(child);
        match reply {
            Reply::Failed { error } => Err(PoolError::Failed(error)),
            reply => Ok(reply),
        }
    }

    /// A child with its device open and the last problem loaded.
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
            // It died at rest: no candidate's fault.
            self.bury(child, LEAVING).await;
        }
        let mut last = None;
        for attempt in 0..self.spec.restarts.attempts {
            self.pause(attempt, cancel).await?;
            match self.start(cancel).await {
                Ok(child) => return Ok(child),
                Err(error) => last = Some(retriable(error)?),
            }
        }
        Err(self.unavailable(last))
    }

    /// One attempt: start, open, load what was loaded. A child that comes only half-way does not stay.
    async fn start(&mut self, cancel: &CancellationToken) -> Result<EvaluatorChild, PoolError> {
        self.wait_for_undead(cancel).await?;
        let come_up = self.come_up(cancel).await;
        if come_up.is_err() {
            self.discard().await;
        }
        come_up
    }

    async fn come_up(&mut self, cancel: &CancellationToken) -> Result<EvaluatorChild, PoolError> {
        self.starts += 1;
        let again = self.starts > 1;
        let device = self.spec.device.to_string();
        // The first start counts nothing, and shows the device's series.
        metrics::counter!("sparsetune_evaluator_restarts_total", "device" => device)
            .increment(again.into());
        if again {
            tracing::warn!(device = %self.spec.device, restarts = self.restarts(), "evaluator restarted");
        }
        let child = EvaluatorChild::spawn(&self.spec).map_err(|error| {
            let program = self.spec.program.display();
            PoolError::Crashed(format!("{program} could not be started: {error}"))
        })?;
        let open = RequestBody::Open { protocol: PROTOCOL_VERSION };
        match self.call_on(child, open, None, cancel).await? {
            Reply::Opened(device) => self.device = Some(*device),
            other => return Err(self.absurd(&other).await),
        }
        if let Some(load) = self.loaded.clone() {
            let child = self.take_idle()?;
            match self.call_on(child, RequestBody::Load(load), None, cancel).await? {
                Reply::Loaded(_) => {}
                other => return Err(self.absurd(&other).await),
            }
        }
        self.take_idle()
    }

    /// The child that was just put to rest.
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

    /// Waits for the end of a killed child that was not gone in time.
    async fn wait_for_undead(&mut self, cancel: &CancellationToken) -> Result<(), PoolError> {
        let Some(mut process) = self.undead.take() else { return Ok(()) };
        let answer = tokio::select! {
            waited = tokio::time::timeout(self.spec.deadlines.open, process.wait()) => match waited {
                Ok(_) => return Ok(()),
                Err(_) => Err(PoolError::Crashed("a killed evaluator does not go away".to_owned())),
            },
            () = cancel.cancelled() => Err(PoolError::Cancelled),
        };
        self.undead = Some(process);
        answer
    }

    pub(super) async fn bury(&mut self, child: EvaluatorChild, patience: Duration) -> String {
        let Remains { report, undead } = child.end(patience, self.spec.deadlines.reap).await;
        tracing::warn!(device = %self.spec.device, report, "evaluator ended");
        self.undead = undead;
        report
    }

    pub(super) fn unavailable(&self, last: Option<String>) -> PoolError {
        PoolError::Unavailable {
            device: self.spec.device.clone(),
            attempts: self.spec.restarts.attempts,
            last: last.unwrap_or_else(|| "no start was allowed".to_owned()),
        }
    }

    /// A well-formed reply to something that was not asked. The child goes: nothing it says can be trusted.
    pub(super) async fn absurd(&mut self, reply: &Reply) -> PoolError {
        self.discard().await;
        PoolError::Crashed(format!("the evaluator answered something else: {reply:?}"))
    }

    /// Ends the child at rest.
    async fn discard(&mut self) {
        if let Some(child) = self.idle.take() {
            self.bury(child, Duration::ZERO).await;
        }
    }
}

/// What another start may cure, as the reason to keep; the rest is the caller's.
pub(super) fn retriable(error: PoolError) -> Result<String, PoolError> {
    match error {
        PoolError::TimedOut(why) | PoolError::Crashed(why) => Ok(why),
        PoolError::Cancelled | PoolError::Failed(_) | PoolError::Unavailable { .. } => Err(error),
    }
}

fn name_of(request: &RequestBody) -> &'static str {
    match request {
        RequestBody::Open { .. } => "open",
        RequestBody::Load(_) => "load",
        RequestBody::Prepare { .. } => "prepare",
        RequestBody::Measure { .. } => "measure",
        RequestBody::Pair { .. } => "pair",
        RequestBody::Export { .. } => "export",
        RequestBody::Close => "close",
    }
}
