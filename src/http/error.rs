//! Errors on the wire: RFC 9457 problem+json, and the only place that maps failures to status codes.
//!
//! A handler returns a `Problem`; the edge adds the request's id as `instance` and writes the body. A bare status from a
//! layer or from axum (405, 413, a timeout) is converted there to the problem of that status, so every error has this form.

use super::dashboard::{Rendered, Viewer, failure_page};
use crate::service::{Lack, ServiceError};
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

/// The media type of every error.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The challenge of a 401 response.
pub const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"sparsetune\"");
/// Seconds that a client should wait before it retries.
const LATER: HeaderValue = HeaderValue::from_static("5");
/// The same for a full disk, which an operator has to clear first.
const MUCH_LATER: HeaderValue = HeaderValue::from_static("60");

/// Seconds after which a quota that passes is worth another try.
const QUOTA_LATER: u64 = 30;

/// The classes of errors that a client can distinguish. Each is a `type` of `/problems/…` in openapi.yaml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    InvalidParameter,
    MalformedBody,
    InvalidBody,
    UnreadableMatrix,
    UnreadableBundle,
    UnreadableExport,
    UnsupportedMatrix,
    Unsupported,
    Unauthorized,
    MissingScope,
    TooManyAttempts,
    QuotaExceeded,
    QuotaSpent,
    CrossOrigin,
    UnknownHost,
    NotFound,
    RangeNotSatisfiable,
    MethodNotAllowed,
    Conflict,
    KeyReused,
    TooLarge,
    UnsupportedMediaType,
    Busy,
    TimedOut,
    SlowClient,
    Unavailable,
    StorageFull,
    ReaderFailed,
    Internal,
}

impl Kind {
    pub const ALL: [Self; 29] = [
        Self::InvalidParameter,
        Self::MalformedBody,
        Self::InvalidBody,
        Self::UnreadableMatrix,
        Self::UnreadableBundle,
        Self::UnreadableExport,
        Self::UnsupportedMatrix,
        Self::Unsupported,
        Self::Unauthorized,
        Self::MissingScope,
        Self::TooManyAttempts,
        Self::QuotaExceeded,
        Self::QuotaSpent,
        Self::CrossOrigin,
        Self::UnknownHost,
        Self::NotFound,
        Self::RangeNotSatisfiable,
        Self::MethodNotAllowed,
        Self::Conflict,
        Self::KeyReused,
        Self::TooLarge,
        Self::UnsupportedMediaType,
        Self::Busy,
        Self::TimedOut,
        Self::SlowClient,
        Self::Unavailable,
        Self::StorageFull,
        Self::ReaderFailed,
        Self::Internal,
    ];

    /// Last segment of the type, status, title.
    const fn facts(self) -> (&'static str, StatusCode, &'static str) {
        use StatusCode as S;
        match self {
            Self::InvalidParameter => ("invalid-parameter", S::BAD_REQUEST, "Invalid parameter"),
            Self::MalformedBody => ("malformed-body", S::BAD_REQUEST, "Malformed request body"),
            Self::InvalidBody => ("invalid-body", S::UNPROCESSABLE_ENTITY, "Invalid request body"),
            Self::UnreadableMatrix => {
                ("unreadable-matrix", S::UNPROCESSABLE_ENTITY, "Unreadable matrix")
            }
            Self::UnreadableBundle => {
                ("unreadable-bundle", S::UNPROCESSABLE_ENTITY, "Unreadable bundle")
            }
            Self::UnreadableExport => {
                ("unreadable-export", S::UNPROCESSABLE_ENTITY, "Unreadable export")
            }
            Self::UnsupportedMatrix => {
                ("unsupported-matrix", S::UNPROCESSABLE_ENTITY, "Unsupported matrix")
            }
            Self::Unsupported => ("unsupported", S::UNPROCESSABLE_ENTITY, "Not supported"),
            Self::Unauthorized => ("unauthorized", S::UNAUTHORIZED, "Authentication required"),
            Self::MissingScope => ("missing-scope", S::FORBIDDEN, "Scope missing"),
            Self::TooManyAttempts => {
                ("too-many-attempts", S::TOO_MANY_REQUESTS, "Too many wrong tokens")
            }
            Self::QuotaExceeded => ("quota-exceeded", S::FORBIDDEN, "Quota exceeded"),
            Self::QuotaSpent => ("quota-spent", S::TOO_MANY_REQUESTS, "Quota spent"),
            Self::CrossOrigin => ("cross-origin", S::FORBIDDEN, "Cross-origin request refused"),
            Self::UnknownHost => ("unknown-host", S::MISDIRECTED_REQUEST, "Unknown host"),
            Self::NotFound => ("not-found", S::NOT_FOUND, "Not found"),
            Self::RangeNotSatisfiable => {
                ("range-not-satisfiable", S::RANGE_NOT_SATISFIABLE, "Range not satisfiable")
            }
            Self::MethodNotAllowed => {
                ("method-not-allowed", S::METHOD_NOT_ALLOWED, "Method not allowed")
            }
            Self::Conflict => ("conflict", S::CONFLICT, "Conflict with the state of the resource"),
            Self::KeyReused => (
                "idempotency-key-reused",
                S::UNPROCESSABLE_ENTITY,
                "Idempotency key already used for another request",
            ),
            Self::TooLarge => ("too-large", S::PAYLOAD_TOO_LARGE, "Request too large"),
            Self::UnsupportedMediaType => {
                ("unsupported-media-type", S::UNSUPPORTED_MEDIA_TYPE, "Unsupported media type")
            }
            Self::Busy => ("busy", S::SERVICE_UNAVAILABLE, "Server busy"),
            Self::TimedOut => ("timed-out", S::SERVICE_UNAVAILABLE, "Server timed out"),
            Self::SlowClient => ("slow-client", S::REQUEST_TIMEOUT, "Request timed out"),
            Self::Unavailable => ("unavailable", S::SERVICE_UNAVAILABLE, "Temporarily unavailable"),
            Self::StorageFull => ("storage-full", S::SERVICE_UNAVAILABLE, "Insufficient storage"),
            Self::ReaderFailed => {
                ("reader-failed", S::INTERNAL_SERVER_ERROR, "The upload's reader failed")
            }
            Self::Internal => ("internal", S::INTERNAL_SERVER_ERROR, "Internal server error"),
        }
    }

