//! The second of two jobs for both triangles of a matrix, which the first one submits as it ends.

use super::session::{Session, SessionError};
use crate::domain::{JobId, JobRequest, Plan, Problem, Search};
use tracing::Instrument;

impl Session<'_> {
    /// Submits the job of the second part, if the request has one, before this job ends with its plan.
    pub(super) async fn go_on(&mut self, plan: Plan) -> Result<Plan, SessionError> {
        if let Some(then) = self.recorder.job.request.search.then {
            self.recorder.job.follow_up = Some(self.submit_second(then).await?);
        }
        Ok(plan)
    }

    /// If the worker is lost before this job has ended, the second is submitted again with the same idempotency key, which
    /// returns the same job. Half of what was asked for is no answer, so without the second job this one has failed.
    async fn submit_second(&self, then: Problem) -> Result<JobId, SessionError> {
        let job = &self.recorder.job;
        // The two plans are to run on one device: where only one may run this job, or else one of its class.
        let device = match &job.only_on {
            Some(key) => key.0.clone(),
            None => self.device.class().0,
        };
        let search = Search { then: None, ..job.request.search.clone() };
        let asked = JobRequest { problem: then, device, search, ..job.request.clone() };
        // Clients' keys contain no spaces, so this cannot collide with one.
        let once = format!("second part of {}", job.id);
        // A separate span, because a submission records its job in the current span.
        let span = tracing::info_span!("second", job = tracing::field::Empty);
        let submitted = self.service.submit_at(&asked, Some(once), job.priority).instrument(span);
        match submitted.await {
            Ok(submitted) => {
                let id = submitted.job.id;
                self.recorder.log(format!("job {id} goes on with the other triangle")).await?;
                Ok(id)
            }
            Err(error) => Err(SessionError::Hopeless(format!(
                "the job of the other triangle could not be submitted: {error}"
            ))),
        }
    }
}
