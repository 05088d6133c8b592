//! A plan: the result of tuning. Winner, measurements, baseline, bound, provenance, and all that is needed to run it
//! elsewhere.

mod baseline;
mod update;

pub use baseline::Baseline;
pub use update::UpdateProgram;

use super::recipe::Scratch;
use super::transfer::Imported;
use super::{
    Candidate, Clock, Clocks, Device, DeviceClass, Digest, Finalist, FunnelStep, Intensity, JobId,
    Judged, L2Policy, ModelId, Problem, Resources, StoppedBy, Timestamp,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A plan's id: a UUIDv7. Retuning creates a new plan under the same key. The id of a plan predicted by a lookup is
/// derived from all inputs of the prediction (a UUIDv8), so that the same prediction is one plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct PlanId(pub String);

impl PlanId {
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }

    /// The id that a text determines.
    pub fn derived(text: &str) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&Digest::of(text.as_bytes()).as_bytes()[..16]);
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string())
    }
}

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The key of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlanKey {
    pub pattern_digest: Digest,
    pub problem: Problem,
    pub device_class: DeviceClass,
    pub l2_policy: L2Policy,
}

/// The newest version of the stored form; readers accept it and earlier ones, and refuse unknown versions.
pub const PLAN_VERSION: u32 = MEASURED_VERSION;

/// Version of measured plans. Their times name a clock; readers of version 1 would take all for times of single calls.
pub const MEASURED_VERSION: u32 = 3;

/// The oldest version: measured plans, all of whose times are of single calls.
pub const OLDEST_VERSION: u32 = 1;

/// Version of predicted plans. Their `measured` is absent, which readers of version 1 would treat as corruption.
pub const PREDICTED_VERSION: u32 = 2;

/// A plan is measured or predicted; `measured` says which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Determined by whether the plan was measured.
    pub version: u32,
    pub id: PlanId,
    pub matrix: Digest,
    pub pattern_digest: Digest,
    pub problem: Problem,
    pub l2_policy: L2Policy,
    pub device: Device,
    pub candidate: Candidate,
    /// Absent in a predicted plan, which was neither timed nor compared with a reference.
    pub measured: Option<Measured>,
    /// The difference between the winner and the runner-up or a simpler candidate is within the noise.
    pub tie: bool,
    pub runner_up: Option<RunnerUp>,
    /// All that was timed in the finals, fastest first; empty if they were not held, and in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finals: Vec<Finalist>,
    pub baseline: Option<Baseline>,
    /// Why a measured plan has no baseline, in words; absent if it has one, and in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_baseline: Option<String>,
    /// Baseline median divided by the winner's median, both from the paired finals and by the clock that decided.
    pub speedup: Option<f64>,
    pub limit: Limit,
    /// Always present in a predicted plan.
    pub predicted: Option<Predicted>,
    /// The model's error over the job's trials; absent in earlier versions, and if no predicted candidate was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_error: Option<ModelError>,
    pub funnel: Vec<FunnelStep>,
    /// What the rules that compare numbers computed for the winner; empty for vendor routines and in earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judged: Vec<Judged>,
    /// Tiled SpMM's terms for this matrix: of the winner, and of the best candidate for each order and length of segments by the
    /// model. Empty where no column-major tiled kernel was left, and in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intensity: Vec<Intensity>,
    pub trials: TrialCounts,
    /// The next candidates in the model's ranking, best first; only in a predicted plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Candidate>,
    /// Absent in a predicted plan, since it was not measured.
    pub preprocess_ms: Option<f64>,
    /// The number of calls that the winner was chosen for; if absent, preprocessing time was not considered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_calls: Option<u64>,
    /// Calls after which the winner breaks even: its additional preprocessing compared with the baseline has been
    /// recovered. Absent if it never breaks even.
    pub break_even_calls: Option<u64>,
    pub validity: Validity,
    pub launch: Option<Launch>,
    /// The host CPU's time for the same problem, if known; it may be faster than any GPU kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostTime>,
    pub resources: Option<Resources>,
    pub provenance: Provenance,
    pub created_at: Timestamp,
}

