//! Drift: pinned plans are measured again while their device has nothing else to do, and plans that are used are measured anew once
//! the software around their device has changed, within a budget.

use super::predicted::measuring;
use super::{Result, Service};
use crate::domain::drift::{Check, Verdict};
use crate::domain::{Caller, Device, Outcome, Plan, PlanId, Timestamp, discreet, drift};
use metrics::{counter, gauge};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// When and how plans are looked at again.
#[derive(Clone, Debug, PartialEq)]
pub struct DriftSettings {
    /// How long a pinned plan is trusted before it is measured again; zero for ever.
    pub check: Duration,
    /// How many times the time that a plan says still holds.
    pub tolerance: f64,
    /// Most jobs a day that are queued for plans whose software changed.
    pub renewals_per_day: u32,
}

impl Default for DriftSettings {
    fn default() -> Self {
        Self { check: 24 * Duration::from_secs(3600), tolerance: 1.25, renewals_per_day: 4 }
    }
}

/// Most plans whose uses are counted between two rounds of upkeep; others are counted in the next.
const MOST_COUNTED: usize = 8192;
/// Most checks that are known to lookups.
const MOST_CHECKS: u32 = 10_000;
/// How many of the most used plans are compared with today's software.
const MOST_USED: u32 = 256;
/// Pinned plans that are looked at in one go.
const SOME: u32 = 16;
/// Before all that anybody asks for.
const LAST: i32 = -100;
const DAY_MS: i64 = 24 * 3600 * 1000;
/// A plan that nobody has used for so long is not measured anew.
const USED_WITHIN_MS: i64 = 30 * DAY_MS;

/// Checks by plan.
type Checks = Arc<HashMap<PlanId, Check>>;

/// What this process remembers.
#[derive(Default)]
pub(super) struct Remembered {
    uses: Mutex<HashMap<PlanId, u64>>,
    /// With the epoch of the plans at which they were read.
    checks: RwLock<Option<(u64, Checks)>>,
}

impl Service {
    /// Counts a lookup that was answered with this plan. Answers that are kept come here again every few seconds, so that this counts
    /// for how long a plan is used, rather than how many clients ask at once.
    pub(super) fn used(&self, plan: &PlanId) {
        let mut uses = self.inner.drift.uses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = uses.get_mut(plan) {
            *number += 1;
        } else if uses.len() < MOST_COUNTED {
            uses.insert(plan.clone(), 1);
        }
    }

