//! One job: its progress, its best so far, its funnel, its trials, live while it runs.

mod failures;
mod finals;
mod header;
mod island;
mod standing;
mod summaries;
mod tried;

use super::shell::{Place, Shell, html};
use crate::domain::{Job, JobId, Trial};
use crate::http::App;
use crate::http::error::Problem;
use crate::http::extract::{Path, Query};
use crate::service::Story;
use askama::Template;
use axum::extract::State;
use axum::response::Response;
use finals::Finals;
use header::Header;
use island::Island;
use serde::Deserialize;
use standing::Standing;
use summaries::Summaries;

/// What is looked at closely.
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
    island: Island,
    log: Vec<Line>,
    /// Number of the newest event that this page knows of.
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
    State(app): State<App>,
    Path(id): Path<JobId>,
    Query(look): Query<Look>,
) -> Result<Response, Problem> {
    let service = &app.service;
    // In this order: whatever happens between two of these reads comes again as an event after `last_seq`, and a job
    // that has not ended by the second read has its final event still to come.
    let mut story = service.story(&id).await?;
    let job = service.job(&id).await?;
    if job.state.is_final() {
        story = service.story(&id).await?;
    }
    let trials = service.all_trials(&id).await?;
    let names = service.matrix_names(std::slice::from_ref(&job.request.matrix)).await?;
    let name = names.get(&job.request.matrix).cloned();
    let standing = draw(&app, &job, &story, &trials, look.family.as_deref()).await?;
    // A plan may have been deleted since.
    let finals = match &job.plan {
        Some(plan) => app
            .service
            .plan(plan)
            .await
            .map_or_else(|_| Finals::default(), |plan| Finals::of(&plan, &trials)),
        None => Finals::default(),
    };
    let lines = story.log.into_iter().map(|(at, text)| {
        let at = at.to_rfc3339();
        Line { time: at.get(11..19).unwrap_or_default().to_owned(), at, text }
    });
    html(&Page {
        shell: Shell::new(&app, Place::Jobs),
        header: Header::new(&job, name, &trials),
        finals,
        summaries: Summaries::of(&job, &trials),
        standing,
        island: Island::of(&job, &trials),
        log: lines.collect(),
        last_seq: story.last_seq,
    })
}

/// What changes as trials come in, without what the page's script keeps up by itself.
pub async fn standing(
    State(app): State<App>,
    Path(id): Path<JobId>,
    Query(look): Query<Look>,
) -> Result<Response, Problem> {
    let story = app.service.story(&id).await?;
    let job = app.service.job(&id).await?;
    let trials = app.service.all_trials(&id).await?;
    html(&draw(&app, &job, &story, &trials, look.family.as_deref()).await?)
}

async fn draw(
    app: &App,
    job: &Job,
    story: &Story,
    trials: &[Trial],
    family: Option<&str>,
) -> Result<Standing, Problem> {
    // Jobs of earlier versions told no funnel of their own; their plan has it.
    let funnel = match (&story.funnel, &job.plan) {
        (Some(steps), _) => Some(steps.clone()),
        (None, Some(plan)) => app.service.plan(plan).await.ok().map(|plan| plan.funnel),
        (None, None) => None,
    };
    Ok(Standing::new(job, funnel, trials, family))
}
