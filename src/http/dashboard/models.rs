//! Models: versions and quality.

use super::blank::blank;
use super::shell::Place;
use crate::http::App;
use crate::http::error::Problem;
use axum::extract::State;
use axum::response::Response;

pub async fn show(State(app): State<App>) -> Result<Response, Problem> {
    blank(&app, Place::Models, "Models")
}
