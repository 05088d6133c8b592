//! Style sheet, scripts and icons: embedded in the binary, addressed by content digest, compressed once.

use crate::domain::Digest;
use crate::http::accept::takes_gzip;
use crate::http::error::{Kind, Problem};
use crate::http::etag;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use rust_embed::RustEmbed;
use std::collections::HashMap;
use std::io::Write;
use std::sync::LazyLock;

#[derive(RustEmbed)]
#[folder = "web/static/"]
struct Own;

#[derive(RustEmbed)]
#[folder = "web/vendor/"]
struct Vendored;

/// One file as it is served.
struct Asset {
    media_type: &'static str,
    digest: Digest,
    plain: Bytes,
    /// Compressed with gzip, if that is smaller.
    packed: Option<Bytes>,
}

/// Every file by name. Compressed on first use, so that a server whose dashboard is not used spends nothing on it.
static ASSETS: LazyLock<HashMap<String, Asset>> = LazyLock::new(|| {
    let own = Own::iter().filter_map(|name| Some((Own::get(&name)?.data, name)));
    let vendored = Vendored::iter().filter_map(|name| Some((Vendored::get(&name)?.data, name)));
    // The licences and the list of vendored files are not served.
    let served = |name: &str| [".js", ".css", ".svg"].iter().any(|kind| name.ends_with(kind));
    own.chain(vendored)
        .filter(|(_, name)| served(name))
        .map(|(data, name)| (name.to_string(), Asset::new(&name, &data)))
        .collect()
});

impl Asset {
    fn new(name: &str, data: &[u8]) -> Self {
        let packed = gzip(data).filter(|packed| packed.len() < data.len());
        Self {
            media_type: media_type(name),
            digest: Digest::of(data),
            plain: Bytes::copy_from_slice(data),
            packed: packed.map(Bytes::from),
        }
    }

    /// The version in its address.
    fn version(&self) -> String {
        self.digest.to_string()[..12].to_owned()
    }
}

fn gzip(data: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(data).ok()?;
    encoder.finish().ok()
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// The address of a file. It contains the content's digest, so browsers can cache the file indefinitely.
pub fn url(name: &str) -> String {
    match ASSETS.get(name) {
        Some(asset) => format!("/static/{name}?{}", asset.version()),
        None => format!("/static/{name}"),
    }
}

const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
/// The content behind an address without a digest may change.
const FOR_NOW: HeaderValue = HeaderValue::from_static("public, no-cache");

/// `GET /static/{name}`.
pub async fn serve(
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let asset = ASSETS.get(&name);
    let asset = asset.ok_or_else(|| Problem::new(Kind::NotFound, "file not found"))?;
    let packed = asset.packed.as_ref().filter(|_| takes_gzip(&headers));
    let body = packed.unwrap_or(&asset.plain).clone();
    // The plain and the compressed form have different tags, because tags identify bytes.
    let media_type = HeaderValue::from_static(asset.media_type);
    let named = uri.query() == Some(asset.version().as_str());
    let cache = if named { FOR_EVER } else { FOR_NOW };
    let mut response = etag::respond(&headers, etag::of(&body), media_type, cache, body);
    let out = response.headers_mut();
    out.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if packed.is_some() {
        out.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_contain_the_content_digest() {
        assert!(url("app.css").starts_with("/static/app.css?"));
        assert_eq!(url("nothing.css"), "/static/nothing.css");
        assert!(ASSETS.values().all(|asset| asset.media_type != "application/octet-stream"));
    }
}
