//! The sentinel: a worker that has nothing to do measures a pinned plan again.

use super::device_lock::{Asked, DeviceLock};
use crate::domain::candidate::{ALGORITHM, VENDOR};
use crate::domain::protocol::{Effort, Load};
use crate::domain::{Candidate, Clock, Device, Outcome, Plan};
use crate::pool::{Evaluator, PoolError};
use crate::service::{Result, Service, ServiceError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time for loading a module and comparing a result, beside what the kernel takes.
const SLACK: Duration = Duration::from_secs(10);
/// The longest that one candidate is waited for, whatever its plan says.
const LONGEST: Duration = Duration::from_secs(60);

/// Measures the plan that is due again, if one is; false if none is, or if it was stopped before it was done, of which nothing is kept.
pub(super) async fn look_again(
    service: &Service,
    (evaluator, device): (&mut Evaluator, &Device),
    effort: Effort,
    stop: &CancellationToken,
) -> Result<bool> {
    let Some((owner, plan)) = service.due_check(device).await? else { return Ok(false) };
    let lock = match &service.settings().device_locks {
        Some(folder) => DeviceLock::take(folder, device, Duration::ZERO, stop, async {}).await,
        None => Asked::Without,
    };
    let _lock = match lock {
        // Another process measures, so its times and these would say nothing.
        Asked::Held => return Ok(false),
        Asked::Got(lock) => Some(lock),
        Asked::Without => None,
    };
    let again = measured(&owner, (evaluator, device), &plan, effort, stop).await;
    // Another child need not load it.
    evaluator.forget();
    let again = match again {
        Err(PoolError::Cancelled) => return Ok(false),
        _ if stop.is_cancelled() => return Ok(false),
        again => again.map_err(|error| error.to_string()),
    };
    service.set_device_restarts(&device.id, evaluator.restarts());
    owner.checked(&plan, again).await?;
    Ok(true)
}

/// What the plan's candidate and its baseline do. The candidate is measured before and after, and its better time counts: something else
/// may have run during one of the two.
async fn measured(
    service: &Service,
    (evaluator, device): (&mut Evaluator, &Device),
    plan: &Plan,
    effort: Effort,
    stop: &CancellationToken,
) -> std::result::Result<(Outcome, Option<Outcome>), PoolError> {
    let file = service.matrix_file(&plan.matrix).await;
    let file = file.map_err(|error| PoolError::Failed(ServiceError::from(error).to_string()))?;
    let load = Load {
        path: file.to_path_buf(),
        digest: plan.matrix,
        problem: plan.problem,
        l2_policy: plan.l2_policy,
        seed: plan.provenance.seed,
    };
    evaluator.load(load, stop).await?;
    let clock = plan.clock().unwrap_or(Clock::of_earlier_versions()).under(plan.l2_policy);
    let effort = Effort { clock, give_up_us: None, ..effort };
    let us = plan.median_us().unwrap_or_default() * 1000.0 / 1e6;
    let patience =
        SLACK.saturating_add(Duration::try_from_secs_f64(us).unwrap_or_default()).min(LONGEST);
    let first = evaluator.measure(&plan.candidate, effort, Some(patience), stop).await?.outcome;
    let vendor = match &plan.baseline {
        Some(baseline) if !plan.candidate.is_baseline() => {
            let vendor = Candidate::new(VENDOR).with_text(ALGORITHM, &baseline.algorithm);
            Some(evaluator.measure(&vendor, effort, Some(patience), stop).await?.outcome)
        }
        _ => None,
    };
    let second = evaluator.measure(&plan.candidate, effort, Some(patience), stop).await?.outcome;
    tracing::debug!(device = %device.id, plan = %plan.id, ?first, ?second, "measured again");
    let better = match (first.median_us(), second.median_us()) {
        (Some(a), Some(b)) if a < b => first,
        (Some(_), None) => first,
        _ => second,
    };
    Ok((better, vendor))
}
