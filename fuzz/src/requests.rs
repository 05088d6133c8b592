//! Whole requests to a server that has a matrix, a plan, a job and models, with and without tokens: whatever arrives is answered, and
//! never by an error of the server.

use super::readers;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::request::Builder;
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sparsetune::bundle::Bundle;
use sparsetune::domain::{Digest, Namespace};
use sparsetune::http::{
    Access, App, Attempts, Limits, Metrics, PAGES, PATHS, Pace, Tokens, Without, router,
};
use sparsetune::service::{Service, ServiceSettings};
use sparsetune::store::pairing;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Requests to one server; after these it is replaced, since what they made stays.
const LASTING: u32 = 2000;
/// Requests between two readings of the metrics, which are kept until they are read.
const METRICS: u32 = 500;

/// In an input: what a client knows that was given a token, and the id of a job.
const SECRET: &str = "$SECRET";
const SESSION: &str = "$SESSION";
const JOB: &str = "$JOB";

/// Bytes that must not come back in a page as they are.
const MARK: &[u8] = b"<zq";

/// Paths that need no token, and where those of files begin.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/login"];
const OPEN_FILES: &str = "/static/";

struct World {
    runtime: Runtime,
    router: Router,
    tokens: Tokens,
    secret: String,
    session: String,
    job: String,
    requests: u32,
    _folder: tempfile::TempDir,
}

impl World {
    fn new(tokens: bool) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let secret = format!("{:032x}", rand());
        let known = tokens.then_some(&*secret);
        let (router, tokens, job) = runtime.block_on(served(folder.path(), known));
        let session = tokens.session(secret.as_bytes()).unwrap_or_default();
        Self { runtime, router, tokens, secret, session, job, requests: 0, _folder: folder }
    }

    /// The answer and, unless it is a stream without an end, its body.
    fn ask(&self, request: Request<Body>) -> (Response<()>, Bytes) {
        self.runtime.block_on(async {
            let Ok(response) = self.router.clone().oneshot(request).await;
            let (parts, body) = response.into_parts();
            let kind = parts.headers.get(header::CONTENT_TYPE);
            let body =
                match kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
                    true => Bytes::new(),
                    false => body.collect().await.expect("a whole body").to_bytes(),
                };
            (Response::from_parts(parts, ()), body)
        })
    }

    /// The answer to a request, which keeps all promises. A stranger has no token.
    fn checked(&mut self, request: Request<Body>, stranger: bool) -> (StatusCode, Bytes) {
        self.requests += 1;
        if self.requests.is_multiple_of(METRICS) {
            let metrics = Request::get("/metrics").header(header::HOST, "localhost");
            self.ask(metrics.body(Body::empty()).expect("a request"));
        }
        let what = format!("{} {}", request.method(), request.uri());
        let head = request.method() == Method::HEAD;
        let path = request.uri().path();
        let open = OPEN.contains(&path) || path.starts_with(OPEN_FILES);
        let (response, body) = self.ask(request);
        check(&what, head, &response, &body);
        let status = response.status();
        assert!(open || !stranger || !status.is_success(), "{what}: a stranger is admitted");
        (status, body)
    }

    /// A request of somebody who has the token.
    fn by_token(&self, method: Method, path: &str) -> Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::AUTHORIZATION, format!("Bearer {}", self.secret))
    }

    /// Whether a server without tokens got one, so that it admits nobody else.
    fn closed(&self, tokens: bool) -> bool {
        !tokens && self.tokens.required()
    }

    /// What stands for a token, a session or a job is replaced.
    fn filled(&self, text: &str) -> String {
        text.replace(SECRET, &self.secret).replace(SESSION, &self.session).replace(JOB, &self.job)
    }
}

/// Nobody who writes an input knows it.
fn rand() -> u128 {
    let id = tempfile::Builder::new().rand_bytes(24).tempdir().expect("a temporary folder");
    let hash = Digest::of(id.path().as_os_str().as_encoded_bytes());
    u128::from_le_bytes(hash.as_bytes()[..16].try_into().expect("half of a digest"))
}

