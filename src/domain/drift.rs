//! Whether a plan still holds: what measuring it again says.

use super::{Outcome, Plan, PlanId, Timestamp};
use serde::{Deserialize, Serialize};

/// What measuring a plan again says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is right, and as fast as it says.
    Holds,
    /// Nothing can be said: the device as a whole is slower, or the plan could not be run.
    Unclear,
    /// It is wrong, fails, is slower than it says, or the vendor's routine is faster now.
    Drifted,
}

/// A plan that was measured again on a device of its class.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    pub plan: PlanId,
    pub at: Timestamp,
    pub verdict: Verdict,
    /// In words, with the times.
    pub why: String,
    /// Microseconds a call by the plan's clock, of its candidate and of its baseline; `None` for what was not measured.
    pub median_us: Option<f64>,
    pub vendor_us: Option<f64>,
}

impl Check {
    /// As lookups say it.
    pub fn told(&self) -> String {
        format!("measured again at {}: {}", self.at.to_rfc3339(), self.why)
    }
}

/// By how much the vendor's routine has to be faster than the plan before it counts, since times of two days differ.
const OVERTAKEN: f64 = 1.05;

/// Judges a plan by what its candidate and its baseline do today. A time of up to `tolerance` (above 1) times what the plan says holds.
/// Where the baseline is slower by as much, that is the device's doing and not the plan's.
pub fn judge(plan: &Plan, again: &Outcome, vendor: Option<&Outcome>, tolerance: f64) -> Check {
    let vendor_us = vendor.and_then(Outcome::median_us);
    let check = |verdict, why| Check {
        plan: plan.id.clone(),
        at: Timestamp::now(),
        verdict,
        why,
        median_us: again.median_us(),
        vendor_us,
    };
    let Some(now) = again.median_us() else {
        return match again {
            Outcome::Refused { detail } => {
                check(Verdict::Unclear, format!("it could not be run: {detail}"))
            }
            failed => check(Verdict::Drifted, format!("its candidate is {} now", failed.state())),
        };
    };
    let Some(then) = plan.median_us() else {
        return check(Verdict::Unclear, "the plan says no time".to_owned());
    };
    let times = format!("{now:.3} us a call, and the plan says {then:.3} us");
    let slower = now / then;
    let baseline = plan.baseline.as_ref().filter(|_| !plan.candidate.is_baseline());
    let baseline = baseline.zip(vendor_us);
    if slower > tolerance {
        return match baseline {
            Some((then, now)) if slower / (now / then.median_us) <= tolerance => check(
                Verdict::Unclear,
                format!(
                    "{times}; but {} takes {now:.3} us where it took {:.3} us: the device is slower, or shared",
                    then.algorithm, then.median_us
                ),
            ),
            _ => check(Verdict::Drifted, times),
        };
    }
    match baseline {
        Some((was, us)) if us * OVERTAKEN < now && was.median_us >= then => check(
            Verdict::Drifted,
            format!("{times}; {} takes {us:.3} us, so it is faster now", was.algorithm),
        ),
        _ => check(Verdict::Holds, times),
    }
}
