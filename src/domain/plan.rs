//! A plan: the answer. Winner, measurements, baseline, limit, provenance, and all that is needed to run it elsewhere.

use super::recipe::Scratch;
use super::{
    Candidate, Device, DeviceClass, Digest, FunnelStep, JobId, L2Policy, ModelId, Problem,
    Resources, StoppedBy, Timestamp,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A plan's name: a UUIDv7. Retuning makes a new plan under the same key. A plan that a lookup predicted has a name made of
/// all that it follows from (a UUIDv8), so that the same prediction is one plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct PlanId(pub String);

impl PlanId {
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

impl fmt::Display for PlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a plan is looked up by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PlanKey {
    pub pattern_digest: Digest,
    pub problem: Problem,
    pub device_class: DeviceClass,
    pub l2_policy: L2Policy,
}

/// The newest version of the stored form; readers read it and those before, and refuse one they do not know.
pub const PLAN_VERSION: u32 = PREDICTED_VERSION;

/// The form of a plan that was measured: as it has always been.
pub const MEASURED_VERSION: u32 = 1;

/// The form of a plan from a model alone. Its `measured` is absent, which readers of version 1 take for damage.
pub const PREDICTED_VERSION: u32 = 2;

/// A plan is measured or predicted; `measured` says which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Follows from whether it was measured.
    pub version: u32,
    pub id: PlanId,
    pub matrix: Digest,
    pub pattern_digest: Digest,
    pub problem: Problem,
    pub l2_policy: L2Policy,
    pub device: Device,
    pub candidate: Candidate,
    /// Absent in a predicted plan: nothing of it was timed, or compared with a reference.
    pub measured: Option<Measured>,
    /// The winner is not outside the noise of a simpler candidate or of the runner-up.
    pub tie: bool,
    pub runner_up: Option<RunnerUp>,
    pub baseline: Option<Baseline>,
    /// Baseline median over the winner's, both from the paired finals.
    pub speedup: Option<f64>,
    pub limit: Limit,
    /// Present in a predicted plan, with the time that it is chosen by.
    pub predicted: Option<Predicted>,
    /// How far the model was off over the job's trials; absent in plans of earlier versions, and where nothing that it
    /// predicted was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_error: Option<ModelError>,
    pub funnel: Vec<FunnelStep>,
    pub trials: TrialCounts,
    /// What the model would take next, best first; only in a predicted plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Candidate>,
    /// Absent in a predicted plan: it was not measured.
    pub preprocess_ms: Option<f64>,
    /// How many calls the winner was chosen for, preprocessing counted; absent where it counted for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_calls: Option<u64>,
    /// Calls after which what the winner's preprocessing takes beyond the baseline's has paid for itself; absent where it
    /// never does.
    pub break_even_calls: Option<u64>,
    pub validity: Validity,
    pub launch: Option<Launch>,
    /// The host's time for the same problem, where it is known: it may be faster than any kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostTime>,
    pub resources: Option<Resources>,
    pub provenance: Provenance,
    pub created_at: Timestamp,
}

impl Plan {
    /// From a model alone: never the answer where a measured plan is to be had.
    pub const fn is_predicted(&self) -> bool {
        self.measured.is_none()
    }

    /// Candidates that the model would have taken before this one, and that could not be had.
    pub fn passed_over(&self) -> u32 {
        self.predicted.as_ref().map_or(0, |predicted| predicted.passed_over)
    }

    /// Microseconds of a call, as measured.
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
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunnerUp {
    pub candidate: Candidate,
    pub median_us: f64,
    /// Absent in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95_us: Option<[f64; 2]>,
}

/// The vendor's routine timed in the same session on the same buffers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Baseline {
    pub name: String,
    pub version: String,
    pub algorithm: String,
    pub median_us: f64,
    /// Its own work before the first call, milliseconds: SpSV's analysis, SpMM's preprocessing.
    #[serde(default)]
    pub preprocess_ms: f64,
}

/// The least time that a kernel takes on this device which moves all the bytes and, for SpTRSV, goes through all levels of
/// the system as given. A scheme that rewrites levels away may beat the latter: `fraction` is above 1 then.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Limit {
    pub us: f64,
    pub bound: Bound,
    /// `us` over the winner's median: 1 is the limit reached. Of a predicted plan, `us` over the predicted time.
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
    /// Of a call, microseconds. A learned model ranks and tells no time: its first choice has the analytic model's
    /// prediction, and the others follow from there in its order.
    pub median_us: f64,
    /// Candidates that the model would have taken before this one, and that could not be lowered or compiled; 0 in a
    /// measured plan.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub passed_over: u32,
}

