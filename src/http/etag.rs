//! Entity tags from digests of the content, and 304 for a client that already has it.

use crate::domain::Digest;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;

/// The tag of some bytes: 128 bits of their BLAKE3 hash, quoted.
pub fn of(bytes: &[u8]) -> HeaderValue {
    named(&Digest::of(bytes))
}

/// The tag of the bytes that have this digest.
pub fn named(digest: &Digest) -> HeaderValue {
    let digest = digest.to_string();
    let mut quoted = String::with_capacity(34);
    quoted.push('"');
    quoted.push_str(&digest[..32]);
    quoted.push('"');
    HeaderValue::try_from(quoted).unwrap_or(HeaderValue::from_static("\"\""))
}

/// Whether `If-None-Match` contains this tag, or is `*`. Uses weak comparison, as RFC 9110 requires for this header.
pub fn matches(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let tag = opaque(tag.as_bytes());
    headers.get_all(header::IF_NONE_MATCH).iter().any(|value| {
        value.as_bytes().split(|&byte| byte == b',').any(|part| {
            let part = part.trim_ascii();
            part == b"*" || opaque(part) == tag
        })
    })
}

fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// 200 with the body or 304 without, both with the tag.
pub fn respond(
    headers: &HeaderMap,
    tag: HeaderValue,
    media_type: HeaderValue,
    cache_control: HeaderValue,
    body: impl Into<Body>,
) -> Response {
    let fresh = matches(headers, &tag);
    let mut response = Response::new(if fresh { Body::empty() } else { body.into() });
    let out = response.headers_mut();
    out.insert(header::ETAG, tag);
    out.insert(header::CACHE_CONTROL, cache_control);
    if fresh {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        out.insert(header::CONTENT_TYPE, media_type);
    }
    response
}

/// [`respond`] with a tag computed from the bytes.
pub fn tagged(
    headers: &HeaderMap,
    media_type: &'static str,
    cache_control: &'static str,
    bytes: Bytes,
) -> Response {
    let (media_type, cache) =
        (HeaderValue::from_static(media_type), HeaderValue::from_static(cache_control));
    respond(headers, of(&bytes), media_type, cache, bytes)
}

/// [`tagged`] for content that a layer compresses afterwards. The tag identifies the text rather than the bytes, so it is
/// weak.
pub fn weak(
    headers: &HeaderMap,
    media_type: &'static str,
    cache_control: &'static str,
    bytes: Bytes,
) -> Response {
    let (media_type, cache) =
        (HeaderValue::from_static(media_type), HeaderValue::from_static(cache_control));
    let tag = format!("W/{}", of(&bytes).to_str().unwrap_or("\"\""));
    let tag = HeaderValue::try_from(tag).unwrap_or(HeaderValue::from_static("W/\"\""));
    let mut response = respond(headers, tag, media_type, cache, bytes);
    // The compression layer adds this header only to responses that it could compress, and a 304 is not one of them.
    let vary = HeaderValue::from_static("accept-encoding");
    response.headers_mut().insert(header::VARY, vary);
    response
}

#[cfg(test)]
mod tests {
    use super::{matches, of};
    use axum::http::{HeaderMap, HeaderValue, header};

    #[test]
    fn if_none_match_is_a_list_of_tags() {
        let tag = of(b"abc");
        let text = tag.to_str().unwrap();
        assert_eq!(text.len(), 34);
        let given = |value: String| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, HeaderValue::try_from(value).unwrap());
            matches(&headers, &tag)
        };
        assert!(given(text.to_owned()) && given(format!("W/{text}")) && given("*".to_owned()));
        assert!(given(format!("\"x\", {text}")));
        let weak = HeaderValue::try_from(format!("W/{text}")).unwrap();
        let has = HeaderMap::from_iter([(header::IF_NONE_MATCH, weak.clone())]);
        assert!(matches(&has, &weak) && matches(&has, &tag), "the comparison is weak");
        assert!(!given("\"x\"".to_owned()) && !given(text.trim_matches('"').to_owned()));
    }
}
