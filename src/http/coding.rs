//! The `Content-Encoding` of a request's body. Uploads are unpacked by their readers, JSON bodies here by the same code, so that
//! a body of several members is read whole and junk behind it is refused everywhere.

use super::error::{Kind, Problem};
use crate::service::{Coding, ReadErrorKind, decode};
use axum::body::Bytes;
use axum::http::{HeaderMap, header};

/// Most bytes of a JSON body, also once it is unpacked.
#[derive(Clone, Copy, Debug)]
pub struct JsonLimit(pub usize);

/// The coding of a body; `None` if it is sent as it is.
pub fn of(headers: &HeaderMap) -> Result<Option<Coding>, Problem> {
    let mut named = headers.get_all(header::CONTENT_ENCODING).iter();
    let refused =
        || Problem::new(Kind::UnsupportedMediaType, Kind::UnsupportedMediaType.bare_detail());
    let Some(first) = named.next() else { return Ok(None) };
    let name = first.to_str().map_err(|_| refused())?.trim();
    match (name.to_ascii_lowercase().as_str(), named.next()) {
        ("" | "identity", None) => Ok(None),
        (name, None) => Coding::named(name).map(Some).ok_or_else(refused),
        (_, Some(_)) => Err(refused()),
    }
}

/// A whole JSON body, unpacked.
pub fn unpacked(body: Bytes, coding: Option<Coding>, limit: JsonLimit) -> Result<Bytes, Problem> {
    // A body that is not there is not packed either.
    let Some(coding) = coding.filter(|_| !body.is_empty()) else { return Ok(body) };
    decode(&body, coding, limit.0 as u64).map(Bytes::from).map_err(|error| match error.kind {
        ReadErrorKind::TooLarge => Problem::new(Kind::TooLarge, "the JSON body is too large"),
        _ => Problem::new(Kind::MalformedBody, error.to_string()),
    })
}