impl Plan {
    /// A plan in its stored form. Here, so that this is compiled for speed with the rooms that compute: lookups read plans by the
    /// thousand.
    pub fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    /// Whether the plan was predicted by a model. Lookups prefer measured plans.
    pub const fn is_predicted(&self) -> bool {
        self.measured.is_none()
    }

    /// Number of candidates that the model ranked higher but that could not be lowered or compiled.
    pub fn passed_over(&self) -> u32 {
        self.predicted.as_ref().map_or(0, |predicted| predicted.passed_over)
    }

    /// Where a plan of another service came from, as a sentence.
    pub fn origin(&self) -> Option<String> {
        let imported = self.provenance.imported.as_ref()?;
        Some(imported.told(self.created_at, &self.provenance.version))
    }

    /// Measured microseconds per call.
    pub fn median_us(&self) -> Option<f64> {
        self.measured.as_ref().map(|measured| measured.median_us)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Measured {
    pub median_us: f64,
    pub ci95_us: [f64; 2],
    pub samples: u32,
    pub rel_error: f64,
    /// The clock of these times, and of all others of the plan that name none: the one by which the winner was chosen.
    #[serde(default = "Clock::of_earlier_versions")]
    pub clock: Clock,
    /// The times by every clock that was read, this one included; empty in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Clocks::is_empty")]
    pub clocks: Clocks,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunnerUp {
    pub candidate: Candidate,
    pub median_us: f64,
    /// Absent in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95_us: Option<[f64; 2]>,
    /// As of `measured`.
    #[serde(default, skip_serializing_if = "Clocks::is_empty")]
    pub clocks: Clocks,
}

/// The performance bound: the least time for a kernel on this device that moves all compulsory bytes and, for SpTRSV,
/// goes through all levels of the given system. A scheme that eliminates levels can beat the latter; `fraction` is then
/// above 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Limit {
    pub us: f64,
    pub bound: Bound,
    /// `us` divided by the winner's median (1 if the bound is reached); in a predicted plan, by the predicted time.
    pub fraction: f64,
    /// Compulsory bytes of one call: each input read once, each output written once.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    #[default]
    Bytes,
    Latency,
    Flops,
}

impl Bound {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Latency => "latency",
            Self::Flops => "flops",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    pub model: String,
    /// Microseconds per call. Learned models rank but predict no absolute time: the first choice has the analytic
    /// model's prediction, and the others follow in the model's order.
    pub median_us: f64,
    /// Number of candidates that the model ranked higher but that could not be lowered or compiled; 0 in a measured
    /// plan.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub passed_over: u32,
}

const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Error of the predictions over the measured trials, without vendor routines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ModelError {
    pub model: String,
    pub trials: u32,
    /// Geometric mean of measured / predicted median; above 1 if the model is too optimistic.
    pub median_ratio: f64,
    /// Geometric standard deviation of this ratio, at least 1.
    pub spread: f64,
    /// Spearman's rank correlation of predicted and measured times; 1 if the orders agree. Absent if either is
    /// constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_correlation: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TrialCounts {
    pub measured: u32,
    /// Trials without a measurement, by `Outcome::counted_as`.
    pub failed: BTreeMap<String, u32>,
}

/// What may change without invalidating the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Validity {
    /// False of an approximate solve, whose error was measured with these values.
    pub values_may_change: bool,
    pub pattern_may_change: bool,
    /// B must not contain infinities or NaN, because packed panels multiply padding zeros by it.
    pub dense_must_be_finite: bool,
    /// Whether the compiled kernel is valid for other widths of B (its speed was measured for one).
    pub n_may_change: bool,
    /// Host time in milliseconds to update the plan's arrays for new values with the same pattern; 0 if the kernel
    /// reads the matrix's values directly, or if the plan has no launch. Bundles of plans that rewrite nothing need less.
    #[serde(default)]
    pub update_values_ms: f64,
}

/// All that is needed to run the kernel elsewhere, except for the contents of the arrays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    pub entry: String,
    /// Blob of the kernel's complete source with headers inlined.
    pub source: Option<Digest>,
    /// Blob of the compiled kernel, for this compute capability.
    pub cubin: Option<Digest>,
    /// Blob of the same text compiled to PTX, which other drivers can assemble, and newer devices unless it was built
    /// for one architecture alone (`sm_90a`). Absent in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ptx: Option<Digest>,
    /// The options that the cubin was compiled with; empty in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Name and version of the compiler, such as `NVRTC 13.0`. Absent in plans of earlier versions, whose kernels do not
    /// have their clusters compiled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    /// Kernel arguments in order, by name.
    pub arguments: Vec<String>,
    /// All launches of one call in order, if it needs more than the one above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<LaunchStep>,
    /// Arrays in addition to the matrix that the arguments name. `equal_values` is a word: 1 if all values of the plan's matrix are
    /// equal; for other values it must be 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrays: Vec<PlanArray>,
    /// Device memory that the arguments name, with the value that fills it before the first call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scratch: Vec<Scratch>,
    /// The kernels accumulate into the output (C or x), which must be zeroed before each call. Absent in plans of
    /// earlier versions, none of which needed it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub zero_output: bool,
    /// The program that gathers new values into the arrays on the device. Absent in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<UpdateProgram>,
}

