//! One run of a suite: a job posted, waited for, and its plan reduced to the figures that are compared.

use super::subject::{Shape, Subject};
use super::suite::{Entry, Task};
use crate::cli::client::views::PlanView;
use crate::cli::client::{Answer, Client};
use crate::cli::follow::{Show, follow};
use crate::cli::problem::SearchArgs;
use crate::domain::{Digest, Problem};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

/// The class of a matrix that nobody has looked at and whose suite names none.
const UNKNOWN: &str = "-";

/// A matrix and a problem, and what came of them.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub matrix: String,
    /// The suite's problem, as it is called in the tables.
    pub task: String,
    /// What was asked, with this matrix's own triangle.
    pub problem: Problem,
    pub class: String,
    pub rows: Option<usize>,
    pub nnz: Option<usize>,
    pub levels: Option<usize>,
    pub rows_per_level: Option<f64>,
    /// Largest |x| for a b within [-1, 1); only looked at in a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<f64>,
    pub figures: Option<Figures>,
    /// Why there are none. A `dry` run has neither.
    pub error: Option<String>,
    pub plan: Option<Value>,
}

/// What is compared.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub device: String,
    pub us: f64,
    pub vendor: Option<String>,
    pub vendor_us: Option<f64>,
    pub speedup: Option<f64>,
    pub limit_fraction: f64,
    pub bound: String,
    pub winner: String,
    /// The winner is a routine of the vendor's.
    pub vendor_won: bool,
    pub tie: bool,
    pub measured: u32,
    /// Trials without a time, by state.
    pub failed: BTreeMap<String, u32>,
    /// From the POST of the job to its end, and the part of it that its plan calls search.
    pub tuning_s: f64,
    pub search_s: f64,
    pub preprocess_ms: f64,
    pub break_even_calls: Option<u64>,
}

/// Members of a plan that the other subcommands do not read.
#[derive(Deserialize)]
struct More {
    limit: Bounded,
    trials: Counts,
}

#[derive(Deserialize)]
struct Bounded {
    bound: String,
}

#[derive(Deserialize)]
struct Counts {
    measured: u32,
    failed: BTreeMap<String, u32>,
}

impl Run {
    /// Not run yet.
    pub fn of(entry: &Entry, task: &Task) -> Self {
        Self {
            matrix: entry.name(),
            task: task.label(),
            problem: entry.problem(task),
            class: entry.class().unwrap_or(UNKNOWN).to_owned(),
            rows: None,
            nnz: None,
            levels: None,
            rows_per_level: None,
            growth: None,
            figures: None,
            error: None,
            plan: None,
        }
    }

    pub fn failed(mut self, error: &anyhow::Error) -> Self {
        self.error = Some(format!("{error:#}"));
        self
    }

    /// Looks at the system; a matrix that has none has failed.
    pub fn shaped(mut self, subject: &mut Subject) -> Self {
        match subject.shape(&self.problem) {
            Ok(shape) => {
                let Shape { rows, nnz, levels } = shape;
                (self.rows, self.nnz, self.levels) = (Some(rows), Some(nnz), levels);
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

    /// Looks whether its solution stays within the type's range.
    pub fn grown(mut self, subject: &Subject) -> Self {
        match subject.growth(&self.problem) {
            Ok(growth) => self.growth = growth,
            Err(error) => return self.failed(&error.into()),
        }
        self
    }

    /// Has the server tune it.
    pub async fn carried(mut self, client: &Client, matrix: &Digest, ask: &Ask<'_>) -> Self {
        match ask.plan(client, matrix, &self.problem).await {
            Ok((plan, tuning_s)) => match Figures::of(&plan, tuning_s) {
                Ok(figures) => {
                    (self.figures, self.plan) = (Some(figures), Some(plan.raw));
                    self
                }
                Err(error) => self.failed(&error),
            },
            Err(error) => self.failed(&error),
        }
    }
}

/// What all runs have in common.
pub struct Ask<'a> {
    pub device: &'a str,
    pub search: &'a SearchArgs,
}

impl Ask<'_> {
    /// The plan, and seconds from the POST to the end of its job.
    async fn plan(
        &self,
        client: &Client,
        matrix: &Digest,
        problem: &Problem,
    ) -> anyhow::Result<(Answer<PlanView>, f64)> {
        let mut job = Map::new();
        job.insert("matrix".to_owned(), json!(matrix));
        job.insert("problem".to_owned(), json!(problem));
        job.insert("device".to_owned(), json!(self.device));
        job.insert("search".to_owned(), self.search.wire());
        if let Some(calls) = self.search.expected_calls {
            job.insert("expected_calls".to_owned(), json!(calls));
        }
        let begun = Instant::now();
        let submitted = client.submit(&Value::Object(job)).await?;
        let ended = follow(client, &submitted.view.id, Show::Progress).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let id = ended.view.plan.as_deref().context("the job has succeeded, but names no plan")?;
        Ok((client.plan(id).await?, seconds))
    }
}

impl Figures {
    fn of(plan: &Answer<PlanView>, tuning_s: f64) -> anyhow::Result<Self> {
        let more =
            More::deserialize(&plan.raw).context("the plan lacks its limit or its trials")?;
        let plan = &plan.view;
        let vendor = plan.baseline.as_ref();
        Ok(Self {
            device: plan.device.name.clone(),
            us: plan.measured.median_us,
            vendor: vendor.map(|v| format!("{} {} {}", v.name, v.version, v.algorithm)),
            vendor_us: vendor.map(|vendor| vendor.median_us),
            speedup: plan.speedup,
            limit_fraction: plan.limit.fraction,
            bound: more.limit.bound,
            winner: plan.candidate.to_string(),
            vendor_won: plan.candidate.family == "vendor",
            tie: plan.tie,
            measured: more.trials.measured,
            failed: more.trials.failed,
            tuning_s,
            search_s: plan.provenance.search_seconds,
            preprocess_ms: plan.preprocess_ms,
            break_even_calls: plan.break_even_calls,
        })
    }
}