    pub const fn title(self) -> &'static str {
        self.facts().2
    }

    pub const fn status(self) -> StatusCode {
        self.facts().1
    }

    /// The problem type: a name to compare, not an address to fetch.
    pub fn type_uri(self) -> String {
        format!("/problems/{}", self.facts().0)
    }

    /// The kind for a bare status from a layer.
    fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::UNAUTHORIZED => Self::Unauthorized,
            StatusCode::NOT_FOUND => Self::NotFound,
            StatusCode::METHOD_NOT_ALLOWED => Self::MethodNotAllowed,
            StatusCode::REQUEST_TIMEOUT => Self::SlowClient,
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Self::UnsupportedMediaType,
            StatusCode::SERVICE_UNAVAILABLE => Self::TimedOut,
            status if status.is_client_error() => Self::MalformedBody,
            _ => Self::Internal,
        }
    }

    /// The detail for a bare status from a layer.
    pub(super) const fn bare_detail(self) -> &'static str {
        match self {
            Self::NotFound => "no route has this path; GET / lists them",
            Self::MethodNotAllowed => "the Allow header lists the methods of this resource",
            Self::SlowClient => "the body did not arrive in time, or too slowly",
            Self::TooLarge => "the body is larger than this server accepts",
            Self::UnsupportedMediaType => "Content-Encoding may be gzip, zstd or identity",
            Self::TimedOut => "the server did not finish within its time limit",
            Self::MalformedBody => "the request could not be read",
            _ => "the server could not answer; its log has details under this instance",
        }
    }
}

/// An error as the client sees it, without the instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    kind: Kind,
    detail: String,
    extensions: Map<String, Value>,
    /// The cause, which is logged but not sent to the client.
    cause: Option<String>,
    /// Seconds after which the client may try again, if they are not those of the kind.
    retry_after: Option<u64>,
}

impl Problem {
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into(), extensions: Map::new(), cause: None, retry_after: None }
    }

    /// An extension member (`line`, `pointer`); `None` adds nothing.
    pub fn with(mut self, name: &str, value: Option<impl Into<Value>>) -> Self {
        if let Some(value) = value {
            self.extensions.insert(name.to_owned(), value.into());
        }
        self
    }

    /// Tells the client when to try again.
    pub fn again_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// A description for people.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// A failure of the server: its cause is logged, and the client gets a generic sentence.
    pub fn internal(cause: impl std::fmt::Display) -> Self {
        Self::new(Kind::Internal, Kind::Internal.bare_detail()).caused(cause)
    }

    /// A problem whose cause is only logged.
    fn caused(self, cause: impl std::fmt::Display) -> Self {
        Self { cause: Some(cause.to_string()), ..self }
    }

    /// Logs the cause, if there is one; called once, just before the response is sent.
    pub fn log_cause(&self, instance: &str) {
        let Some(cause) = &self.cause else { return };
        match self.kind {
            Kind::Busy => tracing::warn!(id = instance, cause, "the store is busy"),
            Kind::StorageFull => tracing::error!(id = instance, cause, "the disk is full"),
            _ => tracing::error!(id = instance, cause, "internal error"),
        }
    }

    /// The JSON members in the order of RFC 9457.
    pub fn to_json(&self, instance: Option<&str>) -> Value {
        let (_, status, title) = self.kind.facts();
        let mut body = json!({
            "type": self.kind.type_uri(),
            "title": title,
            "status": status.as_u16(),
            "detail": self.detail,
        });
        if let Value::Object(members) = &mut body {
            if let Some(instance) = instance {
                members.insert("instance".to_owned(), instance.into());
            }
            members.extend(self.extensions.clone());
        }
        body
    }
}

