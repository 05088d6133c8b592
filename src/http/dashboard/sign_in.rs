//! Signing in with an API token and signing out: a browser cannot send a token when it navigates, so a session cookie
//! replaces it.

use super::address::{by_tls, local};
use super::failure::Rendered;
use super::shell::{Place, Shell, html};
use crate::domain::Caller;
use crate::http::App;
use crate::http::clients::Client;
use crate::http::error::{CHALLENGE, Kind, Problem};
use crate::http::extract::Query;
use crate::http::session;
use askama::Template;
use axum::extract::{Form, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use serde::Deserialize;

/// Most bytes of the form; tokens are short.
pub const MAX_FORM: usize = 8 << 10;

#[derive(Template)]
#[template(path = "sign_in.html")]
struct Page<'a> {
    shell: Shell,
    next: &'a str,
    /// The server has no tokens configured.
    open: bool,
    wrong: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Asked {
    next: String,
}

#[derive(Debug, Deserialize)]
pub struct Given {
    token: String,
    #[serde(default)]
    next: String,
}

fn page(app: &App, next: &str, wrong: bool) -> Result<Response, Problem> {
    let open = !app.access.tokens.required();
    html(&Page { shell: Shell::bare(Place::Elsewhere), next: local(next), open, wrong })
}

pub async fn show(State(app): State<App>, Query(asked): Query<Asked>) -> Result<Response, Problem> {
    page(&app, &asked.next, false)
}

pub async fn sign_in(
    State(app): State<App>,
    headers: HeaderMap,
    extensions: Extensions,
    Form(given): Form<Given>,
) -> Result<Response, Problem> {
    let known = &app.access.tokens;
    if !known.required() {
        return page(&app, &given.next, false);
    }
    // Pasted tokens often end with a line break.
    let token = given.token.trim().as_bytes();
    let client = Client::by(&headers, &extensions, app.access.forwarded);
    let found = match app.access.verify(client, token) {
        Err(problem) if problem.kind() == Kind::Unauthorized => None,
        found => Some(found?),
    };
    let opened = found.and_then(|found| Some((found, known.session(token)?)));
    let Some((found, opened)) = opened else {
        let mut response = page(&app, &given.next, true)?;
        *response.status_mut() = StatusCode::UNAUTHORIZED;
        response.headers_mut().insert(header::WWW_AUTHENTICATE, CHALLENGE);
        response.extensions_mut().insert(Rendered);
        return Ok(response);
    };
    let cookie = HeaderValue::try_from(known.cookie(&opened, by_tls(&headers)));
    let mut response = leave(local(&given.next), cookie.map_err(Problem::internal)?);
    // For the audit log, which learns only here who it was.
    response.extensions_mut().insert(Caller::from(&found.token));
    Ok(response)
}

pub async fn sign_out(headers: HeaderMap) -> Result<Response, Problem> {
    let cookie = HeaderValue::try_from(session::no_cookie(by_tls(&headers)));
    Ok(leave("/login", cookie.map_err(Problem::internal)?))
}

fn leave(next: &str, cookie: HeaderValue) -> Response {
    let headers = [
        (header::SET_COOKIE, cookie),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, Redirect::to(next)).into_response()
}
