//! One job: its progress, its funnel, its trials.

use super::blank::blank;
use super::shell::Place;
use crate::http::App;
use crate::http::error::Problem;
use axum::extract::State;
use axum::response::Response;

pub async fn show(State(app): State<App>) -> Result<Response, Problem> {
    blank(&app, Place::Jobs, "Job")
}

pub async fn standing(State(app): State<App>) -> Result<Response, Problem> {
    blank(&app, Place::Elsewhere, "standing")
}
