//! API tokens, for admins: made, listed, revoked.

use super::behalf::OnBehalf;
use super::error::Problem;
use super::extract::{Json as JsonBody, Path, PathName, Query};
use crate::domain::access::{Scope, Scopes};
use crate::domain::{Namespace, TokenName};
use crate::service::{MadeToken, NewToken};
use crate::wire::{self, TokenRequest, Tokens};
use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
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
            namespace: asked.namespace,
            share_plans: asked.share_plans.unwrap_or(false),
        }
    }
}

/// Answers with the secret, for once: it is not to be kept by anything on the way.
pub async fn make(
    OnBehalf(app): OnBehalf,
    JsonBody(asked): JsonBody<TokenRequest>,
) -> Result<Response, Problem> {
    let MadeToken { token, secret } = app.service.make_token(asked.into()).await?;
    let location = format!("/v1/tokens/{}", token.name);
    let made = wire::MadeToken { token: secret, facts: token.into() };
    let headers = [(header::CACHE_CONTROL, "no-store"), (header::LOCATION, location.as_str())];
    Ok((StatusCode::CREATED, headers, Json(made)).into_response())
}

pub async fn list(OnBehalf(app): OnBehalf) -> Result<Json<Tokens>, Problem> {
    let tokens = app.service.tokens().await?;
    Ok(Json(Tokens { items: tokens.into_iter().map(wire::Token::from).collect() }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevokeQuery {
    /// That of the caller unless given.
    namespace: Option<Namespace>,
}

pub async fn revoke(
    OnBehalf(app): OnBehalf,
    Path(name): Path<TokenName>,
    Query(query): Query<RevokeQuery>,
) -> Result<StatusCode, Problem> {
    app.service.revoke_token(&name, query.namespace.as_ref()).await?;
    Ok(StatusCode::NO_CONTENT)
}
