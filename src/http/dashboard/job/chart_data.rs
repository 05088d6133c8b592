//! The data for the charts that the page's script draws: the tried trials and the budget as JSON within the page.

use super::{failures, finals};
use crate::domain::catalog::vendor::{self, Routine};
use crate::domain::{Job, JobState, Outcome, Param, Stage, Trial};
use crate::http::dashboard::format;
use crate::http::dashboard::work::{stage_words, state_words};
use crate::http::error::Problem;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// Maximum length of a reason in the chart data; the page contains the full text below its charts.
const WHY: usize = 160;

/// Chart data of a job's page, stored by column: with thousands of trials, repeated names would be most of it.
#[derive(Serialize)]
pub struct ChartData<'a> {
    state: &'static str,
    words: Words,
    /// Budget of the search.
    seconds: Option<f64>,
    /// Ordinal of the trial with the plan's candidate.
    #[serde(skip_serializing_if = "Option::is_none")]
    winner: Option<u32>,
    /// The reasons for missing times, by ordinal.
    why: BTreeMap<u32, String>,
    /// `measured`, and the kinds of failure.
    states: Vec<String>,
    shapes: Vec<Shape<'a>>,
    /// Ordinals of the baseline's routines.
    baseline: Vec<u32>,
    /// The reference of all times, in milliseconds since the epoch.
    from: i64,
    trials: Columns<'a>,
}

/// How the script displays the values that the API sends while the job runs.
#[derive(Serialize)]
struct Words {
    states: HashMap<JobState, StateWords>,
    stages: HashMap<Stage, &'static str>,
    /// CSS classes of the kinds of failure, by their name on pages.
    tones: BTreeMap<String, &'static str>,
    /// What routines of libraries are called, by their names: of the baseline, and of others that compete.
    libraries: BTreeMap<&'static str, String>,
}

#[derive(Serialize)]
struct StateWords {
    tone: &'static str,
    #[serde(rename = "final")]
    is_final: bool,
    /// Text displayed instead of the stage.
    stage: Option<&'static str>,
}

impl Words {
    fn new() -> Self {
        let named = |routine: &Routine| (routine.name, format::library(routine.library));
        let state = |state: JobState| StateWords {
            tone: format::tone(state),
            is_final: state.is_final(),
            stage: state_words(state),
        };
        let tones = failures::TONES.map(|(kind, tone)| (failures::words(kind), tone));
        Self {
            states: JobState::ALL.map(|each| (each, state(each))).into(),
            stages: Stage::ALL.map(|stage| (stage, stage_words(stage))).into(),
            tones: tones.into(),
            libraries: vendor::ROUTINES.iter().map(named).collect(),
        }
    }
}

/// A family, and the names of its candidates' parameters.
#[derive(PartialEq, Serialize)]
struct Shape<'a> {
    family: String,
    names: Vec<&'a str>,
}

#[derive(Default, Serialize)]
struct Columns<'a> {
    ordinal: Vec<u32>,
    /// Indices into `states` and `shapes`.
    state: Vec<usize>,
    shape: Vec<usize>,
    /// Values of the shape's parameters.
    values: Vec<Vec<&'a Param>>,
    predicted: Vec<Option<f64>>,
    median: Vec<Option<f64>>,
    /// When each trial was recorded: the pace of the last trials gives the estimate of the remaining time.
    at: Vec<i64>,
}

impl<'a> ChartData<'a> {
    pub fn of(job: &Job, tried: &'a [Trial]) -> Self {
        let won = finals::winner(job);
        let mut chart_data = Self {
            state: job.state.name(),
            words: Words::new(),
            seconds: job.request.search.seconds,
            winner: tried.iter().find(|t| Some(&t.candidate) == won).map(|t| t.ordinal),
            why: BTreeMap::new(),
            states: Vec::new(),
            shapes: Vec::new(),
            baseline: Vec::new(),
            from: tried.first().map_or(0, |trial| trial.created_at.0),
            trials: Columns::default(),
        };
        for trial in tried {
            if let Some(outcome) = trial.state.outcome() {
                chart_data.add(trial, outcome);
            }
        }
        chart_data
    }

