//! A plan as one table row, as shown on the matrix page and in comparisons.

use crate::domain::candidate::ALGORITHM;
use crate::domain::plan::{Baseline, Bound, Measured};
use crate::domain::{Candidate, L2Policy, Plan};
use crate::http::dashboard::bound::{self, Reach};
use crate::http::dashboard::format;

/// The texts of one table row.
pub struct PlanRow {
    pub id: String,
    pub problem: String,
    pub device: String,
    pub device_class: String,
    pub winner: String,
    /// The winner with all its parameters.
    pub candidate: String,
    pub time: String,
    /// Confidence interval of the median, and the number of samples.
    pub interval: String,
    pub speedup: Option<String>,
    /// The vendor routine and its time.
    pub vendor: Option<String>,
    pub vendor_time: Option<String>,
    /// Short name of the baseline: `cuSPARSE`, `MKL`, `plain substitution, one thread`.
    pub library: Option<String>,
    pub bound: Bound,
    pub reach: Reach,
    /// `at copy bandwidth: 11.8 µs`.
    pub bound_time: String,
    pub tie: bool,
    /// Predicted by a model, not measured.
    pub predicted: bool,
    /// Made for a matrix of the same pattern with other values.
    pub other_values: bool,
    pub age: String,
    pub created_at: String,
}

impl PlanRow {
    pub fn of(plan: &Plan, matrix: &crate::domain::Digest) -> Self {
        let interval = |measured: &Measured| {
            let within = measured.interval_us().map(|ends| ends.map(format::micros));
            let within =
                within.map_or_else(String::new, |[low, high]| format!("{low} to {high}, "));
            let counted = if measured.samples == 1 { "sample" } else { "samples" };
            format!("{within}{} {counted}, {}", measured.samples, measured.clock)
        };
        let predicted = plan.predicted.as_ref().map(|predicted| predicted.median_us);
        let time = plan.median_us().or(predicted);
        let unmeasured = || "predicted, not measured".to_owned();
        let vendor = plan.baseline.as_ref();
        Self {
            id: plan.id.to_string(),
            problem: question(plan),
            device: plan.device.class().words(),
            device_class: plan.device.class().to_string(),
            winner: winner(&plan.candidate),
            candidate: plan.candidate.to_string(),
            time: time.map_or_else(|| "–".to_owned(), format::micros),
            interval: plan.measured.as_ref().map_or_else(unmeasured, interval),
            speedup: plan.speedup.map(format::times),
            vendor: vendor.map(ToString::to_string),
            vendor_time: vendor.map(|vendor| format::micros(vendor.median_us)),
            library: vendor.map(library),
            bound: plan.limit.bound,
            reach: bound::reach(&plan.limit),
            bound_time: bound::timed(&plan.limit),
            tie: plan.tie,
            predicted: plan.is_predicted(),
            other_values: plan.matrix != *matrix,
            age: format::ago(plan.created_at),
            created_at: plan.created_at.to_rfc3339(),
        }
    }
}

/// One line for each performance bound that the plans are compared with.
pub fn bounds(plans: &[PlanRow]) -> Vec<&'static str> {
    bound::meanings(plans.iter().map(|plan| plan.bound))
}

/// The problem in words, with the L2 policy if it is not the default, since a table may list plans of both.
pub fn question(plan: &Plan) -> String {
    let cold = if plan.l2_policy == L2Policy::Cold { ", cold L2" } else { "" };
    format!("{}{cold}", format::problem_words(&plan.problem))
}

/// The family; for a library's routine, also which.
fn winner(candidate: &Candidate) -> String {
    let family = format::family(candidate);
    match candidate.text(ALGORITHM) {
        // What is part of this program has one routine for a problem.
        Some(algorithm)
            if candidate.routine().is_some_and(|it| it.library.own_name().is_none()) =>
        {
            format!("{family} {algorithm}")
        }
        _ => family,
    }
}

/// Name of the baseline, with the one thread that a speed-up over it has to mention.
pub fn library(baseline: &Baseline) -> String {
    let name = &baseline.name;
    if baseline.is_single_threaded() { format!("{name}, one thread") } else { name.clone() }
}
