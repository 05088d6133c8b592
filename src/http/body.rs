//! The body of a request, which the edge keeps in view while a handler reads it: when the answer is sent, what was not read is
//! taken off the connection, up to a bound, or the client is told that the connection ends. hyper would end it without a word,
//! and the client's next request would be lost.

use super::clients::{Client, Places};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// Most bytes of a body that are read only to keep the connection: a new one costs a client less than sending more.
const MOST_DRAINED: u64 = 256 << 10;
/// Most time that this takes. What a client sent at once is there already.
const DRAINING: Duration = Duration::from_millis(250);

/// How fast a body has to arrive. Only time in which the server waits for it counts. A body that holds one of several places need not
/// keep to it while enough of them are left ([`Lenience`]).
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Longest time without a byte.
    pub idle: Duration,
    /// Least bytes a second, beyond [`GRACE`].
    pub bytes_per_s: u64,
}

/// How often a body that is waited for beyond its time is looked at again.
const LOOK: Duration = Duration::from_secs(1);

/// Time that every body has, however slow it is.
const GRACE: Duration = Duration::from_secs(10);

impl Pace {
    /// How long the server still waits for the next byte, after `bytes` for which it waited `waited`.
    fn patience(&self, bytes: u64, waited: Duration) -> Duration {
        let rate = self.bytes_per_s.max(1) as f64;
        let deserved = GRACE + Duration::from_secs_f64(bytes as f64 / rate);
        self.idle.min(deserved.saturating_sub(waited))
    }
}

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
    /// It arrived too slowly.
    slow: bool,
    pace: Pace,
    bytes: u64,
    /// It is waited for as long as these are not short for this client.
    places: Option<(Places, Client)>,
    /// Time that was waited for these bytes, of each pause the idle time at most, and since when it is waited for the next.
    waited: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl State {
    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.begun = true;
        let Some(body) = &mut self.body else {
            return failed("the request has been answered");
        };
        if self.slow {
            return failed("the body arrived too slowly");
        }
        let Poll::Ready(frame) = Pin::new(body).poll_frame(context) else {
            let patience = self.pace.patience(self.bytes, self.waited);
            let waiting = || (Instant::now(), Box::pin(tokio::time::sleep(patience)));
            let (_, alarm) = self.waiting.get_or_insert_with(waiting);
            while alarm.as_mut().poll(context).is_ready() {
                if self.places.as_ref().is_none_or(|(places, client)| places.are_short(*client)) {
                    (self.slow, self.broken) = (true, true);
                    return failed("the body arrived too slowly");
                }
                alarm.set(tokio::time::sleep(LOOK.min(self.pace.idle)));
            }
            return Poll::Pending;
        };
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed().min(self.pace.idle);
        }
        match &frame {
            None => self.ended = true,
            Some(Err(_)) => self.broken = true,
            Some(Ok(frame)) => {
                self.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
                self.ended = self.body.as_ref().is_some_and(HttpBody::is_end_stream);
            }
        }
        Poll::Ready(frame)
    }
}

fn failed(why: &'static str) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
    Poll::Ready(Some(Err(axum::Error::new(io::Error::other(why)))))
}

impl Watched {
    /// Puts a view of the request's body in its place; `None` if there is none.
    pub fn of(request: &mut Request, pace: Pace) -> Option<Self> {
        if request.body().is_end_stream() {
            return None;
        }
        let expects = request.headers().contains_key(header::EXPECT);
        let body = std::mem::take(request.body_mut());
        let state = State {
            places: None,
            body: Some(body),
            begun: false,
            ended: false,
            broken: false,
            slow: false,
            pace,
            bytes: 0,
            waited: Duration::ZERO,
            waiting: None,
        };
        let state = Arc::new(Mutex::new(state));
        *request.body_mut() = Body::new(View(Arc::clone(&state)));
        request.extensions_mut().insert(Lenience(Arc::clone(&state)));
        Some(Self { state, expects })
    }

