//! How requests reach an S3 store: HTTP/1.1 over TCP or TLS, each with its answer within a time, answers in memory.
//!
//! The crate `object_store` would use reqwest with TLS and HTTP/2, and by that every other client of this program. All that is asked for
//! here is small, a range of an object at most, so an answer is read whole under the request's own time limit: a body that trickles in
//! ends like an answer that does not come.

use super::Secret;
use crate::store::tls::{Called, Trust};
use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Uri;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::rt::TokioExecutor;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

tokio::task_local! {
    /// The time limit of the requests of a task, where it is another than that of all.
    pub(super) static LIMIT: Duration;
}

/// Where hosts and containers ask for the credentials of their role, which is on the link and without TLS: of Amazon's hosts, of containers,
/// and of pods, each also by the newer protocol.
const ROLES: [&str; 5] =
    ["169.254.169.254", "169.254.170.2", "169.254.170.23", "[fd00:ec2::254]", "[fd00:ec2::23]"];
/// The options that name another such place.
const NAMES_ROLES: [&str; 2] = ["aws_metadata_endpoint", "aws_container_credentials_full_uri"];

const STORE: Called = Called { name: "store", setting: "s3.ca_file" };

/// How long a connection may take.
const CONNECTING: Duration = Duration::from_secs(5);
/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(30);

/// What the store's clock is ahead of this host's, in milliseconds, as its last answer said. Ages of objects are by its clock.
#[derive(Debug, Default)]
pub(super) struct StoreClock(AtomicI64);

impl StoreClock {
    /// The store's time.
    pub(super) fn now(&self) -> SystemTime {
        let ahead = self.0.load(Ordering::Relaxed);
        let by = Duration::from_millis(ahead.unsigned_abs());
        let now = SystemTime::now();
        let there = if ahead < 0 { now.checked_sub(by) } else { now.checked_add(by) };
        there.unwrap_or(now)
    }

    fn hear(&self, date: SystemTime) {
        let millis = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let (there, here) = (millis(date) as i64, millis(SystemTime::now()) as i64);
        self.0.store(there - here, Ordering::Relaxed);
    }
}

/// The places that the options name for credentials, as far as these are of this host or on its link: what is asked there without TLS is
/// seen by nobody else.
pub(super) fn roles(options: &[(String, Secret)]) -> Vec<String> {
    let named = options.iter().filter(|(name, _)| NAMES_ROLES.contains(&name.as_str()));
    let places = named.filter_map(|(_, value)| {
        let uri: Uri = value.0.parse().ok()?;
        is_near(uri.host()?).then(|| uri.authority().map(ToString::to_string)).flatten()
    });
    places.chain(ROLES.map(str::to_owned)).collect()
}

fn is_near(host: &str) -> bool {
    match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_link_local(),
        Ok(IpAddr::V6(address)) => address.is_loopback() || ROLES.contains(&host),
        Err(_) => host == "localhost",
    }
}

/// Makes the client of a store. `object_store`'s own options of a client are not looked at.
#[derive(Debug)]
pub(super) struct Transport {
    /// Longest time from a request to the end of its answer.
    pub limit: Duration,
    /// Whether connections without TLS are made.
    pub plain: bool,
    /// Hosts, with their ports, that are asked for credentials without it all the same.
    pub roles: Vec<String>,
    /// A file with the certificates of the authorities that are trusted; without one they are the system's.
    pub ca_file: Option<PathBuf>,
    pub clock: Arc<StoreClock>,
}

impl Transport {
    /// TLS by the authorities that are trusted.
    fn trust(&self) -> Result<Trust, String> {
        match Trust::of(STORE, self.ca_file.as_deref()) {
            // There is nothing to trust where nothing is encrypted.
            Err(_) if self.plain && self.ca_file.is_none() => Trust::nobody(STORE),
            trust => trust,
        }
    }
}

impl HttpConnector for Transport {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let mut tcp = Tcp::new();
        tcp.set_connect_timeout(Some(CONNECTING));
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let trust = self
            .trust()
            .map_err(|why| object_store::Error::Generic { store: "S3", source: why.into() })?;
        // Which requests go without TLS is judged for each.
        let tls = trust.builder().https_or_http();
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(hyper_util::rt::TokioTimer::new())
            .build(tls.enable_http1().wrap_connector(tcp));
        let Self { limit, plain, ref roles, ref clock, .. } = *self;
        let (roles, clock) = (roles.clone(), Arc::clone(clock));
        Ok(HttpClient::new(Connected { client, limit, plain, trust, roles, clock }))
    }
}

#[derive(Debug)]
struct Connected {
    client: Client<HttpsConnector<Tcp>, HttpRequestBody>,
    limit: Duration,
    plain: bool,
    trust: Trust,
    roles: Vec<String>,
    clock: Arc<StoreClock>,
}

impl Connected {
    /// Whether a request may be sent as it is.
    fn may_send(&self, uri: &Uri) -> bool {
        let role = || {
            uri.authority().is_some_and(|place| self.roles.iter().any(|it| it == place.as_str()))
        };
        uri.scheme_str() == Some("https") || self.plain || role()
    }
}

#[async_trait]
impl HttpService for Connected {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if !self.may_send(request.uri()) {
            let why = "a request without TLS, which s3.allow_http does not permit";
            return Err(HttpError::new(HttpErrorKind::Request, io::Error::other(why)));
        }
        // Credentials are not of the store, whose clock counts.
        let of_store = request
            .uri()
            .authority()
            .is_none_or(|place| self.roles.iter().all(|it| it != place.as_str()));
        let limit = LIMIT.try_with(|limit| *limit).unwrap_or(self.limit);
        let exchange = async {
            let answer = self.client.request(request).await;
            let answer = answer.map_err(|error| of_client(error, &self.trust))?;
            let (head, body) = answer.into_parts();
            let body: Bytes = body.collect().await.map_err(of_body)?.to_bytes();
            Ok::<_, HttpError>(HttpResponse::from_parts(head, body.into()))
        };
        let answer = tokio::time::timeout(limit, exchange).await.map_err(|_| {
            let why = format!("no complete answer within {} s", limit.as_secs_f32());
            HttpError::new(HttpErrorKind::Timeout, io::Error::new(io::ErrorKind::TimedOut, why))
        })??;
        let date = answer.headers().get("date").and_then(|date| date.to_str().ok());
        let date = date.filter(|_| of_store);
        if let Some(date) = date.and_then(|date| httpdate::parse_http_date(date).ok()) {
            self.clock.hear(date);
        }
        Ok(answer)
    }
}

fn of_client(error: hyper_util::client::legacy::Error, trust: &Trust) -> HttpError {
    if let Some(distrust) = trust.distrust(&error) {
        // Of this kind it is not repeated: the same certificate would be shown each time.
        return HttpError::new(HttpErrorKind::Unknown, distrust);
    }
    let kind = match error.is_connect() {
        true => HttpErrorKind::Connect,
        // The server may have done what it was asked for.
        false => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, error)
}

fn of_body(error: hyper::Error) -> HttpError {
    HttpError::new(HttpErrorKind::Interrupted, error)
}