const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Predicted against measured, over the measured trials of our own families.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ModelError {
    pub model: String,
    pub trials: u32,
    /// Geometric mean of measured median over predicted median: above 1 where the model promises too much.
    pub median_ratio: f64,
    /// Geometric standard deviation of the same, at least 1.
    pub spread: f64,
    /// Spearman's, of predicted and measured: 1 where the model ranks as measured. Absent where either has no order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_correlation: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TrialCounts {
    pub measured: u32,
    /// Trials that did not come to a time, by `Outcome::counted_as`.
    pub failed: BTreeMap<String, u32>,
}

/// What may change without the plan losing its truth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Validity {
    pub values_may_change: bool,
    pub pattern_may_change: bool,
    /// B must hold no infinity or NaN: packed panels multiply padding zeros by it.
    pub dense_must_be_finite: bool,
    /// The widths of B for which the kernel is legal as compiled (its speed was measured for one).
    pub n_may_change: bool,
    /// Host time to bring new values of the same pattern into the plan's arrays, milliseconds; 0 where the kernel reads
    /// the matrix's own values, and where the plan has no launch.
    #[serde(default)]
    pub update_values_ms: f64,
}

/// All that is needed to run the kernel elsewhere, short of the arrays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    pub entry: String,
    /// Blob of the kernel's full source text, headers inlined.
    pub source: Option<Digest>,
    /// Blob of the compiled kernel, for this compute capability.
    pub cubin: Option<Digest>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    /// Kernel arguments in order, by name.
    pub arguments: Vec<String>,
    /// All launches of one call in order, where it has more than the one above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<LaunchStep>,
    /// Arrays beyond the matrix itself that the arguments name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrays: Vec<PlanArray>,
    /// Device memory that the arguments name, with what fills it before the first call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scratch: Vec<Scratch>,
    /// The kernels add to the output (C, or x), which must be zero before each call. Absent in plans of earlier versions,
    /// none of which needed it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub zero_output: bool,
}

/// One kernel launch of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LaunchStep {
    pub entry: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Blocks of a cluster; 1 without clusters.
    pub cluster: u32,
    pub shared_bytes: u32,
    /// Kernel arguments in order, by name.
    pub arguments: Vec<String>,
}

/// An array that the kernel needs beside the matrix: schedules, packed panels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanArray {
    pub name: String,
    /// `u16`, `u32`, `f16`, `f32` or `f64`, little-endian.
    pub element: String,
    pub length: u64,
    pub blob: Digest,
}

/// What the same problem takes on the host CPU, where a plan for it is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostTime {
    pub plan: PlanId,
    pub device: DeviceClass,
    pub median_us: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Absent where a lookup made the plan.
    pub job: Option<JobId>,
    /// The learned model that chose; absent where none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelId>,
    /// sparsetune's version.
    pub version: String,
    /// Driver, compiler and vendor library; a change makes the plan stale.
    pub environment: String,
    /// Digest of all kernel text of the winner's family; a change makes the plan stale. Absent for the vendor's.
    pub kernel_digest: Option<Digest>,
    pub seed: u64,
    pub stopped_by: StoppedBy,
    pub search_seconds: f64,
}

/// How well a lookup matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    Exact,
    /// Driver, compiler or kernel text changed since.
    Stale,
    /// The nearest matrix by features; never poses as exact.
    Neighbour,
    /// From a model alone.
    Predicted,
    None,
}

/// The answer to a lookup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lookup {
    pub grade: Grade,
    /// Why it is not better; for `none`, which key fields differed from the closest.
    pub reasons: Vec<String>,
    pub neighbour: Option<Digest>,
    pub distance: Option<f64>,
    pub plan: Option<Plan>,
}
