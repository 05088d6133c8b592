//! Jobs: submission, progress, cancellation.

use super::App;
use super::error::{Kind, Problem};
use super::extract::{Json as JsonBody, Path, Query, given};
use super::page::page_request;
use super::problems::ProblemIn;
use super::trainings::TrainingOut;
use crate::domain::job::{Best, Progress};
use crate::domain::{
    DeviceId, Digest, Job, JobId, JobRequest, JobState, PlanId, Search, SearchStrategy, Stage,
    StoppedBy, Work, WorkKind,
};
use crate::service::JobFilter;
use crate::wire::{self, Page};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

/// The request for a job.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobIn {
    matrix: Digest,
    problem: ProblemIn,
    #[serde(default, deserialize_with = "given")]
    device: Option<String>,
    #[serde(default)]
    search: SearchIn,
    #[serde(default, deserialize_with = "given")]
    expected_calls: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchIn {
    #[serde(default, deserialize_with = "given")]
    strategy: Option<SearchStrategy>,
    #[serde(default, deserialize_with = "given")]
    top_k: Option<u32>,
    #[serde(default, deserialize_with = "given")]
    seconds: Option<f64>,
    #[serde(default, deserialize_with = "given")]
    trials: Option<u32>,
    #[serde(default, deserialize_with = "given")]
    seed: Option<u64>,
    #[serde(default, deserialize_with = "given")]
    measure: Option<bool>,
}

impl TryFrom<JobIn> for JobRequest {
    type Error = Problem;

    fn try_from(input: JobIn) -> Result<Self, Problem> {
        let problem = input.problem.of_body()?;
        let strategy =
            input.search.strategy.unwrap_or_else(|| SearchStrategy::default_for(&problem));
        Ok(Self {
            matrix: input.matrix,
            problem,
            device: input.device.unwrap_or_else(|| "auto".to_owned()),
            search: Search {
                strategy,
                top_k: input.search.top_k,
                seconds: input.search.seconds,
                trials: input.search.trials,
                seed: input.search.seed,
                measure: input.search.measure.unwrap_or_default(),
            },
            expected_calls: input.expected_calls,
        })
    }
}

/// A job of either kind; its member `kind` tells which.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum WorkOut {
    Tune(Box<JobOut>),
    Train(Box<TrainingOut>),
}

impl From<Work> for WorkOut {
    fn from(work: Work) -> Self {
        match work {
            Work::Tune(job) => Self::Tune(Box::new(job.into())),
            Work::Train(training) => Self::Train(Box::new(training.into())),
        }
    }
}

/// The current state of a job.
#[derive(Debug, Serialize)]
pub struct JobOut {
    kind: WorkKind,
    id: JobId,
    matrix: Digest,
    problem: wire::Problem,
    /// The device that the job was assigned to.
    device: DeviceId,
    search: SearchOut,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected_calls: Option<u64>,
    state: JobState,
    stage: Stage,
    progress: ProgressOut,
    #[serde(skip_serializing_if = "Option::is_none")]
    best: Option<BestOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<PlanId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    follow_up: Option<JobId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped_by: Option<StoppedBy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    attempts: u32,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
}

#[derive(Debug, Serialize)]
struct SearchOut {
    strategy: SearchStrategy,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trials: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    measure: bool,
}

#[derive(Debug, Serialize)]
struct ProgressOut {
    done: u32,
    total: u32,
}

#[derive(Debug, Serialize)]
struct BestOut {
    candidate: wire::Candidate,
    median_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    speedup: Option<f64>,
}

impl From<Job> for JobOut {
    fn from(job: Job) -> Self {
        Self {
            kind: WorkKind::Tune,
            id: job.id,
            matrix: job.request.matrix,
            problem: job.request.problem.into(),
            device: job.device,
            search: job.request.search.into(),
            expected_calls: job.request.expected_calls,
            state: job.state,
            stage: job.stage,
            progress: job.progress.into(),
            best: job.best.map(BestOut::from),
            plan: job.plan,
            follow_up: job.follow_up,
            stopped_by: job.stopped_by,
            error: job.error,
            attempts: job.attempts,
            created_at: job.created_at.to_rfc3339(),
            started_at: job.started_at.map(|at| at.to_rfc3339()),
            finished_at: job.finished_at.map(|at| at.to_rfc3339()),
        }
    }
}

