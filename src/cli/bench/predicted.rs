//! Predictions of a suite: what a lookup has before any job, what a job of the strategy `predicted` chooses, and the time of both
//! on the device.

use super::compare::Beside;
use super::report::{Width, cut, percent};
use super::run::{Ask, Carried, Figures, Run, Time, Tried, Tuned};
use crate::cli::problem::{SearchArgs, StrategyArg, query};
use crate::cli::show;
use crate::domain::{Grade, Problem};
use crate::service::TRY_AGAIN;
use crate::wire::{Candidate, Lookup, Open};
use anyhow::{Context, bail};
use comfy_table::Table;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a lookup is repeated while its prediction is being made, and after what pause.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(500);

/// What a lookup answered before any job.
#[derive(Clone, Debug, Serialize)]
pub struct Looked {
    /// `predicted`, or another one: then the server has a measured plan, or nothing is predicted.
    pub grade: Open<Grade>,
    pub reasons: Vec<String>,
    /// Seconds until the answer.
    pub seconds: f64,
    /// Absent under any other grade than `predicted`, so that nothing else is compared with the job's.
    #[serde(flatten)]
    pub choice: Option<Choice>,
}

/// What a lookup predicted.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    pub candidate: Candidate,
    pub model: String,
    pub predicted_us: f64,
    /// Absent until the candidate was timed.
    #[serde(flatten)]
    pub timed: Option<Standing>,
}

/// A lookup's candidate beside that of the job.
#[derive(Clone, Debug, Serialize)]
pub struct Standing {
    /// Whether the job chose the same candidate, whose time is then that of the run.
    pub same: bool,
    #[serde(flatten)]
    pub time: Time,
}

impl Looked {
    fn of(answer: Lookup, seconds: f64) -> Self {
        let Lookup { matched, plan, .. } = answer;
        let predicted = plan.filter(|_| matched.grade == Open::Known(Grade::Predicted));
        let choice = predicted.and_then(|plan| {
            let said = plan.predicted?;
            let (model, predicted_us) = (said.model, said.median_us);
            Some(Choice { candidate: plan.candidate, model, predicted_us, timed: None })
        });
        Self { grade: matched.grade, reasons: matched.reasons, seconds, choice }
    }

    /// The time of what it predicted.
    pub fn time(&self) -> Option<&Time> {
        Some(&self.standing()?.time)
    }

    fn standing(&self) -> Option<&Standing> {
        self.choice.as_ref()?.timed.as_ref()
    }
}

