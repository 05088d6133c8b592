//! The route table, and the layers of each class of route.
//!
//! Around everything, from the outside in:
//! 1. edge: request id, latency, panics, headers, problem+json. Outermost, so that it sees every response, including
//!    those of the other layers and of the fallbacks.
//! 2. guard: tokens and their scopes ([`super::scopes`]), Host, Origin. Checked before anything of the body is
//!    read.
//! 3. audit: what has changed something is recorded before it is answered.
//!
//! Around a handler, depending on the class of its route:
//! 4. a time limit: short for immediate answers, long for uploads, none for event streams.
//! 5. the body size limit, of the bytes that arrive. What they unpack to (Content-Encoding gzip, zstd) is limited where it is
//!    unpacked ([`super::coding`]).
//! 6. compression of the response, only for pages and the API's description: files are embedded compressed, and other
//!    answers are small or have a compressed form of their own.
//!
//! The handler itself limits concurrent uploads, because this limit must apply as long as the body is read.

use super::coding::JsonLimit;
use super::edge::{EdgeLayer, no_method, no_route};
use super::guard::GuardLayer;
use super::{
    App, audit, bundles, catalogue, dashboard, devices, events, jobs, lookup, matrices, models,
    operations, overview, pins, plans, profile, tokens, trainings, transfer, trials, webhooks,
};
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, post, put};
use axum::{Extension, Router};
use std::time::Duration;
use tower::ServiceBuilder;
use tower_http::compression::CompressionLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;

/// Every path, as written by both axum and OpenAPI.
pub const PATHS: &[&str] = &[
    "/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.yaml",
    "/v1/matrices",
    "/v1/matrices/{digest}",
    "/v1/matrices/{digest}/spy.png",
    "/v1/matrices/{digest}/profile",
    "/v1/matrices/{digest}/plans",
    "/v1/matrices/{digest}/pin",
    "/v1/jobs",
    "/v1/jobs/{id}",
    "/v1/jobs/{id}/events",
    "/v1/jobs/{id}/trials",
    "/v1/plans",
    "/v1/plans/{id}",
    "/v1/plans/{id}/blobs/{digest}",
    "/v1/plans/{id}/bundle",
    "/v1/plans/{id}/pin",
    "/v1/pins",
    "/v1/bundles",
    "/v1/operations",
    "/v1/rules",
    "/v1/devices",
    "/v1/overview",
    "/v1/quarantine",
    "/v1/quarantine/{id}",
    "/v1/webhooks",
    "/v1/webhooks/{id}",
    "/v1/webhooks/{id}/deliveries",
    "/v1/models",
    "/v1/models/train",
    "/v1/models/roll-back",
    "/v1/models/activations",
    "/v1/models/{id}",
    "/v1/models/{id}/file",
    "/v1/models/{id}/activate",
    "/v1/export",
    "/v1/import",
    "/v1/tokens",
    "/v1/tokens/{name}",
    "/v1/audit",
];

