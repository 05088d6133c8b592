//! The models that rank candidates: the accuracy of the analytic ones according to their plans, the learned ones, and which
//! of them are in use.

use super::behalf::OnBehalf;
use super::error::{Kind, Problem};
use super::etag;
use super::extract::{Json as JsonBody, MaybeJson, Path, Query};
use crate::domain::learned::Scope;
use crate::domain::{DeviceClass, ModelId, Op};
use crate::service::{ModelStanding, Ranked, ServiceError};
use crate::wire::{
    self, ActivateRequest, Activation, Activations, LearnedModel, Model, ModelKind, Models,
    RollBackRequest, WholeModel,
};
use axum::Json;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use serde::Deserialize;

/// Maximum number of learned models in a list.
const LISTED: usize = 200;
/// Maximum number of activations in a scope's history.
const HISTORY: u32 = 100;
/// Maximum length of a reason, in characters.
const REASON: usize = 200;
/// A model's file never changes under its id.
const FOREVER: HeaderValue = HeaderValue::from_static("private, max-age=31536000, immutable");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelsQuery {
    op: Option<Op>,
    device_class: Option<DeviceClass>,
    kind: Option<ModelKind>,
}

impl From<ModelStanding> for LearnedModel {
    fn from(ModelStanding { model, active, ranked }: ModelStanding) -> Self {
        let ranked = ranked.map(|Ranked { plans, trials, rank_correlation }| wire::Ranked {
            plans,
            trials,
            rank_correlation,
        });
        Self::of(model, active, ranked)
    }
}

/// The analytic models first, the one with the newest plan before the others; then the learned ones, newest first.
pub async fn list(
    OnBehalf(app): OnBehalf,
    Query(query): Query<ModelsQuery>,
) -> Result<Json<Models>, Problem> {
    let wanted = |kind, op: &str, class: &DeviceClass| {
        query.kind.is_none_or(|asked| asked == kind)
            && query.op.is_none_or(|asked| asked.name() == op)
            && query.device_class.as_ref().is_none_or(|asked| asked == class)
    };
    let analytic = app.service.models().await?.into_iter();
    let analytic = analytic.filter(|m| wanted(ModelKind::Analytic, &m.op, &m.device_class));
    let learned = app.service.learned_models().await?.into_iter().filter(|standing| {
        let Scope { op, device_class } = &standing.model.scope;
        wanted(standing.model.learner.into(), op.name(), device_class)
    });
    let analytic = analytic.map(|quality| Model::Analytic(quality.into()));
    let learned = learned.take(LISTED).map(|standing| Model::Learned(Box::new(standing.into())));
    let items = analytic.chain(learned);
    Ok(Json(Models { items: items.collect() }))
}

fn unknown(id: &ModelId) -> Problem {
    ServiceError::NotFound { what: "model", id: id.to_string() }.into()
}

/// A learned model, with its feature importances and the history of its scope.
pub async fn show(
    OnBehalf(app): OnBehalf,
    Path(id): Path<ModelId>,
) -> Result<Json<WholeModel>, Problem> {
    let standing = app.service.learned_model(&id).await?;
    let activations = app.service.activations(&standing.model.scope, HISTORY).await?;
    Ok(Json(WholeModel {
        importance: standing.model.importance.clone(),
        model: standing.into(),
        activations: activations.into_iter().map(Activation::from).collect(),
    }))
}

/// The model's file, for use by another server.
pub async fn file(
    OnBehalf(app): OnBehalf,
    Path(id): Path<ModelId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let bytes = app.service.model_file(&id).await?.ok_or_else(|| unknown(&id))?;
    let json = HeaderValue::from_static("application/json");
    Ok(etag::respond(&headers, etag::of(&bytes), json, FOREVER, bytes))
}

pub async fn activate(
    OnBehalf(app): OnBehalf,
    Path(id): Path<ModelId>,
    MaybeJson(body): MaybeJson<ActivateRequest>,
) -> Result<Json<Activation>, Problem> {
    let reason = reason(body.reason)?;
    Ok(Json(app.service.activate_model(&id, &reason).await?.into()))
}

fn reason(given: Option<String>) -> Result<String, Problem> {
    let reason = given.unwrap_or_else(|| "by hand".to_owned());
    let length = reason.chars().count();
    if (1..=REASON).contains(&length) && !reason.chars().any(char::is_control) {
        return Ok(reason);
    }
    let detail = format!("a reason is 1 to {REASON} characters on one line");
    Err(Problem::new(Kind::InvalidBody, detail).with("pointer", Some("/reason")))
}

/// Rolls back the newest activation of a scope.
pub async fn roll_back(
    OnBehalf(app): OnBehalf,
    JsonBody(body): JsonBody<RollBackRequest>,
) -> Result<Json<Activation>, Problem> {
    let device_class = app.service.device_class(body.device.as_deref().unwrap_or("auto")).await?;
    let scope = Scope { op: body.op, device_class };
    Ok(Json(app.service.roll_back(&scope).await?.into()))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActivationsQuery {
    op: Op,
    device_class: DeviceClass,
}

/// The activations of a scope, newest first.
pub async fn activations(
    OnBehalf(app): OnBehalf,
    Query(query): Query<ActivationsQuery>,
) -> Result<Json<Activations>, Problem> {
    let scope = Scope { op: query.op, device_class: query.device_class };
    let items = app.service.activations(&scope, HISTORY).await?;
    Ok(Json(Activations { items: items.into_iter().map(Activation::from).collect() }))
}
