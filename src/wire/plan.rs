//! A plan, and the answer to a lookup.

use super::{Candidate, Device, Open, Problem};
use crate::domain;
use crate::domain::plan::{
    Baseline, HostTime, LaunchStep, Limit, Measured, ModelError, PlanArray, TrialCounts,
    UpdateProgram, Validity,
};
use crate::domain::recipe::Scratch;
use crate::domain::{
    Clocks, DeviceClass, Digest, FunnelStep, Grade, Intensity, JobId, Judged, L2Policy, ModelId,
    PlanId, Resources, StoppedBy,
};
use serde::{Deserialize, Serialize};

/// A plan: winner, measurements, baseline, limit, provenance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Plan {
    pub id: PlanId,
    pub matrix: Digest,
    pub pattern_digest: Digest,
    pub problem: Problem,
    pub l2_policy: L2Policy,
    pub device: Device,
    pub candidate: Candidate,
    /// Null in a predicted plan.
    pub measured: Option<Measured>,
    pub tie: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_up: Option<RunnerUp>,
    /// Everything that was timed in the finals, fastest first; absent if they were not held.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finals: Vec<Finalist>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Baseline>,
    /// Why a measured plan has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_baseline: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup: Option<f64>,
    pub limit: Limit,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_error: Option<ModelError>,
    /// The model's next choices, best first; only in a predicted plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Candidate>,
    pub funnel: Vec<FunnelStep>,
    /// What the rules computed for the winner; absent if there is nothing to tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub judged: Vec<Judged>,
    /// Tiled SpMM's terms, the winner's first; absent where no column-major tiled kernel was left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub intensity: Vec<Intensity>,
    pub trials: TrialCounts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preprocess_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_calls: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub break_even_calls: Option<u64>,
    pub validity: Validity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<Launch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    pub provenance: Provenance,
    pub created_at: String,
}

impl Plan {
    /// Whether a bundle of the plan divides new values on the device.
    pub fn divides_on_device(&self) -> bool {
        let update = self.launch.as_ref().and_then(|launch| launch.update.as_ref());
        update.is_some_and(|it| it.divides(&self.candidate.family, &self.candidate.params))
    }
}

/// The candidate that came second in the finals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunnerUp {
    pub candidate: Candidate,
    pub median_us: f64,
    /// Absent in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95_us: Option<[f64; 2]>,
    #[serde(default, skip_serializing_if = "Clocks::is_empty")]
    pub clocks: Clocks,
}

/// A candidate's times in the finals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Finalist {
    pub candidate: Candidate,
    pub median_us: f64,
    pub ci95_us: [f64; 2],
    /// Rounds that were timed.
    pub samples: u32,
}

/// The model's prediction for the candidate. Unlike the stored form, it always contains the number of candidates passed
/// over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Predicted {
    pub model: String,
    pub median_us: f64,
    #[serde(default)]
    pub passed_over: u32,
}

/// The origin of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Provenance {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The learned model that ranked, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelId>,
    /// The class of device that this model was trained for, if it is another one than the plan's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_of: Option<DeviceClass>,
    pub version: String,
    pub environment: String,
    pub kernel_digest: Option<Digest>,
    pub seed: u64,
    pub stopped_by: StoppedBy,
    pub search_seconds: f64,
    /// What kept the search from being a usual one, in words, if something did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<String>,
    /// Where the plan was measured, if that was the service of another store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Imported>,
}

/// Where a plan came from. When and by which version it was measured, the plan says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Imported {
    /// Id of the store whose service measured it.
    pub store: String,
    /// When it was taken in.
    pub at: String,
    /// Why it stands before or behind the plans that were there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<String>,
    /// Its program was left out of the export.
    #[serde(default)]
    pub without_program: bool,
}

/// Everything needed to run the kernel elsewhere; digests refer to `/v1/plans/{id}/blobs/{digest}`. Unlike the stored form,
/// it contains every list, even if empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Launch {
    pub entry: String,
    pub source: Option<Digest>,
    pub cubin: Option<Digest>,
    /// This, `compiler` and `update` are absent in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ptx: Option<Digest>,
    #[serde(default)]
    pub options: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiler: Option<String>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub arguments: Vec<String>,
    #[serde(default)]
    pub steps: Vec<LaunchStep>,
    #[serde(default)]
    pub arrays: Vec<PlanArray>,
    #[serde(default)]
    pub scratch: Vec<Scratch>,
    #[serde(default)]
    pub zero_output: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<UpdateProgram>,
}