    fn add(&mut self, trial: &'a Trial, outcome: &Outcome) {
        let candidate = &trial.candidate;
        let names = candidate.params.keys().map(String::as_str).collect();
        let shape = place(&mut self.shapes, Shape { family: format::family(candidate), names });
        let state = place(&mut self.states, failures::name(outcome));
        if let Some(text) = failures::detail(outcome) {
            self.why.insert(trial.ordinal, text.chars().take(WHY).collect());
        }
        if candidate.is_baseline() {
            self.baseline.push(trial.ordinal);
        }
        let columns = &mut self.trials;
        columns.ordinal.push(trial.ordinal);
        columns.state.push(state);
        columns.shape.push(shape);
        columns.values.push(candidate.params.values().collect());
        columns.predicted.push(trial.predicted_us.filter(|us| us.is_finite()).map(drawn));
        columns.median.push(outcome.median_us().map(drawn));
        columns.at.push(trial.created_at.0 - self.from);
    }

    /// JSON without `<`, so that no text from a client can close the script element.
    pub fn json(&self) -> Result<String, Problem> {
        let json = serde_json::to_string(self).map_err(Problem::internal)?;
        Ok(json.replace('<', "\\u003c"))
    }
}

/// The index of an item in a short list; a new item is appended.
fn place<T: PartialEq>(known: &mut Vec<T>, one: T) -> usize {
    known.iter().position(|other| *other == one).unwrap_or_else(|| {
        known.push(one);
        known.len() - 1
    })
}

/// No more digits than a chart can show.
fn drawn(us: f64) -> f64 {
    format!("{us:.5e}").parse().unwrap_or(us)
}

#[cfg(test)]
mod tests {
    use super::super::recorded::MOST_TRIED;
    use super::*;
    use crate::domain::{Candidate, JobId, Timestamp, Timing, TrialState};

    #[test]
    fn a_full_island_leaves_the_page_below_its_bound() {
        let trial = |ordinal: u32| {
            let us = 100.0 / 3.0 + f64::from(ordinal);
            let candidate = ["lanes", "vec", "unroll", "ways", "block", "cols", "stages"]
                .into_iter()
                .fold(Candidate::new("row_split"), |it, name| it.with(name, ordinal.into()));
            Trial {
                job: JobId("j".to_owned()),
                ordinal,
                candidate: candidate.with_text("fetch", "direct").with_text("order", "natural"),
                state: TrialState::Tried(Outcome::Measured {
                    timing: Timing::of(vec![us], 0).unwrap(),
                    rel_error: 0.0,
                    resources: None,
                    preprocess_ms: 0.0,
                }),
                predicted_us: Some(us / 7.0),
                despite: None,
                features: None,
                created_at: Timestamp(1_700_000_000_000 + 400 * i64::from(ordinal)),
            }
        };
        let trials: Vec<Trial> = (0..MOST_TRIED).map(trial).collect();
        let job: Job = serde_json::from_value(serde_json::json!({
            "id": "j", "device": "cpu", "state": "running", "stage": "measuring", "best": null, "plan": null,
            "request": {"matrix": "0".repeat(64), "problem": {"op": "spmm", "n": 4}},
            "progress": {"done": 0, "total": 0}, "stopped_by": null, "error": null, "attempts": 1,
            "search_seconds": 0.0, "created_at": 0, "started_at": null, "finished_at": null
        }))
        .unwrap();
        let json = ChartData::of(&job, &trials).json().unwrap();
        // Before compression.
        assert!(json.len() < 440_000, "{}", json.len());
        let chart_data: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(chart_data["trials"]["ordinal"].as_array().unwrap().len(), MOST_TRIED as usize);
        assert_eq!(chart_data["trials"]["median"][0], 33.3333);
        assert_eq!(chart_data["shapes"].as_array().unwrap().len(), 1);
    }
}
