//! Observability of jobs and trials: a span for each, and a log line and a metrics sample for each trial.

use crate::domain::{Candidate, Device, Job, Outcome};
use metrics::histogram;
use std::time::Instant;
use tracing::field::Empty;
use tracing::{Span, debug, info, info_span};

/// The span of a running job. In exported spans, `job` links it to the request that submitted it.
pub fn job_span(job: &Job, device: &Device) -> Span {
    let (matrix, problem) = (job.request.matrix, job.request.problem);
    info_span!("job", job = %job.id, %matrix, %problem, device = %device.id, attempt = job.attempts)
}

/// One trial, from the selection of its candidate until its outcome is stored. Lowering and compiling count unless done
/// ahead, and so does starting a new evaluator if one is needed.
pub struct TrialWatch {
    pub span: Span,
    family: String,
    started: Instant,
}

impl TrialWatch {
    pub fn start(ordinal: u32, candidate: &Candidate) -> Self {
        let (id, family) = (candidate.id(), &candidate.family);
        let span =
            info_span!("trial", ordinal, candidate = %id, family, state = Empty, median_us = Empty);
        Self { span, family: family.clone(), started: Instant::now() }
    }

    pub fn end(self, outcome: Option<&Outcome>) {
        let Some(outcome) = outcome else { return };
        let (state, took) = (outcome.state(), self.started.elapsed());
        // Labelled by family only: with parameters there would be as many series as candidates.
        histogram!("sparsetune_trial_seconds", "state" => state, "family" => self.family)
            .record(took.as_secs_f64());
        self.span.record("state", state);
        let took_ms = took.as_millis() as u64;
        let _entered = self.span.enter();
        match outcome {
            Outcome::Measured { timing, .. } => {
                self.span.record("median_us", timing.median_us);
                debug!(took_ms, "measured");
            }
            Outcome::CompileFailed { detail }
            | Outcome::Refused { detail }
            | Outcome::Wrong { detail, .. }
            | Outcome::TimedOut { detail, .. }
            | Outcome::Crashed { detail } => {
                info!(took_ms, detail = detail.lines().next(), "failed");
            }
        }
    }
}
