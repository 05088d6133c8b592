//! The list of jobs, live and filtered, and the form for submitting a job.

mod filters;
mod form;
mod rows;
mod search;

use super::heading::Headings;
use super::shell::{Place, Shell, fragment, html};
use crate::domain::catalog::operation::Operation;
use crate::domain::{Digest, FILE_ENDINGS, JobState, LONGEST_NAME, Op, Work, WorkKind};
use crate::http::behalf::{OnBehalf, Served};
use crate::http::error::Problem;
use crate::http::extract::Query;
use crate::http::page::page_request;
use crate::service::Page as Paged;
use askama::Template;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use filters::{Asked, Filters};
pub use form::like;
use form::{
    Choice, FormField, Input, Known, devices, kind_of_auto, known_matrices, limits, problem_fields,
};
use rows::Row;
use search::Search;

#[derive(Template)]
#[template(path = "jobs.html")]
struct Page {
    shell: Shell,
    list: List,
    filters: Filters,
    operations: Vec<&'static Operation>,
    fields: Vec<FormField>,
    devices: Vec<Choice>,
    /// The kind of the device that `auto` means.
    auto: &'static str,
    search: Search,
    /// What files may end in, as JSON, and the longest name.
    endings: String,
    longest_name: usize,
    /// What of the fields' values cannot be tuned everywhere, as JSON.
    limits: String,
    matrices: Vec<Known>,
}

#[derive(Template)]
#[template(path = "jobs_list.html")]
struct Fragment<'a> {
    list: &'a List,
}

/// The part that is refreshed every two seconds.
struct List {
    rows: Vec<Row>,
    counts: Vec<Count>,
    /// Whether there are jobs in any state; `rows` may be empty regardless.
    total: u64,
    filtered: bool,
    /// Addresses of the next page and of the first one.
    older: Option<String>,
    first: String,
    /// Whether the newest come first.
    newest: bool,
    headings: Headings,
    /// Whether this is not the first page.
    paged: bool,
    /// Address of this list as a fragment.
    fragment: String,
    /// Whether the list is part of a full page: then ages are written out, for users without scripts. A fragment contains
    /// absolute times, so that an unchanged one has the same bytes.
    ages: bool,
}

/// The number of jobs in a state.
struct Count {
    state: &'static str,
    jobs: u64,
}

pub async fn show(OnBehalf(app): OnBehalf, uri: Uri) -> Result<Response, Problem> {
    let Query(asked) = Query::<Asked>::of(&uri)?;
    let mut filters = asked.read()?;
    filters.find_matrix(&app).await?;
    let list = List { ages: true, ..list(&app, &filters).await? };
    let page = Page {
        shell: Shell::new(&app, Place::Jobs),
        list,
        operations: Op::ALL.map(Op::descriptor).to_vec(),
        fields: problem_fields(),
        devices: devices(&app, filters.device.as_ref()).await?,
        auto: kind_of_auto(&app).await,
        search: Search::of(app.service.settings()),
        endings: serde_json::json!(FILE_ENDINGS).to_string(),
        longest_name: LONGEST_NAME,
        limits: limits(),
        matrices: known_matrices(&app).await?,
        filters,
    };
    html(&page)
}

pub async fn rows(
    OnBehalf(app): OnBehalf,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let mut filters = asked.read()?;
    filters.find_matrix(&app).await?;
    let list = list(&app, &filters).await?;
    fragment(&headers, &Fragment { list: &list })
}

async fn list(app: &Served, filters: &Filters) -> Result<List, Problem> {
    let page = page_request(None, filters.cursor.clone())?;
    // A name that matches no matrix, or several, gives an empty list rather than all jobs.
    let page = match &filters.matrix.trouble {
        Some(_) => Paged { items: Vec::new(), next: None },
        None => app.service.sorted_works(&filters.job_filter(), filters.order, &page).await?,
    };
    let matrix = |work: &Work| match work {
        Work::Tune(job) => Some(job.request.matrix),
        Work::Train(_) => None,
    };
    let mut digests: Vec<Digest> = page.items.iter().filter_map(matrix).collect();
    digests.sort_unstable();
    digests.dedup();
    let names = app.service.matrix_names(&digests).await?;
    let counted = app.service.job_counts().await?;
    let counts: Vec<Count> = JobState::ALL
        .into_iter()
        .map(|state| Count { state: state.name(), jobs: of_state(&counted, state) })
        .filter(|count| count.jobs > 0)
        .collect();
    Ok(List {
        rows: page.items.into_iter().map(|work| Row::of(work, &names)).collect(),
        total: counts.iter().map(|count| count.jobs).sum(),
        counts,
        filtered: filters.narrows(),
        older: page.next.map(|cursor| filters.address("/jobs", Some(&cursor))),
        first: filters.address("/jobs", None),
        newest: filters.order.is_default(),
        headings: filters.headings(),
        paged: filters.cursor.is_some(),
        ages: false,
        fragment: filters.address("/fragments/jobs", filters.cursor.as_deref()),
    })
}

fn of_state(counted: &[(WorkKind, JobState, u64)], state: JobState) -> u64 {
    counted.iter().filter(|(_, known, _)| *known == state).map(|(_, _, jobs)| *jobs).sum()
}
