//! The report of a suite: one line per run, a table by problem and class, and the same as JSON.

use super::compare::{Beside, shares};
use super::predicted;
use super::run::{Figures, Run, Tried};
use super::subject::CLASSES;
use crate::cli::show;
use crate::domain::Clock;
use comfy_table::Table;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How much of a run a line tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// What fits into 120 columns.
    Usual,
    /// All figures.
    Wide,
}

/// Columns of the usual width.
pub const USUAL: usize = 120;

/// A text cut to a length, with a sign that it was.
pub fn cut(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// The header of `line`.
pub fn header(dry: bool, width: Width) -> String {
    if width == Width::Usual {
        let shape =
            format!("{:<11} {:<20} {:<19} {:>10}", "class", "matrix", "problem", "nonzeros");
        return match dry {
            true => format!("{shape} {:>9} {:>7} {:>9}", "rows", "levels", "max |x|"),
            false => format!(
                "{shape} {:>8} {:>7} {:>8} {:>7}  winner",
                "us", "speedup", "of bound", "tuning"
            ),
        };
    }
    let shape = format!(
        "{:<11} {:<30} {:<24} {:>9} {:>9} {:>10} {:>7} {:>9}",
        "class", "matrix", "problem", "rows", "cols", "nnz", "levels", "rows/lev"
    );
    if dry {
        return format!("{shape} {:>9}", "max |x|");
    }
    format!(
        "{shape} {:>9} {:>9} {:>9} {:>9} {:>8} {:<7} {:>8} {:>8} {:>8} {:>10}  winner; failed trials",
        "us",
        "base us",
        Clock::Pipelined,
        Clock::Isolated,
        "of bound",
        "by",
        "measured",
        "tuning s",
        "prep ms",
        "break-even"
    )
}

/// One run as a line.
pub fn line(run: &Run, width: Width) -> String {
    match width {
        Width::Usual => usual(run),
        Width::Wide => wide(run),
    }
}

fn growth(run: &Run) -> String {
    run.growth.map_or("-".to_owned(), |x| format!("{x:.1e}"))
}

fn usual(run: &Run) -> String {
    let count = |value: Option<usize>| value.map_or("-".to_owned(), |value| value.to_string());
    let shape = format!(
        "{:<11} {:<20} {:<19} {:>10}",
        cut(&run.class, 11),
        cut(&run.matrix, 20),
        cut(&label(run), 19),
        count(run.nnz)
    );
    let text = match (&run.error, &run.figures) {
        (Some(error), _) => format!("{shape} FAILED: {}", error.replace('\n', " ")),
        (None, Some(figures)) => {
            format!(
                "{shape} {:>8} {:>7} {:>8} {:>5.1} s  {}{}",
                show::us(figures.us),
                times(figures.speedup),
                percent(Some(figures.limit_fraction)),
                figures.tuning_s,
                figures.winner,
                failed(figures),
            )
        }
        (None, None) => {
            format!("{shape} {:>9} {:>7} {:>9}", count(run.rows), count(run.levels), growth(run))
        }
    };
    // The reason of a failure is told in full.
    if run.error.is_some() { text } else { cut(&text, USUAL) }
}

fn wide(run: &Run) -> String {
    let count = |value: Option<usize>| value.map_or("-".to_owned(), |value| value.to_string());
    let shape = format!(
        "{:<11} {:<30} {:<24} {:>9} {:>9} {:>10} {:>7} {:>9}",
        run.class,
        run.matrix,
        label(run),
        count(run.rows),
        count(run.cols),
        count(run.nnz),
        count(run.levels),
        run.rows_per_level.map_or("-".to_owned(), |width| format!("{width:.1}")),
    );
    match (&run.error, &run.figures) {
        (Some(error), _) => format!("{shape} FAILED: {}", error.replace('\n', " ")),
        (None, Some(figures)) => format!("{shape} {}{}", measured(figures), predicted::told(run)),
        (None, None) => format!("{shape} {:>9}", growth(run)),
    }
}

/// `; 2 timed out, 1 wrong`, or nothing.
fn failed(figures: &Figures) -> String {
    let failed: Vec<String> =
        figures.failed.iter().map(|(state, count)| format!("{count} {state}")).collect();
    if failed.is_empty() { String::new() } else { format!("; {}", failed.join(", ")) }
}

fn measured(figures: &Figures) -> String {
    let time = |us: Option<f64>| us.map_or("-".to_owned(), show::us);
    format!(
        "{:>9} {:>9} {:>9} {:>9} {:>8} {:<7} {:>8} {:>8.2} {:>8.2} {:>10}  {}{}",
        show::us(figures.us),
        time(figures.vendor_us),
        times(figures.speedup_by(Clock::Pipelined)),
        times(figures.speedup_by(Clock::Isolated)),
        percent(Some(figures.limit_fraction)),
        figures.bound,
        figures.measured,
        figures.tuning_s,
        figures.preprocess_ms,
        figures.break_even_calls.map_or("never".to_owned(), |calls| calls.to_string()),
        figures.winner,
        failed(figures),
    )
}

/// The task, and in which fields this matrix differs from what is common.
fn label(run: &Run) -> String {
    let marks = run.problem.say(run.problem.op().descriptor().bench_marks);
    std::iter::once(run.task.clone()).chain(marks).collect::<Vec<_>>().join(" ")
}

/// Runs of one problem and one class, or of all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group {
    pub task: String,
    pub class: String,
    pub runs: usize,
    pub failed: usize,
    /// By the clock that chose each run's winner.
    #[serde(flatten)]
    pub speedups: Speedups,
    /// By each clock that was read.
    pub clocks: BTreeMap<Clock, Speedups>,
    /// Geometric mean.
    pub limit_fraction: Option<f64>,
    /// Factor by which predictions differ from measurements in either direction: geometric mean over all trials with
    /// both.
    pub model_error: Option<f64>,
    /// Median and maximum.
    pub tuning_s: Option<f64>,
    pub longest_s: Option<f64>,
}

