//! Bundles: a plan as one file, whole or in part, and taking one in.

use super::behalf::OnBehalf;
use super::elsewhere;
use super::error::{Kind, Problem};
use super::etag;
use super::extract::{Path, Query};
use super::upload::Upload;
use crate::bundle::Values;
use crate::domain::PlanId;
use crate::service::{ReadyBundle, ServiceError};
use crate::wire::{KeptBundle, Plan};
use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::io::SeekFrom;
use std::ops::Range;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ValuesIn {
    #[default]
    Included,
    External,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BundleQuery {
    #[serde(default)]
    values: ValuesIn,
}

impl BundleQuery {
    const fn values(&self) -> Values {
        match self.values {
            ValuesIn::Included => Values::Included,
            ValuesIn::External => Values::External,
        }
    }
}

/// A plan never changes under its id, and equal plans have equal bundles.
const FOR_EVER: &str = "private, max-age=86400, immutable";

/// Bytes of the file that are read at a time.
const CHUNK: usize = 256 << 10;

pub async fn show(
    OnBehalf(app): OnBehalf,
    Path(id): Path<PlanId>,
    Query(query): Query<BundleQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let suffix = if query.values() == Values::External { "-without-values" } else { "" };
    let name = format!("{id}{suffix}.stplan");
    // Who asks by condition may have it already, and is told so here.
    if elsewhere::is_welcome(&headers)
        && !headers.contains_key(header::IF_NONE_MATCH)
        && let Some(link) = app.service.bundle_link(&id, query.values(), &name).await?
    {
        return elsewhere::redirect(&link);
    }
    let bundle = app.service.bundle(&id, query.values()).await?;
    let tag = etag::named(&bundle.blob);
    // A condition comes before the range (RFC 9110, section 13.2.2).
    let known = etag::matches(&headers, &tag);
    let part = match asked(&headers, &tag, bundle.bytes) {
        Asked::Whole => None,
        Asked::Part(part) => Some(part),
        Asked::Nothing if known => None,
        Asked::Nothing => return Ok(unsatisfiable(bundle.bytes)),
    };
    let kind = HeaderValue::from_static("application/zip");
    let range = part.clone().unwrap_or(0..bundle.bytes);
    let body = match known {
        true => Body::empty(),
        false => file(&bundle, range.clone()).await?,
    };
    let mut response = etag::respond(&headers, tag, kind, HeaderValue::from_static(FOR_EVER), body);
    if response.status() == StatusCode::NOT_MODIFIED {
        return Ok(response);
    }
    let name = format!("attachment; filename=\"{name}\"");
    let digest = format!("sha-256=:{}:", STANDARD.encode(bundle.sha256));
    let out = response.headers_mut();
    out.insert(header::CONTENT_LENGTH, (range.end - range.start).into());
    out.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // Of the whole file, also in the answer with a part of it (RFC 9530).
    out.insert("repr-digest", text(digest)?);
    out.insert(header::CONTENT_DISPOSITION, text(name)?);
    if part.is_some() {
        let Range { start, end } = range;
        let bytes = bundle.bytes;
        out.insert(header::CONTENT_RANGE, text(format!("bytes {start}-{}/{bytes}", end - 1))?);
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// Builds a plan's bundle and stores it, so that it is there for later requests.
pub async fn keep(
    OnBehalf(app): OnBehalf,
    Path(id): Path<PlanId>,
    Query(query): Query<BundleQuery>,
) -> Result<Response, Problem> {
    let (bundle, created) = app.service.keep_bundle(&id, query.values()).await?;
    let status = if created { StatusCode::CREATED } else { StatusCode::OK };
    let values = if bundle.without_values { "?values=external" } else { "" };
    let location = format!("/v1/plans/{id}/bundle{values}");
    let body = Json(KeptBundle { bytes: bundle.bytes, sha256: hex(&bundle.sha256) });
    Ok((status, [(header::LOCATION, location)], body).into_response())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Takes in a bundle that another service made.
pub async fn import(OnBehalf(app): OnBehalf, request: Request) -> Result<Response, Problem> {
    let upload = Upload::begin(&app, request)?;
    let coding = upload.coding;
    let imported = upload.run(|body| app.service.import_bundle(body, coding)).await?;
    let status = if imported.created { StatusCode::CREATED } else { StatusCode::OK };
    let location = format!("/v1/plans/{}", imported.plan.id);
    let body = Json(Plan::from(imported.plan));
    Ok((status, [(header::LOCATION, location)], body).into_response())
}

/// Bytes of the bundle's file, as a stream.
async fn file(bundle: &ReadyBundle, range: Range<u64>) -> Result<Body, Problem> {
    let failed = |error| Problem::from(ServiceError::of_io("a bundle", error));
    let mut file = tokio::fs::File::open(&*bundle.file).await.map_err(failed)?;
    file.seek(SeekFrom::Start(range.start)).await.map_err(failed)?;
    let file = file.take(range.end - range.start);
    Ok(Body::from_stream(ReaderStream::with_capacity(file, CHUNK)))
}

fn text(value: String) -> Result<HeaderValue, Problem> {
    HeaderValue::try_from(value).map_err(Problem::internal)
}

/// What a request wants of a representation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Asked {
    Whole,
    Part(Range<u64>),
    /// A range that begins beyond the end.
    Nothing,
}

/// One range of bytes, if the client has the right version of the file. Several ranges, and what is no range, are answered with
/// the whole, as RFC 9110 permits.
fn asked(headers: &HeaderMap, tag: &HeaderValue, length: u64) -> Asked {
    let current = headers.get(header::IF_RANGE).is_none_or(|known| known == tag);
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let Some(range) = range.and_then(|range| range.strip_prefix("bytes=")).filter(|_| current)
    else {
        return Asked::Whole;
    };
    let Some((first, last)) = range.split_once('-') else { return Asked::Whole };
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| !text.starts_with('+'));
    let part = match (first.is_empty(), last.is_empty()) {
        // The last few bytes.
        (true, false) => match number(last) {
            Some(0) => return Asked::Nothing,
            Some(count) => length.saturating_sub(count)..length,
            None => return Asked::Whole,
        },
        (false, true) => match number(first) {
            Some(first) => first..length,
            None => return Asked::Whole,
        },
        (false, false) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(length),
            _ => return Asked::Whole,
        },
        (true, true) => return Asked::Whole,
    };
    if part.start >= part.end { Asked::Nothing } else { Asked::Part(part) }
}

fn unsatisfiable(length: u64) -> Response {
    let problem = Problem::new(
        Kind::RangeNotSatisfiable,
        format!("the bundle has {length} bytes, and the range begins beyond them"),
    );
    let mut response = problem.into_response();
    if let Ok(range) = HeaderValue::try_from(format!("bytes */{length}")) {
        response.headers_mut().insert(header::CONTENT_RANGE, range);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        let tag = HeaderValue::from_static("\"a\"");
        let of = |range: &str, if_range: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RANGE, HeaderValue::try_from(range).unwrap());
            if let Some(known) = if_range {
                headers.insert(header::IF_RANGE, HeaderValue::from_static(known));
            }
            asked(&headers, &tag, 100)
        };
        assert_eq!(of("bytes=0-9", None), Asked::Part(0..10));
        assert_eq!(of("bytes=90-", None), Asked::Part(90..100));
        assert_eq!(of("bytes=-7", None), Asked::Part(93..100));
        assert_eq!(of("bytes=-700", None), Asked::Part(0..100));
        assert_eq!(of("bytes=99-1000", Some("\"a\"")), Asked::Part(99..100));
        for nothing in ["bytes=100-", "bytes=100-200", "bytes=-0"] {
            assert_eq!(of(nothing, None), Asked::Nothing, "{nothing}");
        }
        for whole in [
            "bytes=",
            "bytes=-",
            "bytes=5-4",
            "bytes=0-1,5-6",
            "lines=1-2",
            "bytes=+1-2",
            "bytes=x-",
        ] {
            assert_eq!(of(whole, None), Asked::Whole, "{whole}");
        }
        assert_eq!(of("bytes=0-9", Some("\"b\"")), Asked::Whole);
    }
}
