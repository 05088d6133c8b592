//! What the command line reads of the server's answers. Members it does not know are left alone.

use crate::domain::candidate;
use crate::domain::plan::Bound;
use crate::domain::{Digest, FunnelStep, JobState, Problem, Stage, StoppedBy};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Debug, Deserialize)]
pub struct MatrixView {
    pub digest: Digest,
    pub pattern_digest: Digest,
    pub name: Option<String>,
    pub rows: u64,
    pub cols: u64,
    pub nnz: u64,
    /// Whether the upload brought it; its status says so, not its body.
    #[serde(skip)]
    pub created: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct JobView {
    pub id: String,
    pub device: String,
    pub state: JobState,
    pub stage: Stage,
    pub progress: ProgressView,
    pub best: Option<BestView>,
    pub plan: Option<String>,
    pub follow_up: Option<String>,
    pub stopped_by: Option<StoppedBy>,
    pub error: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ProgressView {
    pub done: u32,
    pub total: u32,
}

#[derive(Clone, Debug, Deserialize)]
pub struct BestView {
    pub candidate: CandidateView,
    pub median_us: f64,
    pub speedup: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct CandidateView {
    pub family: String,
    #[serde(default)]
    pub params: BTreeMap<String, serde_json::Value>,
}

impl CandidateView {
    fn algorithm(&self) -> Option<&str> {
        self.params.get("algorithm").and_then(serde_json::Value::as_str)
    }

    /// Whether speed-ups are over it.
    pub fn is_baseline(&self) -> bool {
        candidate::is_baseline(&self.family, self.algorithm())
    }

    /// Whether it multiplies a matrix made dense.
    pub fn is_densified(&self) -> bool {
        self.family == candidate::VENDOR
            && self.algorithm().is_some_and(candidate::is_dense_product)
    }
}

/// `row_split block=128 lanes=8`: the canonical text with less punctuation.
impl fmt::Display for CandidateView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.family)?;
        for (name, value) in &self.params {
            match value.as_str() {
                Some(text) => write!(f, " {name}={text}")?,
                None => write!(f, " {name}={value}")?,
            }
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct TrialView {
    pub candidate: CandidateView,
    pub state: String,
    pub predicted_us: Option<f64>,
    pub median_us: Option<f64>,
    pub ci95_us: Option<[f64; 2]>,
    pub detail: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct LookupView {
    #[serde(rename = "match")]
    pub matched: MatchView,
    pub plan: Option<PlanView>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct MatchView {
    pub grade: String,
    #[serde(default)]
    pub reasons: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct PlanView {
    pub id: String,
    pub problem: Problem,
    pub device: DeviceView,
    pub candidate: CandidateView,
    /// Absent in a predicted plan.
    pub measured: Option<MeasuredView>,
    pub tie: bool,
    pub baseline: Option<BaselineView>,
    pub speedup: Option<f64>,
    pub limit: LimitView,
    pub predicted: Option<PredictedView>,
    pub model_error: Option<ModelErrorView>,
    /// What the model would take next; only of a predicted plan.
    #[serde(default)]
    pub alternatives: Vec<CandidateView>,
    pub funnel: Vec<FunnelStep>,
    pub preprocess_ms: Option<f64>,
    pub expected_calls: Option<u64>,
    pub break_even_calls: Option<u64>,
    pub validity: ValidityView,
    pub host: Option<HostView>,
    pub provenance: ProvenanceView,
}

#[derive(Clone, Debug, Deserialize)]
pub struct DeviceView {
    pub id: String,
    pub name: String,
    pub copy_gbps: f64,
    #[serde(default)]
    pub hop_ns: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct MeasuredView {
    pub median_us: f64,
    pub ci95_us: [f64; 2],
    pub samples: u32,
    pub rel_error: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct BaselineView {
    pub name: String,
    pub version: String,
    pub algorithm: String,
    pub median_us: f64,
    #[serde(default)]
    pub preprocess_ms: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct LimitView {
    pub us: f64,
    pub bound: Bound,
    pub fraction: f64,
    pub bytes: u64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct PredictedView {
    pub model: String,
    pub median_us: f64,
    #[serde(default)]
    pub passed_over: u32,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ModelErrorView {
    pub trials: u32,
    pub median_ratio: f64,
    pub spread: f64,
    pub rank_correlation: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ValidityView {
    pub values_may_change: bool,
    #[serde(default)]
    pub update_values_ms: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct HostView {
    pub device: String,
    pub median_us: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ProvenanceView {
    /// The learned model that ranked, where one did.
    pub model: Option<String>,
    pub stopped_by: StoppedBy,
    pub search_seconds: f64,
}