/// The baseline's time divided by the winner's.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Speedups {
    /// Geometric mean over the runs with a baseline.
    pub speedup: Option<f64>,
    pub worst: Option<f64>,
    pub worst_matrix: Option<String>,
}

impl Speedups {
    fn of(runs: &[&Run], by: impl Fn(&Figures) -> Option<f64>) -> Self {
        let all: Vec<(f64, &Run)> =
            runs.iter().filter_map(|run| Some((by(run.figures.as_ref()?)?, *run))).collect();
        let worst = all.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        Self {
            speedup: geometric_mean(all.iter().map(|(speedup, _)| *speedup)),
            worst: worst.map(|(speedup, _)| *speedup),
            worst_matrix: worst.map(|(_, run)| run.matrix.clone()),
        }
    }
}

impl Group {
    fn of(task: &str, class: &str, runs: &[&Run]) -> Self {
        let figures = || runs.iter().filter_map(|run| run.figures.as_ref());
        let read = |clock: &Clock| figures().any(|figures| figures.clocks.contains_key(clock));
        let by = |clock| (clock, Speedups::of(runs, |figures| figures.speedup_by(clock)));
        let mut seconds: Vec<f64> = figures().map(|figures| figures.tuning_s).collect();
        seconds.sort_by(f64::total_cmp);
        Self {
            task: task.to_owned(),
            class: class.to_owned(),
            runs: runs.len(),
            failed: runs.iter().filter(|run| run.error.is_some()).count(),
            speedups: Speedups::of(runs, |figures| figures.speedup),
            clocks: Clock::ALL.into_iter().filter(read).map(by).collect(),
            limit_fraction: geometric_mean(figures().map(|figures| figures.limit_fraction)),
            model_error: geometric_mean(runs.iter().flat_map(|run| &run.trials).filter_map(off)),
            tuning_s: median(&seconds),
            longest_s: seconds.last().copied(),
        }
    }
}

/// The larger of predicted and measured time divided by the smaller.
fn off(trial: &Tried) -> Option<f64> {
    let ratio = trial.predicted_us? / trial.us?;
    (ratio.is_finite() && ratio > 0.0).then(|| ratio.max(1.0 / ratio))
}

