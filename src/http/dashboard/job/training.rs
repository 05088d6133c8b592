//! The page of a training: its progress while it runs, and its end, with the model or the reason why there is none.

use crate::domain::{JobState, Training};
use crate::http::App;
use crate::http::dashboard::format;
use crate::http::dashboard::moment::Moment;
use crate::http::dashboard::shell::{Place, Shell, fragment, html};
use crate::http::error::Problem;
use askama::Template;
use axum::http::HeaderMap;
use axum::response::Response;

#[derive(Template)]
#[template(path = "training.html")]
struct Page {
    shell: Shell,
    training: Standing,
}

/// The part of the page that is refreshed every two seconds.
#[derive(Template)]
#[template(path = "training_standing.html")]
struct Fragment {
    training: Standing,
}

struct Standing {
    id: String,
    op: &'static str,
    class: String,
    state: &'static str,
    tone: &'static str,
    stage: &'static str,
    live: bool,
    failed: bool,
    percent: u32,
    message: Option<String>,
    error: Option<String>,
    model: Option<String>,
    activated: bool,
    /// The requested activation policy.
    activate: &'static str,
    seed: u64,
    attempts: u32,
    created: Moment,
    started: Option<Moment>,
    finished: Option<Moment>,
}

impl From<Training> for Standing {
    fn from(training: Training) -> Self {
        Self {
            id: training.id.to_string(),
            op: training.request.scope.op.name(),
            class: training.request.scope.device_class.to_string(),
            state: training.state.name(),
            tone: format::tone(training.state),
            stage: training.stage.name(),
            live: !training.state.is_final(),
            failed: training.state == JobState::Failed,
            percent: (100.0 * training.progress.clamp(0.0, 1.0)) as u32,
            message: training.message,
            error: training.error,
            model: training.model.map(|model| model.to_string()),
            activated: training.activated,
            activate: training.request.activate.name(),
            seed: training.request.seed,
            attempts: training.attempts,
            created: Moment::of(training.created_at),
            started: training.started_at.map(Moment::of),
            finished: training.finished_at.map(Moment::of),
        }
    }
}

pub fn show(app: &App, training: Training) -> Result<Response, Problem> {
    html(&Page { shell: Shell::new(app, Place::Jobs), training: training.into() })
}

pub fn standing(headers: &HeaderMap, training: Training) -> Result<Response, Problem> {
    fragment(headers, &Fragment { training: training.into() })
}
