//! Queues a measuring job for a lookup without a measured plan, if the operator permits it.

use super::jobs::digest_of;
use super::predicted::measuring;
use super::{Result, Service, ServiceError};
use crate::domain::access::Scope;
use crate::domain::plan::PlanKey;
use crate::domain::{Device, Job, JobState, Matrix, Work, WorkKind};
use crate::store::Submission;
use tokio::time::{Instant, timeout_at};

/// If this many jobs of the namespace are queued, a lookup adds no more: explicitly requested jobs come first.
const MOST_QUEUED: u64 = 32;

impl Service {
    /// Queues the measuring job for a lookup without a measured plan, once per retention time of idempotency keys. Returns a
    /// sentence about that job; `None` if none is wanted, if the caller may queue none, or if the prediction explains why it is impossible.
    pub(super) async fn measure_miss(
        &self,
        key: &PlanKey,
        matrix: &Matrix,
        device: &Device,
        until: Instant,
    ) -> Result<Option<String>> {
        let settings = &self.inner.settings;
        if !self.caller.scopes.permit(Scope::Tune) {
            return Ok(None);
        }
        if !settings.measure_misses || key.l2_policy != settings.l2_policy {
            return Ok(None);
        }
        let asked = measuring(matrix.digest, key.problem, device, None);
        // Clients' keys contain no spaces, so this cannot collide with one.
        let once = format!("miss of {} {} {}", matrix.digest, key.problem, device.class());
        let known = self.store.keyed(&once, &digest_of(&asked)?).await?;
        if let Some(Submission::Existing(Work::Tune(job))) = known {
            return Ok(Some(standing(&job)));
        }
        let counts = self.job_counts().await?;
        let queued = counts
            .iter()
            .find(|(kind, state, _)| (*kind, *state) == (WorkKind::Tune, JobState::Queued));
        if queued.is_some_and(|(_, _, queued)| *queued > MOST_QUEUED) {
            return Ok(Some(format!(
                "no measuring job is queued: lookups add none while more than {MOST_QUEUED} jobs are waiting"
            )));
        }
        // The diagonal for a solve may have to be read first, and the request does not wait for this. Only one such task
        // runs at a time.
        let later = || Some("a measuring job is being queued: try again".to_owned());
        let turn = self.inner.submitting.clone();
        let Ok(permit) = timeout_at(until, turn.acquire_owned()).await else {
            return Ok(later());
        };
        let permit = permit?;
        let service = self.clone();
        let submitting = tokio::spawn(async move {
            let _permit = permit;
            service.submit(&asked, Some(once)).await
        });
        let Ok(submitted) = timeout_at(until, submitting).await else {
            return Ok(later());
        };
        match submitted? {
            Ok(submitted) => Ok(Some(standing(&submitted.job))),
            Err(error) if error.is_failure() => {
                tracing::warn!(matrix = %matrix.digest, %error, "the measuring job for a lookup could not be queued");
                Ok(Some("the measuring job could not be queued".to_owned()))
            }
            Err(ServiceError::Quota(exceeded)) => {
                Ok(Some(format!("no measuring job is queued: {exceeded}")))
            }
            // The prediction explains why it is impossible.
            Err(_) => Ok(None),
        }
    }
}

/// What a client can expect of the measuring job.
pub(in crate::service) fn standing(job: &Job) -> String {
    let id = &job.id;
    match job.state {
        JobState::Queued | JobState::Running => format!("job {id} measures it"),
        JobState::Succeeded => format!("job {id} has measured it"),
        JobState::Failed => match &job.error {
            Some(error) => format!("the measuring job {id} failed: {error}"),
            None => format!("the measuring job {id} failed"),
        },
        JobState::Cancelled => format!("the measuring job {id} was cancelled"),
    }
}
