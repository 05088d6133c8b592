//! Who may ask: API tokens where there are any; else only this machine, and no web page acting through its browser.
//!
//! A program sends its token as `Authorization: Bearer`. A browser cannot do so on navigation: it signs in at `/login`
//! and sends a cookie. Since a browser sends that along whoever makes it ask, a cookie changes something only where
//! `Origin` is this server.

use super::error::{Kind, Problem};
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::{Either, Ready, ready};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use tower::{Layer, Service};

/// Paths that answer without a token: what an orchestrator asks, and where a browser signs in.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/login"];
/// What the page for signing in looks like is no secret.
const OPEN_FILES: &str = "/static/";

/// The cookie that holds a token.
const COOKIE: &str = "sparsetune_token";

/// Whom to let in.
#[derive(Clone, Debug)]
pub enum Access {
    /// Bearers of one of these tokens. Only hashes are kept; comparing BLAKE3 hashes takes the same time whatever
    /// they hold.
    Tokens(Arc<[blake3::Hash]>),
    /// Everybody who can reach a loopback address. A browser can, on behalf of any page it shows: by a form post
    /// (told by its Origin) or by a name of the page's own that resolves to 127.0.0.1 (told by Host).
    Loopback,
    /// Everybody, as the operator chose with `insecure`. Pages of other sites still may not post.
    Everybody,
}

impl Access {
    fn check(&self, request: &Request) -> Result<(), Problem> {
        let headers = request.headers();
        match self {
            // Nobody is signed in by another site.
            Self::Tokens(_) if is_open(request.uri().path()) => check_origin(request),
            Self::Tokens(known) if !headers.contains_key(header::AUTHORIZATION) => {
                check_cookie(known, request)
            }
            Self::Tokens(known) => check_token(known, headers),
            Self::Loopback => {
                check_host(request)?;
                check_origin(request)
            }
            Self::Everybody => check_origin(request),
        }
    }
}

fn is_open(path: &str) -> bool {
    OPEN.contains(&path) || path.starts_with(OPEN_FILES)
}

fn check_token(known: &[blake3::Hash], headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(header::AUTHORIZATION).and_then(bearer).ok_or_else(no_token)?;
    if !knows(known, given) {
        return Err(Problem::new(Kind::Unauthorized, "the server does not know this token"));
    }
    Ok(())
}

fn no_token() -> Problem {
    Problem::new(Kind::Unauthorized, "send Authorization: Bearer and one of the server's tokens")
}

/// A request that brings no token of its own, but perhaps a cookie.
fn check_cookie(known: &[blake3::Hash], request: &Request) -> Result<(), Problem> {
    // A name may come more than once: other paths and other servers of this host set cookies too.
    if !cookies(request.headers()).any(|token| knows(known, &token)) {
        return Err(no_token());
    }
    check_origin(request)?;
    if is_safe(request.method()) || request.headers().contains_key(header::ORIGIN) {
        return Ok(());
    }
    let detail = "a cookie alone changes nothing: the Origin header is missing";
    Err(Problem::new(Kind::CrossOrigin, detail))
}

/// Whether this is one of the tokens. Every one is compared, so the time does not tell which one was near.
pub fn knows(known: &[blake3::Hash], given: &[u8]) -> bool {
    let given = blake3::hash(given);
    known.iter().fold(0, |hits, token| hits + usize::from(*token == given)) > 0
}

/// The tokens of all cookies of our name.
fn cookies(headers: &HeaderMap) -> impl Iterator<Item = Vec<u8>> {
    let pairs = headers.get_all(header::COOKIE).iter();
    pairs.flat_map(|value| value.as_bytes().split(|&byte| byte == b';')).filter_map(|pair| {
        let (name, value) = pair.split_at(pair.iter().position(|&byte| byte == b'=')?);
        let ours = name.trim_ascii() == COOKIE.as_bytes();
        let value = value.get(1..)?.trim_ascii();
        ours.then(|| URL_SAFE_NO_PAD.decode(value).ok()).flatten()
    })
}

/// `Set-Cookie` for a token. Encoded, since a token may hold what a cookie may not.
pub fn cookie(token: &str, secure: bool) -> String {
    set_cookie(&URL_SAFE_NO_PAD.encode(token), "", secure)
}

/// `Set-Cookie` that takes it away.
pub fn no_cookie(secure: bool) -> String {
    set_cookie("", "; Max-Age=0", secure)
}

