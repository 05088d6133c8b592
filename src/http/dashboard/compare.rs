//! The comparison pages: a matrix across devices, or across problems.

mod by_device;
mod by_problem;
mod side;

use super::bound;
use super::matrices::Row as MatrixRow;
use super::matrix::plan_row::library;
use super::matrix::{MOST_PLANS, size, stored};
use super::pictures::comparison::Comparison;
use super::shell::{Place, Shell, html};
use crate::domain::{Clock, Digest, Matrix, Plan};
use crate::http::behalf::{OnBehalf, Served};
use crate::http::error::{Kind, Problem};
use crate::http::extract::Query;
use crate::service::PageRequest;
use askama::Template;
use axum::response::Response;
use serde::Deserialize;

/// The clock by which all of these that were measured have a time: times by different ones are not compared.
fn common(plans: &[&Plan]) -> Option<Clock> {
    let read = |plan: &Plan, clock| plan.measured.is_none() || plan.median_by(clock).is_some();
    let all = |clock: &Clock| plans.iter().all(|plan| read(plan, *clock));
    [Clock::Pipelined, Clock::Isolated].into_iter().find(all)
}

/// Maximum number of matrices in the picker.
const LISTED: u32 = 20;

/// Forms also send empty fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompareQuery {
    matrix: Option<String>,
    by: Option<By>,
    device: Option<String>,
    /// Part of a name, or a digest.
    q: Option<String>,
    /// Ids or digests to show side by side, separated by commas.
    jobs: Option<String>,
    matrices: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum By {
    #[default]
    Device,
    Problem,
}

pub async fn show(
    OnBehalf(app): OnBehalf,
    Query(query): Query<CompareQuery>,
) -> Result<Response, Problem> {
    if let Some(ids) = &query.jobs {
        return side::jobs(&app, ids).await;
    }
    if let Some(digests) = &query.matrices {
        return side::matrices(&app, digests).await;
    }
    let named = query.matrix.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let sought = query.q.as_deref().map(str::trim).unwrap_or_default();
    let digest = match named {
        Some(text) => Some(text.parse::<Digest>().map_err(no_digest)?),
        None => sought.parse().ok(),
    };
    let Some(digest) = digest else { return pick(&app, sought).await };
    let matrix = stored(&app, &digest).await?;
    let page = PageRequest { after: None, limit: MOST_PLANS };
    let plans = app.service.plans_of(&digest, &page).await?.items;
    match query.by.unwrap_or_default() {
        By::Device => html(&across_devices(&app, &matrix, &plans)),
        By::Problem => html(&across_problems(&app, &matrix, &plans, query.device.as_deref())?),
    }
}

fn no_digest(error: crate::domain::digest::DigestError) -> Problem {
    let detail = format!("{error}, as a matrix's page shows it");
    Problem::new(Kind::InvalidParameter, detail).with("parameter", Some("matrix"))
}

/// The selected matrix.
#[derive(Template)]
#[template(path = "compare_pick.html")]
struct Picker {
    shell: Shell,
    sought: String,
    rows: Vec<MatrixRow>,
    /// Whether any matrix is stored, even if none matches.
    any: bool,
}

async fn pick(app: &Served, sought: &str) -> Result<Response, Problem> {
    let newest = PageRequest { after: None, limit: LISTED };
    let newest = app.service.matrices(&newest).await?.items;
    let any = !newest.is_empty();
    let found = if sought.is_empty() {
        newest
    } else {
        app.service.matrices_like(sought, &PageRequest::first(LISTED)).await?.items
    };
    html(&Picker {
        shell: Shell::new(app, Place::Compare),
        sought: sought.to_owned(),
        rows: found.into_iter().map(MatrixRow::from).collect(),
        any,
    })
}

/// Common to both views of a matrix.
struct Subject {
    digest: Digest,
    name: String,
    size: String,
    /// The number of plans and of their device classes.
    plans: usize,
    classes: usize,
    /// The bounds that the times are compared with, one line each.
    bounds: Vec<&'static str>,
    /// Vendor libraries, without repetition.
    libraries: String,
}

impl Subject {
    fn of(matrix: &Matrix, plans: &[Plan]) -> Self {
        let mut libraries: Vec<String> =
            plans.iter().filter_map(|plan| plan.baseline.as_ref().map(library)).collect();
        libraries.sort();
        libraries.dedup();
        let unnamed = || format!("matrix {}", super::format::short(&matrix.digest));
        Self {
            digest: matrix.digest,
            name: matrix.name.clone().unwrap_or_else(unnamed),
            size: size(matrix),
            plans: plans.len(),
            classes: by_device::columns(plans).len(),
            bounds: bound::meanings(plans.iter().map(|plan| plan.limit.bound)),
            libraries: libraries.join("; "),
        }
    }
}

#[derive(Template)]
#[template(path = "compare_devices.html")]
struct Devices {
    shell: Shell,
    subject: Subject,
    by_device: bool,
    columns: Vec<by_device::Column>,
    rows: Vec<by_device::Row>,
    picture: Option<Comparison>,
}

fn across_devices(app: &Served, matrix: &Matrix, plans: &[Plan]) -> Devices {
    let subject = Subject::of(matrix, plans);
    let columns = by_device::columns(plans);
    Devices {
        shell: Shell::new(app, Place::Compare),
        by_device: true,
        rows: by_device::rows(plans, &columns, &matrix.digest),
        picture: by_device::picture(plans, &subject.name),
        columns,
        subject,
    }
}

#[derive(Template)]
#[template(path = "compare_problems.html")]
struct Problems {
    shell: Shell,
    subject: Subject,
    by_device: bool,
    columns: Vec<by_device::Column>,
    /// The full name of the selected class.
    chosen: String,
    chosen_words: String,
    rows: Vec<by_problem::Row>,
    picture: Option<Comparison>,
}

fn across_problems(
    app: &Served,
    matrix: &Matrix,
    plans: &[Plan],
    device: Option<&str>,
) -> Result<Problems, Problem> {
    let subject = Subject::of(matrix, plans);
    let columns = by_device::columns(plans);
    // The default is the class with the most plans.
    let chosen = match device.filter(|name| !name.is_empty()) {
        Some(name) => columns.iter().find(|column| column.class.0 == name),
        None => columns.iter().max_by_key(|column| by_problem::chosen(plans, &column.class).len()),
    };
    if chosen.is_none() && !columns.is_empty() {
        let detail = "no plan of this matrix is for that class of devices";
        let problem = Problem::new(Kind::InvalidParameter, detail);
        return Err(problem.with("parameter", Some("device")));
    }
    let kept = chosen.map(|column| by_problem::chosen(plans, &column.class)).unwrap_or_default();
    Ok(Problems {
        shell: Shell::new(app, Place::Compare),
        by_device: false,
        chosen: chosen.map(|column| column.class.to_string()).unwrap_or_default(),
        chosen_words: chosen.map(|column| column.words.clone()).unwrap_or_default(),
        rows: by_problem::rows(&kept, matrix),
        picture: by_problem::picture(&kept, &subject.name),
        columns,
        subject,
    })
}
