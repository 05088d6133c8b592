//! Trainings: jobs that train models on recorded trials. They are submitted here and served under `/v1/jobs`.

use super::App;
use super::error::Problem;
use super::extract::{Json as JsonBody, given};
use super::jobs;
use crate::domain::learned::Scope;
use crate::domain::training::{Activate, TrainingStage};
use crate::domain::{
    DeviceClass, JobId, JobState, ModelId, Op, Timestamp, TrainRequest, Training, WorkKind,
};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};

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

/// Progress is sent in thousandths.
const WHOLE: u32 = 1000;

/// The current state of a training.
#[derive(Debug, PartialEq, Serialize)]
pub struct TrainingOut {
    kind: WorkKind,
    id: JobId,
    op: Op,
    device_class: DeviceClass,
    activate: Activate,
    seed: u64,
    state: JobState,
    stage: TrainingStage,
    progress: PerMille,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// The trained model.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<ModelId>,
    activated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    attempts: u32,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
struct PerMille {
    done: u32,
    total: u32,
}

impl From<Training> for TrainingOut {
    fn from(training: Training) -> Self {
        let Scope { op, device_class } = training.request.scope;
        // The cast saturates, and turns NaN into 0.
        let done = (training.progress.clamp(0.0, 1.0) * f64::from(WHOLE)).floor() as u32;
        let time = |at: Option<Timestamp>| at.map(|at| at.to_rfc3339());
        Self {
            kind: WorkKind::Train,
            id: training.id,
            op,
            device_class,
            activate: training.request.activate,
            seed: training.request.seed,
            state: training.state,
            stage: training.stage,
            progress: PerMille { done, total: WHOLE },
            message: training.message,
            model: training.model,
            activated: training.activated,
            error: training.error,
            attempts: training.attempts,
            created_at: training.created_at.to_rfc3339(),
            started_at: time(training.started_at),
            finished_at: time(training.finished_at),
        }
    }
}

/// 202 for a new training; 200 with the existing one if its operation and class are already being trained; 409 if that one
/// has other parameters.
pub async fn submit(
    State(app): State<App>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_sent_in_thousandths_whatever_it_is() {
        let scope = Scope { op: Op::Spmm, device_class: DeviceClass("cpu/x".to_owned()) };
        let request = TrainRequest { scope, activate: Activate::IfBetter, seed: 1 };
        let done = |progress| {
            TrainingOut::from(Training { progress, ..Training::queued(request.clone()) })
                .progress
                .done
        };
        let told = [0.0, 0.4567, 1.0, 7.0, -1.0, f64::NAN].map(done);
        assert_eq!(told, [0, 456, 1000, 1000, 0, 0]);
    }
}
