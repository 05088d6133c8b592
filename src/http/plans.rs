//! Plans on the wire, and one plan by its id.

use super::App;
use super::devices::DeviceOut;
use super::error::Problem;
use super::etag;
use super::extract::{Path, PathPair, Query};
use super::page::{PageOut, PageQuery};
use super::problems::ProblemOut;
use super::trials::CandidateOut;
use crate::domain::plan::{
    Baseline, Bound, HostTime, Launch, LaunchStep, Limit, Measured, ModelError, PlanArray,
    Predicted, Provenance, RunnerUp, TrialCounts, Validity,
};
use crate::domain::recipe::Scratch;
use crate::domain::{
    DeviceClass, Digest, FunnelStep, JobId, L2Policy, ModelId, Plan, PlanId, Resources, StoppedBy,
};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use serde::Serialize;
use std::collections::BTreeMap;

/// The answer: winner, measurements, baseline, limit, provenance.
#[derive(Debug, Serialize)]
pub struct PlanOut {
    id: PlanId,
    matrix: Digest,
    pattern_digest: Digest,
    problem: ProblemOut,
    l2_policy: L2Policy,
    device: DeviceOut,
    candidate: CandidateOut,
    /// Null in a predicted plan.
    measured: Option<MeasuredOut>,
    tie: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    runner_up: Option<RunnerUpOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<BaselineOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speedup: Option<f64>,
    limit: LimitOut,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<PredictedOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_error: Option<ModelErrorOut>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alternatives: Vec<CandidateOut>,
    funnel: Vec<FunnelStepOut>,
    trials: TrialCountsOut,
    #[serde(skip_serializing_if = "Option::is_none")]
    preprocess_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected_calls: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    break_even_calls: Option<u64>,
    validity: ValidityOut,
    #[serde(skip_serializing_if = "Option::is_none")]
    launch: Option<LaunchOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<HostTimeOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<ResourcesOut>,
    provenance: ProvenanceOut,
    created_at: String,
}

#[derive(Debug, Serialize)]
struct RunnerUpOut {
    candidate: CandidateOut,
    median_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ci95_us: Option<[f64; 2]>,
}

/// Declares a wire struct beside the domain struct it shows member by member. The two stay separate types: a new
/// member of the domain type reaches clients only when it is added here and in openapi.yaml.
macro_rules! shown {
    ($out:ident from $domain:ty { $($member:ident: $type:ty),* $(,)? }) => {
        #[derive(Debug, Serialize)]
        struct $out {
            $($member: $type),*
        }

        impl From<$domain> for $out {
            fn from(value: $domain) -> Self {
                Self { $($member: value.$member),* }
            }
        }
    };
}

pub(super) use shown;

shown!(MeasuredOut from Measured { median_us: f64, ci95_us: [f64; 2], samples: u32, rel_error: f64 });
shown!(BaselineOut from Baseline {
    name: String,
    version: String,
    algorithm: String,
    median_us: f64,
    preprocess_ms: f64,
});
shown!(LimitOut from Limit { us: f64, bound: Bound, fraction: f64, bytes: u64 });
shown!(PredictedOut from Predicted { model: String, median_us: f64, passed_over: u32 });
shown!(TrialCountsOut from TrialCounts { measured: u32, failed: BTreeMap<String, u32> });
shown!(ValidityOut from Validity {
    values_may_change: bool,
    pattern_may_change: bool,
    dense_must_be_finite: bool,
    n_may_change: bool,
    update_values_ms: f64,
});
shown!(LaunchStepOut from LaunchStep {
    entry: String,
    grid: [u32; 3],
    block: [u32; 3],
    cluster: u32,
    shared_bytes: u32,
    arguments: Vec<String>,
});
shown!(PlanArrayOut from PlanArray { name: String, element: String, length: u64, blob: Digest });
shown!(ScratchOut from Scratch { bytes: u64, fill: u32 });
shown!(HostTimeOut from HostTime { plan: PlanId, device: DeviceClass, median_us: f64 });
shown!(ResourcesOut from Resources {
    registers: u32,
    local_bytes: u32,
    shared_bytes: u32,
    blocks_per_multiprocessor: u32,
    occupancy: f64,
});
/// Where a plan comes from.
#[derive(Debug, Serialize)]
struct ProvenanceOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<ModelId>,
    version: String,
    environment: String,
    kernel_digest: Option<Digest>,
    seed: u64,
    stopped_by: StoppedBy,
    search_seconds: f64,
}

impl From<Provenance> for ProvenanceOut {
    fn from(from: Provenance) -> Self {
        Self {
            job: from.job,
            model: from.model,
            version: from.version,
            environment: from.environment,
            kernel_digest: from.kernel_digest,
            seed: from.seed,
            stopped_by: from.stopped_by,
            search_seconds: from.search_seconds,
        }
    }
}

/// All that is needed to run the kernel elsewhere; digests are of `/v1/plans/{id}/blobs/{digest}`.
#[derive(Debug, Serialize)]
struct LaunchOut {
    entry: String,
    source: Option<Digest>,
    cubin: Option<Digest>,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    arguments: Vec<String>,
    steps: Vec<LaunchStepOut>,
    arrays: Vec<PlanArrayOut>,
    scratch: Vec<ScratchOut>,
    zero_output: bool,
}

