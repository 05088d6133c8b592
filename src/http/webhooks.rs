//! Webhooks, for admins: made, listed, deleted, and what they were told.

use super::behalf::OnBehalf;
use super::error::Problem;
use super::extract::{Json as JsonBody, Path, PathName, Query, canonical_uuid};
use super::page::page_request;
use crate::domain::webhook::WebhookId;
use crate::service::webhooks;
use crate::wire::{Delivery, MadeWebhook, Page, Webhook, WebhookRequest, Webhooks};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

impl PathName for WebhookId {
    const WHAT: &'static str = "a webhook's id: a lower-case UUID";

    fn parse(text: &str) -> Option<Self> {
        canonical_uuid(text).map(Self)
    }
}

/// Answers with the secret, for once: it is not to be kept by anything on the way.
pub async fn make(
    OnBehalf(app): OnBehalf,
    JsonBody(asked): JsonBody<WebhookRequest>,
) -> Result<Response, Problem> {
    let webhooks::MadeWebhook { hook, secret } =
        app.service.make_webhook(asked.url, asked.states).await?;
    let made = MadeWebhook { secret, facts: hook.into() };
    let no_store = (header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok((StatusCode::CREATED, [no_store], Json(made)).into_response())
}

pub async fn list(OnBehalf(app): OnBehalf) -> Result<Json<Webhooks>, Problem> {
    let hooks = app.service.webhooks().await?;
    Ok(Json(Webhooks { items: hooks.into_iter().map(Webhook::from).collect() }))
}

pub async fn remove(
    OnBehalf(app): OnBehalf,
    Path(id): Path<WebhookId>,
) -> Result<StatusCode, Problem> {
    app.service.delete_webhook(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeliveriesQuery {
    limit: Option<u32>,
    cursor: Option<String>,
}

pub async fn deliveries(
    OnBehalf(app): OnBehalf,
    Path(id): Path<WebhookId>,
    Query(query): Query<DeliveriesQuery>,
) -> Result<Json<Page<Delivery>>, Problem> {
    let page = page_request(query.limit, query.cursor)?;
    Ok(Json(Page::from(app.service.deliveries(&id, &page).await?)))
}
