//! The outermost layer: request id, log line, latency, panics, security headers, and the final form of every error.

use super::body::{Pace, Watched};
use super::clients::Peer;
use super::dashboard::{Viewer, wants_page};
use super::error::{Kind, Problem, finish};
use super::guard::Access;
use super::metrics::Metrics;
use super::server::Reserved;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::any::Any;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tower::{Layer, Service};
use tracing::Instrument;
use tracing::field::Empty;

pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const CLOSE: HeaderValue = HeaderValue::from_static("close");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Generates request ids from a number drawn at start and a counter, because a random id for each request would cost more
/// than the rest of this layer.
struct RequestIds {
    run: u32,
    next: AtomicU64,
}

impl RequestIds {
    fn fresh(&self) -> HeaderValue {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let text = format!("{:08x}-{number:x}", self.run);
        HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("none"))
    }

    /// The client's own id, if it can be written to a log and used in a URI.
    fn of(&self, headers: &HeaderMap) -> HeaderValue {
        match headers.get(&REQUEST_ID) {
            Some(given) if is_plain(given.as_bytes()) => given.clone(),
            _ => self.fresh(),
        }
    }
}

/// The caller's span, only if the caller is authorised: others must not decide what is traced.
fn traceparent(access: &Access, request: &Request) -> Option<HeaderValue> {
    let given = request.headers().get(&TRACEPARENT).and_then(caller)?;
    access.trusts(request).then_some(given)
}

/// A value that can be written to a log. A W3C value consists of hex digits and dashes, normally 55 of them.
fn caller(value: &HeaderValue) -> Option<HeaderValue> {
    let bytes = value.as_bytes();
    let plain = bytes.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    (plain && (55..=128).contains(&bytes.len())).then(|| value.clone())
}

fn is_plain(id: &[u8]) -> bool {
    (1..=128).contains(&id.len())
        && id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

#[derive(Clone)]
pub struct EdgeLayer {
    ids: Arc<RequestIds>,
    metrics: Arc<Metrics>,
    access: Access,
    pace: Pace,
}

impl EdgeLayer {
    pub fn new(metrics: Arc<Metrics>, access: Access, pace: Pace) -> Self {
        let run = uuid::Uuid::now_v7().as_u128() as u32;
        Self { ids: Arc::new(RequestIds { run, next: AtomicU64::new(1) }), metrics, access, pace }
    }
}

impl<S> Layer<S> for EdgeLayer {
    type Service = Edge<S>;

    fn layer(&self, inner: S) -> Edge<S> {
        Edge { shared: self.clone(), inner }
    }
}

#[derive(Clone)]
pub struct Edge<S> {
    shared: EdgeLayer,
    inner: S,
}

impl<S> Service<Request> for Edge<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let mut seen = Seen {
            at: Instant::now(),
            id: self.shared.ids.of(request.headers()),
            method: request.method().clone(),
            traceparent: traceparent(&self.shared.access, &request),
            span: tracing::Span::none(),
            viewer: wants_page(&request),
            route: request.extensions().get::<MatchedPath>().cloned(),
            metrics: Arc::clone(&self.shared.metrics),
            peer: request.extensions().get::<Peer>().map(|peer| peer.0),
            token: self.shared.access.token(&request),
        };
        seen.span = seen.open();
        // For the audit log.
        request.headers_mut().insert(REQUEST_ID, seen.id.clone());
        let reserved = request.extensions().get::<Reserved>().is_some();
        let body = Watched::of(&mut request, self.shared.pace);
        // The log line is written outside the span, because it contains the same fields.
        let inner = AssertUnwindSafe(self.inner.call(request).instrument(seen.span.clone()));
        Box::pin(async move {
            let response = match inner.catch_unwind().await {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(panic) => panicked(panic.as_ref()).into_response(),
            };
            let timed_out = response.status() == StatusCode::SERVICE_UNAVAILABLE
                && response.extensions().get::<Problem>().is_none();
            let slow = body.as_ref().is_some_and(|body| body.kept_waiting(timed_out));
            let response = if slow { slow_client().into_response() } else { response };
            let mut response = seen.close(response);
            let kept = match body {
                Some(body) => body.finish().await,
                None => true,
            };
            if !kept || reserved {
                response.headers_mut().insert(header::CONNECTION, CLOSE);
            }
            Ok(response)
        })
    }
}

fn slow_client() -> Problem {
    Problem::new(Kind::SlowClient, Kind::SlowClient.bare_detail())
}

fn panicked(panic: &(dyn Any + Send)) -> Problem {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    Problem::internal(format!("a handler panicked: {}", text.as_deref().unwrap_or("no message")))
}

/// The request's data that is needed when its response is sent.
struct Seen {
    at: Instant,
    id: HeaderValue,
    method: Method,
    /// Whether errors are sent as pages.
    viewer: Option<Viewer>,
    route: Option<MatchedPath>,
    /// The caller's span in the form of W3C Trace Context, recorded as a field from which an exporter continues the trace.
    traceparent: Option<HeaderValue>,
    span: tracing::Span,
    metrics: Arc<Metrics>,
    /// Who is at the other end of the connection: the client, or the proxy in front.
    peer: Option<SocketAddr>,
    /// Which of the server's tokens the request has.
    token: Option<String>,
}

impl Seen {
    fn id(&self) -> &str {
        self.id.to_str().unwrap_or("none")
    }

    fn route(&self) -> Option<&str> {
        self.route.as_ref().map(MatchedPath::as_str)
    }

