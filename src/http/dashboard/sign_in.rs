//! Signing in with an API token, and out.

use super::blank::blank;
use super::shell::Place;
use crate::http::App;
use crate::http::error::Problem;
use axum::extract::State;
use axum::response::Response;

pub async fn show(State(app): State<App>) -> Result<Response, Problem> {
    blank(&app, Place::Elsewhere, "Sign in")
}

pub async fn sign_in(State(app): State<App>) -> Result<Response, Problem> {
    blank(&app, Place::Elsewhere, "sign_in")
}

pub async fn sign_out(State(app): State<App>) -> Result<Response, Problem> {
    blank(&app, Place::Elsewhere, "sign_out")
}
