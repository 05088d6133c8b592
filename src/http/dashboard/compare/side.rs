//! Jobs or matrices side by side: a column each, a row for each fact, the best of each row marked.

use super::super::find::there;
use super::super::format::{self, count, digits, micros, seconds, times};
use super::super::shell::{Place, Shell, html};
use crate::domain::{Digest, Job, JobId, Matrix};
use crate::http::behalf::Served;
use crate::http::error::{Kind, Problem};
use crate::http::extract::PathName;
use askama::Template;
use axum::response::Response;

/// Most columns: more do not fit beside each other.
const MOST: usize = 6;

#[derive(Template)]
#[template(path = "compare_side.html")]
struct Page {
    shell: Shell,
    /// `Jobs` or `Matrices`.
    what: &'static str,
    columns: Vec<Column>,
    rows: Vec<Row>,
    /// How many of those in the address are not here.
    gone: usize,
}

struct Column {
    title: String,
    address: String,
}

struct Row {
    name: &'static str,
    cells: Vec<Cell>,
}

#[derive(Default)]
struct Cell {
    text: String,
    address: Option<String>,
    best: bool,
}

impl Cell {
    fn of(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    fn known(text: Option<String>) -> Self {
        Self::of(text.unwrap_or_else(|| "–".to_owned()))
    }
}

fn row<T>(name: &'static str, all: &[T], cell: impl Fn(&T) -> Cell) -> Row {
    Row { name, cells: all.iter().map(cell).collect() }
}

/// Marks the cells with the least value, if they differ.
fn least(mut row: Row, values: &[Option<f64>]) -> Row {
    let known = values.iter().flatten().copied();
    let (low, high) = (known.clone().reduce(f64::min), known.reduce(f64::max));
    if low < high {
        for (cell, value) in row.cells.iter_mut().zip(values) {
            cell.best = value.is_some() && *value == low;
        }
    }
    row
}

/// The names of an address, each once.
fn named<T: PartialEq>(
    text: &str,
    parameter: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, Problem> {
    let refused = |detail: String| {
        Problem::new(Kind::InvalidParameter, detail).with("parameter", Some(parameter))
    };
    let mut all = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let one = parse(part)
            .ok_or_else(|| refused(format!("{part:?} names none of the {parameter}")))?;
        if !all.contains(&one) {
            all.push(one);
        }
    }
    match all.len() {
        0 => Err(refused(format!("{parameter} names what to compare, separated by commas"))),
        1..=MOST => Ok(all),
        many => Err(refused(format!(
            "{many} {parameter} are too many: at most {MOST} fit beside each other"
        ))),
    }
}

/// `GET /compare?jobs=...`.
pub(super) async fn jobs(app: &Served, text: &str) -> Result<Response, Problem> {
    let ids = named(text, "jobs", <JobId as PathName>::parse)?;
    let mut found = Vec::new();
    for id in &ids {
        found.extend(there(app.service.job(id).await)?);
    }
    let digests: Vec<Digest> = found.iter().map(|job| job.request.matrix).collect();
    let names = app.service.matrix_names(&digests).await?;
    let name = |job: &Job| {
        let digest = job.request.matrix;
        names.get(&digest).cloned().unwrap_or_else(|| format::short(&digest))
    };
    let took = |job: &Job| {
        let from = job.started_at?;
        Some((job.finished_at?.0 - from.0).max(0) as f64 / 1e3)
    };
    let best = |job: &Job| job.best.as_ref().map(|best| best.median_us);
    let bests: Vec<Option<f64>> = found.iter().map(best).collect();
    let tooks: Vec<Option<f64>> = found.iter().map(took).collect();
    let rows = vec![
        row("State", &found, |job| Cell::of(job.state.name())),
        row("Matrix", &found, |job| Cell {
            address: Some(format!("/matrices/{}", job.request.matrix)),
            ..Cell::of(name(job))
        }),
        row("Problem", &found, |job| Cell::of(format::problem_words(&job.request.problem))),
        row("Device", &found, |job| Cell::of(job.device.to_string())),
        row("Strategy", &found, |job| Cell::of(job.request.search.strategy.name())),
        row("Budget", &found, |job| Cell::known(job.request.search.seconds.map(seconds))),
        row("Trials", &found, |job| {
            Cell::of(format!(
                "{} of {}",
                count(job.progress.done.into()),
                count(job.progress.total.into())
            ))
        }),
        least(row("Time per call", &found, |job| Cell::known(best(job).map(micros))), &bests),
        row("Speed-up over the baseline", &found, |job| {
            Cell::known(job.best.as_ref().and_then(|best| best.speedup).map(times))
        }),
        row("Winner", &found, |job| {
            Cell::known(job.best.as_ref().map(|best| best.candidate.to_string()))
        }),
        least(row("Took", &found, |job| Cell::known(took(job).map(seconds))), &tooks),
        row("Plan", &found, |job| match &job.plan {
            Some(plan) => Cell { address: Some(format!("/plans/{plan}")), ..Cell::of("plan") },
            None => Cell::known(None),
        }),
    ];
    let column = |job: &Job| Column { title: name(job), address: format!("/jobs/{}", job.id) };
    html(&Page {
        shell: Shell::new(app, Place::Compare),
        what: "Jobs",
        columns: found.iter().map(column).collect(),
        rows,
        gone: ids.len() - found.len(),
    })
}

/// `GET /compare?matrices=...`.
pub(super) async fn matrices(app: &Served, text: &str) -> Result<Response, Problem> {
    let digests = named(text, "matrices", |part| part.parse::<Digest>().ok())?;
    let mut found: Vec<Matrix> = Vec::new();
    for digest in &digests {
        found.extend(there(app.service.matrix(digest).await)?);
    }
    let held: Vec<Digest> = found.iter().map(|matrix| matrix.digest).collect();
    let tallies = app.service.plan_tallies(&held).await?;
    let tally = |matrix: &Matrix| tallies.get(&matrix.digest);
    let rows = vec![
        row("Rows", &found, |m| Cell::of(count(m.rows))),
        row("Columns", &found, |m| Cell::of(count(m.cols))),
        row("Nonzeros", &found, |m| Cell::of(count(m.nnz))),
        row("Mean row length", &found, |m| Cell::of(digits(m.features.row_nnz.mean))),
        row("Longest row", &found, |m| Cell::of(count(m.features.row_nnz.max))),
        row("Symmetric", &found, |m| Cell::of(if m.symmetric { "yes" } else { "no" })),
        row("Levels of the lower triangle", &found, |m| {
            Cell::known(m.features.lower.as_ref().map(|lower| count(lower.levels)))
        }),
        row("Plans", &found, |m| Cell {
            address: Some(format!("/compare?matrix={}", m.digest)),
            ..Cell::of(count(tally(m).map_or(0, |tally| tally.plans)))
        }),
        row("Best speed-up", &found, |m| {
            Cell::known(tally(m).and_then(|tally| tally.speedup).map(times))
        }),
    ];
    let column = |matrix: &Matrix| Column {
        title: matrix.name.clone().unwrap_or_else(|| format::short(&matrix.digest)),
        address: format!("/matrices/{}", matrix.digest),
    };
    html(&Page {
        shell: Shell::new(app, Place::Compare),
        what: "Matrices",
        columns: found.iter().map(column).collect(),
        rows,
        gone: digests.len() - found.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_is_marked_where_values_differ() {
        let marked = |values: &[Option<f64>]| -> Vec<bool> {
            let row = row("x", values, |_| Cell::default());
            least(row, values).cells.iter().map(|cell| cell.best).collect()
        };
        assert_eq!(marked(&[Some(2.0), None, Some(1.0)]), [false, false, true]);
        assert_eq!(marked(&[Some(1.0), Some(1.0)]), [false, false]);
        assert_eq!(marked(&[None, None]), [false, false]);
    }

    #[test]
    fn what_is_named_twice_is_one_column_and_too_many_are_refused() {
        let read = |text: &str| named(text, "jobs", |part| part.parse::<u8>().ok());
        assert_eq!(read("1, 2,1,").unwrap(), [1, 2]);
        for wrong in ["", ",", "x", "1,2,3,4,5,6,7"] {
            assert_eq!(read(wrong).unwrap_err().to_json(None)["parameter"], "jobs", "{wrong}");
        }
    }
}
