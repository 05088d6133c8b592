//! A plan in one line: what the tables of a matrix and of a comparison say of it.

use crate::domain::plan::Bound;
use crate::domain::{Candidate, Device, DeviceKind, L2Policy, Plan};
use crate::http::dashboard::format;

/// What a table shows of a plan, in words.
pub struct PlanRow {
    pub id: String,
    pub problem: String,
    pub device: String,
    pub device_class: String,
    pub winner: String,
    /// The winner with all its parameters.
    pub candidate: String,
    pub time: String,
    /// Interval of the median, and how many samples it is of.
    pub interval: String,
    pub speedup: Option<String>,
    /// The vendor's routine and its time.
    pub vendor: Option<String>,
    pub fraction: String,
    pub limit: String,
    pub tie: bool,
    /// Made for a matrix of the same pattern with other values.
    pub other_values: bool,
    pub age: String,
    pub created_at: String,
}

impl PlanRow {
    pub fn of(plan: &Plan, matrix: &crate::domain::Digest) -> Self {
        let measured = &plan.measured;
        let [low, high] = measured.ci95_us.map(format::micros);
        let bound = match plan.limit.bound {
            Bound::Bytes => "moving the bytes",
            Bound::Latency => "going through the levels",
            Bound::Flops => "the arithmetic",
        };
        Self {
            id: plan.id.to_string(),
            problem: question(plan),
            device: class_words(&plan.device),
            device_class: plan.device.class().to_string(),
            winner: winner(&plan.candidate),
            candidate: plan.candidate.to_string(),
            time: format::micros(measured.median_us),
            interval: format!("{low} to {high}, {} samples", measured.samples),
            speedup: plan.speedup.map(format::times),
            vendor: plan.baseline.as_ref().map(|vendor| {
                format!(
                    "{} {}: {}",
                    vendor.name,
                    vendor.algorithm,
                    format::micros(vendor.median_us)
                )
            }),
            fraction: format::percent(plan.limit.fraction),
            limit: format!("{}, by {bound}", format::micros(plan.limit.us)),
            tie: plan.tie,
            other_values: plan.matrix != *matrix,
            age: format::ago(plan.created_at),
            created_at: plan.created_at.to_rfc3339(),
        }
    }
}

/// The problem in words, and the policy where it is not the usual one: plans of both stand beside each other.
pub fn question(plan: &Plan) -> String {
    let cold = if plan.l2_policy == L2Policy::Cold { ", cold L2" } else { "" };
    format!("{}{cold}", format::problem_words(&plan.problem))
}

/// The family; for the vendor's routines which of them.
pub fn winner(candidate: &Candidate) -> String {
    match candidate.text("algorithm") {
        Some(algorithm) => format!("{} {algorithm}", candidate.family),
        None => candidate.family.clone(),
    }
}

/// A class of devices as people call it: `H100 80GB HBM3`, `Intel Xeon Processor, 16 threads`.
pub fn class_words(device: &Device) -> String {
    let name = device.name.replace("(R)", "").replace("(TM)", "");
    let name = name.trim();
    match device.kind {
        DeviceKind::Cuda => name.strip_prefix("NVIDIA ").unwrap_or(name).to_owned(),
        DeviceKind::Cpu => format!("{name}, {} threads", device.multiprocessors),
    }
}
