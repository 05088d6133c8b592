//! Jobs: submission, progress, cancellation.

use super::audit::Unchanged;
use super::behalf::OnBehalf;
use super::error::{Kind, Problem};
use super::extract::{Json as JsonBody, Path, Query, given};
use super::page::page_request;
use super::problems::ProblemIn;
use crate::domain::{
    Clock, DeviceId, Digest, Fixed, JobId, JobRequest, JobState, Op, Search, SearchStrategy, Work,
    WorkKind,
};
use crate::service::{Direction, JobColumn, JobFilter, JobOrder};
use crate::wire::{self, Page};
use axum::Json;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

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
    #[serde(default, deserialize_with = "given")]
    priority: Option<i32>,
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
    #[serde(default, deserialize_with = "given")]
    families: Option<Vec<String>>,
    #[serde(default, deserialize_with = "given")]
    fixed: Option<Fixed>,
    #[serde(default, deserialize_with = "given")]
    exact: Option<bool>,
    #[serde(default, deserialize_with = "given")]
    clock: Option<Clock>,
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
                families: input.search.families.unwrap_or_default(),
                fixed: input.search.fixed.unwrap_or_default(),
                exact: input.search.exact.unwrap_or_default(),
                clock: input.search.clock,
                then: None,
            },
            expected_calls: input.expected_calls,
        })
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
    let mut response = (status, [location], Json(wire::Work::from(work))).into_response();
    if live {
        let soon = header::HeaderValue::from_static("1");
        response.headers_mut().insert(header::RETRY_AFTER, soon);
    }
    response
}

pub async fn submit(
    OnBehalf(app): OnBehalf,
    headers: HeaderMap,
    JsonBody(body): JsonBody<JobIn>,
) -> Result<Response, Problem> {
    let key = idempotency_key(&headers)?;
    let priority = body.priority.unwrap_or(0);
    let submitted = app.service.submit_at(&body.try_into()?, key, priority).await?;
    Ok(Unchanged::unless(submitted.created, with_work(submitted.job)))
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
    op: Option<Op>,
    sort: Option<JobColumn>,
    order: Option<Direction>,
    limit: Option<u32>,
    cursor: Option<String>,
}

pub async fn list(
    OnBehalf(app): OnBehalf,
    Query(query): Query<JobsQuery>,
) -> Result<Json<Page<wire::Work>>, Problem> {
    let kind = match query.kind {
        Listed::Tune => Some(WorkKind::Tune),
        Listed::Train => Some(WorkKind::Train),
        Listed::Any => None,
    };
    let filter = JobFilter {
        kind,
        state: query.state,
        matrix: query.matrix,
        device: query.device,
        op: query.op,
    };
    check_filter(&filter)?;
    let page = page_request(query.limit, query.cursor)?;
    let order = JobOrder::asked(query.sort, query.order);
    Ok(Json(Page::from(app.service.sorted_works(&filter, order, &page).await?)))
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

pub async fn show(
    OnBehalf(app): OnBehalf,
    Path(id): Path<JobId>,
) -> Result<Json<wire::Work>, Problem> {
    Ok(Json(app.service.work(&id).await?.into()))
}

pub async fn cancel(OnBehalf(app): OnBehalf, Path(id): Path<JobId>) -> Result<Response, Problem> {
    Ok(with_work(app.service.cancel(&id).await?))
}
