//! The audit log: requests that changed something, or may have, are recorded before they are answered, and also if their connection
//! closes meanwhile; admins read it.

use super::App;
use super::behalf::OnBehalf;
use super::clients;
use super::edge::REQUEST_ID;
use super::error::Problem;
use super::extract::Query;
use super::page::page_request;
use super::server::Held;
use crate::domain::{AuditEntry, Caller, TokenName};
use crate::wire::{self, Page};
use axum::Json;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use serde::Deserialize;
use std::any::Any;
use std::panic::{AssertUnwindSafe, resume_unwind};
use tracing::Instrument;

/// An extension of answers to requests that found everything as they wanted it, and have changed nothing.
#[derive(Clone, Copy, Debug)]
pub struct Unchanged;

impl Unchanged {
    /// The answer, with the mark unless something has changed.
    pub fn unless(changed: bool, answer: impl IntoResponse) -> Response {
        let mut answer = answer.into_response();
        if !changed {
            answer.extensions_mut().insert(Self);
        }
        answer
    }
}

/// Records what other methods than GET have changed, or may have: an answer that was given up, or went wrong, does not tell. An entry
/// that cannot be written is logged.
pub async fn record(State(app): State<App>, request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return next.run(request).await;
    }
    // A connection that closes ends this future, which must not come between a change and its entry.
    let held = request.extensions().get::<Held>().cloned();
    let answering = async move {
        let answer = recorded(app, request, next).await;
        drop(held);
        answer
    };
    match tokio::spawn(answering.in_current_span()).await {
        Ok(Ok(response)) => response,
        // The edge answers it.
        Ok(Err(panic)) => resume_unwind(panic),
        Err(error) => {
            Problem::internal(format!("a request was abandoned: {error}")).into_response()
        }
    }
}

/// The answer, once its entry is written, or what the handler panicked with.
async fn recorded(app: App, request: Request, next: Next) -> Result<Response, Box<dyn Any + Send>> {
    let (headers, extensions) = (request.headers(), request.extensions());
    let route = extensions.get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str);
    let action = format!("{} {route}", request.method());
    let one = route.contains('{').then(|| request.uri().path().to_owned());
    let peer = clients::address(headers, extensions, app.access.forwarded);
    let id = headers.get(&REQUEST_ID).and_then(text);
    let caller = extensions.get::<Caller>().cloned();
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let (status, changed) = match &answer {
        Ok(response) => (response.status(), may_have_changed(response)),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, true),
    };
    // What signs in has no caller before.
    let told =
        |response: &Response| (response.extensions().get().cloned(), made(response.headers()));
    let (signed_in, made) = answer.as_ref().map_or((None, None), told);
    let caller: Option<Caller> = caller.or(signed_in);
    if let Some(caller) = caller.filter(|_| changed) {
        let service = app.whole.on_behalf_of(&caller);
        let entry = AuditEntry {
            peer: peer.map(|peer| peer.to_string()),
            request: id,
            subject: one.or(made),
            status: status.as_u16(),
            ..service.change(action)
        };
        if let Err(error) = service.record_change(&entry).await {
            tracing::error!(?entry, %error, "a change could not be recorded in the audit log");
        }
    }
    answer
}

/// Whether the answer is not a refusal. Redirections end the sign-in; a time limit answers without a problem.
fn may_have_changed(response: &Response) -> bool {
    let status = response.status();
    let given_up = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::REQUEST_TIMEOUT].contains(&status)
        && response.extensions().get::<Problem>().is_none();
    let unchanged = response.extensions().get::<Unchanged>().is_some();
    status.is_success() && !unchanged
        || status.is_redirection()
        || status == StatusCode::INTERNAL_SERVER_ERROR
        || given_up
}

fn text(value: &header::HeaderValue) -> Option<String> {
    value.to_str().ok().map(str::to_owned)
}

/// What the answer says it has made.
fn made(headers: &HeaderMap) -> Option<String> {
    headers.get(header::LOCATION).and_then(text)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditQuery {
    token: Option<TokenName>,
    limit: Option<u32>,
    cursor: Option<String>,
}

pub async fn list(
    OnBehalf(app): OnBehalf,
    Query(query): Query<AuditQuery>,
) -> Result<Json<Page<wire::AuditEntry>>, Problem> {
    let page = page_request(query.limit, query.cursor)?;
    let token = query.token.as_ref().map(TokenName::as_str);
    Ok(Json(Page::from(app.service.audit(token, &page).await?)))
}