fn set_cookie(value: &str, age: &str, secure: bool) -> String {
    let secure = if secure { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict{age}{secure}")
}

fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// The authority the client believes it talks to. Browsers always name one.
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
            "without API tokens this server answers only to localhost, 127.0.0.1 and [::1]",
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
    let origin = origin.to_str().ok().and_then(|text| Some(text.split_once("://")?.1));
    match (origin.and_then(|text| text.parse::<Authority>().ok()), host(request)) {
        (Some(origin), Some(host)) if origin == host => Ok(()),
        _ => Err(Problem::new(Kind::CrossOrigin, "the Origin header names another site")),
    }
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

    fn call(&mut self, request: Request) -> Self::Future {
        match self.access.check(&request) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(problem) => Either::Right(ready(Ok(problem.into_response()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request {
        let mut builder = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(Body::empty()).unwrap()
    }

    fn refused(access: &Access, request: &Request) -> Option<Kind> {
        access.check(request).err().map(|problem| problem.kind())
    }

    #[test]
    fn tokens_open_everything_and_health_needs_none() {
        let access = Access::Tokens([blake3::hash(b"sesame-sesame-sesame")].into());
        let with = |value| request("GET", "/v1/jobs", &[("authorization", value)]);
        assert_eq!(refused(&access, &with("Bearer sesame-sesame-sesame")), None);
        assert_eq!(refused(&access, &with("bearer sesame-sesame-sesame")), None);
        for wrong in ["Bearer sesame", "Bearer ", "Basic sesame-sesame-sesame", "x"] {
            assert_eq!(refused(&access, &with(wrong)), Some(Kind::Unauthorized), "{wrong}");
        }
        assert_eq!(refused(&access, &request("GET", "/v1/jobs", &[])), Some(Kind::Unauthorized));
        assert_eq!(refused(&access, &request("GET", "/readyz", &[])), None);
    }

    #[test]
    fn a_cookie_opens_pages_and_changes_things_only_from_here() {
        let token = "sesame; sésame = sésame";
        let access = Access::Tokens([blake3::hash(token.as_bytes())].into());
        let value = URL_SAFE_NO_PAD.encode(token);
        let good = format!("a=b; {COOKIE}=bm90aGluZw; {COOKIE}={value}; c=d");
        let ask = |method, cookie: &str, more: &[(&str, &str)]| {
            let mut headers = vec![("host", "tune.example"), ("cookie", cookie)];
            headers.extend_from_slice(more);
            refused(&access, &request(method, "/v1/jobs", &headers))
        };
        assert_eq!(ask("GET", &good, &[]), None);
        for bad in ["", "a=b", COOKIE, &format!("{COOKIE}=x"), &format!("x{COOKIE}={value}")] {
            assert_eq!(ask("GET", bad, &[]), Some(Kind::Unauthorized), "{bad}");
        }
        // A wrong bearer is not made good by a cookie.
        let bearer = [("authorization", "Bearer wrong")];
        assert_eq!(ask("GET", &good, &bearer), Some(Kind::Unauthorized));
        let own = [("origin", "https://tune.example")];
        let other = [("origin", "https://evil.example")];
        for method in ["POST", "DELETE", "PUT"] {
            assert_eq!(ask(method, &good, &own), None);
            assert_eq!(ask(method, &good, &other), Some(Kind::CrossOrigin));
            assert_eq!(ask(method, &good, &[("origin", "null")]), Some(Kind::CrossOrigin));
            assert_eq!(ask(method, &good, &[]), Some(Kind::CrossOrigin));
        }
    }

    #[test]
    fn signing_in_needs_no_token_but_its_own_site() {
        let access = Access::Tokens([blake3::hash(b"sesame-sesame-sesame")].into());
        let ask = |method, path, origin: &str| {
            refused(&access, &request(method, path, &[("host", "a.example"), ("origin", origin)]))
        };
        for path in ["/login", "/static/app.css"] {
            assert_eq!(ask("GET", path, "http://a.example"), None);
        }
        for path in ["/login/x", "/logout", "/", "/jobs", "/openapi.yaml", "/fragments/jobs"] {
            assert_eq!(ask("GET", path, "http://a.example"), Some(Kind::Unauthorized), "{path}");
        }
        assert_eq!(ask("POST", "/login", "http://a.example"), None);
        assert_eq!(ask("POST", "/login", "http://evil.example"), Some(Kind::CrossOrigin));
    }

    #[test]
    fn a_cookie_is_not_for_scripts_nor_other_sites() {
        let set = cookie("sesame", true);
        assert_eq!(set, format!("{COOKIE}=c2VzYW1l; Path=/; HttpOnly; SameSite=Strict; Secure"));
        assert!(!cookie("sesame", false).contains("Secure"));
        assert!(no_cookie(false).contains("Max-Age=0"));
    }

    #[test]
    fn a_rebound_name_is_refused_on_loopback() {
        for good in ["localhost:8080", "127.0.0.1:9", "[::1]:80", "127.9.9.9"] {
            let request = request("GET", "/v1/jobs", &[("host", good)]);
            assert_eq!(refused(&Access::Loopback, &request), None, "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example:8080",
            "10.0.0.1",
            "127.0.0.1.evil.example",
            "",
        ] {
            let request = request("GET", "/v1/jobs", &[("host", bad)]);
            assert_eq!(refused(&Access::Loopback, &request), Some(Kind::UnknownHost), "{bad}");
        }
    }

    #[test]
    fn other_sites_may_not_post() {
        let post =
            |origin| request("POST", "/v1/jobs", &[("host", "localhost:8080"), ("origin", origin)]);
        assert_eq!(refused(&Access::Loopback, &post("http://localhost:8080")), None);
        for bad in ["http://evil.example", "null", "http://localhost:9090", ""] {
            assert_eq!(refused(&Access::Loopback, &post(bad)), Some(Kind::CrossOrigin), "{bad}");
            assert_eq!(refused(&Access::Everybody, &post(bad)), Some(Kind::CrossOrigin), "{bad}");
        }
    }
}
