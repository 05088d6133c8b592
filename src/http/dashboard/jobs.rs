//! The list of jobs, and the form that submits one.

use super::blank::blank;
use super::shell::Place;
use crate::http::App;
use crate::http::error::Problem;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;

pub async fn show(State(app): State<App>, _uri: Uri) -> Result<Response, Problem> {
    blank(&app, Place::Jobs, "Jobs")
}

pub async fn rows(State(app): State<App>) -> Result<Response, Problem> {
    blank(&app, Place::Jobs, "Jobs")
}
