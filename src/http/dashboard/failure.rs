//! Errors as pages: what a browser shows where a program gets problem+json.

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
    /// What to do about it.
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

/// Marks an error response that is a page already, written by the handler that knows more.
#[derive(Clone, Copy, Debug)]
pub struct Rendered;

/// What has asked, where it is somebody who looks at pages.
#[derive(Clone, Debug)]
pub struct Viewer {
    /// Where to go back to after signing in.
    uri: Uri,
    /// It can be gone back to.
    get: bool,
    /// Asked from within a page, to be put into it.
    fragment: bool,
}

const HTMX: HeaderName = HeaderName::from_static("hx-request");

/// The viewer of a request for a page or a fragment; `None` where a program asks, or for the API's own addresses.
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

/// The answer that shows a problem. Whoever is not signed in is sent where one signs in.
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
            "It may have been removed, or the address is not whole. The box above finds matrices, jobs and plans."
        }
        Kind::InvalidParameter => "Something in the address is not as it should be.",
        Kind::Busy | Kind::TimedOut | Kind::Unavailable => {
            "This passes, most likely: load the page again in a few seconds."
        }
        Kind::StorageFull => "Whoever runs this server has to make room on its disk first.",
        Kind::Internal => "The server's log has more under the request's id.",
        Kind::CrossOrigin | Kind::UnknownHost => {
            "Open the server by the address that it was given, and go on from there."
        }
        _ => "",
    }
}

/// htmx follows no redirect of a fragment: it would put the page into the page. A header of its own sends the whole.
fn to_sign_in(viewer: &Viewer) -> Response {
    if viewer.fragment {
        return (StatusCode::NO_CONTENT, [("hx-refresh", "true")]).into_response();
    }
    // A form that was refused is not there to be fetched.
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
    fn a_timeout_says_when_to_come_back_on_a_page_too() {
        let viewer = Viewer { uri: Uri::from_static("/jobs"), get: true, fragment: false };
        let timeout = || StatusCode::SERVICE_UNAVAILABLE.into_response();
        for viewer in [None, Some(&viewer), Some(&Viewer { fragment: true, ..viewer.clone() })] {
            let told = finish(timeout(), "x", viewer);
            assert_eq!(told.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(told.headers()[header::RETRY_AFTER], "5");
        }
    }
}
