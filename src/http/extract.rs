//! Extractors that reject with problem+json: for bodies with the JSON pointer of the mistake, for queries and paths with the
//! name.

use super::coding::{self, JsonLimit};
use super::error::{Kind, Problem};
use crate::domain::{Digest, JobId, ModelId, PlanId, QuarantineId};
pub use crate::wire::given;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use serde::de::DeserializeOwned;
use serde_path_to_error::{Path as SerdePath, Segment};
use std::error::Error;

/// A JSON body.
pub struct Json<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if !is_json(&request) {
            return Err(no_json());
        }
        parse(&bytes(request, state).await?).map(Self)
    }
}

fn no_json() -> Problem {
    let detail = "the body must be JSON: send Content-Type: application/json";
    Problem::new(Kind::UnsupportedMediaType, detail)
}

/// The whole body, unpacked.
async fn bytes<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Problem> {
    let coding = coding::of(request.headers())?;
    let limit = request.extensions().get::<JsonLimit>().copied();
    let limit = limit.ok_or_else(|| Problem::internal("a route of JSON has no limit"))?;
    let whole = Bytes::from_request(request, state).await;
    let whole = whole.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(Kind::TooLarge, "the JSON body is too large"),
        _ => Problem::new(Kind::MalformedBody, rejection.body_text()),
    })?;
    coding::unpacked(whole, coding, limit)
}

/// A JSON body or none: every member may be absent, and so may the whole body.
pub struct MaybeJson<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for MaybeJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let is_json = is_json(&request);
        let bytes = bytes(request, state).await?;
        match bytes.is_empty() {
            // A client that sends no body need not send a content type.
            true => Ok(Self(T::default())),
            false if is_json => parse(&bytes).map(Self),
            false => Err(no_json()),
        }
    }
}

fn is_json(request: &Request) -> bool {
    let Some(value) = request.headers().get(header::CONTENT_TYPE) else { return false };
    let essence = value.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let cause = error.inner();
        let kind = if cause.is_data() { Kind::InvalidBody } else { Kind::MalformedBody };
        let place = cause.is_data().then(|| pointer(error.path()));
        Problem::new(kind, cause.to_string())
            .with("pointer", place)
            .with("line", Some(cause.line()))
            .with("column", Some(cause.column()))
    })?;
    deserializer.end().map_err(|error| Problem::new(Kind::MalformedBody, error.to_string()))?;
    Ok(value)
}

/// The RFC 6901 pointer of a serde path; empty for the whole document.
fn pointer(path: &SerdePath) -> String {
    let mut out = String::new();
    for segment in path.iter() {
        let name = match segment {
            Segment::Seq { index } => index.to_string(),
            Segment::Map { key } => key.replace('~', "~0").replace('/', "~1"),
            Segment::Enum { variant } => variant.clone(),
            Segment::Unknown => continue,
        };
        out.push('/');
        out.push_str(&name);
    }
    out
}

/// A query string in which every parameter must be known.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        Self::of(&parts.uri)
    }
}

impl<T: DeserializeOwned> Query<T> {
    /// The query of a URI, for handlers that inspect it before they parse it.
    pub fn of(uri: &axum::http::Uri) -> Result<Self, Problem> {
        match axum::extract::Query::try_from_uri(uri) {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(rejection) => {
                let cause = rejection.source().map_or_else(|| rejection.body_text(), root);
                Err(Problem::new(Kind::InvalidParameter, cause))
            }
        }
    }
}

/// The innermost message: the outer ones only say that a query string could not be parsed.
fn root(error: &(dyn Error + 'static)) -> String {
    error.to_string()
}

/// The only path parameter of a route.
pub struct Path<T>(pub T);

/// A name that can be used in a path.
pub trait PathName: Sized {
    const WHAT: &'static str;
    fn parse(text: &str) -> Option<Self>;
}

impl PathName for Digest {
    const WHAT: &'static str = "a digest: 64 lower-case hex digits";

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl PathName for JobId {
    const WHAT: &'static str = "a job's id: a lower-case UUID";

    fn parse(text: &str) -> Option<Self> {
        canonical_uuid(text).map(Self)
    }
}

impl PathName for PlanId {
    const WHAT: &'static str = "a plan's id: a lower-case UUID";

    fn parse(text: &str) -> Option<Self> {
        canonical_uuid(text).map(Self)
    }
}

impl PathName for QuarantineId {
    const WHAT: &'static str = "the id of an entry of the quarantine: 16 lower-case hex digits";

    fn parse(text: &str) -> Option<Self> {
        let digit = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        (text.len() == 16 && text.bytes().all(digit)).then(|| Self(text.to_owned()))
    }
}

/// Models shipped with sparsetune have names chosen by people, all others have UUIDs.
impl PathName for ModelId {
    const WHAT: &'static str = "a model's id: 1 to 100 of a-z, 0-9, '.', '_' and '-'";

    fn parse(text: &str) -> Option<Self> {
        let allowed = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
        };
        let fits = (1..=100).contains(&text.len()) && text.bytes().all(allowed);
        fits.then(|| Self(text.to_owned()))
    }
}

/// A UUID can be written in several ways, but only one is accepted, so that equal ids are equal text.
pub fn canonical_uuid(text: &str) -> Option<String> {
    let canonical = uuid::Uuid::try_parse(text).ok()?.hyphenated().to_string();
    (canonical == text).then_some(canonical)
}

impl<S: Send + Sync, T: PathName> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let refused =
            || Problem::new(Kind::InvalidParameter, format!("the path needs {}", T::WHAT));
        let axum::extract::Path(text) =
            axum::extract::Path::<String>::from_request_parts(parts, state)
                .await
                .map_err(|_| refused())?;
        T::parse(&text).map(Self).ok_or_else(refused)
    }
}

/// The two path parameters of a route.
pub struct PathPair<T, U>(pub T, pub U);

impl<S: Send + Sync, T: PathName, U: PathName> FromRequestParts<S> for PathPair<T, U> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let refused = |what| Problem::new(Kind::InvalidParameter, format!("the path needs {what}"));
        let axum::extract::Path((first, second)) =
            axum::extract::Path::<(String, String)>::from_request_parts(parts, state)
                .await
                .map_err(|_| refused(T::WHAT))?;
        let first = T::parse(&first).ok_or_else(|| refused(T::WHAT))?;
        Ok(Self(first, U::parse(&second).ok_or_else(|| refused(U::WHAT))?))
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, canonical_uuid, parse};
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[serde(rename = "in/ner")]
        _inner: Vec<u32>,
    }

    #[test]
    fn a_wrong_member_is_named_by_its_pointer() {
        let problem = parse::<Outer>(br#"{"in/ner": [1, "x"]}"#).unwrap_err();
        assert_eq!(problem.kind(), Kind::InvalidBody);
        assert_eq!(problem.to_json(None)["pointer"], "/in~1ner/1");
    }

    #[test]
    fn broken_json_is_another_kind_than_wrong_json() {
        for text in ["{", "", r#"{"in/ner": []} x"#] {
            assert_eq!(parse::<Outer>(text.as_bytes()).unwrap_err().kind(), Kind::MalformedBody);
        }
    }

    #[test]
    fn an_id_has_one_spelling() {
        let id = "0193a7c4-1111-7222-8333-444455556666";
        assert_eq!(canonical_uuid(id).as_deref(), Some(id));
        assert_eq!(canonical_uuid("0193A7C4-1111-7222-8333-444455556666"), None);
        assert_eq!(canonical_uuid("0193a7c4111172228333444455556666"), None);
    }
}