    /// Whether an answer is late, or wrong, because the body did not arrive in time: it was too slow, or some of it is still
    /// awaited although a time limit has ended the handler.
    pub fn kept_waiting(&self, timed_out: bool) -> bool {
        let state = lock(&self.state);
        state.slow || (timed_out && state.begun && !state.ended && !state.broken)
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

/// How strictly a body is held to its pace; an extension of requests.
#[derive(Clone)]
pub struct Lenience(Arc<Mutex<State>>);

impl Lenience {
    /// Lets the client pause until these places are short.
    pub fn unless_short(&self, places: &Places, client: Client) {
        lock(&self.0).places = Some((places.clone(), client));
    }
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
        lock(&self.0).poll(context)
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.0).ended
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.0).body.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::clients::Client;
    use futures_util::stream;

    const PACE: Pace = Pace { idle: Duration::from_secs(5), bytes_per_s: 100 };

    /// A body of pieces of 10 bytes with pauses between them.
    fn trickle(pauses: impl Iterator<Item = u64> + Send + 'static) -> Request {
        let pieces = stream::unfold(pauses, async |mut pauses| {
            tokio::time::sleep(Duration::from_millis(pauses.next()?)).await;
            Some((Ok::<_, io::Error>(Bytes::from_static(&[b'x'; 10])), pauses))
        });
        Request::new(Body::from_stream(pieces))
    }

    async fn read(request: Request) -> (Option<usize>, bool, bool) {
        read_in(request, None).await
    }

    async fn read_in(mut request: Request, places: Option<&Places>) -> (Option<usize>, bool, bool) {
        let pace = Pace { idle: Duration::from_millis(500), ..PACE };
        let watched = Watched::of(&mut request, pace).unwrap();
        if let Some(places) = places {
            request
                .extensions()
                .get::<Lenience>()
                .unwrap()
                .unless_short(places, Client::at(([10, 0, 0, 1], 1).into()));
        }
        let bytes = request.into_body().collect().await.ok();
        let slow = watched.kept_waiting(false);
        (bytes.map(|bytes| bytes.to_bytes().len()), slow, watched.finish().await)
    }

    #[test]
    fn what_arrives_deserves_patience() {
        let seconds = Duration::from_secs;
        assert_eq!(PACE.patience(0, Duration::ZERO), seconds(5));
        assert_eq!(PACE.patience(0, seconds(8)), seconds(2));
        assert_eq!(PACE.patience(300, seconds(9)), seconds(4));
        assert_eq!(PACE.patience(300, seconds(14)), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_body_that_stalls_or_trickles_is_given_up() {
        assert_eq!(read(trickle(std::iter::repeat_n(5, 100))).await, (Some(1000), false, true));
        assert_eq!(read(trickle([1, 6000, 1].into_iter())).await, (None, true, false));
    }

    /// A piped upload whose other end computes may pause; when others need the places, it is given up.
    #[tokio::test]
    async fn a_pause_is_forgiven_until_places_are_short() {
        let places = Places::new("uploads", 2, 2);
        let client = Client::at(([10, 0, 0, 1], 1).into());
        let _own = places.take(client).unwrap();
        let paused = || trickle([1, 1800, 1, 1200, 1].into_iter());
        assert_eq!(read_in(paused(), Some(&places)).await, (Some(50), false, true));
        let others = async {
            tokio::time::sleep(Duration::from_millis(900)).await;
            places.take(client).unwrap()
        };
        let begun = Instant::now();
        let (read, _other) = tokio::join!(read_in(paused(), Some(&places)), others);
        assert_eq!(read, (None, true, false));
        assert!(begun.elapsed() < Duration::from_millis(1700), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn what_a_handler_leaves_is_taken_off_the_connection() {
        for (pieces, kept) in [(100, true), (100_000, false)] {
            let mut request = trickle(std::iter::empty());
            let all = stream::iter((0..pieces).map(|_| Ok::<_, io::Error>([b'x'; 10].to_vec())));
            *request.body_mut() = Body::from_stream(all);
            let watched = Watched::of(&mut request, PACE).unwrap();
            let mut body = request.into_body();
            body.frame().await.unwrap().unwrap();
            assert_eq!(watched.finish().await, kept);
            assert!(body.frame().await.unwrap().is_err(), "it is too late to read");
        }
        assert!(Watched::of(&mut Request::new(Body::empty()), PACE).is_none());
    }
}
