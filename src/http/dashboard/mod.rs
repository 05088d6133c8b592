//! The dashboard: pages rendered on the server from the data of the public API, and fragments that keep them current.
//!
//! A page is a handler, a struct with the data it shows, and a template in `web/templates`. Handlers call the same service
//! methods as the API's handlers, so everything shown here is also available to clients.

mod address;
mod assets;
mod bound;
mod commands;
mod compare;
mod devices;
mod docs;
mod failure;
mod find;
mod format;
mod heading;
mod how;
mod job;
mod jobs;
mod learned;
mod matrices;
mod matrix;
mod models;
mod moment;
mod overview;
mod pictures;
mod plan;
mod shell;
mod sign_in;
mod webhooks;
mod work;

pub use address::by_tls;
pub use failure::{Rendered, Viewer, page as failure_page, wants_page};

use super::App;
use super::accept::prefers_html;
use super::behalf::OnBehalf;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};

/// Every page and fragment; `/` is in the API's table, because it also answers in JSON.
pub const PAGES: &[&str] = &[
    "/jobs",
    "/jobs/{id}",
    "/matrices",
    "/matrices/{digest}",
    "/plans/{id}",
    "/plans/{id}/search",
    "/how",
    "/compare",
    "/devices",
    "/overview",
    "/models",
    "/webhooks",
    "/docs",
    "/find",
    "/login",
    "/logout",
    FILES,
    "/fragments/jobs",
    "/fragments/jobs/{id}",
    "/fragments/matrices/{digest}/profile",
    "/fragments/plans/{id}/source",
    "/fragments/devices",
    "/fragments/models",
];

/// Style sheet, scripts and icons, which are already compressed.
pub const FILES: &str = "/static/{name}";

/// The methods of a page; `None` for an unknown path.
pub fn methods(path: &str) -> Option<MethodRouter<App>> {
    Some(match path {
        "/jobs" => get(jobs::show),
        "/jobs/{id}" => get(job::show),
        "/matrices" => get(matrices::show),
        "/matrices/{digest}" => get(matrix::show),
        "/plans/{id}" => get(plan::show),
        "/plans/{id}/search" => get(how::of_plan),
        "/how" => get(how::show),
        "/compare" => get(compare::show),
        "/devices" => get(devices::show),
        "/overview" => get(overview::show),
        "/models" => get(models::show),
        "/webhooks" => get(webhooks::show),
        "/docs" => get(docs::show),
        "/find" => get(find::find),
        "/login" => {
            let limit = DefaultBodyLimit::max(sign_in::MAX_FORM);
            get(sign_in::show).post(sign_in::sign_in).route_layer(limit)
        }
        "/logout" => post(sign_in::sign_out),
        FILES => get(assets::serve),
        "/fragments/jobs" => get(jobs::rows),
        "/fragments/jobs/{id}" => get(job::standing),
        "/fragments/matrices/{digest}/profile" => get(matrix::profile),
        "/fragments/plans/{id}/source" => get(plan::source),
        "/fragments/devices" => get(devices::live),
        "/fragments/models" => get(models::live),
        _ => return None,
    })
}

/// `GET /`: the jobs page for browsers, the API index for other clients.
pub async fn home(app: OnBehalf, uri: axum::http::Uri, headers: HeaderMap) -> Response {
    let mut response = if prefers_html(&headers) {
        jobs::show(app, uri).await.into_response()
    } else {
        super::operations::index().await.into_response()
    };
    response.headers_mut().append(header::VARY, header::HeaderValue::from_static("accept"));
    response
}