impl From<domain::Plan> for Plan {
    fn from(plan: domain::Plan) -> Self {
        Self {
            id: plan.id,
            matrix: plan.matrix,
            pattern_digest: plan.pattern_digest,
            problem: plan.problem.into(),
            l2_policy: plan.l2_policy,
            device: plan.device.into(),
            candidate: plan.candidate.into(),
            measured: plan.measured,
            tie: plan.tie,
            runner_up: plan.runner_up.map(RunnerUp::from),
            finals: plan.finals.into_iter().map(Finalist::from).collect(),
            baseline: plan.baseline,
            no_baseline: plan.no_baseline,
            speedup: plan.speedup,
            limit: plan.limit,
            predicted: plan.predicted.map(Predicted::from),
            model_error: plan.model_error,
            alternatives: plan.alternatives.into_iter().map(Candidate::from).collect(),
            funnel: plan.funnel,
            judged: plan.judged,
            intensity: plan.intensity,
            trials: plan.trials,
            preprocess_ms: plan.preprocess_ms,
            expected_calls: plan.expected_calls,
            break_even_calls: plan.break_even_calls,
            validity: plan.validity,
            launch: plan.launch.map(Launch::from),
            host: plan.host,
            resources: plan.resources,
            provenance: plan.provenance.into(),
            created_at: plan.created_at.to_rfc3339(),
        }
    }
}

impl From<domain::Finalist> for Finalist {
    fn from(finalist: domain::Finalist) -> Self {
        let domain::Finalist { candidate, median_us, ci95_us, samples } = finalist;
        Self { candidate: candidate.into(), median_us, ci95_us, samples }
    }
}

impl From<domain::plan::RunnerUp> for RunnerUp {
    fn from(runner_up: domain::plan::RunnerUp) -> Self {
        let domain::plan::RunnerUp { candidate, median_us, ci95_us, clocks } = runner_up;
        Self { candidate: candidate.into(), median_us, ci95_us, clocks }
    }
}

impl From<domain::plan::Predicted> for Predicted {
    fn from(predicted: domain::plan::Predicted) -> Self {
        let domain::plan::Predicted { model, median_us, passed_over } = predicted;
        Self { model, median_us, passed_over }
    }
}

impl Provenance {
    /// The learned model that ranked, as texts name it.
    pub fn ranked_by(&self) -> Option<String> {
        self.model.as_ref().map(|model| domain::plan::ranked_by(model, self.model_of.as_ref()))
    }
}

impl From<domain::plan::Provenance> for Provenance {
    fn from(from: domain::plan::Provenance) -> Self {
        Self {
            job: from.job,
            model: from.model,
            model_of: from.model_of,
            version: from.version,
            environment: from.environment,
            kernel_digest: from.kernel_digest,
            seed: from.seed,
            stopped_by: from.stopped_by,
            search_seconds: from.search_seconds,
            narrowed: from.narrowed,
            imported: from.imported.map(Imported::from),
        }
    }
}

impl From<domain::transfer::Imported> for Imported {
    fn from(from: domain::transfer::Imported) -> Self {
        let domain::transfer::Imported { store, at, standing, without_program } = from;
        Self { store, at: at.to_rfc3339(), standing, without_program }
    }
}

impl From<domain::plan::Launch> for Launch {
    fn from(launch: domain::plan::Launch) -> Self {
        Self {
            entry: launch.entry,
            source: launch.source,
            cubin: launch.cubin,
            ptx: launch.ptx,
            options: launch.options,
            compiler: launch.compiler,
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            arguments: launch.arguments,
            steps: launch.steps,
            arrays: launch.arrays,
            scratch: launch.scratch,
            zero_output: launch.zero_output,
            update: launch.update,
        }
    }
}

/// The response to a request to keep a plan's bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptBundle {
    /// Length of the file.
    pub bytes: u64,
    /// SHA-256 of the file, in hexadecimal digits.
    pub sha256: String,
}

/// The response to a lookup. `none` is also a regular response, with its reasons, instead of a 404.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Lookup {
    #[serde(rename = "match")]
    pub matched: Match,
    pub plan: Option<Plan>,
    /// For a problem with both triangles the plan of the other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<Plan>,
}

/// How well a lookup matched, and why there is no better match.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Match {
    pub grade: Open<Grade>,
    #[serde(default)]
    pub reasons: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<f64>,
}

impl Lookup {
    /// The body of the response. Here, so that this is compiled for speed with the rooms that compute.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(self)
    }
}

impl From<domain::Lookup> for Lookup {
    fn from(lookup: domain::Lookup) -> Self {
        Self {
            matched: Match {
                grade: lookup.grade.into(),
                reasons: lookup.reasons,
                neighbour: lookup.neighbour,
                distance: lookup.distance,
            },
            plan: lookup.plan.map(Plan::from),
            second: lookup.second.map(Plan::from),
        }
    }
}
