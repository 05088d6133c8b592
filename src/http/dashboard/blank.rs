//! scaffold
use super::shell::{Place, Shell, html};
use crate::http::App;
use crate::http::error::Problem;
use askama::Template;
use axum::response::Response;
#[derive(Template)]
#[template(path = "blank.html")]
struct Blank {
    shell: Shell,
    title: &'static str,
}
pub fn blank(app: &App, place: Place, title: &'static str) -> Result<Response, Problem> {
    html(&Blank { shell: Shell::new(app, place), title })
}
