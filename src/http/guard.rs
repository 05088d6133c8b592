//! Access control: API tokens if any are configured; otherwise only local clients, and no web page of another site.
//!
//! A program sends its token as `Authorization: Bearer`. A browser cannot do so on navigation: it signs in at `/login` and
//! then sends a cookie. Because a browser sends cookies with every request, whichever page caused it, a request with a
//! cookie may change something only if its `Origin` is this server.

use super::attempts::Attempts;
use super::clients::Client;
use super::dashboard::by_tls;
use super::error::{Kind, Problem};
use super::scopes;
use super::server::Reserved;
use super::session::{Tokens, cookies};
use crate::domain::{Caller, Namespace, Timestamp};
use crate::service::StoredToken;
use axum::extract::{MatchedPath, Request};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, Version, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::{Either, Ready, ready};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower::{Layer, Service};

/// Paths that need no token: the checks of an orchestrator, and the sign-in of a browser.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/login"];
/// The checks of an orchestrator.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];
/// The files of the sign-in page are not secret.
const OPEN_FILES: &str = "/static/";

/// Who is admitted: programs with a token and browsers that signed in with one or, while there are no tokens, others.
#[derive(Clone, Debug)]
pub struct Access {
    pub tokens: Tokens,
    pub without: Without,
    pub attempts: Attempts,
    /// Whether a proxy in front names the clients.
    pub forwarded: bool,
}

/// Who is admitted while the server has no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// Everyone who can reach a loopback address. A browser can do so on behalf of any page that it shows: by a form post
    /// (detected by its Origin) or by a name of the page's own that resolves to 127.0.0.1 (detected by Host).
    Loopback,
    /// Everyone, as the operator chose with `insecure`. Pages of other sites still may not post.
    Everybody,
}

impl Access {
    /// On whose behalf the request is; `None` on open paths of a server with tokens, which do not reveal who asks.
    fn identify(&self, request: &Request) -> Result<Option<Caller>, Problem> {
        if !self.tokens.required() {
            if self.without == Without::Loopback {
                check_host(request)?;
            }
            check_origin(request)?;
            return Ok(Some(Caller::anyone()));
        }
        if is_open(request.uri().path()) {
            // No other site may sign a user in.
            check_origin(request)?;
            return Ok(None);
        }
        let found = match request.headers().get(header::AUTHORIZATION) {
            Some(given) => {
                let client = Client::of(request, self.forwarded);
                self.verify(client, bearer(given).ok_or_else(no_token)?)?
            }
            None => by_cookie(&self.tokens, request)?,
        };
        self.tokens.note_use(&found.hash);
        Ok(Some(Caller::from(&found.token)))
    }

    /// The token with this secret, which a client has sent.
    pub fn verify(&self, client: Client, secret: &[u8]) -> Result<Arc<StoredToken>, Problem> {
        let Some(found) = self.tokens.find(secret) else {
            self.attempts.wrong(client)?;
            return Err(Problem::new(Kind::Unauthorized, "the server does not know this token"));
        };
        self.attempts.right(client, &found.hash)?;
        match found.token.expires_at {
            Some(end) if found.token.is_expired(Timestamp::now()) => {
                let detail = format!("the token expired at {}", end.to_rfc3339());
                Err(Problem::new(Kind::Unauthorized, detail))
            }
            _ => Ok(found),
        }
    }

    /// [`Self::identify`], for a request that the caller may make.
    fn admit(&self, request: &Request) -> Result<Option<Caller>, Problem> {
        let caller = self.identify(request)?;
        let route = request.extensions().get::<MatchedPath>();
        let needed = route.and_then(|route| scopes::needed(request.method(), route.as_str()));
        match (&caller, needed) {
            (Some(caller), Some(scope)) if !caller.scopes.permit(scope) => {
                let scopes = &caller.scopes;
                let detail = format!("this needs the scope `{scope}`; the token has {scopes}");
                Err(Problem::new(Kind::MissingScope, detail).with("scope", Some(scope.name())))
            }
            (Some(caller), Some(scope))
                if !caller.is_operators()
                    && route.is_some_and(|r| scopes::of_all(request.method(), r.as_str())) =>
            {
                let detail = format!(
                    "this concerns all namespaces, and needs a token of the namespace {}",
                    Namespace::default()
                );
                Err(Problem::new(Kind::MissingScope, detail).with("scope", Some(scope.name())))
            }
            _ => Ok(caller),
        }
    }

    /// The request's token or that of its session, if the server knows it. It may have expired.
    fn known(&self, request: &Request) -> Option<Arc<StoredToken>> {
        match request.headers().get(header::AUTHORIZATION) {
            Some(given) => self.tokens.find(bearer(given)?),
            None => cookies(request.headers()).find_map(|session| self.tokens.of_session(session)),
        }
    }

