//! The API documentation, rendered from openapi.yaml.

use super::shell::{Place, Shell, html_with};
use crate::http::App;
use crate::http::error::Problem;
use askama::Template;
use axum::extract::State;
use axum::response::Response;

#[derive(Template)]
#[template(path = "docs.html")]
struct Page {
    shell: Shell,
}

/// As for every page, but inline styles are allowed, because RapiDoc writes them into its elements. It only shows this
/// server's own openapi.yaml.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// `GET /docs`.
pub async fn show(State(app): State<App>) -> Result<Response, Problem> {
    html_with(&Page { shell: Shell::new(&app, Place::Docs) }, POLICY)
}
