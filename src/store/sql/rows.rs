//! Rows of the queue: conversion between columns and jobs or trainings.

use super::codec::{self, Stored, decode, encode};
use super::db::{self, Connection};
use super::{events, tokens};
use crate::domain::job::Progress;
use crate::domain::{
    Caller, DeviceClass, DeviceId, DeviceKey, Job, JobId, JobRequest, JobState, ModelId, PlanId,
    Problem, Search, Timestamp, TrainRequest, Training, Work, WorkKind,
};
use crate::store::{Result, StoreError};
use serde::{Deserialize, Serialize};

/// The columns of [`WorkRow`], for statements that return one.
macro_rules! work_columns {
    () => {
        "id, kind, device, version, request, state, stage, done, total, best, plan, follow_up, stopped_by, error, attempts, \
         search_seconds, created_at, started_at, finished_at, epoch, last_seq, detail, token, namespace, priority, device_class, \
         only_on, ran_on, second_part"
    };
}
pub(super) use work_columns;

#[derive(sqlx::FromRow)]
pub(super) struct WorkRow {
    id: String,
    kind: String,
    device: Option<String>,
    version: i64,
    request: String,
    state: String,
    stage: String,
    done: i64,
    total: i64,
    best: Option<String>,
    plan: Option<String>,
    follow_up: Option<String>,
    stopped_by: Option<String>,
    error: Option<String>,
    attempts: i64,
    search_seconds: f64,
    pub(super) created_at: i64,
    started_at: Option<i64>,
    finished_at: Option<i64>,
    pub(super) epoch: i64,
    last_seq: i64,
    detail: Option<String>,
    token: Option<String>,
    namespace: String,
    priority: i64,
    device_class: Option<String>,
    only_on: Option<String>,
    ran_on: Option<String>,
    second_part: Option<String>,
}

/// Fields that only trainings have, stored as JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct TrainingDetail {
    progress: f64,
    message: Option<String>,
    model: Option<ModelId>,
    activated: bool,
    features_version: Option<u32>,
}

impl WorkRow {
    pub(super) fn id(&self) -> JobId {
        JobId(self.id.clone())
    }

    pub(super) fn is_training(&self) -> bool {
        self.kind == WorkKind::Train.name()
    }

    /// On whose behalf the work was submitted, with the limits that its token has now: they hold for the work that this one submits. What
    /// the work itself needs was judged when it was submitted, so it has all scopes.
    pub(super) async fn by(&self, tx: &mut Connection, now: Timestamp) -> Result<Caller> {
        let namespace = codec::namespace(self.namespace.clone())?;
        let Some(token) = &self.token else { return Ok(Caller::owner(None, namespace)) };
        let token = token.parse().map_err(|error| codec::corrupt("job token", error))?;
        let standing = tokens::standing(tx, &namespace, &token, now).await?;
        let owner = Caller::owner(Some(token), namespace);
        Ok(match standing {
            Some(standing) => Caller { limits: standing.limits, ..owner },
            None => owner,
        })
    }

    pub(super) fn work(self) -> Result<Work> {
        if self.is_training() {
            self.training().map(Work::from)
        } else {
            self.job().map(Work::from)
        }
    }

    fn job(self) -> Result<Job> {
        let request = read_request(self.version, &self.request, self.second_part.as_deref())?;
        let device = self.device.ok_or_else(|| codec::corrupt("job device", "it is missing"))?;
        let state = codec::named("job state", self.state)?;
        let outlook = self.detail.filter(|_| state == JobState::Running);
        Ok(Job {
            id: JobId(self.id),
            request,
            device: DeviceId(device),
            device_class: self.device_class.map(DeviceClass),
            only_on: self.only_on.map(DeviceKey),
            ran_on: self.ran_on.map(DeviceKey),
            state,
            stage: codec::named("job stage", self.stage)?,
            progress: Progress {
                done: codec::count("job progress", self.done)?,
                total: codec::count("job progress", self.total)?,
            },
            outlook: outlook.map(|text| codec::decode_part("job outlook", &text)).transpose()?,
            best: self.best.map(|text| codec::decode_part("job best", &text)).transpose()?,
            plan: self.plan.map(PlanId),
            follow_up: self.follow_up.map(JobId),
            priority: codec::count("job priority", self.priority)?,
            stopped_by: self
                .stopped_by
                .map(|name| codec::named("job stopped_by", name))
                .transpose()?,
            error: self.error,
            attempts: codec::count("job attempts", self.attempts)?,
            search_seconds: self.search_seconds,
            created_at: Timestamp(self.created_at),
            started_at: self.started_at.map(Timestamp),
            finished_at: self.finished_at.map(Timestamp),
        })
    }

    fn training(self) -> Result<Training> {
        let request: TrainRequest = decode(self.version, &self.request)?;
        let detail = self.detail.map(|text| codec::decode_part("training detail", &text));
        let TrainingDetail { progress, message, model, activated, features_version } =
            detail.transpose()?.unwrap_or_default();
        Ok(Training {
            version: codec::count("training version", self.version)?,
            id: JobId(self.id),
            request,
            state: codec::named("training state", self.state)?,
            stage: codec::named("training stage", self.stage)?,
            progress,
            message,
            model,
            activated,
            error: self.error,
            features_version,
            attempts: codec::count("training attempts", self.attempts)?,
            created_at: Timestamp(self.created_at),
            started_at: self.started_at.map(Timestamp),
            finished_at: self.finished_at.map(Timestamp),
        })
    }

