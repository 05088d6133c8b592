//! Strategy `predicted`: a plan for the candidate that the model ranks first, compiled but not timed.

use super::search_context::SearchContext;
use super::session::{Session, SessionError};
use crate::domain::{JobId, JobRequest, Plan, Search, Stage};
use crate::ops::limit::Least;
use crate::pool::PoolError;
use crate::service::misses::standing;
use crate::service::predicted::{Subject, measuring, plan, rank_unmeasured};
use std::time::Instant;
use tracing::Instrument;

/// Number of candidates that are tried in ranking order until one can be lowered and compiled; then the job fails.
const CHOICES: usize = 8;

impl Session<'_> {
    pub(super) async fn predict(
        &mut self,
        context: SearchContext,
        seed: u64,
    ) -> Result<Plan, SessionError> {
        let started = Instant::now();
        let request = self.recorder.job.request.clone();
        let learned = context.learned.as_ref();
        let ranking = rank_unmeasured(&context.space, learned, &context.quarantined);
        let left = ranking.order.len();
        let of = ranking.learned.as_ref().and_then(|learned| learned.of.as_ref());
        let of = of.map_or_else(String::new, |class| format!(" of {class}"));
        let message =
            format!("{left} candidates ranked by {}{of}; nothing is measured", ranking.model);
        self.recorder.stage(Stage::Pruning, message).await?;
        self.recorder.funnel(&context.funnel).await?;
        let mut why = "no candidate is left".to_owned();
        for at in 0..left.min(CHOICES) {
            let candidate = &ranking.order[at].0;
            let program = match self.kept(candidate).await {
                Ok(program) => program,
                Err(SessionError::Pool(
                    error @ (PoolError::Failed(_)
                    | PoolError::TimedOut(_)
                    | PoolError::Crashed(_)
                    | PoolError::Killed(_)),
                )) => {
                    self.recorder.log(format!("{candidate} was skipped: {error}")).await?;
                    why = error.to_string();
                    continue;
                }
                Err(error) => return Err(error),
            };
            let subject = Subject {
                matrix: &context.matrix,
                problem: request.problem,
                device: self.device,
                least: Least {
                    us: context.loaded.limit_us,
                    bound: context.loaded.bound,
                    bytes: context.loaded.compulsory_bytes,
                },
                judged: context.space.judged(candidate),
                intensity: context.space.intensity(candidate),
                funnel: context.funnel,
                job: Some(self.recorder.job.id.clone()),
                seed,
                started,
            };
            let plan = plan(&self.service, subject, &ranking, at);
            let mut plan = plan.ok_or_else(|| SessionError::Hopeless(why))?;
            plan.launch = program.launch;
            plan.validity.update_values_ms = program.update_ms.unwrap_or(0.0);
            if request.search.measure {
                self.recorder.job.follow_up = self.follow_up().await?;
            }
            return Ok(plan);
        }
        Err(SessionError::Hopeless(format!("nothing could be predicted: {why}")))
    }

    /// Submits the measuring job before this one ends. If the worker is lost in between, it is submitted again with the
    /// same idempotency key, which returns the same job.
    async fn follow_up(&self) -> Result<Option<JobId>, SessionError> {
        let job = &self.recorder.job;
        let calls = job.request.expected_calls;
        let measured = measuring(job.request.matrix, job.request.problem, self.device, calls);
        // The plan that is measured is to be of the candidates that this one was chosen from.
        let Search { families, fixed, exact, clock, .. } = job.request.search.clone();
        let search = Search { families, fixed, exact, clock, ..measured.search };
        let asked = JobRequest { search, ..measured };
        // Clients' keys contain no spaces, so this cannot collide with one.
        let once = format!("follow-up of {}", job.id);
        // A separate span, because a submission records its job in the current span.
        let span = tracing::info_span!("follow_up", job = tracing::field::Empty);
        match self.service.submit(&asked, Some(once)).instrument(span).await {
            Ok(submitted) => {
                // The measuring job of an earlier attempt may have ended since.
                self.recorder.log(standing(&submitted.job)).await?;
                Ok(Some(submitted.job.id))
            }
            Err(error) if error.is_failure() => Err(SessionError::Hopeless(format!(
                "the measuring job could not be submitted: {error}"
            ))),
            Err(error) => {
                self.recorder.log(format!("no measuring job was submitted: {error}")).await?;
                Ok(None)
            }
        }
    }
}
