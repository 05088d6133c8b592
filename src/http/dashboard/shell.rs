//! What all pages share: the navigation bar and the response headers.

use super::assets;
use crate::http::App;
use crate::http::error::Problem;
use crate::http::etag;
use askama::Template;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// The entry of the navigation bar that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Jobs,
    Matrices,
    Devices,
    Overview,
    Models,
    Compare,
    How,
    Docs,
    /// None of them.
    Elsewhere,
}

/// An entry of the navigation bar.
pub struct Entry {
    pub name: &'static str,
    pub href: &'static str,
    pub here: bool,
}

/// Data for `base.html`, which every page extends.
pub struct Shell {
    place: Place,
    /// The server uses tokens, so there is a session to end.
    pub signed_in: bool,
}

impl Shell {
    pub fn new(app: &App, place: Place) -> Self {
        Self { place, signed_in: app.access.tokens.required() }
    }

    /// For pages shown without a session: sign-in, errors.
    pub const fn bare(place: Place) -> Self {
        Self { place, signed_in: false }
    }

    pub fn places(&self) -> Vec<Entry> {
        let entries = [
            (Place::Jobs, "Jobs", "/"),
            (Place::Matrices, "Matrices", "/matrices"),
            (Place::Compare, "Compare", "/compare"),
            (Place::Overview, "Overview", "/overview"),
            (Place::Devices, "Devices", "/devices"),
            (Place::Models, "Models", "/models"),
            (Place::How, "How", "/how"),
            (Place::Docs, "API", "/docs"),
        ];
        let entry = |(place, name, href)| Entry { name, href, here: place == self.place };
        entries.into_iter().map(entry).collect()
    }

    /// The element around a page's content: the API's page brings its own `main`, and there is but one.
    pub fn landmark(&self) -> &'static str {
        if self.place == Place::Docs { "div" } else { "main" }
    }

    pub fn asset(&self, name: &str) -> String {
        assets::url(name)
    }

    pub const fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }
}

/// Content security policy: scripts, styles and images from this server only, nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const REFERRER: &str = "same-origin";

/// A rendered page or fragment.
pub fn html(template: &impl Template) -> Result<Response, Problem> {
    html_with(template, POLICY)
}

/// A fragment that pages poll. It has an entity tag, so that an unchanged fragment is not sent again; for that, it must not
/// contain relative times.
pub fn fragment(headers: &HeaderMap, template: &impl Template) -> Result<Response, Problem> {
    let text = Bytes::from(template.render().map_err(Problem::internal)?);
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::REFERRER_POLICY, HeaderValue::from_static(REFERRER)),
    ];
    Ok((fixed, etag::weak(headers, HTML, "private, no-cache", text)).into_response())
}

/// [`html`] under another content security policy.
pub fn html_with(template: &impl Template, policy: &'static str) -> Result<Response, Problem> {
    let text = template.render().map_err(Problem::internal)?;
    let headers: [(HeaderName, HeaderValue); 4] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(HTML)),
        // A page is valid only for the moment, and a private address must not be disclosed.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy)),
        (header::REFERRER_POLICY, HeaderValue::from_static(REFERRER)),
    ];
    Ok((headers, text).into_response())
}
