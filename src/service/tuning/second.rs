//! The second of two jobs for both triangles of a matrix, which the first one submits as it ends.

use super::session::{Session, SessionError};
use crate::domain::{Candidate, Job, JobId, JobRequest, JobState, Plan, Problem};
use crate::service::request::second_search;
use crate::service::{Lack, ServiceError, Submitted};
use crate::store::{BlobError, Finish, StoreError};
use tracing::Instrument;

impl Session<'_> {
    /// Submits the job of the second part, if the request has one, before this job ends with its plan.
    pub(super) async fn go_on(&mut self, plan: Plan) -> Result<Plan, SessionError> {
        if let Some(then) = self.recorder.job.request.search.then {
            // A cancel of this moment has not reached the signals yet. On shutdown the job ends all the same: it has its plan.
            let store = self.service.store();
            let held = self.signals.lasting(|| store.held(self.recorder.fence())).await?;
            if held.cancel_requested {
                self.signals.cancelled.cancel();
                self.signals.stop.cancel();
            }
            if self.signals.cancelled.is_cancelled() || self.signals.lost.is_cancelled() {
                return Err(SessionError::Stopped);
            }
            self.submit_second(then, &plan.candidate).await?;
        }
        Ok(plan)
    }

    /// If the worker is lost before this job has ended, the second is submitted again with the same idempotency key, which
    /// returns the same job. What may pass is waited for, or gives the job back: what was measured stays. A refusal that stays costs the
    /// second plan and not the first.
    async fn submit_second(
        &mut self,
        then: Problem,
        first: &Candidate,
    ) -> Result<(), SessionError> {
        let job = &self.recorder.job;
        // The two plans are to run on devices of one class, or on the one device that may run this job.
        let device = match &job.only_on {
            Some(key) => key.0.clone(),
            None => self.device.class().0,
        };
        let search = second_search(&job.request.search, &then, first, self.device.kind);
        let asked = JobRequest { problem: then, device, search, ..job.request.clone() };
        // Clients' keys contain no spaces, so this cannot collide with one.
        let once = format!("second part of {}", job.id);
        let (service, priority) = (&self.service, job.priority);
        let submit = || async {
            // A separate span, because a submission records its job in the current span.
            let span = tracing::info_span!("second", job = tracing::field::Empty);
            let submitted = service.submit_second(&asked, once.clone(), priority);
            match submitted.instrument(span).await {
                Ok(submitted) => Ok(Ok(submitted)),
                Err(error) => passing(error).map(Err),
            }
        };
        let (said, id) = match self.signals.lasting(submit).await? {
            Ok(Submitted { job, created }) => {
                if created {
                    self.queued = Some(job.id.clone());
                }
                (format!("job {} goes on with the other triangle", job.id), Some(job.id))
            }
            Err(Refused::ForNow(why)) => return Err(BlobError::Unavailable(why.into()).into()),
            Err(Refused::ForGood(why)) => {
                (format!("no job was submitted for the other triangle: {why}"), None)
            }
        };
        self.recorder.job.follow_up = id;
        self.recorder.log(said).await?;
        Ok(())
    }

    /// Records the end. A second job of an attempt that was cancelled meanwhile is cancelled, too.
    pub(super) async fn end(&self, job: Job, plan: Option<Plan>) -> Result<(), StoreError> {
        let charged = match &plan {
            Some(plan) => self.service.charge_of(plan).await,
            None => 0,
        };
        let queued = self.queued.clone();
        let finish = Finish { charged, queued, ..Finish::job(job, plan) };
        let store = self.service.store();
        let ended = self.signals.lasting(|| store.finish(self.recorder.fence(), &finish)).await;
        if let (Err(StoreError::Fenced(id)), Some(second)) = (&ended, &finish.queued) {
            self.leave_none(id, second).await?;
        }
        ended.map(drop)
    }

    /// Another worker that has claimed the job goes on with the second one, but nobody does after a cancel. A second job that was not
    /// made by this attempt stays: it may be one that somebody else has asked for as well.
    async fn leave_none(&self, first: &JobId, second: &JobId) -> Result<(), StoreError> {
        let store = self.service.store();
        let first = store.work(first).await?;
        if first.is_none_or(|first| first.state() == JobState::Cancelled) {
            store.request_cancel(second).await?;
        }
        Ok(())
    }
}

/// Why there is no second job.
#[derive(Debug, PartialEq)]
enum Refused {
    /// The job is given back, and the same submission may succeed later.
    ForNow(String),
    /// The first plan is all that there is.
    ForGood(String),
}

/// A refusal; or what the store itself is the cause of: `Busy` is asked again while the lease is held, and with any such error the job
/// is given back.
fn passing(error: ServiceError) -> Result<Refused, StoreError> {
    let why = error.to_string();
    match error {
        ServiceError::Busy(_) => Err(StoreError::Busy(why.into())),
        ServiceError::Full(_) => Err(StoreError::Full(why.into())),
        ServiceError::Internal(_) => Err(StoreError::Backend(why.into())),
        ServiceError::Unavailable { .. }
        | ServiceError::ReaderFailed { .. }
        | ServiceError::Shortage { lack: Lack::InUse | Lack::Full, .. } => Ok(Refused::ForNow(why)),
        _ => Ok(Refused::ForGood(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::QuotaExceeded;

    #[test]
    fn what_passes_costs_no_plan() {
        let busy = ServiceError::from(StoreError::Busy("locked".into()));
        assert!(matches!(passing(busy), Err(StoreError::Busy(_))));
        let full = ServiceError::from(StoreError::Full("no room".into()));
        assert!(matches!(passing(full), Err(StoreError::Full(_))));
        let broken = ServiceError::from(StoreError::Backend("cut".into()));
        assert!(matches!(passing(broken), Err(StoreError::Backend(_))));
        let later = ServiceError::Unavailable { message: "later".to_owned() };
        assert_eq!(passing(later).unwrap(), Refused::ForNow("later".to_owned()));
        let (quota, limit, used, need) = ("queued_jobs", 1.0, 1.0, 1.0);
        let over = QuotaExceeded { quota, limit, used, need, passes: true };
        assert!(matches!(passing(ServiceError::Quota(over)).unwrap(), Refused::ForGood(_)));
        let gone = ServiceError::not_found("device", "cuda:0");
        assert!(matches!(passing(gone).unwrap(), Refused::ForGood(_)));
    }
}
