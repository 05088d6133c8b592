//! A job's events as server-sent events: resumable by number, ended by the final event or by shutdown.

use super::behalf::{OnBehalf, Served};
use super::clients::{Client, Place};
use super::error::{Kind, Problem};
use super::extract::{Path, Query};
use super::metrics::Open;
use crate::domain::{Caller, Event, JobId};
use crate::service::{Ring, ServiceError};
use crate::wire;
use axum::http::{Extensions, HeaderMap, StatusCode};
use axum::response::sse::{Event as Frame, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    after: Option<u64>,
}

/// The event number to resume after. A browser that reconnects repeats its original URL, so the header takes precedence.
fn resume_after(headers: &HeaderMap, query: &EventsQuery) -> Result<u64, Problem> {
    let asked = number("after", query.after.or(Some(0)))?;
    match headers.get(LAST_EVENT_ID) {
        None => Ok(asked),
        Some(value) => {
            let given = value.to_str().ok().and_then(|text| text.parse().ok());
            number(LAST_EVENT_ID, given)
        }
    }
}

const LAST_EVENT_ID: &str = "last-event-id";
/// Event numbers are signed integers in every store and in most clients.
const LAST_NUMBER: u64 = i64::MAX as u64;

fn number(parameter: &str, given: Option<u64>) -> Result<u64, Problem> {
    given.filter(|number| *number <= LAST_NUMBER).ok_or_else(|| {
        Problem::new(Kind::InvalidParameter, format!("{parameter} must be the number of an event"))
            .with("parameter", Some(parameter))
    })
}

pub async fn stream(
    OnBehalf(app): OnBehalf,
    Path(id): Path<JobId>,
    Query(query): Query<EventsQuery>,
    headers: HeaderMap,
    extensions: Extensions,
) -> Result<Response, Problem> {
    let after = resume_after(&headers, &query)?;
    let place = app.streams.take(Client::by(&headers, &extensions, app.limits.forwarded))?;
    let ended = app.service.work(&id).await?.state().is_final();
    let mut events = app.service.events(&id, after).await?;
    // Waits for the first event only if it is immediately available; otherwise the headers would be delayed too.
    let first = if ended { events.next().await } else { None };
    if ended && first.is_none() {
        // EventSource reconnects when a stream ends; 204 tells it that no more events will follow.
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    Ok(sse(&app, place, stream::iter(first).chain(events).map(frame)))
}

/// Ends once the caller would not be admitted any more: a stream may be open for longer than its token is in force.
async fn lapsed(ring: Arc<Ring>, caller: Caller, look: Duration) {
    let token = ring.of_caller(&caller);
    while ring.still_admits(token.as_deref()) {
        tokio::time::sleep(look).await;
    }
}

/// Sends frames until there are no more, the caller's token ends, or the server stops.
fn sse(
    app: &Served,
    place: Place,
    frames: impl Stream<Item = Result<Frame, Infallible>> + Send + 'static,
) -> Response {
    let open = Open::event_stream();
    let ring = Arc::clone(app.service.ring());
    let lapsed = lapsed(ring, app.caller.clone(), app.limits.sse_keep_alive);
    let over = app.shutdown.clone().run_until_cancelled_owned(lapsed);
    let frames = frames.take_until(over).inspect(move |_| {
        // Held by the stream as long as a client reads it.
        let _ = (&open, &place);
    });
    Sse::new(frames)
        .keep_alive(KeepAlive::new().interval(app.limits.sse_keep_alive))
        .into_response()
}

/// A failure within the stream is sent as its last event, because the status line has long been sent.
fn frame(event: Result<Event, ServiceError>) -> Result<Frame, Infallible> {
    let framed = match event {
        Ok(event) => {
            let (name, seq) = (event.kind.name(), event.seq.to_string());
            let data = serde_json::to_string(&wire::Event::from(event));
            data.map(|data| Frame::default().event(name).id(seq).data(data))
                .map_err(Problem::internal)
        }
        Err(error) => Err(Problem::from(error)),
    };
    Ok(framed.unwrap_or_else(|problem| {
        problem.log_cause("event stream");
        Frame::default().event("error").data(problem.to_json(None).to_string())
    }))
}
