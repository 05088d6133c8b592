//! Trainings: jobs that train models on recorded trials. They are submitted here and served under `/v1/jobs`.

use super::behalf::OnBehalf;
use super::error::Problem;
use super::extract::{Json as JsonBody, given};
use super::jobs;
use crate::domain::learned::Scope;
use crate::domain::training::Activate;
use crate::domain::{Op, TrainRequest};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;

/// The request for a training.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainIn {
    op: Op,
    #[serde(default, deserialize_with = "given")]
    device: Option<String>,
    #[serde(default)]
    activate: Activate,
    #[serde(default, deserialize_with = "given")]
    seed: Option<u64>,
}

/// 202 for a new training; 200 with the existing one if its operation and class are already being trained; 409 if that one
/// has other parameters.
pub async fn submit(
    OnBehalf(app): OnBehalf,
    JsonBody(body): JsonBody<TrainIn>,
) -> Result<Response, Problem> {
    let device = body.device.as_deref().unwrap_or("auto");
    let device_class = app.service.training_class(device).await?;
    let request = TrainRequest {
        scope: Scope { op: body.op, device_class },
        activate: body.activate,
        seed: body.seed.unwrap_or(1),
    };
    let (training, created) = app.service.train(&request).await?;
    let status = if created { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok(jobs::answer(status, training.into()))
}