    /// The service fills in `job` when a job is submitted.
    fn open(&self) -> tracing::Span {
        let (id, method, route) = (self.id(), &self.method, self.route().unwrap_or("unmatched"));
        let (job, status) = (Empty, Empty);
        let traceparent = self.traceparent.as_ref().and_then(|value| value.to_str().ok());
        // Reads open no span at the usual level: they log little themselves, and lookups come by the thousand. A caller that
        // traces its own request still sees ours.
        let quiet = matches!(self.method, Method::GET | Method::HEAD) && traceparent.is_none();
        if quiet {
            tracing::debug_span!("request", id, %method, route, traceparent, job, status)
        } else {
            tracing::info_span!("request", id, %method, route, traceparent, job, status)
        }
    }

    fn close(self, response: Response) -> Response {
        let mut response = finish(response, self.id(), self.viewer.as_ref());
        let took = self.at.elapsed();
        self.span.record("status", response.status().as_u16());
        self.log(response.status(), took);
        self.metrics.time_request(self.route(), &self.method, response.status().as_u16(), took);
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, self.id);
        secure(headers);
        response
    }

    /// Writes one line per request: server failures as errors, changes and refusals at the usual level, successful reads
    /// only on demand.
    fn log(&self, status: StatusCode, took: Duration) {
        let (id, route) = (self.id(), self.route().unwrap_or("unmatched"));
        let (method, status, took_us) = (&self.method, status.as_u16(), took.as_micros() as u64);
        let quiet = status < 400 && matches!(self.method, Method::GET | Method::HEAD);
        let (peer, token) = (self.peer.map(tracing::field::display), self.token.as_deref());
        if quiet {
            tracing::debug!(id, %method, route, status, took_us, peer, token, "answered");
        } else {
            tracing::info!(id, %method, route, status, took_us, peer, token, "answered");
        }
    }
}

/// Headers of every response. Most responses are data: nothing in them may run, be framed, or be interpreted as another
/// type. Pages bring their own content security policy.
fn secure(headers: &mut HeaderMap) {
    let fixed = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

/// The fallback for paths that have no route.
pub async fn no_route() -> Problem {
    Problem::new(Kind::NotFound, "no route has this path; GET / lists them")
}

/// The answer to methods that a resource does not support. axum adds the Allow header.
pub async fn no_method(method: Method) -> Response {
    if method == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    let detail = format!("{method} is not a method of this resource; the Allow header lists them");
    Problem::new(Kind::MethodNotAllowed, detail).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::{Digest, Namespace, Scopes, Timestamp, Token, TokenLimits};
    use crate::http::guard::Without;
    use crate::http::{Attempts, Tokens};
    use crate::service::{Ring, StoredToken};
    use axum::Router;
    use axum::body::{Body, to_bytes};
    use axum::routing::get;
    use tower::ServiceExt;

    fn access<const N: usize>(tokens: [StoredToken; N]) -> Access {
        let tokens = Tokens::new(Arc::new(Ring::of(tokens)), &[1; 32]);
        let attempts = Attempts::new(0);
        Access { tokens, without: Without::Everybody, attempts, forwarded: false }
    }

    #[tokio::test]
    async fn a_panic_is_a_500_and_says_nothing_of_its_cause() {
        let metrics = Arc::new(Metrics::new(["/"]).unwrap());
        let handler = async || -> &'static str { panic!("a secret") };
        let pace = Pace { idle: Duration::from_secs(1), bytes_per_s: 1 };
        let router =
            Router::new().route("/", get(handler)).layer(EdgeLayer::new(metrics, access([]), pace));
        let request = Request::builder().uri("/").body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.status(), 500);
        assert!(response.headers().contains_key(REQUEST_ID));
        let body = to_bytes(response.into_body(), 10_000).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["type"], "/problems/internal");
        assert!(!body.to_string().contains("secret"));
    }

    #[test]
    fn only_what_can_be_a_callers_span_is_taken_over() {
        let plain = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let taken =
            |text: &str| HeaderValue::try_from(text).ok().as_ref().and_then(caller).is_some();
        assert!(taken(plain));
        assert!(!taken("") && !taken("00-01") && !taken(&plain.replace("-01", "-0\"")));
        assert!(!taken(&plain.repeat(3)));
    }

    #[test]
    fn a_caller_that_is_not_let_in_is_not_traced() {
        let token = "sesame-sesame-sesame";
        let admin = Token {
            name: "admin".parse().unwrap(),
            scopes: Scopes::all(),
            namespace: Namespace::default(),
            created_at: Timestamp(0),
            expires_at: None,
            revoked_at: None,
            limits: TokenLimits::default(),
            share_plans: false,
            last_used_at: None,
        };
        let access = access([StoredToken { token: admin, hash: Digest::of(token.as_bytes()) }]);
        let plain = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let ask = |path: &str| Request::builder().uri(path).header(TRACEPARENT, plain);
        let taken = |request: axum::http::request::Builder| {
            traceparent(&access, &request.body(Body::empty()).unwrap()).is_some()
        };
        assert!(taken(ask("/v1/jobs").header("authorization", format!("Bearer {token}"))));
        assert!(!taken(ask("/v1/jobs")) && !taken(ask("/healthz")));
    }

    #[test]
    fn only_plain_ids_are_taken_over() {
        assert!(is_plain(b"0193a7c4-1111_x.y"));
        for bad in [&b""[..], b"a b", b"a\"b", b"a/b", "ä".as_bytes(), &[b'a'; 129]] {
            assert!(!is_plain(bad));
        }
    }
}
