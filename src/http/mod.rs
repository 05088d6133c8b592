//! The only axum: routes, wire types beside their handlers, problem+json.

mod accept;
mod attempts;
mod audit;
mod behalf;
mod body;
mod bundles;
mod catalogue;
mod clients;
mod coding;
mod connections;
mod dashboard;
mod devices;
mod edge;
mod elsewhere;
pub mod error;
mod etag;
mod events;
mod extract;
mod guard;
mod jobs;
mod lookup;
mod matrices;
pub mod metrics;
mod models;
mod operations;
mod overview;
mod page;
mod pins;
mod plans;
mod problems;
mod profile;
mod routes;
mod scopes;
mod server;
mod session;
mod tokens;
mod trainings;
mod transfer;
mod trials;
mod upload;
mod webhooks;

pub use attempts::Attempts;
pub use body::Pace;
pub use dashboard::PAGES;
pub use edge::REQUEST_ID;
pub use guard::{Access, Without};
pub use metrics::Metrics;
pub use operations::OPENAPI;
pub use routes::{CHECKS, PATHS, checks, router};
pub use server::Server;
pub use session::Tokens;

use crate::service::Service;
use behalf::Whole;
use clients::Places;
use lookup::LookupCache;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Limits on the size and duration of requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum size in bytes of an upload as it arrives; its reader limits what it unpacks to.
    pub upload_bytes: usize,
    /// Maximum size in bytes of a JSON body, as it arrives and unpacked.
    pub json_bytes: usize,
    pub uploads_at_once: usize,
    /// Of these, most of one client.
    pub uploads_each: usize,
    /// Event streams at once, and most of one client.
    pub streams_at_once: usize,
    pub streams_each: usize,
    /// Most bytes of answers to lookups that are kept in memory.
    pub lookup_bytes: usize,
    /// Whether a proxy in front names the clients (X-Forwarded-For).
    pub forwarded: bool,
    /// How fast bodies have to arrive.
    pub pace: Pace,
    /// Maximum number of connections; a few more are accepted for the checks of an orchestrator.
    pub connections: usize,
    /// Of these, most of one address.
    pub connections_each: usize,
    /// Time limit for a request's headers, and for an idle connection.
    pub headers: Duration,
    /// Time limit for an answer, except for uploads and event streams.
    pub answer: Duration,
    pub upload: Duration,
    pub sse_keep_alive: Duration,
    /// Time that running requests have to finish after shutdown has begun.
    pub shutdown: Duration,
}

/// State shared by all handlers; clones share it.
#[derive(Clone)]
pub struct App(Arc<Shared>);

pub struct Shared {
    whole: Whole,
    limits: Limits,
    access: Access,
    metrics: Arc<Metrics>,
    lookups: LookupCache,
    uploads: Places,
    streams: Places,
    /// Cancelled when the server should stop; event streams end then.
    shutdown: CancellationToken,
}

impl App {
    pub fn new(
        service: Service,
        limits: Limits,
        access: Access,
        metrics: Arc<Metrics>,
        shutdown: CancellationToken,
    ) -> Self {
        Self(Arc::new(Shared {
            whole: Whole::new(service),
            limits,
            access,
            metrics,
            lookups: LookupCache::new(limits.lookup_bytes),
            uploads: Places::new("uploads", limits.uploads_at_once, limits.uploads_each),
            streams: Places::new("event streams", limits.streams_at_once, limits.streams_each),
            shutdown,
        }))
    }
}

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}