/// A server, its tokens and the id of a job.
async fn served(folder: &Path, secret: Option<&str>) -> (Router, Tokens, String) {
    let (store, blobs) =
        pairing::open(&folder.join("store.db"), &folder.join("blobs")).await.expect("a new store");
    let uploads = folder.join("uploads");
    std::fs::create_dir(&uploads).expect("a new folder");
    let settings = ServiceSettings {
        limits: readers::limits(),
        temp_dir: uploads,
        max_upload_bytes: 1 << 20,
        ..ServiceSettings::default()
    };
    let service = Service::new(Arc::new(store), blobs, settings);
    let bundle = include_bytes!("../seeds/bundle/spmm.stplan");
    let device =
        Bundle::from_bytes(bundle.to_vec()).expect("a bundle of ours").plan().device.clone();
    service.register(device).await.expect("a device");
    let hash = secret.map(|secret| *Digest::of(secret.as_bytes()).as_bytes());
    service.open_ring(hash, &Namespace::default(), false).await.expect("a token");
    let tokens = Tokens::new(Arc::clone(service.ring()), &[7; 32]);
    let access = Access {
        tokens: tokens.clone(),
        without: Without::Loopback,
        attempts: Attempts::new(0),
        forwarded: true,
    };
    let metrics = Metrics::new(PATHS.iter().chain(PAGES).copied()).expect("metrics");
    let app = App::new(service, limits(), access, Arc::new(metrics), CancellationToken::new());
    let router = router(app);
    let send = async |path: &str, body: Vec<u8>| {
        let request = Request::post(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {}", secret.unwrap_or_default()));
        let request = request.body(Body::from(body)).expect("a request");
        let Ok(response) = router.clone().oneshot(request).await;
        let status = response.status();
        let body = response.into_body().collect().await.expect("a whole body").to_bytes();
        assert!(status.is_success(), "{path}: {status} {body:?}");
        serde_json::from_slice::<Value>(&body).expect("an answer")
    };
    let matrix = include_bytes!("../seeds/matrix_market/general.mtx").to_vec();
    let matrix = send("/v1/matrices?name=small", matrix).await;
    send("/v1/bundles", bundle.to_vec()).await;
    let job = json!({"matrix": matrix["digest"], "problem": {"op": "spmm", "n": 3}});
    let job = send("/v1/jobs", job.to_string().into_bytes()).await;
    (router, tokens, job["id"].as_str().expect("an id").to_owned())
}

fn limits() -> Limits {
    let long = Duration::from_secs(20);
    Limits {
        upload_bytes: 1 << 20,
        json_bytes: 1 << 16,
        uploads_at_once: 4,
        uploads_each: 4,
        streams_at_once: 4,
        streams_each: 4,
        lookup_bytes: 1 << 20,
        forwarded: true,
        pace: Pace { idle: long, bytes_per_s: 1 },
        connections: 16,
        connections_each: 16,
        headers: long,
        answer: long,
        upload: long,
        sse_keep_alive: long,
        shutdown: long,
    }
}

/// Gives a server with or without tokens.
fn with(tokens: bool, act: impl FnOnce(&mut World)) {
    static WORLDS: [Mutex<Option<World>>; 2] = [const { Mutex::new(None) }; 2];
    let mut slot = WORLDS[usize::from(tokens)].lock().unwrap_or_else(PoisonError::into_inner);
    if slot.as_ref().is_none_or(|world| world.requests >= LASTING || world.closed(tokens)) {
        *slot = Some(World::new(tokens));
    }
    if let Some(world) = slot.as_mut() {
        act(world);
    }
}

/// What every answer promises.
fn check(what: &str, head: bool, response: &Response<()>, body: &Bytes) {
    let status = response.status();
    let said = || String::from_utf8_lossy(&body[..body.len().min(500)]).into_owned();
    assert_ne!(status, StatusCode::INTERNAL_SERVER_ERROR, "{what}: {}", said());
    let kind = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let page = kind.is_some_and(|kind| kind.starts_with(b"text/html"));
    if page {
        let marked = body.windows(MARK.len()).any(|at| at.eq_ignore_ascii_case(MARK));
        assert!(!marked, "{what}: a page repeats markup");
    }
    if head || page || status == StatusCode::NOT_MODIFIED {
        return;
    }
    if status.is_client_error() || status.is_server_error() {
        assert_eq!(kind, Some(&b"application/problem+json"[..]), "{what}: {status} {}", said());
        let problem: Value = serde_json::from_slice(body).expect("a problem is JSON");
        assert_eq!(problem["status"], status.as_u16(), "{what}: {problem}");
        let named = problem["type"].as_str().is_some_and(|name| name.starts_with("/problems/"));
        assert!(named && problem["detail"].is_string(), "{what}: {problem}");
    } else if kind == Some(b"application/json") {
        serde_json::from_slice::<Value>(body)
            .unwrap_or_else(|error| panic!("{what}: {error}: {}", said()));
    }
}

/// Where bodies go: path, and whether it is JSON.
const BODIES: [(&str, bool); 9] = [
    ("/v1/jobs", true),
    ("/v1/tokens", true),
    ("/v1/webhooks", true),
    ("/v1/models/train", true),
    ("/v1/models/roll-back", true),
    ("/v1/models/some/activate", true),
    ("/v1/matrices?name=%3Czq%3E", false),
    ("/v1/bundles", false),
    ("/login", false),
];

/// A body of somebody who has a token, after a letter that says where it goes: `a` is the first place. A capital letter means that it
/// is gzipped.
pub fn bodies(data: &[u8]) {
    let Some((&place, body)) = data.split_first() else { return };
    let (path, is_json) =
        BODIES[usize::from(place.to_ascii_lowercase().wrapping_sub(b'a')) % BODIES.len()];
    with(true, |world| {
        let kind = if is_json { "application/json" } else { "application/x-www-form-urlencoded" };
        let mut request = world.by_token(Method::POST, path).header(header::CONTENT_TYPE, kind);
        if place.is_ascii_uppercase() {
            request = request.header(header::CONTENT_ENCODING, "gzip");
        }
        world.checked(request.body(Body::from(body.to_vec())).expect("a request"), false);
    });
}

/// A request as text: `GET /path?query`, lines of headers, an empty line, the body. One with `Authorization` or `Cookie` goes to a
/// server with a token, which must not admit it unless the input names the token.
pub fn requests(data: &[u8]) {
    let end = data.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = data.split_at(end.unwrap_or(data.len()));
    let body = body.get(2..).unwrap_or_default();
    let Ok(head) = std::str::from_utf8(head) else { return };
    let names: BTreeSet<String> = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim().to_ascii_lowercase())
        .collect();
    let guarded = names.contains("authorization") || names.contains("cookie");
    let known = head.contains(SECRET) || head.contains(SESSION);
    let stranger = guarded && !known;
    with(guarded, |world| {
        if let Some(request) = request(&world.filled(head), &names, body) {
            world.checked(request, stranger);
        }
    });
}

