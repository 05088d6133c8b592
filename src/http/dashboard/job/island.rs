//! What the page's script draws its charts from: the tried trials and the budget as JSON within the page.

use super::tried::parameters;
use super::{failures, finals};
use crate::domain::{Job, Outcome, Trial};
use serde::Serialize;

/// Trials drawn; further ones are in the API.
const MOST: usize = 512;

/// Characters of a reason; the page has it whole below its charts.
const WHY: usize = 160;

/// Data of a job's page. Names are short, since there are hundreds of each.
#[derive(Serialize)]
pub struct Island {
    state: &'static str,
    /// Budget of the search.
    seconds: Option<f64>,
    /// The trial of the plan's candidate.
    #[serde(skip_serializing_if = "Option::is_none")]
    winner: Option<u32>,
    trials: Vec<Point>,
}

#[derive(Serialize)]
struct Point {
    ordinal: u32,
    /// `measured`, or the kind of failure.
    state: String,
    /// Why there is no time.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    median: Option<f64>,
    family: String,
    params: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    vendor: bool,
    /// When it was recorded, epoch milliseconds: the pace of the last trials is the estimate of what is left.
    at: i64,
}

impl Island {
    pub fn of(job: &Job, trials: &[Trial]) -> Self {
        let won = finals::winner(job);
        let tried = trials.iter().filter_map(|trial| Some((trial, trial.state.outcome()?)));
        Self {
            state: job.state.name(),
            seconds: job.request.search.seconds,
            winner: trials.iter().find(|t| Some(&t.candidate) == won).map(|t| t.ordinal),
            trials: tried.take(MOST).map(|(trial, outcome)| point(trial, outcome)).collect(),
        }
    }

    /// As it stands in a script element: no `<` in it, so that no text of a client's can end the element.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default().replace('<', "\\u003c")
    }
}

fn point(trial: &Trial, outcome: &Outcome) -> Point {
    Point {
        ordinal: trial.ordinal,
        state: failures::name(outcome),
        why: failures::detail(outcome).map(|text| text.chars().take(WHY).collect()),
        predicted: trial.predicted_us.filter(|us| us.is_finite()),
        median: outcome.median_us(),
        family: trial.candidate.family.clone(),
        params: parameters(&trial.candidate),
        vendor: trial.candidate.is_baseline(),
        at: trial.created_at.0,
    }
}
