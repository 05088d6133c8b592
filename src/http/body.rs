//! The body of a request, which the edge keeps in view while a handler reads it: when the answer is sent, what was not read is
//! taken off the connection, up to a bound, or the client is told that the connection ends. hyper would end it without a word,
//! and the client's next request would be lost.

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// Most bytes of a body that are read only to keep the connection: a new one costs a client less than sending more.
const MOST_DRAINED: u64 = 256 << 10;
/// Most time that this takes. What a client sent at once is there already.
const DRAINING: Duration = Duration::from_millis(250);

/// A request's body in the hands of its handler, and what became of it.
pub struct Watched {
    state: Arc<Mutex<State>>,
    /// The client waits for a go-ahead before it sends the body, which reading it would give.
    expects: bool,
}

struct State {
    /// Taken by the edge once the answer is there.
    body: Option<Body>,
    /// The handler has begun to read.
    begun: bool,
    /// Nothing follows.
    ended: bool,
    broken: bool,
}

impl Watched {
    /// Puts a view of the request's body in its place; `None` if there is none.
    pub fn of(request: &mut Request) -> Option<Self> {
        if request.body().is_end_stream() {
            return None;
        }
        let expects = request.headers().contains_key(header::EXPECT);
        let body = std::mem::take(request.body_mut());
        let state = State { body: Some(body), begun: false, ended: false, broken: false };
        let state = Arc::new(Mutex::new(state));
        *request.body_mut() = Body::new(View(Arc::clone(&state)));
        Some(Self { state, expects })
    }

    /// Reads what is left of the body, up to a bound. False if there is more, so that the connection cannot be used again.
    pub async fn finish(self) -> bool {
        let body = {
            let mut state = lock(&self.state);
            match state.body.take() {
                _ if state.broken => return false,
                _ if state.ended => return true,
                None => return false,
                Some(_) if self.expects && !state.begun => return false,
                Some(body) => body,
            }
        };
        if body.size_hint().lower() > MOST_DRAINED {
            return false;
        }
        tokio::time::timeout(DRAINING, drained(body)).await.unwrap_or(false)
    }
}

/// Whether the body ended within the bound.
async fn drained(mut body: Body) -> bool {
    let mut left = MOST_DRAINED;
    loop {
        let frame = match body.frame().await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => frame,
        };
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the handler reads.
struct View(Arc<Mutex<State>>);

impl HttpBody for View {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut state = lock(&self.0);
        state.begun = true;
        let Some(body) = &mut state.body else {
            let gone = io::Error::other("the request has been answered");
            return Poll::Ready(Some(Err(axum::Error::new(gone))));
        };
        let frame = Pin::new(body).poll_frame(context);
        match &frame {
            Poll::Pending => {}
            Poll::Ready(None) => state.ended = true,
            Poll::Ready(Some(Err(_))) => state.broken = true,
            Poll::Ready(Some(Ok(_))) => {
                state.ended = state.body.as_ref().is_some_and(HttpBody::is_end_stream);
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.0).ended
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.0).body.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}
