//! Trials: every candidate of a job, pruned by what, or what came of it.

use super::error::{Kind, Problem};
use super::extract::{Path, Query};
use super::page::{PageOut, page_request};
use super::{App, trainings};
use crate::domain::{
    Candidate, CandidateId, JobId, Outcome, Param, Trial, TrialFilter, TrialState,
};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A kernel family and its parameters.
#[derive(Debug, Serialize)]
pub struct CandidateOut {
    id: CandidateId,
    family: String,
    params: BTreeMap<String, ParamOut>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ParamOut {
    Int(i64),
    Text(String),
}

impl From<Candidate> for CandidateOut {
    fn from(candidate: Candidate) -> Self {
        let id = candidate.id();
        let params = candidate.params.into_iter().map(|(name, value)| (name, value.into()));
        Self { id, family: candidate.family, params: params.collect() }
    }
}

impl From<Param> for ParamOut {
    fn from(param: Param) -> Self {
        match param {
            Param::Int(value) => Self::Int(value),
            Param::Text(text) => Self::Text(text),
        }
    }
}

#[derive(Debug, Default, Serialize)]
pub struct TrialOut {
    /// `<job>/<ordinal>`.
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    candidate: Option<CandidateOut>,
    /// Speed-ups are over the fastest of these.
    baseline: bool,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pruned_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    median_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ci95_us: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rel_error: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    registers: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    occupancy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preprocess_ms: Option<f64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stopped: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    created_at: String,
}

impl From<Trial> for TrialOut {
    fn from(trial: Trial) -> Self {
        let mut out = Self {
            id: format!("{}/{}", trial.job, trial.ordinal),
            baseline: trial.candidate.is_baseline(),
            candidate: Some(trial.candidate.into()),
            state: trial.state.name(),
            predicted_us: finite(trial.predicted_us),
            created_at: trial.created_at.to_rfc3339(),
            ..Self::default()
        };
        match trial.state {
            TrialState::Pruned { pruned_by } => out.pruned_by = Some(pruned_by),
            TrialState::Tried(outcome) => out.tell(outcome),
        }
        out
    }
}

impl TrialOut {
    fn tell(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Measured { timing, rel_error, resources, preprocess_ms } => {
                self.median_us = Some(timing.median_us);
                self.ci95_us = Some(timing.ci95_us);
                self.samples = Some(timing.samples_us.len());
                self.rel_error = finite(Some(rel_error));
                self.registers = resources.map(|resources| resources.registers);
                self.occupancy = resources.map(|resources| resources.occupancy);
                self.preprocess_ms = Some(preprocess_ms);
            }
            Outcome::TimedOut { detail, stopped } => {
                self.stopped = stopped;
                self.detail = Some(detail);
            }
            Outcome::Wrong { rel_error, detail } => {
                self.rel_error = finite(rel_error);
                self.detail = Some(detail);
            }
            Outcome::CompileFailed { detail }
            | Outcome::Refused { detail }
            | Outcome::Crashed { detail } => self.detail = Some(detail),
        }
    }
}

/// JSON has no infinity; a wrong result's error may be one, and `detail` says so then.
fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialsQuery {
    state: Option<TrialFilter>,
    limit: Option<u32>,
    cursor: Option<String>,
}

pub async fn list(
    State(app): State<App>,
    Path(job): Path<JobId>,
    Query(query): Query<TrialsQuery>,
) -> Result<Json<PageOut<TrialOut>>, Problem> {
    let page = page_request(query.limit, query.cursor)?;
    if trainings::named(&app, &job).await?.is_some() {
        let detail = "a training tries no candidates: it has no trials of its own";
        return Err(Problem::new(Kind::NotFound, detail));
    }
    Ok(Json(PageOut::of(app.service.trials(&job, query.state, &page).await?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stopped_itself_says_so() {
        let told = |stopped| {
            let mut out = TrialOut::default();
            out.tell(Outcome::TimedOut { detail: "late".to_owned(), stopped });
            serde_json::to_value(out).unwrap()
        };
        assert_eq!(told(true)["stopped"], true);
        assert_eq!(told(false).get("stopped"), None);
    }
}