/// Each problem's classes in order, then the problem; with several problems, the whole suite last.
pub fn groups(runs: &[Run]) -> Vec<Group> {
    let mut tasks: Vec<&str> = Vec::new();
    for run in runs {
        if !tasks.contains(&run.task.as_str()) {
            tasks.push(&run.task);
        }
    }
    let mut groups = Vec::new();
    for task in &tasks {
        let of_task: Vec<&Run> = runs.iter().filter(|run| run.task == *task).collect();
        let mut classes: BTreeMap<(usize, &str), Vec<&Run>> = BTreeMap::new();
        for run in &of_task {
            classes.entry(place(&run.class)).or_default().push(run);
        }
        if classes.len() > 1 {
            groups.extend(classes.iter().map(|((_, class), runs)| Group::of(task, class, runs)));
        }
        groups.push(Group::of(task, "all", &of_task));
    }
    if tasks.len() > 1 {
        groups.push(Group::of("all", "all", &runs.iter().collect::<Vec<_>>()));
    }
    groups
}

/// Computed classes in their order, then others by name.
pub fn place(class: &str) -> (usize, &str) {
    let at = CLASSES.iter().position(|(name, _)| *name == class);
    (at.unwrap_or(CLASSES.len()), class)
}

/// The libraries with their versions that speed-ups are over, as a sentence; `None` if none ran.
pub fn vendors(runs: &[Run]) -> Option<String> {
    let named = runs.iter().filter_map(|run| run.figures.as_ref()?.vendor.as_deref());
    // Without the routine, which is the last word.
    let libraries =
        named.map(|vendor| vendor.rsplit_once(' ').map_or(vendor, |(library, _)| library));
    let libraries: Vec<&str> =
        libraries.collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let clocks = runs.iter().filter_map(|run| Some(run.figures.as_ref()?.clock.name()));
    let clocks: Vec<&str> = clocks.collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    (!libraries.is_empty()).then(|| {
        format!(
            "Speed-ups are over the baseline ({}), by both clocks; times, choices and shares of the bound go by the clock {}.",
            libraries.join(", "),
            clocks.join(", ")
        )
    })
}

pub fn table(groups: &[Group], width: Width) -> Table {
    match width {
        Width::Usual => usual_table(groups),
        Width::Wide => wide_table(groups),
    }
}

fn usual_table(groups: &[Group]) -> Table {
    let mut table = show::table(&[
        "problem",
        "class",
        "runs",
        "failed",
        "speed-up",
        "worst",
        "of bound",
        "tuning s",
        "worst matrix",
    ]);
    for group in groups {
        table.add_row([
            cut(&group.task, 24),
            group.class.clone(),
            group.runs.to_string(),
            group.failed.to_string(),
            times(group.speedups.speedup),
            times(group.speedups.worst),
            percent(group.limit_fraction),
            group.tuning_s.map_or("-".to_owned(), |value| format!("{value:.2}")),
            cut(group.speedups.worst_matrix.as_deref().unwrap_or_default(), 24),
        ]);
    }
    show::right(&mut table, 2..8);
    table
}

fn wide_table(groups: &[Group]) -> Table {
    let mut table = show::table(&[
        "problem",
        "class",
        "runs",
        "failed",
        "speed-up pipelined",
        "worst",
        "isolated",
        "worst",
        "of bound",
        "model off",
        "tuning s",
        "longest s",
        "worst matrix",
    ]);
    let seconds = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let nothing = Speedups::default();
    for group in groups {
        let by = |clock| group.clocks.get(&clock).unwrap_or(&nothing);
        let (pipelined, isolated) = (by(Clock::Pipelined), by(Clock::Isolated));
        table.add_row([
            group.task.clone(),
            group.class.clone(),
            group.runs.to_string(),
            group.failed.to_string(),
            times(pipelined.speedup),
            times(pipelined.worst),
            times(isolated.speedup),
            times(isolated.worst),
            percent(group.limit_fraction),
            times(group.model_error),
            seconds(group.tuning_s),
            seconds(group.longest_s),
            group.speedups.worst_matrix.clone().unwrap_or_default(),
        ]);
    }
    show::right(&mut table, 2..12);
    table
}

/// The complete report: runs with their plans and trials, and the tables.
pub fn json(suite: &str, runs: &[Run], beside: &[Beside]) -> Value {
    json!({
        "suite": suite,
        "sparsetune": env!("CARGO_PKG_VERSION"),
        "groups": groups(runs),
        "compared": shares(beside),
        "beside": beside,
        "runs": runs,
    })
}

fn times(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.2}x"))
}

pub fn percent(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{:.1} %", 100.0 * value))
}

pub fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0u32);
    for value in values {
        (sum, count) = (sum + value.ln(), count + 1);
    }
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { (sorted[middle - 1] + upper) / 2.0 })
}

#[cfg(test)]
pub mod tests;
