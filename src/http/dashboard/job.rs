//! The page of a job: progress, best time so far, funnel and trials, updated while it runs.

mod chart_data;
mod failures;
mod finals;
mod header;
mod recorded;
mod removed;
mod standing;
mod summaries;
mod training;
mod tried;

use super::find::there;
use super::matrix::plan_row::library;
use super::shell::{Place, Shell, fragment, html};
use crate::domain::{Job, JobId, Work};
use crate::http::behalf::{OnBehalf, Served};
use crate::http::error::Problem;
use crate::http::extract::{Path, Query};
use crate::service::Story;
use askama::Template;
use axum::http::HeaderMap;
use axum::response::Response;
use chart_data::ChartData;
use finals::Finals;
use header::Header;
use recorded::Recorded;
use serde::Deserialize;
use standing::Standing;
use summaries::Summaries;

/// The selected details.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Look {
    /// The family whose tile space is drawn.
    family: Option<String>,
}

#[derive(Template)]
#[template(path = "job.html")]
struct Page {
    shell: Shell,
    header: Header,
    finals: Finals,
    summaries: Summaries,
    standing: Standing,
    /// Data of the charts, as JSON.
    chart_data: String,
    /// A note if not all trials are drawn.
    cut: Option<String>,
    log: Vec<Line>,
    /// Number of the newest event that the page includes.
    last_seq: u64,
}

/// A line of the log.
struct Line {
    /// Time of day, UTC.
    time: String,
    at: String,
    text: String,
}

pub async fn show(
    OnBehalf(app): OnBehalf,
    Path(id): Path<JobId>,
    Query(look): Query<Look>,
) -> Result<Response, Problem> {
    let service = &app.service;
    if let Work::Train(training) = service.work(&id).await? {
        return training::show(&app, *training);
    }
    // The order matters: changes between two of these reads are sent again as events after `last_seq`, and a job that has
    // not ended by the second read will still send its final event.
    let mut story = service.story(&id).await?;
    let job = service.job(&id).await?;
    if job.state.is_final() {
        story = service.story(&id).await?;
    }
    let recorded = Recorded::read(&app, &job, look.family.as_deref()).await?;
    let names = service.matrix_names(std::slice::from_ref(&job.request.matrix)).await?;
    let name = names.get(&job.request.matrix).cloned();
    let standing = draw(&app, &job, &story, &recorded).await?;
    // The plan may have been deleted.
    let plan = match &job.plan {
        Some(plan) => there(service.plan(plan).await)?,
        None => None,
    };
    let finals = plan.map(|plan| Finals::of(&plan, &recorded.tried)).unwrap_or_default();
    let lines = story.log.into_iter().map(|(at, text)| {
        let at = at.to_rfc3339();
        Line { time: at.get(11..19).unwrap_or_default().to_owned(), at, text }
    });
    html(&Page {
        shell: Shell::new(&app, Place::Jobs),
        header: Header::new(&job, name, recorded.all_tried(), standing.baseline.as_deref()),
        finals,
        summaries: Summaries::of(&job, &recorded.tried),
        chart_data: ChartData::of(&job, &recorded.tried).json()?,
        cut: recorded.cut(),
        standing,
        log: lines.collect(),
        last_seq: story.last_seq,
    })
}

/// The parts that change with new trials, except those that the page's script updates itself.
pub async fn standing(
    OnBehalf(app): OnBehalf,
    Path(id): Path<JobId>,
    Query(look): Query<Look>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let story = app.service.story(&id).await?;
    let job = match app.service.work(&id).await? {
        Work::Tune(job) => job,
        Work::Train(training) => return training::standing(&headers, *training),
    };
    let recorded = Recorded::read(&app, &job, look.family.as_deref()).await?;
    fragment(&headers, &draw(&app, &job, &story, &recorded).await?)
}

async fn draw(
    app: &Served,
    job: &Job,
    story: &Story,
    recorded: &Recorded,
) -> Result<Standing, Problem> {
    // Jobs of earlier versions have no funnel of their own; their plan has it.
    let plan = match &job.plan {
        Some(plan) => there(app.service.plan(plan).await)?,
        None => None,
    };
    // The finals may have had another routine than the fastest of the trials, and trials may be gone.
    let baseline = plan.as_ref().and_then(|plan| plan.baseline.as_ref()).map(library);
    let (ended, judged) = plan.map(|plan| (plan.funnel, plan.judged)).unzip();
    let funnel = story.funnel.clone().or(ended);
    let mut standing = Standing::new(job, funnel, &judged.unwrap_or_default(), recorded);
    standing.baseline = baseline.or(standing.baseline);
    Ok(standing)
}