    /// Writes the current state of the work as an event, under the number to which `last_seq` has just been raised.
    pub(super) async fn announce(self, tx: &mut Connection) -> Result<Work> {
        let seq = self.last_seq;
        let work = self.work()?;
        events::append(tx, work.id(), seq, &work.clone().into_event()).await?;
        Ok(work)
    }

    /// [`Self::announce`] for work that no worker ends. If the row cannot be read, a log event is written instead: one such
    /// row must not prevent the others from ending.
    pub(super) async fn announce_end(self, tx: &mut Connection) -> Result<Option<Work>> {
        let (id, seq) = (self.id(), self.last_seq);
        match self.announce(tx).await {
            Ok(work) => Ok(Some(work)),
            Err(error @ StoreError::Corrupt { .. }) => {
                let message = format!("the job has ended: {error}");
                events::append(tx, &id, seq, &crate::domain::EventKind::Log { message }).await?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// A request as earlier versions know it, which refuse fields that they do not know: the second part is in a column of its own.
pub(super) fn first_part(request: &JobRequest) -> JobRequest {
    let search = Search { then: None, ..request.search.clone() };
    JobRequest { search, ..request.clone() }
}

/// The second part that a job names.
pub(super) async fn second_part_of(
    connection: &mut Connection,
    id: &JobId,
) -> Result<Option<Problem>> {
    let text: Option<Option<String>> =
        db::query_scalar("SELECT second_part FROM jobs WHERE id = $1")
            .bind(&id.0)
            .fetch_optional(connection)
            .await?;
    read_second_part(text.flatten().as_deref())
}

/// What [`first_part`] leaves out, for the column.
fn second_part(request: &JobRequest) -> Result<Option<String>> {
    let then = request.search.then.as_ref();
    then.map(|then| codec::encode_part(SECOND_PART, then)).transpose()
}

/// The request of both columns.
fn read_request(version: i64, request: &str, second_part: Option<&str>) -> Result<JobRequest> {
    let mut request: JobRequest = decode(version, request)?;
    request.search.then = read_second_part(second_part)?;
    Ok(request)
}

pub(super) fn read_second_part(text: Option<&str>) -> Result<Option<Problem>> {
    text.map(|text| codec::decode_part(SECOND_PART, text)).transpose()
}

const SECOND_PART: &str = "job second part";

/// The columns that are written when work is submitted and updated. The columns of the lease are not among them.
pub(super) struct Columns {
    pub version: i64,
    pub request: String,
    pub device: Option<String>,
    pub device_class: Option<String>,
    pub only_on: Option<String>,
    pub ran_on: Option<String>,
    pub second_part: Option<String>,
    pub matrix: Option<Vec<u8>>,
    pub stage: String,
    pub done: u32,
    pub total: u32,
    pub best: Option<String>,
    pub plan: Option<String>,
    pub follow_up: Option<String>,
    pub stopped_by: Option<String>,
    pub error: Option<String>,
    pub search_seconds: f64,
    pub detail: Option<String>,
}

impl Columns {
    pub(super) fn of(work: &Work) -> Result<Self> {
        match work {
            Work::Tune(job) => Self::of_job(job),
            Work::Train(training) => Self::of_training(training),
        }
    }

    fn of_job(job: &Job) -> Result<Self> {
        let best = job.best.as_ref().map(|best| codec::encode_part("job best", best));
        let stopped_by = job.stopped_by.map(|by| codec::name("job stopped_by", &by));
        Ok(Self {
            version: JobRequest::VERSION,
            request: encode(&first_part(&job.request))?,
            device: Some(job.device.0.clone()),
            device_class: job.device_class.as_ref().map(|class| class.0.clone()),
            only_on: job.only_on.as_ref().map(|key| key.0.clone()),
            ran_on: job.ran_on.as_ref().map(|key| key.0.clone()),
            second_part: second_part(&job.request)?,
            matrix: Some(job.request.matrix.as_bytes().to_vec()),
            stage: codec::name("job stage", &job.stage)?,
            done: job.progress.done,
            total: job.progress.total,
            best: best.transpose()?,
            plan: job.plan.as_ref().map(|plan| plan.0.clone()),
            follow_up: job.follow_up.as_ref().map(|job| job.0.clone()),
            stopped_by: stopped_by.transpose()?,
            error: job.error.clone(),
            search_seconds: job.search_seconds,
            detail: job
                .outlook
                .map(|outlook| codec::encode_part("job outlook", &outlook))
                .transpose()?,
        })
    }

    fn of_training(training: &Training) -> Result<Self> {
        let detail = TrainingDetail {
            progress: training.progress,
            message: training.message.clone(),
            model: training.model.clone(),
            activated: training.activated,
            features_version: training.features_version,
        };
        Ok(Self {
            version: i64::from(training.version),
            request: encode(&training.request)?,
            device: None,
            device_class: None,
            only_on: None,
            ran_on: None,
            second_part: None,
            matrix: None,
            stage: codec::name("training stage", &training.stage)?,
            done: 0,
            total: 0,
            best: None,
            plan: None,
            follow_up: None,
            stopped_by: None,
            error: training.error.clone(),
            search_seconds: 0.0,
            detail: Some(codec::encode_part("training detail", &detail)?),
        })
    }
}
