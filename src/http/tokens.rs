//! API tokens, for admins: made, listed, revoked.

use super::App;
use super::error::Problem;
use super::extract::{Json as JsonBody, Path, PathName};
use crate::domain::TokenName;
use crate::domain::access::{Scope, Scopes};
use crate::service::{MadeToken, NewToken};
use crate::wire::{self, TokenRequest, Tokens};
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::time::Duration;

impl PathName for TokenName {
    const WHAT: &'static str = "a token's name: 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-'";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl From<TokenRequest> for NewToken {
    fn from(asked: TokenRequest) -> Self {
        let usual = || vec![Scope::Read, Scope::Submit, Scope::Tune];
        Self {
            name: asked.name,
            scopes: Scopes::of(asked.scopes.unwrap_or_else(usual)),
            lasting: asked.expires_in_s.map(Duration::from_secs),
            limits: asked.limits.unwrap_or_default(),
        }
    }
}

/// Answers with the secret, for once: it is not to be kept by anything on the way.
pub async fn make(
    State(app): State<App>,
    JsonBody(asked): JsonBody<TokenRequest>,
) -> Result<Response, Problem> {
    let MadeToken { token, secret } = app.service.make_token(asked.into()).await?;
    let location = format!("/v1/tokens/{}", token.name);
    let made = wire::MadeToken { token: secret, facts: token.into() };
    let headers = [(header::CACHE_CONTROL, "no-store"), (header::LOCATION, location.as_str())];
    Ok((StatusCode::CREATED, headers, Json(made)).into_response())
}

pub async fn list(State(app): State<App>) -> Result<Json<Tokens>, Problem> {
    let tokens = app.service.tokens().await?;
    Ok(Json(Tokens { items: tokens.into_iter().map(wire::Token::from).collect() }))
}

pub async fn revoke(
    State(app): State<App>,
    Path(name): Path<TokenName>,
) -> Result<StatusCode, Problem> {
    app.service.revoke_token(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}
