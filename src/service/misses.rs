//! The job that measures what a lookup did not find, where the operator consents.

use super::jobs::digest_of;
use super::predicted::measuring;
use super::{Result, Service};
use crate::domain::plan::PlanKey;
use crate::domain::{Device, Job, JobState, Matrix, Work, WorkKind};
use crate::store::Submission;
use tokio::time::{Instant, timeout_at};

/// Queued jobs above which a lookup adds none: those that were asked for come first.
const MOST_QUEUED: u64 = 32;

impl Service {
    /// Queues the job that measures what a lookup did not find, once in the time that idempotency keys are kept. Says what
    /// became of it; nothing where none is wanted, or where the prediction says why it cannot be done.
    pub(super) async fn measure_miss(
        &self,
        key: &PlanKey,
        matrix: &Matrix,
        device: &Device,
        until: Instant,
    ) -> Result<Option<String>> {
        let settings = &self.inner.settings;
        if !settings.measure_misses || key.l2_policy != settings.l2_policy {
            return Ok(None);
        }
        let asked = measuring(matrix.digest, key.problem, device, None);
        // Clients' keys have no spaces, so that this is none of theirs.
        let once = format!("miss of {} {} {}", matrix.digest, key.problem, device.id);
        let known = self.inner.store.keyed(&once, &digest_of(&asked)?).await?;
        if let Some(Submission::Existing(Work::Tune(job))) = known {
            return Ok(Some(standing(&job)));
        }
        let counts = self.inner.store.job_counts().await?;
        let queued = counts
            .iter()
            .find(|(kind, state, _)| (*kind, *state) == (WorkKind::Tune, JobState::Queued));
        if let Some((_, _, queued)) = queued.filter(|(_, _, queued)| *queued > MOST_QUEUED) {
            return Ok(Some(format!(
                "no job that measures it is queued: {queued} jobs are, and lookups add none to more than {MOST_QUEUED}"
            )));
        }
        // A solve's diagonal may have to be read first, for which the request does not wait: one such task at a time.
        let later = || Some("a job that measures it is being queued: ask again".to_owned());
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
                tracing::warn!(matrix = %matrix.digest, %error, "a miss could not be queued");
                Ok(Some("a job that measures it could not be queued".to_owned()))
            }
            // The prediction says why it cannot be done.
            Err(_) => Ok(None),
        }
    }
}

/// What a client may expect of a job that was to measure.
pub(in crate::service) fn standing(job: &Job) -> String {
    let id = &job.id;
    match job.state {
        JobState::Queued | JobState::Running => format!("job {id} measures it"),
        JobState::Succeeded => format!("job {id} has measured it"),
        JobState::Failed => match &job.error {
            Some(error) => format!("job {id} was to measure it and failed: {error}"),
            None => format!("job {id} was to measure it and failed"),
        },
        JobState::Cancelled => format!("job {id} was to measure it and was cancelled"),
    }
}