/// The methods of a path; `None` if it is not in the table.
fn methods(path: &str, app: &App) -> Option<MethodRouter<App>> {
    let limits = &app.limits;
    let quick = |methods: MethodRouter<App>| methods.route_layer(answer_within(limits.answer));
    Some(match path {
        "/" => page(get(dashboard::home), app),
        "/healthz" => quick(get(operations::healthz)),
        "/readyz" => quick(get(operations::readyz)),
        "/metrics" => quick(get(operations::metrics)),
        "/openapi.yaml" => page(get(operations::openapi), app),
        "/v1/matrices" => quick(get(matrices::list)).merge(upload(post(matrices::upload), app)),
        "/v1/matrices/{digest}" => quick(get(matrices::show).delete(matrices::remove)),
        "/v1/matrices/{digest}/spy.png" => quick(get(matrices::spy)),
        "/v1/matrices/{digest}/profile" => quick(get(profile::show)),
        "/v1/matrices/{digest}/plans" => quick(get(plans::of_matrix)),
        "/v1/matrices/{digest}/pin" => quick(put(pins::pin_matrix).delete(pins::unpin_matrix)),
        "/v1/jobs" => quick(get(jobs::list).merge(json_body(post(jobs::submit), app))),
        "/v1/jobs/{id}" => quick(get(jobs::show).delete(jobs::cancel)),
        "/v1/jobs/{id}/events" => get(events::stream),
        "/v1/jobs/{id}/trials" => quick(get(trials::list)),
        "/v1/plans" => quick(get(lookup::lookup).post(lookup::keep)),
        "/v1/plans/{id}" => quick(get(plans::show)),
        "/v1/plans/{id}/blobs/{digest}" => quick(get(plans::blob)),
        // Building one reads a matrix and packs it, as taking one in does.
        "/v1/plans/{id}/bundle" => {
            get(bundles::show).post(bundles::keep).route_layer(answer_within(limits.upload))
        }
        "/v1/plans/{id}/pin" => quick(put(pins::pin_plan).delete(pins::unpin_plan)),
        "/v1/pins" => quick(get(pins::list)),
        "/v1/bundles" => upload(post(bundles::import), app),
        "/v1/operations" => quick(get(catalogue::list)),
        "/v1/rules" => quick(get(catalogue::rules)),
        "/v1/devices" => quick(get(devices::list)),
        "/v1/overview" => quick(get(overview::show)),
        "/v1/quarantine" => quick(get(devices::quarantine)),
        "/v1/quarantine/{id}" => quick(delete(devices::lift)),
        "/v1/webhooks" => quick(get(webhooks::list).merge(json_body(post(webhooks::make), app))),
        "/v1/webhooks/{id}" => quick(delete(webhooks::remove)),
        "/v1/webhooks/{id}/deliveries" => quick(get(webhooks::deliveries)),
        "/v1/models" => quick(get(models::list)),
        "/v1/models/train" => quick(json_body(post(trainings::submit), app)),
        "/v1/models/roll-back" => quick(json_body(post(models::roll_back), app)),
        "/v1/models/activations" => quick(get(models::activations)),
        "/v1/models/{id}" => quick(get(models::show)),
        "/v1/models/{id}/file" => quick(get(models::file)),
        "/v1/models/{id}/activate" => quick(json_body(post(models::activate), app)),
        // As long as the client takes it, which the pace of connections bounds.
        "/v1/export" => get(transfer::export),
        "/v1/import" => upload(post(transfer::import), app),
        "/v1/tokens" => quick(get(tokens::list).merge(json_body(post(tokens::make), app))),
        "/v1/tokens/{name}" => quick(delete(tokens::revoke)),
        "/v1/audit" => quick(get(audit::list)),
        _ => return None,
    })
}

/// What a process answers that only works: whether it does, and what it counts.
pub const CHECKS: &[&str] = &["/healthz", "/readyz", "/metrics"];

/// [`CHECKS`] as a router.
pub fn checks(app: App) -> Router {
    let quick = |methods: MethodRouter<App>| methods.route_layer(answer_within(app.limits.answer));
    let routed = Router::new()
        .route("/healthz", quick(get(operations::healthz)))
        .route("/readyz", quick(get(operations::readyz_of_worker)))
        .route("/metrics", quick(get(operations::metrics_of_worker)));
    finished(routed, app)
}

/// The complete service as a router.
pub fn router(app: App) -> Router {
    let routed = PATHS.iter().fold(Router::new(), |router, path| match methods(path, &app) {
        Some(methods) => router.route(path, methods),
        None => router,
    });
    let routed =
        dashboard::PAGES.iter().fold(routed, |router, path| match dashboard::methods(path) {
            Some(methods) if *path == dashboard::FILES => {
                router.route(path, methods.route_layer(answer_within(app.limits.answer)))
            }
            Some(methods) => router.route(path, page(methods, &app)),
            None => router,
        });
    finished(routed, app)
}

/// With what is around every route.
fn finished(routed: Router<App>, app: App) -> Router {
    let around = ServiceBuilder::new()
        .layer(EdgeLayer::new(app.metrics.clone(), app.access.clone(), app.limits.pace))
        .layer(GuardLayer(app.access.clone()))
        .layer(from_fn_with_state(app.clone(), audit::record));
    routed.fallback(no_route).method_not_allowed_fallback(no_method).layer(around).with_state(app)
}

/// Pages and the API's description are compressed when they are sent, so their tags are weak ([`super::etag::weak`]).
fn page(methods: MethodRouter<App>, app: &App) -> MethodRouter<App> {
    methods.route_layer(
        ServiceBuilder::new()
            .layer(answer_within(app.limits.answer))
            .layer(CompressionLayer::new()),
    )
}

/// The server itself is too slow, hence 503.
fn answer_within(limit: Duration) -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::SERVICE_UNAVAILABLE, limit)
}

fn upload(methods: MethodRouter<App>, app: &App) -> MethodRouter<App> {
    // The duration of an upload depends on the client, hence 408.
    let limit = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, app.limits.upload);
    methods.route_layer(
        ServiceBuilder::new()
            .layer(limit)
            .layer(RequestBodyLimitLayer::new(app.limits.upload_bytes)),
    )
}

fn json_body(methods: MethodRouter<App>, app: &App) -> MethodRouter<App> {
    methods.route_layer(
        ServiceBuilder::new()
            .layer(Extension(JsonLimit(app.limits.json_bytes)))
            .layer(RequestBodyLimitLayer::new(app.limits.json_bytes))
            // The layer above is the limit; axum's own would be a second one on the same bytes.
            .layer(DefaultBodyLimit::disable()),
    )
}
