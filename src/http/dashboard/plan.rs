//! One plan: what won and why.

use super::blank::blank;
use super::shell::Place;
use crate::http::App;
use crate::http::error::Problem;
use axum::extract::State;
use axum::response::Response;

pub async fn show(State(app): State<App>) -> Result<Response, Problem> {
    blank(&app, Place::Elsewhere, "Plan")
}

pub async fn source(State(app): State<App>) -> Result<Response, Problem> {
    blank(&app, Place::Elsewhere, "source")
}