    /// The name by which logs tell the request's token from others; `None` without a token that the server knows.
    pub fn token(&self, request: &Request) -> Option<String> {
        self.known(request).map(|found| found.token.name.to_string())
    }

    /// Whether the request comes from an authorised client. Open paths do not reveal who asks.
    pub fn trusts(&self, request: &Request) -> bool {
        if !self.tokens.required() {
            return self.identify(request).is_ok();
        }
        let known = self.known(request);
        !is_open(request.uri().path())
            && known.is_some_and(|found| !found.token.is_expired(Timestamp::now()))
    }
}

fn is_open(path: &str) -> bool {
    OPEN.contains(&path) || path.starts_with(OPEN_FILES)
}

fn no_token() -> Problem {
    Problem::new(Kind::Unauthorized, "send Authorization: Bearer and one of the server's tokens")
}

/// A request without a token, but perhaps with a cookie.
fn by_cookie(known: &Tokens, request: &Request) -> Result<Arc<StoredToken>, Problem> {
    // A name may occur more than once: other paths and other servers of this host set cookies too.
    let mut sessions = cookies(request.headers());
    let found = sessions.find_map(|session| known.of_session(session)).ok_or_else(no_token)?;
    check_origin(request)?;
    if is_safe(request.method()) || request.headers().contains_key(header::ORIGIN) {
        return Ok(found);
    }
    let detail = "a cookie without an Origin header does not permit changes";
    Err(Problem::new(Kind::CrossOrigin, detail))
}

fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// The authority that the client addresses. Browsers always send one.
fn host(request: &Request) -> Option<Authority> {
    if let Some(authority) = request.uri().authority() {
        return Some(authority.clone());
    }
    request.headers().get(header::HOST)?.to_str().ok()?.parse().ok()
}

fn check_host(request: &Request) -> Result<(), Problem> {
    if !request.headers().contains_key(header::HOST) && request.uri().authority().is_none() {
        return Ok(());
    }
    match host(request) {
        Some(authority) if is_loopback(authority.host()) => Ok(()),
        _ => Err(Problem::new(
            Kind::UnknownHost,
            "without API tokens this server answers only requests to localhost, 127.0.0.1 and [::1]",
        )),
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn check_origin(request: &Request) -> Result<(), Problem> {
    if is_safe(request.method()) {
        return Ok(());
    }
    let Some(origin) = request.headers().get(header::ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().ok().and_then(|text| text.split_once("://"));
    // If the proxy in front reports https, a page that was loaded without it belongs to another site.
    let origin = origin.filter(|(scheme, _)| *scheme == "https" || !by_tls(request.headers()));
    match (origin.and_then(|(_, text)| text.parse::<Authority>().ok()), host(request)) {
        (Some(origin), Some(host)) if origin == host => Ok(()),
        _ => Err(Problem::new(Kind::CrossOrigin, "the Origin header names another site")),
    }
}

/// HTTP/1.1 requires one Host header (RFC 9112, section 3.2): with none or several, a proxy in front may have meant another
/// host than the one that is checked here.
fn one_host(request: &Request) -> Result<(), Problem> {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    let fine = hosts == 1 || (hosts == 0 && request.version() < Version::HTTP_11);
    if fine {
        return Ok(());
    }
    let detail = format!("a request has one Host header, and this one has {hosts}");
    Err(Problem::new(Kind::InvalidParameter, detail).with("parameter", Some("Host")))
}

/// Beyond the usual number of connections only the checks of an orchestrator are answered.
fn spare(request: &Request) -> Result<(), Problem> {
    let reserved = request.extensions().get::<Reserved>().is_some();
    if !reserved || HEALTH.contains(&request.uri().path()) {
        return Ok(());
    }
    Err(Problem::new(Kind::Busy, "the server's limit of connections is reached"))
}

#[derive(Clone)]
pub struct GuardLayer(pub Access);

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { access: self.0.clone(), inner }
    }
}

#[derive(Clone)]
pub struct Guard<S> {
    access: Access,
    inner: S,
}

impl<S> Service<Request> for Guard<S>
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let checked = spare(&request).and_then(|()| one_host(&request));
        match checked.and_then(|()| self.access.admit(&request)) {
            Ok(caller) => {
                if let Some(caller) = caller {
                    request.extensions_mut().insert(caller);
                }
                Either::Left(self.inner.call(request))
            }
            Err(problem) => Either::Right(ready(Ok(problem.into_response()))),
        }
    }
}

#[cfg(test)]
mod tests;
