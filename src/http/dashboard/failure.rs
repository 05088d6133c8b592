//! Errors as HTML pages, for browsers; programs get problem+json.

use super::address::encoded;
use super::shell::{Place, Shell, html};
use crate::http::accept::prefers_html;
use crate::http::error::{Kind, Problem};
use askama::Template;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};

#[derive(Template)]
#[template(path = "failure.html")]
struct Failure<'a> {
    shell: Shell,
    title: &'a str,
    detail: &'a str,
    /// What the user can do about it.
    advice: &'a str,
    status: u16,
    instance: &'a str,
}

#[derive(Template)]
#[template(path = "failure_fragment.html")]
struct Fragment<'a> {
    detail: &'a str,
    status: u16,
    instance: &'a str,
}

/// Marks an error response that its handler has already rendered as a page.
#[derive(Clone, Copy, Debug)]
pub struct Rendered;

/// The browser that sent a request for a page.
#[derive(Clone, Debug)]
pub struct Viewer {
    /// Where to return after signing in.
    uri: Uri,
    /// Whether the address can be requested again (a GET).
    get: bool,
    /// Whether the response is inserted into a page by htmx.
    fragment: bool,
}

const HTMX: HeaderName = HeaderName::from_static("hx-request");

/// The viewer of a request for a page or a fragment; `None` for programs and for API paths.
pub fn wants_page(request: &Request) -> Option<Viewer> {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    let get = matches!(*method, Method::GET | Method::HEAD);
    let page = (get || method == Method::POST)
        && !uri.path().starts_with("/v1/")
        && (prefers_html(headers) || is_fragment(headers));
    page.then(|| Viewer { uri: uri.clone(), get, fragment: is_fragment(headers) })
}

fn is_fragment(headers: &HeaderMap) -> bool {
    headers.contains_key(HTMX)
}

/// Renders a problem as a page. Clients that are not signed in are redirected to the sign-in page.
pub fn page(viewer: &Viewer, problem: &Problem, instance: &str) -> Response {
    if problem.kind() == Kind::Unauthorized {
        return to_sign_in(viewer);
    }
    let status = problem.kind().status();
    let rendered = if viewer.fragment {
        html(&Fragment { detail: problem.detail(), status: status.as_u16(), instance })
    } else {
        html(&Failure {
            shell: Shell::bare(Place::Elsewhere),
            title: problem.kind().title(),
            detail: problem.detail(),
            advice: advice(problem.kind()),
            status: status.as_u16(),
            instance,
        })
    };
    match rendered {
        Ok(mut response) => {
            *response.status_mut() = status;
            response
        }
        Err(_) => status.into_response(),
    }
}

const fn advice(kind: Kind) -> &'static str {
    match kind {
        Kind::NotFound => {
            "It may have been deleted, or the address is incomplete. Use the search box above to find matrices, jobs and plans."
        }
        Kind::InvalidParameter => "A parameter in the address is not valid.",
        Kind::Busy | Kind::TimedOut | Kind::Unavailable => {
            "This is probably temporary. Reload the page in a few seconds."
        }
        Kind::StorageFull => "The server's disk is full; its operator has to free space.",
        Kind::ReaderFailed => "The file was not stored: the process that read it failed.",
        Kind::Internal => "The server's log has details under this request id.",
        Kind::CrossOrigin | Kind::UnknownHost => {
            "Open the server by its configured address and try again."
        }
        _ => "",
    }
}

/// A fragment request must not be redirected: htmx would insert the sign-in page into the page. The `HX-Refresh` header
/// reloads the whole page instead.
fn to_sign_in(viewer: &Viewer) -> Response {
    if viewer.fragment {
        return (StatusCode::NO_CONTENT, [("hx-refresh", "true")]).into_response();
    }
    // A refused POST cannot be repeated with GET, so there is no address to return to.
    let back = viewer.uri.path_and_query().filter(|_| viewer.get);
    let back = back.map_or("/", |whole| whole.as_str());
    let next = format!("/login?next={}", encoded(back));
    let mut response = Redirect::to(&next).into_response();
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::error::finish;

    #[test]
    fn a_timeout_page_has_retry_after_too() {
        let viewer = Viewer { uri: Uri::from_static("/jobs"), get: true, fragment: false };
        let timeout = || StatusCode::SERVICE_UNAVAILABLE.into_response();
        for viewer in [None, Some(&viewer), Some(&Viewer { fragment: true, ..viewer.clone() })] {
            let told = finish(timeout(), "x", viewer);
            assert_eq!(told.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(told.headers()[header::RETRY_AFTER], "5");
        }
    }
}
