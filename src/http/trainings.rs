//! Trainings: jobs that make models of recorded trials. They are asked for here, and then told of under `/v1/jobs`.

use super::App;
use super::error::Problem;
use super::extract::{Json as JsonBody, given};
use super::jobs::JobKind;
use crate::domain::learned::{Op, Scope};
use crate::domain::training::{Activate, TrainingStage};
use crate::domain::{
    DeviceClass, JobId, JobState, ModelId, Timestamp, TrainRequest, Training, TrainingId,
};
use crate::service::{Service, ServiceError};
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a client asks for.
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

/// Progress is told in thousandths.
const WHOLE: u32 = 1000;

/// A training as it stands.
#[derive(Debug, PartialEq, Serialize)]
pub struct TrainingOut {
    kind: JobKind,
    id: TrainingId,
    op: Op,
    device_class: DeviceClass,
    activate: Activate,
    seed: u64,
    state: JobState,
    stage: TrainingStage,
    progress: PerMille,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// The model that came of it.
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
        // Saturating, and 0 of what is no number.
        let done = (training.progress.clamp(0.0, 1.0) * f64::from(WHOLE)).floor() as u32;
        let time = |at: Option<Timestamp>| at.map(|at| at.to_rfc3339());
        Self {
            kind: JobKind::Train,
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

/// 202 for a new training; 200 with the one of the same operation and class that is queued or running already, 409 where that
/// one was asked for otherwise.
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
    Ok(answer(status, training))
}

/// As a job is answered: 202 while it is to be waited for.
pub fn with_training(training: Training) -> Response {
    let ended = training.state.is_final();
    answer(if ended { StatusCode::OK } else { StatusCode::ACCEPTED }, training)
}

fn answer(status: StatusCode, training: Training) -> Response {
    let location = (header::LOCATION, format!("/v1/jobs/{}", training.id));
    let live = !training.state.is_final();
    let mut response = (status, [location], Json(TrainingOut::from(training))).into_response();
    if live {
        let soon = header::HeaderValue::from_static("1");
        response.headers_mut().insert(header::RETRY_AFTER, soon);
    }
    response
}

/// The training of a job's id, if it is one's.
pub async fn named(app: &App, id: &JobId) -> Result<Option<Training>, ServiceError> {
    app.service.training(&TrainingId(id.0.clone())).await
}

/// The training as it then stands; `None` where the id is of none.
pub async fn cancel(app: &App, id: &JobId) -> Result<Option<Training>, ServiceError> {
    app.service.cancel_training(&TrainingId(id.0.clone())).await
}

/// The number of a training's last event, so that a client which names it is known to have it. Those before it rise from 1.
pub const LAST_EVENT: u64 = 1 << 32;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(500);

struct Watched {
    service: Service,
    /// As it was read last, and whether that has been told.
    training: Training,
    told: bool,
    over: bool,
    seq: u64,
}

/// How a training stands, then every change of it until its end, which is the last; numbered after `after`.
pub fn changes(
    service: Service,
    training: Training,
    after: u64,
) -> impl Stream<Item = Result<(u64, Training), ServiceError>> {
    let seq = after.min(LAST_EVENT - 1);
    let watched = Watched { service, training, told: false, over: false, seq };
    stream::unfold(watched, |mut watched| async {
        if watched.over {
            return None;
        }
        let next = watched.next().await;
        watched.over = match &next {
            Ok((_, training)) => training.state.is_final(),
            Err(_) => true,
        };
        Some((next, watched))
    })
}

impl Watched {
    async fn next(&mut self) -> Result<(u64, Training), ServiceError> {
        while self.told {
            tokio::time::sleep(LOOK).await;
            let id = self.training.id.clone();
            let now = self
                .service
                .training(&id)
                .await?
                .ok_or_else(|| ServiceError::NotFound { what: "job", id: id.to_string() })?;
            self.told = TrainingOut::from(now.clone()) == TrainingOut::from(self.training.clone());
            self.training = now;
        }
        self.told = true;
        let last = self.training.state.is_final();
        self.seq = if last { LAST_EVENT } else { (self.seq + 1).min(LAST_EVENT - 1) };
        Ok((self.seq, self.training.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_in_thousandths_whatever_it_is() {
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
