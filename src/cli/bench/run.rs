//! One run of a suite: submits a job, waits for it, and reduces its plan to the figures that are compared.

use super::predicted::Looked;
use super::subject::{Shape, Subject};
use super::suite::{Entry, Task};
use crate::cli::client::{Answer, Client};
use crate::cli::follow::{Show, follow};
use crate::cli::problem::{SearchArgs, job};
use crate::domain::candidate::VENDOR;
use crate::domain::{Clock, Digest, Problem};
use crate::ops::family_names;
use crate::wire::{Plan, Role, Trial};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Instant;

/// The class of a matrix that has not been inspected and whose suite names none.
const UNKNOWN: &str = "-";

/// A matrix and a problem with their result.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub matrix: String,
    /// Label of the suite's problem in the tables.
    pub task: String,
    /// The family that the search was restricted to by `--each-family`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<&'static str>,
    /// The problem with this matrix's own triangle.
    pub problem: Problem,
    pub class: String,
    pub rows: Option<usize>,
    pub cols: Option<usize>,
    pub nnz: Option<usize>,
    pub levels: Option<usize>,
    pub rows_per_level: Option<f64>,
    /// Largest |x| for a b in [-1, 1); only computed in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<f64>,
    pub figures: Option<Figures>,
    /// Why there are no figures. A dry run has neither.
    pub error: Option<String>,
    /// The measured plan that the figures are of.
    pub plan: Option<Value>,
    /// The predicted plan, if the strategy was `predicted`: `plan` is then of a search for its candidate alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Value>,
    /// What a lookup answered before any job, if the strategy is `predicted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookup: Option<Looked>,
    /// All tried candidates in order; pruned ones are in the plan's funnel.
    pub trials: Vec<Tried>,
}

/// Summary of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    pub candidate: String,
    pub state: String,
    #[serde(default)]
    pub us: Option<f64>,
    #[serde(default)]
    pub predicted_us: Option<f64>,
    /// The reason, if there is no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// The figures that are compared.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub device: String,
    pub us: f64,
    pub vendor: Option<String>,
    pub vendor_us: Option<f64>,
    pub speedup: Option<f64>,
    /// The clock by which the winner was chosen: of the times above and of the share of the limit.
    pub clock: Clock,
    /// By every clock that was read, this one included.
    pub clocks: BTreeMap<Clock, Timed>,
    pub limit_us: f64,
    pub limit_fraction: f64,
    pub bound: String,
    /// Compulsory bytes per call: each input read once, each output written once.
    pub bytes: u64,
    /// The device's measured copy bandwidth, bytes read and written.
    pub copy_gbps: f64,
    /// The model that predicted the winner's time, and that time.
    pub model: Option<String>,
    pub predicted_us: Option<f64>,
    pub winner: String,
    /// Whether the winner is itself the baseline, a vendor routine for the original problem.
    pub vendor_won: bool,
    pub tie: bool,
    pub measured: u32,
    /// Trials without a measurement, by state.
    pub failed: BTreeMap<String, u32>,
    /// Seconds from the submission of the job to its end, and the search time according to the plan. Of a predicted plan those of
    /// the prediction: timing it is no part of it.
    pub tuning_s: f64,
    pub search_s: f64,
    pub preprocess_ms: f64,
    pub break_even_calls: Option<u64>,
}

/// A plan's time by the clock that chose, and by every clock that was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Time {
    pub us: f64,
    #[serde(default = "Clock::of_earlier_versions")]
    pub clock: Clock,
    #[serde(default)]
    pub clocks: BTreeMap<Clock, Timed>,
}

/// The times by one clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    pub us: f64,
    pub vendor_us: Option<f64>,
    pub speedup: Option<f64>,
}

impl Run {
    /// Not run yet.
    pub fn of(entry: &Entry, task: &Task) -> Self {
        Self {
            matrix: entry.name(),
            task: task.label(),
            family: None,
            problem: entry.problem(task),
            class: entry.class().unwrap_or(UNKNOWN).to_owned(),
            rows: None,
            cols: None,
            nnz: None,
            levels: None,
            rows_per_level: None,
            growth: None,
            figures: None,
            error: None,
            plan: None,
            predicted: None,
            lookup: None,
            trials: Vec::new(),
        }
    }

    /// The same, not run yet, and to be run with one family alone, which its label names.
    pub fn of_family(&self, family: &'static str) -> Self {
        Self {
            task: format!("{} {family}", self.task),
            family: Some(family),
            figures: None,
            error: None,
            plan: None,
            predicted: None,
            lookup: None,
            trials: Vec::new(),
            ..self.clone()
        }
    }

