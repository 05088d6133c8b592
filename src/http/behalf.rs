//! On whose behalf a request is answered. A handler gets the service from here, where it is the caller's, and in no other way: what is of
//! another namespace is not there for it, however it is asked for.

use super::App;
use super::error::Problem;
use super::operations::Ready;
use crate::domain::{Caller, JobState, WorkKind};
use crate::service::{Result, Service};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use std::ops::Deref;
use std::time::Instant;

/// The service before it is known who asks: nothing of matrices, jobs or plans can be asked of it.
#[derive(Clone)]
pub struct Whole(Service);

impl Whole {
    pub const fn new(service: Service) -> Self {
        Self(service)
    }

    pub fn on_behalf_of(&self, caller: &Caller) -> Service {
        self.0.on_behalf_of(caller)
    }

    /// The epoch of the plans of all namespaces, and when the store last confirmed it.
    pub fn epoch(&self) -> (u64, Option<Instant>) {
        (self.0.plans_epoch(), self.0.epoch_confirmed())
    }

    pub async fn ready(&self, what: Ready) -> Result<()> {
        match what {
            Ready::All => self.0.ready().await,
            Ready::Requests => self.0.ready_to_answer().await,
        }
    }

    pub async fn ready_to_work(&self) -> Result<()> {
        self.0.ready_to_work().await
    }

    /// Free bytes of each folder, and the fewest that are to be.
    pub async fn disk_free(&self) -> Result<(Vec<(&'static str, u64)>, u64)> {
        Ok((self.0.disk_free().await?, self.0.settings().stored.least_free))
    }

    pub async fn job_counts(&self) -> Result<Vec<(WorkKind, JobState, u64)>> {
        self.0.all_job_counts().await
    }
}

/// The state of the server, with the service on behalf of who asks.
pub struct Served {
    app: App,
    pub service: Service,
    pub caller: Caller,
}

impl Deref for Served {
    type Target = App;

    fn deref(&self) -> &App {
        &self.app
    }
}

/// Extracts it. Only routes that the guard lets through without asking who it is have none.
pub struct OnBehalf(pub Served);

impl FromRequestParts<App> for OnBehalf {
    type Rejection = Problem;

    async fn from_request_parts(
        parts: &mut Parts,
        app: &App,
    ) -> std::result::Result<Self, Problem> {
        let caller = parts.extensions.get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Problem::internal("a request without a caller"))?;
        let service = app.whole.on_behalf_of(&caller);
        Ok(Self(Served { app: app.clone(), service, caller }))
    }
}