    /// Stores what was counted.
    pub(super) async fn store_uses(&self) -> Result<()> {
        let uses = {
            let mut uses = self.inner.drift.uses.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *uses)
        };
        if uses.is_empty() {
            return Ok(());
        }
        Ok(self.store.count_uses(&uses.into_iter().collect::<Vec<_>>()).await?)
    }

    /// What measuring plans again has said, as of the present epoch.
    pub(super) async fn checks(&self) -> Result<Checks> {
        let epoch = self.plans_epoch();
        let kept = &self.inner.drift.checks;
        if let Some((of, checks)) = &*kept.read().unwrap_or_else(PoisonError::into_inner)
            && *of == epoch
        {
            return Ok(Arc::clone(checks));
        }
        let checks = self.store.checks(MOST_CHECKS).await?;
        let drifted = checks.iter().filter(|check| check.verdict == Verdict::Drifted).count();
        gauge!("sparsetune_plans_drifted").set(drifted as f64);
        let by_plan = checks.into_iter().map(|check| (check.plan.clone(), check));
        let checks: Checks = Arc::new(by_plan.collect());
        let mut kept = kept.write().unwrap_or_else(PoisonError::into_inner);
        *kept = Some((epoch, Arc::clone(&checks)));
        Ok(checks)
    }

    /// The pinned plan of this device's class that was measured longest ago, if that is long enough, and the service of its namespace.
    /// Those that another version of the software was measured with are known to be stale, and passed over.
    pub(super) async fn due_check(&self, device: &Device) -> Result<Option<(Self, Plan)>> {
        let age = i64::try_from(self.inner.settings.drift.check.as_millis()).unwrap_or(i64::MAX);
        if age == 0 {
            return Ok(None);
        }
        let since = Timestamp::now().plus_millis(age.saturating_neg());
        let due = self.store.unchecked(&device.class(), since, SOME).await?;
        for (namespace, plan) in due {
            let changes = Self::changes(&plan, &[device]);
            let other = plan.l2_policy != self.inner.settings.l2_policy;
            if changes.is_empty() && !other {
                let there = self.on_behalf_of(&Caller::owner(None, namespace));
                return Ok(Some((there, plan)));
            }
            let why = match changes.is_empty() {
                true => "this service tunes with another L2 policy".to_owned(),
                false => changes.join("; "),
            };
            self.record_check(unclear(&plan, format!("it was not measured: {why}"))).await?;
        }
        Ok(None)
    }

    /// Records what candidate and baseline of the plan did, or why they could not be run.
    pub(super) async fn checked(
        &self,
        plan: &Plan,
        again: std::result::Result<(Outcome, Option<Outcome>), String>,
    ) -> Result<Check> {
        let check = match again {
            Ok((again, vendor)) => {
                let tolerance = self.inner.settings.drift.tolerance;
                drift::judge(plan, &again, vendor.as_ref(), tolerance)
            }
            Err(why) => unclear(plan, format!("it could not be run: {why}")),
        };
        self.record_check(check.clone()).await?;
        Ok(check)
    }

    async fn record_check(&self, mut check: Check) -> Result<()> {
        check.why = discreet(&check.why);
        let Check { plan, verdict, why, .. } = &check;
        match verdict {
            Verdict::Drifted => tracing::warn!(%plan, why, "a pinned plan no longer holds"),
            _ => tracing::info!(%plan, ?verdict, why, "a pinned plan was looked at again"),
        }
        let name = match verdict {
            Verdict::Holds => "holds",
            Verdict::Unclear => "unclear",
            Verdict::Drifted => "drifted",
        };
        counter!("sparsetune_plan_checks_total", "verdict" => name).increment(1);
        self.store.record_check(&check).await?;
        // For the gauge, and the next lookup.
        self.checks().await.map(drop)
    }

    /// Queues jobs for the most used plans that the software around this process's devices has outgrown, at most so many a day. Returns
    /// how many.
    pub async fn renew_outdated(&self) -> Result<u32> {
        let most = self.inner.settings.drift.renewals_per_day;
        let mut renewed = 0;
        if most == 0 {
            return Ok(0);
        }
        let now = Timestamp::now();
        for local in self.local_devices().iter().filter(|local| local.trouble.is_none()) {
            let device = &local.device;
            let since = now.plus_millis(-USED_WITHIN_MS);
            for used in self.store.most_used(&device.class(), since, MOST_USED).await? {
                let changes = Self::changes(&used.plan, &[device]);
                let why = changes.join("; ");
                let policy = self.inner.settings.l2_policy;
                if changes.is_empty()
                    || used.plan.l2_policy != policy
                    || used.renewed_for.as_ref() == Some(&why)
                {
                    continue;
                }
                let day = now.plus_millis(-DAY_MS);
                if !self.store.renew_plan(&used.plan.id, &why, day, most).await? {
                    // Another process did, or the budget is spent.
                    continue;
                }
                let there = self.on_behalf_of(&Caller::owner(None, used.namespace.clone()));
                renewed += u32::from(there.renew(&used.plan, device, &why).await?);
            }
        }
        Ok(renewed)
    }

    /// Whether a job could be queued for the plan's key.
    async fn renew(&self, plan: &Plan, device: &Device, why: &str) -> Result<bool> {
        let asked = measuring(plan.matrix, plan.problem, device, plan.expected_calls);
        match self.submit_at(&asked, None, LAST).await {
            Ok(submitted) => {
                tracing::info!(plan = %plan.id, job = %submitted.job.id, why, "a plan in use is measured anew");
                Ok(true)
            }
            // Such as a matrix that was deleted meanwhile.
            Err(error) if !error.is_failure() => {
                tracing::warn!(plan = %plan.id, %error, "a plan in use cannot be measured anew");
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

fn unclear(plan: &Plan, why: String) -> Check {
    let (median_us, vendor_us) = (None, None);
    let at = Timestamp::now();
    Check { plan: plan.id.clone(), at, verdict: Verdict::Unclear, why, median_us, vendor_us }
}