    /// Our own families on the device that the plan is for; none without a plan.
    pub fn families(&self) -> Vec<&'static str> {
        let kind = self
            .plan
            .as_ref()
            .and_then(|plan| serde_json::from_value(plan.pointer("/device/kind")?.clone()).ok());
        let Some(kind) = kind else { return Vec::new() };
        let names = family_names(self.problem.op(), kind);
        names.into_iter().filter(|name| *name != VENDOR).collect()
    }

    /// Operations per call: a multiplication and an addition per entry and column of the dense operand.
    pub fn flops(&self) -> Option<f64> {
        Some(2.0 * self.nnz? as f64 * f64::from(self.problem.columns()))
    }

    pub fn failed(mut self, error: &anyhow::Error) -> Self {
        self.error = Some(format!("{error:#}"));
        self
    }

    /// Inspects the system; a run without a valid system has failed.
    pub fn shaped(mut self, subject: &mut Subject) -> Self {
        match subject.shape(&self.problem) {
            Ok(shape) => {
                let Shape { rows, cols, nnz, levels } = shape;
                (self.rows, self.cols) = (Some(rows), Some(cols));
                (self.nnz, self.levels) = (Some(nnz), levels);
                self.rows_per_level = shape.width();
                let class = shape.class().map(str::to_owned);
                self.class = class.unwrap_or(self.class);
                if self.class == UNKNOWN {
                    self.class = "all".to_owned();
                }
                self
            }
            Err(error) => self.failed(&error.into()),
        }
    }

    /// Checks that the solution is in the range of the data type.
    pub fn grown(mut self, subject: &Subject) -> Self {
        match subject.growth(&self.problem) {
            Ok(growth) => self.growth = growth,
            Err(error) => return self.failed(&error.into()),
        }
        self
    }

    /// Tunes it on the server.
    pub async fn carried(mut self, ask: &Ask<'_>) -> Self {
        let looked = self.lookup.as_mut().and_then(|lookup| lookup.choice.as_mut());
        let carried = match ask.search.predicts() {
            true => ask.predict(&self.problem, looked).await,
            false => ask.measure(&self.problem).await,
        };
        match carried {
            Ok(Carried { figures, tuned, predicted }) => {
                (self.figures, self.plan) = (Some(figures), Some(tuned.plan.raw));
                (self.trials, self.predicted) = (tuned.trials, predicted);
                self
            }
            Err(error) => self.failed(&error),
        }
    }
}

/// What a server is asked for one matrix.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    pub client: &'a Client,
    pub matrix: Digest,
    pub device: &'a str,
    pub search: &'a SearchArgs,
}

/// The result of a job.
pub struct Tuned {
    pub plan: Answer<Plan>,
    pub trials: Vec<Tried>,
    /// Seconds from the submission of the job to its end.
    pub seconds: f64,
}

/// What is kept of a run that went well.
pub struct Carried {
    pub figures: Figures,
    /// The job whose measured plan the figures are of.
    pub tuned: Tuned,
    /// The predicted plan whose candidate that job timed, if it was one.
    pub predicted: Option<Value>,
}

impl Tried {
    /// `None` for a pruned candidate.
    fn of(trial: Trial) -> Option<Self> {
        (trial.state != "pruned").then(|| Self {
            candidate: trial.candidate.to_string(),
            state: trial.state,
            us: trial.median_us,
            predicted_us: trial.predicted_us,
            detail: trial.detail,
        })
    }

    /// Whether the search chose it; vendor routines, including the dense product, are always tried.
    pub fn ours(&self) -> bool {
        self.candidate.split(' ').next() != Some(VENDOR)
    }
}

impl Ask<'_> {
    /// A measured plan with its figures.
    async fn measure(&self, problem: &Problem) -> anyhow::Result<Carried> {
        let tuned = self.tune(problem).await?;
        let figures = Figures::of(&tuned.plan.view, tuned.seconds)?;
        Ok(Carried { figures, tuned, predicted: None })
    }

    /// Submits a job, and waits for its plan.
    pub async fn tune(&self, problem: &Problem) -> anyhow::Result<Tuned> {
        let client = self.client;
        let begun = Instant::now();
        let job = job(&self.matrix, problem, self.device, self.search);
        let submitted = client.submit(&job).await?;
        let ended = follow(client, &submitted.view.id.0, Show::Progress).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let id = ended
            .view
            .plan
            .as_ref()
            .map(|id| id.0.as_str())
            .context("the job has succeeded, but names no plan")?;
        let plan = client.plan(id).await?;
        let trials = client.trials(&ended.view.id.0).await?;
        let trials = trials.into_iter().filter_map(|trial| Tried::of(trial.view)).collect();
        Ok(Tuned { plan, trials, seconds })
    }
}

impl Figures {
    /// The vendor's time divided by the winner's, both by this clock.
    pub fn speedup_by(&self, clock: Clock) -> Option<f64> {
        self.clocks.get(&clock)?.speedup
    }

    pub fn time(&self) -> Time {
        Time { us: self.us, clock: self.clock, clocks: self.clocks.clone() }
    }

    /// Those of a measured plan.
    pub fn of(plan: &Plan, tuning_s: f64) -> anyhow::Result<Self> {
        let measured = plan.measured.as_ref();
        let measured = measured.context("the plan has no measurements to compare")?;
        let vendor = plan.baseline.as_ref();
        let clocks = Clock::ALL.into_iter().filter_map(|clock| {
            let us = measured.median_by(clock)?;
            let vendor_us = vendor.and_then(|vendor| measured.baseline_by(vendor, clock));
            Some((clock, Timed { us, vendor_us, speedup: vendor_us.map(|vendor| vendor / us) }))
        });
        Ok(Self {
            device: plan.device.name.clone(),
            us: measured.median_us,
            vendor: vendor.map(|v| format!("{} {} {}", v.name, v.version, v.algorithm)),
            vendor_us: vendor.map(|vendor| vendor.median_us),
            speedup: plan.speedup,
            clock: measured.clock,
            clocks: clocks.collect(),
            limit_us: plan.limit.us,
            limit_fraction: plan.limit.fraction,
            bound: plan.limit.bound.name().to_owned(),
            bytes: plan.limit.bytes,
            copy_gbps: plan.device.copy_gbps,
            model: plan.predicted.as_ref().map(|predicted| predicted.model.clone()),
            predicted_us: plan.predicted.as_ref().map(|predicted| predicted.median_us),
            winner: plan.candidate.to_string(),
            vendor_won: plan.candidate.role == Role::Baseline,
            tie: plan.tie,
            measured: plan.trials.measured,
            failed: plan.trials.failed.clone(),
            tuning_s,
            search_s: plan.provenance.search_seconds,
            preprocess_ms: plan.preprocess_ms.unwrap_or_default(),
            break_even_calls: plan.break_even_calls,
        })
    }
}