impl From<Launch> for LaunchOut {
    fn from(launch: Launch) -> Self {
        Self {
            entry: launch.entry,
            source: launch.source,
            cubin: launch.cubin,
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            arguments: launch.arguments,
            steps: launch.steps.into_iter().map(LaunchStepOut::from).collect(),
            arrays: launch.arrays.into_iter().map(PlanArrayOut::from).collect(),
            scratch: launch.scratch.into_iter().map(ScratchOut::from).collect(),
            zero_output: launch.zero_output,
        }
    }
}

/// How far the model was off over the job's measured trials.
#[derive(Debug, Serialize)]
struct ModelErrorOut {
    model: String,
    trials: u32,
    median_ratio: f64,
    spread: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank_correlation: Option<f64>,
}

impl From<ModelError> for ModelErrorOut {
    fn from(error: ModelError) -> Self {
        let ModelError { model, trials, median_ratio, spread, rank_correlation } = error;
        Self { model, trials, median_ratio, spread, rank_correlation }
    }
}

/// One constraint's share of the pruning.
#[derive(Debug, Serialize)]
pub struct FunnelStepOut {
    constraint: String,
    removed: u64,
    left: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl From<FunnelStep> for FunnelStepOut {
    fn from(step: FunnelStep) -> Self {
        let FunnelStep { constraint, removed, left, detail } = step;
        Self { constraint, removed, left, detail }
    }
}

impl From<RunnerUp> for RunnerUpOut {
    fn from(runner_up: RunnerUp) -> Self {
        let RunnerUp { candidate, median_us, ci95_us } = runner_up;
        Self { candidate: candidate.into(), median_us, ci95_us }
    }
}

impl From<Plan> for PlanOut {
    fn from(plan: Plan) -> Self {
        Self {
            id: plan.id,
            matrix: plan.matrix,
            pattern_digest: plan.pattern_digest,
            problem: plan.problem.into(),
            l2_policy: plan.l2_policy,
            device: plan.device.into(),
            candidate: plan.candidate.into(),
            measured: plan.measured.map(MeasuredOut::from),
            tie: plan.tie,
            runner_up: plan.runner_up.map(RunnerUpOut::from),
            baseline: plan.baseline.map(BaselineOut::from),
            speedup: plan.speedup,
            limit: plan.limit.into(),
            predicted: plan.predicted.map(PredictedOut::from),
            model_error: plan.model_error.map(ModelErrorOut::from),
            alternatives: plan.alternatives.into_iter().map(CandidateOut::from).collect(),
            funnel: plan.funnel.into_iter().map(FunnelStepOut::from).collect(),
            trials: plan.trials.into(),
            preprocess_ms: plan.preprocess_ms,
            expected_calls: plan.expected_calls,
            break_even_calls: plan.break_even_calls,
            validity: plan.validity.into(),
            launch: plan.launch.map(LaunchOut::from),
            host: plan.host.map(HostTimeOut::from),
            resources: plan.resources.map(ResourcesOut::from),
            provenance: plan.provenance.into(),
            created_at: plan.created_at.to_rfc3339(),
        }
    }
}

/// A plan never changes under its id (retuning makes another), so clients may keep it without asking again.
pub async fn show(
    State(app): State<App>,
    Path(id): Path<PlanId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let plan = PlanOut::from(app.service.plan(&id).await?);
    let body = serde_json::to_vec(&plan).map_err(Problem::internal)?;
    Ok(etag::tagged(&headers, "application/json", FOR_EVER, body.into()))
}

/// What is known of a matrix: the newest plan of each problem, device class and cache policy.
pub async fn of_matrix(
    State(app): State<App>,
    Path(digest): Path<Digest>,
    Query(page): Query<PageQuery>,
) -> Result<Json<PageOut<PlanOut>>, Problem> {
    Ok(Json(PageOut::of(app.service.plans_of(&digest, &page.request()?).await?)))
}

const FOR_EVER: &str = "private, max-age=86400, immutable";

/// Source, cubin or an array of a plan, as it is read from the disk: arrays may be as large as their matrix.
pub async fn blob(
    State(app): State<App>,
    PathPair(id, digest): PathPair<PlanId, Digest>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    // The tag of the bytes without reading them: the name of a blob is their digest.
    let tag = etag::named(&digest);
    let kind = HeaderValue::from_static("application/octet-stream");
    let cache = HeaderValue::from_static(FOR_EVER);
    if etag::matches(&headers, &tag) {
        // Nothing is opened for a client that has it.
        app.service.check_plan_blob(&id, &digest).await?;
        return Ok(etag::respond(&headers, tag, kind, cache, Body::empty()));
    }
    let blob = app.service.plan_blob(&id, &digest).await?;
    let body = Body::from_stream(blob.content);
    let mut response = etag::respond(&headers, tag, kind, cache, body);
    response.headers_mut().insert(header::CONTENT_LENGTH, blob.bytes.into());
    Ok(response)
}
