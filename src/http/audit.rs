//! The audit log: requests that changed something are recorded before they are answered; admins read it.

use super::App;
use super::clients;
use super::edge::REQUEST_ID;
use super::error::Problem;
use super::extract::Query;
use super::page::page_request;
use crate::domain::{AuditEntry, Caller, TokenName};
use crate::wire::{self, Page};
use axum::Json;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use serde::Deserialize;

/// Records what other methods than GET have changed. An entry that cannot be written is logged: the change has been made.
pub async fn record(State(app): State<App>, request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return next.run(request).await;
    }
    let (headers, extensions) = (request.headers(), request.extensions());
    let route = extensions.get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str);
    let action = format!("{} {route}", request.method());
    let one = route.contains('{').then(|| request.uri().path().to_owned());
    let peer = clients::address(headers, extensions, app.access.forwarded);
    let id = headers.get(&REQUEST_ID).and_then(text);
    let caller = extensions.get::<Caller>().cloned();
    let response = next.run(request).await;
    // Redirections end the sign-in.
    let changed = response.status().is_success() || response.status().is_redirection();
    let caller = caller.or_else(|| response.extensions().get::<Caller>().cloned());
    if let Some(caller) = caller.filter(|_| changed) {
        let service = app.service.on_behalf_of(&caller);
        let entry = AuditEntry {
            peer: peer.map(|peer| peer.to_string()),
            request: id,
            subject: one.or_else(|| made(response.headers())),
            status: response.status().as_u16(),
            ..service.change(action)
        };
        if let Err(error) = service.record_change(&entry).await {
            tracing::error!(?entry, %error, "a change could not be recorded in the audit log");
        }
    }
    response
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
    State(app): State<App>,
    Query(query): Query<AuditQuery>,
) -> Result<Json<Page<wire::AuditEntry>>, Problem> {
    let page = page_request(query.limit, query.cursor)?;
    let token = query.token.as_ref().map(TokenName::as_str);
    Ok(Json(Page::from(app.service.audit(token, &page).await?)))
}