impl From<Search> for SearchOut {
    fn from(search: Search) -> Self {
        Self {
            strategy: search.strategy,
            top_k: search.top_k,
            seconds: search.seconds,
            trials: search.trials,
            seed: search.seed,
            measure: search.measure,
        }
    }
}

impl From<Progress> for ProgressOut {
    fn from(progress: Progress) -> Self {
        Self { done: progress.done, total: progress.total }
    }
}

impl From<Best> for BestOut {
    fn from(best: Best) -> Self {
        Self { candidate: best.candidate.into(), median_us: best.median_us, speedup: best.speedup }
    }
}

const IDEMPOTENCY_KEY: &str = "idempotency-key";

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    match value.to_str() {
        Ok(text)
            if (1..=255).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_graphic()) =>
        {
            Ok(Some(text.to_owned()))
        }
        _ => {
            let detail = "Idempotency-Key must be 1 to 255 visible ASCII characters";
            let problem = Problem::new(Kind::InvalidParameter, detail);
            Err(problem.with("parameter", Some(IDEMPOTENCY_KEY)))
        }
    }
}

/// 202 while the job has not ended; 200 if it has, which is common with a repeated idempotency key.
pub fn with_work(work: impl Into<Work>) -> Response {
    let work = work.into();
    let ended = work.state().is_final();
    answer(if ended { StatusCode::OK } else { StatusCode::ACCEPTED }, work)
}

/// The job, its address, and when to poll again while it has not ended.
pub fn answer(status: StatusCode, work: Work) -> Response {
    let location = (header::LOCATION, format!("/v1/jobs/{}", work.id()));
    let live = !work.state().is_final();
    let mut response = (status, [location], Json(WorkOut::from(work))).into_response();
    if live {
        let soon = header::HeaderValue::from_static("1");
        response.headers_mut().insert(header::RETRY_AFTER, soon);
    }
    response
}

pub async fn submit(
    State(app): State<App>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<JobIn>,
) -> Result<Response, Problem> {
    let key = idempotency_key(&headers)?;
    let submitted = app.service.submit(&body.try_into()?, key).await?;
    Ok(with_work(submitted.job))
}

/// The kinds in a list. The default is tuning jobs, because clients of the first version know only these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Listed {
    #[default]
    Tune,
    Train,
    Any,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobsQuery {
    #[serde(default)]
    kind: Listed,
    state: Option<JobState>,
    matrix: Option<Digest>,
    device: Option<DeviceId>,
    limit: Option<u32>,
    cursor: Option<String>,
}

pub async fn list(
    State(app): State<App>,
    Query(query): Query<JobsQuery>,
) -> Result<Json<Page<WorkOut>>, Problem> {
    let kind = match query.kind {
        Listed::Tune => Some(WorkKind::Tune),
        Listed::Train => Some(WorkKind::Train),
        Listed::Any => None,
    };
    let filter = JobFilter { kind, state: query.state, matrix: query.matrix, device: query.device };
    check_filter(&filter)?;
    let page = page_request(query.limit, query.cursor)?;
    Ok(Json(Page::from(app.service.works(&filter, &page).await?)))
}

/// A training has neither a matrix nor a device, so a filter by one is a mistake.
fn check_filter(filter: &JobFilter) -> Result<(), Problem> {
    let given = [("matrix", filter.matrix.is_some()), ("device", filter.device.is_some())];
    match given.into_iter().find(|(_, given)| *given && filter.kind == Some(WorkKind::Train)) {
        None => Ok(()),
        Some((name, _)) => {
            let detail = format!("trainings cannot be filtered by {name}");
            Err(Problem::new(Kind::InvalidParameter, detail).with("parameter", Some(name)))
        }
    }
}

pub async fn show(State(app): State<App>, Path(id): Path<JobId>) -> Result<Json<WorkOut>, Problem> {
    Ok(Json(app.service.work(&id).await?.into()))
}

pub async fn cancel(State(app): State<App>, Path(id): Path<JobId>) -> Result<Response, Problem> {
    Ok(with_work(app.service.cancel(&id).await?))
}