impl Launch {
    /// The blobs that the launch names.
    pub fn blobs(&self) -> impl Iterator<Item = &Digest> {
        let own = [&self.source, &self.cubin, &self.ptx].into_iter().flatten();
        let update = self.update.iter();
        let update = update.flat_map(|update| [&update.source, &update.cubin, &update.ptx]);
        own.chain(update).chain(self.arrays.iter().map(|array| &array.blob))
    }
}

/// One kernel launch of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LaunchStep {
    pub entry: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Blocks per cluster; 1 without clusters.
    pub cluster: u32,
    pub shared_bytes: u32,
    /// The kernel waits by itself for what its stream held before it, so that on compute capability 9.0 and later it may be
    /// launched while the kernel before it still runs (programmatic stream serialization). Absent in plans of earlier versions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlaps: bool,
    /// Kernel arguments in order, by name.
    pub arguments: Vec<String>,
}

/// An array that the kernel needs in addition to the matrix: schedules, packed panels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanArray {
    pub name: String,
    /// `u16`, `u32`, `f16`, `bf16`, `f32` or `f64`, little-endian.
    pub element: String,
    pub length: u64,
    pub blob: Digest,
}

/// Time of the same problem on the host CPU, if a plan for it is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostTime {
    pub plan: PlanId,
    pub device: DeviceClass,
    pub median_us: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Absent if a lookup made the plan.
    pub job: Option<JobId>,
    /// The learned model that ranked, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelId>,
    /// The class of device that this model was trained for, if it is another one than the plan's: the nearest with a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_of: Option<DeviceClass>,
    /// sparsetune's version.
    pub version: String,
    /// Driver, compiler and vendor library; the plan is stale in another environment.
    pub environment: String,
    /// Digest of the kernel source of the winner's family; the plan is stale with another. Absent for vendor routines.
    pub kernel_digest: Option<Digest>,
    pub seed: u64,
    pub stopped_by: StoppedBy,
    pub search_seconds: f64,
    /// What kept the search from being a usual one, in words; absent if nothing did, and in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<String>,
    /// Absent for a plan that was measured by a service on this store, and for one that came as a bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Imported>,
}

/// A learned model as texts name it: its id, and for a borrowed one the class of device that it is of.
pub fn ranked_by(model: &ModelId, of: Option<&DeviceClass>) -> String {
    match of {
        None => model.to_string(),
        Some(class) => format!("{model} (of {class}, the nearest class of device with a model)"),
    }
}

impl Provenance {
    /// [`ranked_by`] the learned model, if one ranked.
    pub fn ranked_by(&self) -> Option<String> {
        self.model.as_ref().map(|model| ranked_by(model, self.model_of.as_ref()))
    }
}

/// How well the found plan matches the lookup, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    Exact,
    /// Driver, compiler or kernel source has changed since.
    Stale,
    /// The plan of the nearest matrix by features; never reported as exact.
    Neighbour,
    /// Chosen by a model without measurement.
    Predicted,
    None,
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lookup {
    pub grade: Grade,
    /// Why the grade is not better; for `none`, the key fields that differ from those of the closest plan.
    pub reasons: Vec<String>,
    pub neighbour: Option<Digest>,
    pub distance: Option<f64>,
    pub plan: Option<Plan>,
    /// For a problem with both triangles the plan of its second part; there are two plans or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<Plan>,
}