/// The edge writes the body, because it knows the request's id; until then the problem is carried as an extension.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.kind.status().into_response();
        let headers = response.headers_mut();
        match self.kind {
            Kind::Busy | Kind::TimedOut | Kind::Unavailable => {
                headers.insert(header::RETRY_AFTER, LATER);
            }
            Kind::StorageFull => {
                headers.insert(header::RETRY_AFTER, MUCH_LATER);
            }
            Kind::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, CHALLENGE);
            }
            _ => {}
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// Gives an error response its body: a page for clients that want pages, otherwise problem+json. Other responses pass
/// unchanged.
pub fn finish(response: Response, instance: &str, viewer: Option<&Viewer>) -> Response {
    let status = response.status();
    let rendered = response.extensions().get::<Rendered>().is_some();
    if rendered || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    let problem = parts.extensions.remove::<Problem>().unwrap_or_else(|| {
        let kind = Kind::of_status(status);
        Problem::new(kind, kind.bare_detail())
    });
    problem.log_cause(instance);
    // A layer's bare 503 does not have this header.
    if problem.kind == Kind::TimedOut {
        parts.headers.insert(header::RETRY_AFTER, LATER);
    }
    if let Some(viewer) = viewer {
        let mut page = failure_page(viewer, &problem, instance);
        for name in [header::ALLOW, header::RETRY_AFTER] {
            if let Some(value) = parts.headers.remove(&name) {
                page.headers_mut().insert(name, value);
            }
        }
        return page;
    }
    // An unexpected bare 4xx (for example 417 from a library) is reported as the nearest kind.
    parts.status = problem.kind.status();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    parts.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let body = problem.to_json(Some(instance)).to_string();
    Response::from_parts(parts, Body::from(body))
}

impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Self {
        let text = error.to_string();
        match error {
            ServiceError::Invalid { pointer, .. } if pointer.starts_with('/') => {
                Self::new(Kind::InvalidBody, text).with("pointer", Some(pointer))
            }
            ServiceError::Invalid { pointer, .. } => {
                Self::new(Kind::InvalidParameter, text).with("parameter", Some(pointer))
            }
            ServiceError::Ambiguous { pointer, choices, .. } => {
                let (kind, member) = match pointer.starts_with('/') {
                    true => (Kind::InvalidBody, "pointer"),
                    false => (Kind::InvalidParameter, "parameter"),
                };
                Self::new(kind, text).with(member, Some(pointer)).with("choices", Some(choices))
            }
            ServiceError::Unreadable { line, byte, .. } => {
                Self::new(Kind::UnreadableMatrix, text).with("line", line).with("byte", byte)
            }
            ServiceError::BadBundle { .. } => Self::new(Kind::UnreadableBundle, text),
            ServiceError::BadExport { .. } => Self::new(Kind::UnreadableExport, text),
            ServiceError::Unsupported { pointer: None, .. } => {
                Self::new(Kind::UnsupportedMatrix, text)
            }
            ServiceError::Unsupported { pointer, .. } => {
                Self::new(Kind::Unsupported, text).with("pointer", pointer)
            }
            ServiceError::NotFound { .. } => Self::new(Kind::NotFound, text),
            ServiceError::Conflict { .. } => Self::new(Kind::Conflict, text),
            ServiceError::KeyReused => Self::new(Kind::KeyReused, text),
            ServiceError::TooLarge { .. } => Self::new(Kind::TooLarge, text),
            ServiceError::Shortage { shortage, lack, .. } => {
                let kind = match lack {
                    Lack::Never => Kind::TooLarge,
                    Lack::Host => Kind::Unavailable,
                    Lack::InUse => Kind::Busy,
                    Lack::Full => Kind::StorageFull,
                };
                Self::new(kind, text)
                    .with("need", Some(shortage.need))
                    .with("limit", Some(shortage.limit))
                    .with("where", Some(shortage.place))
            }
            ServiceError::Quota(exceeded) => {
                let problem = match exceeded.passes {
                    true => Self::new(Kind::QuotaSpent, text).again_after(QUOTA_LATER),
                    false => Self::new(Kind::QuotaExceeded, text),
                };
                problem
                    .with("quota", Some(exceeded.quota))
                    .with("quota_limit", Some(exceeded.limit))
                    .with("quota_used", Some(exceeded.used))
            }
            ServiceError::Unavailable { .. } => Self::new(Kind::Unavailable, text),
            ServiceError::Busy(cause) => Self::new(Kind::Busy, text).caused(cause),
            ServiceError::Full(cause) => Self::new(Kind::StorageFull, text).caused(cause),
            ServiceError::ReaderFailed { .. } => Self::new(Kind::ReaderFailed, text),
            ServiceError::Internal(cause) => Self::internal(cause),
        }
    }
}