impl Ask<'_> {
    /// Looks up the plan of a problem by GET, which stores nothing and queues no job.
    pub async fn look(&self, problem: &Problem) -> anyhow::Result<Looked> {
        let query = query(problem, self.device);
        let begun = Instant::now();
        loop {
            let answer = self.client.lookup(&self.matrix, &query).await;
            let answer = answer.context("the lookup before the job")?.view;
            let spent = begun.elapsed();
            if !is_being_made(&answer) || spent > PATIENCE {
                return Ok(Looked::of(answer, spent.as_secs_f64()));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A predicted plan, with the figures of its candidate on the device. `looked` is what a lookup predicted, and is timed likewise
    /// if it is another candidate.
    pub async fn predict(
        &self,
        problem: &Problem,
        looked: Option<&mut Choice>,
    ) -> anyhow::Result<Carried> {
        let predicted = self.tune(problem).await?;
        let plan = &predicted.plan.view;
        let said = plan.predicted.as_ref().context("the job's plan names no prediction")?;
        let mut tuned = self.time(problem, &plan.candidate).await?;
        // The search for it alone need not have asked the model that chose it.
        let name = plan.candidate.to_string();
        for tried in tuned.trials.iter_mut().filter(|tried| tried.candidate == name) {
            tried.predicted_us = Some(said.median_us);
        }
        let figures = Figures {
            model: Some(said.model.clone()),
            predicted_us: Some(said.median_us),
            search_s: plan.provenance.search_seconds,
            ..Figures::of(&tuned.plan.view, predicted.seconds)?
        };
        if let Some(looked) = looked {
            let same = looked.candidate == plan.candidate;
            let time = match same {
                true => figures.time(),
                false => {
                    let other = self.time(problem, &looked.candidate).await;
                    let other = other.context("what the lookup before the job predicted")?;
                    Figures::of(&other.plan.view, other.seconds)?.time()
                }
            };
            looked.timed = Some(Standing { same, time });
        }
        Ok(Carried { figures, tuned, predicted: Some(predicted.plan.raw) })
    }

    /// Times one candidate beside the vendor's routines. The plan says that its search was narrowed, and so do lookups that find it.
    async fn time(&self, problem: &Problem, candidate: &Candidate) -> anyhow::Result<Tuned> {
        let search = alone(self.search, candidate);
        let timed = Ask { search: &search, ..*self }.tune(problem).await;
        let timed = timed.with_context(|| format!("{candidate} could not be timed"))?;
        // The vendor's routine wins where nothing else ran.
        if timed.plan.view.candidate != *candidate {
            bail!(failure(&candidate.to_string(), &timed.trials));
        }
        Ok(timed)
    }
}

/// Whether the same lookup may have a prediction later.
fn is_being_made(answer: &Lookup) -> bool {
    answer.plan.is_none() && answer.matched.reasons.iter().any(|why| why.ends_with(TRY_AGAIN))
}

/// The search for one candidate alone. Budgets that count candidates are not its: the vendor's routines are counted as well.
fn alone(search: &SearchArgs, candidate: &Candidate) -> SearchArgs {
    SearchArgs {
        strategy: Some(StrategyArg::Exhaustive),
        top_k: None,
        trials: None,
        families: vec![candidate.family.clone()],
        fixed: candidate.params.clone().into_iter().collect(),
        exact: true,
        ..search.clone()
    }
}

/// Why the search for a candidate ended without a time of it.
fn failure(candidate: &str, trials: &[Tried]) -> String {
    match trials.iter().find(|tried| tried.candidate == candidate) {
        Some(Tried { us: None, state, detail, .. }) => {
            let detail = detail.as_deref().unwrap_or("no reason given");
            format!("{candidate} was predicted, and is {}: {detail}", state.replace('_', " "))
        }
        Some(_) => format!("{candidate} was predicted, and failed after its trial, in the finals"),
        None => format!("{candidate} was predicted, and a search for it alone did not try it"),
    }
}

/// What a line says of the lookup before a job.
pub fn told(run: &Run) -> String {
    let Some(looked) = &run.lookup else { return String::new() };
    match (&looked.choice, looked.standing()) {
        (Some(Choice { candidate, .. }), Some(Standing { same: false, time })) => {
            format!("; lookup: {candidate}, {} us", show::us(time.us))
        }
        _ => format!("; lookup: {}", standing(looked)),
    }
}

fn standing(looked: &Looked) -> String {
    match looked.standing() {
        Some(Standing { same: true, .. }) => "same".to_owned(),
        Some(Standing { time, .. }) => format!("other, {} us", show::us(time.us)),
        None => looked.grade.to_string(),
    }
}

/// How lookups before all jobs and the jobs agree, as a sentence; `None` if there were no lookups.
pub fn agreement(runs: &[Run]) -> Option<String> {
    let mut counts: BTreeMap<(u8, String), usize> = BTreeMap::new();
    for looked in runs.iter().filter_map(|run| run.lookup.as_ref()) {
        let answer = match (looked.standing(), &looked.choice) {
            (Some(Standing { same: true, .. }), _) => {
                (0, "predicted what the job chose".to_owned())
            }
            (Some(_), _) => (1, "predicted another candidate".to_owned()),
            (None, Some(_)) => (2, "predicted for a run that failed".to_owned()),
            (None, None) => (3, format!("had the grade {} and is not compared", looked.grade)),
        };
        *counts.entry(answer).or_default() += 1;
    }
    let all: usize = counts.values().sum();
    let counts: Vec<String> =
        counts.iter().map(|((_, answer), count)| format!("{count} {answer}")).collect();
    (all > 0).then(|| format!("Of the lookups before all jobs, {all}: {}.", counts.join("; ")))
}

/// Each prediction with its candidate's time, and the plan that it is compared with, if it is; `None` if nothing was predicted.
pub fn table(runs: &[Run], beside: &[Beside], width: Width) -> Option<Table> {
    let predicted: Vec<(&Run, &Figures)> = runs
        .iter()
        .filter(|run| run.predicted.is_some())
        .filter_map(|run| Some((run, run.figures.as_ref()?)))
        .collect();
    if predicted.is_empty() {
        return None;
    }
    let compared = !beside.is_empty();
    let mut header = vec!["prediction for", "problem", "predicted us", "us", "lookup"];
    if compared {
        header.extend(["earlier us", "of its best"]);
    }
    if width == Width::Wide {
        header.extend(["model", "candidate"]);
        header.extend(compared.then_some("earlier winner"));
    }
    let mut table = show::table(&header);
    for (run, figures) in predicted {
        let pair = beside.iter().find(|one| one.matrix == run.matrix && one.task == run.task);
        let us = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), show::us);
        let mut row = vec![
            cut(&run.matrix, 24),
            cut(&run.task, 24),
            us(figures.predicted_us),
            // By the clock of the plan that it is compared with.
            us(Some(pair.map_or(figures.us, |pair| pair.us))),
            run.lookup.as_ref().map_or_else(|| "-".to_owned(), standing),
        ];
        if compared {
            row.extend([
                us(pair.map(|pair| pair.earlier_us)),
                percent(pair.map(|pair| pair.of_best)),
            ]);
        }
        if width == Width::Wide {
            row.extend([figures.model.clone().unwrap_or_default(), figures.winner.clone()]);
            let earlier = pair.and_then(|pair| pair.earlier_winner.clone());
            row.extend(compared.then(|| earlier.unwrap_or_default()));
        }
        table.add_row(row);
    }
    show::right(&mut table, 2..4);
    show::right(&mut table, if compared { 5..7 } else { 5..5 });
    Some(table)
}

#[cfg(test)]
mod tests;