fn request(head: &str, names: &BTreeSet<String>, body: &[u8]) -> Option<Request<Body>> {
    let mut lines = head.lines();
    let (method, uri) = lines.next()?.split_once(' ')?;
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    let mut request = Request::builder().method(method).uri(uri);
    if !names.contains("host") {
        request = request.header(header::HOST, "localhost");
    }
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        request = request.header(name, HeaderValue::from_str(value.trim()).ok()?);
    }
    request.body(Body::from(body.to_vec())).ok()
}

/// An export of another store arrives at a server, twice.
pub(crate) fn imported(file: &[u8]) {
    with(true, |world| {
        let mut import = || {
            let request = world.by_token(Method::POST, "/v1/import");
            let request = request.body(Body::from(file.to_vec())).expect("a request");
            world.checked(request, false)
        };
        if import().0 != StatusCode::OK {
            return;
        }
        let (status, report) = import();
        assert_eq!(status, StatusCode::OK, "what was taken in is refused");
        let report: Value = serde_json::from_slice(&report).expect("a report");
        for of in ["plans", "jobs", "trials", "models", "matrices", "files"] {
            assert_eq!(report[of]["new"], 0, "{report}");
        }
        let export = world.by_token(Method::GET, "/v1/export?files=true&matrices=true");
        let (status, body) = world.checked(export.body(Body::empty()).expect("a request"), false);
        assert_eq!(status, StatusCode::OK);
        let file = super::readers::file_of(&body);
        super::exports::read(file.path()).expect("what is handed out is whole");
        // It has grown, and is handed out whole each time.
        world.requests += LASTING / 50;
    });
}
