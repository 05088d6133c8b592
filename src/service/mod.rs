//! Use cases: ingest, tuning, training, lookup, upkeep. Everything a transport may ask for is a method of [`Service`].

mod devices;
mod drawings;
mod error;
mod events;
mod guesses;
mod ingest;
mod jobs;
mod learning;
mod lease;
mod listener;
mod lookup;
mod matrices;
mod misses;
mod neighbours;
mod plans;
mod predicted;
mod request;
mod settings;
pub mod signals;
pub mod training;
pub mod tuning;
mod upkeep;

pub use crate::ops::catalog;
pub use crate::store::{JobFilter, Page, PageRequest, Quarantined, Story};
pub use devices::{DeviceStatus, Opening};
pub use drawings::PAGE_SPY;
pub use error::{Result, ServiceError};
pub use events::EventStream;
pub use ingest::Uploaded;
pub use jobs::Submitted;
pub use learning::{ActiveModel, ModelStanding, Ranked};
pub use lookup::LookupQuery;
pub use plans::Blob;
pub use settings::{Keep, LearningSettings, SearchDefaults, ServiceSettings};
pub use upkeep::Removed;

use crate::domain::{DeviceId, JobState, WorkKind};
use crate::store::{Blobs, Claim, Listener, Queue, Store, StoreError};
use drawings::Drawings;
use signals::Signals;
use std::sync::{Arc, Mutex, RwLock};
use tokio::sync::Semaphore;

/// Cheap to clone; clones are the same service.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    blobs: Arc<dyn Blobs>,
    settings: ServiceSettings,
    signals: Arc<Signals>,
    /// Devices that workers of this process serve.
    local: RwLock<Vec<devices::Local>>,
    parses: Arc<Semaphore>,
    /// One look into a stored matrix at a time, for a drawing or for a diagonal: it takes the matrix in memory, and who
    /// asks twice finds it drawn. Not of `parses`, so that looks and uploads do not wait for each other.
    drawing: Arc<Semaphore>,
    /// One prediction for lookups at a time: it takes the matrix in memory. Not of `drawing`, so that neither waits for the
    /// other.
    predicting: Arc<Semaphore>,
    /// One job that a lookup queues at a time.
    submitting: Arc<Semaphore>,
    guesses: Mutex<guesses::Guesses>,
    /// Held while a matrix's file and row appear or go together.
    publishing: tokio::sync::Mutex<()>,
    drawings: Drawings,
    /// Devices that workers of this process are about to serve.
    opening: Mutex<Vec<DeviceId>>,
    /// The learned models in use, as they were last looked at.
    models: Mutex<learning::InUse>,
}

impl Service {
    pub fn new(store: Arc<dyn Store>, blobs: Arc<dyn Blobs>, settings: ServiceSettings) -> Self {
        let signals = Arc::new(Signals::default());
        let listener: Arc<dyn Listener> = signals.clone();
        store.listen(&listener);
        let parses = Arc::new(Semaphore::new(settings.parses_at_once.max(1)));
        let inner = Inner {
            store,
            blobs,
            settings,
            signals,
            local: RwLock::default(),
            parses,
            drawing: Arc::new(Semaphore::new(1)),
            predicting: Arc::new(Semaphore::new(1)),
            submitting: Arc::new(Semaphore::new(1)),
            guesses: Mutex::default(),
            publishing: tokio::sync::Mutex::default(),
            drawings: Drawings::default(),
            opening: Mutex::default(),
            models: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The store, which tells this service of what is written to it.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    pub fn blobs(&self) -> &Arc<dyn Blobs> {
        &self.inner.blobs
    }

    pub fn settings(&self) -> &ServiceSettings {
        &self.inner.settings
    }

    pub fn signals(&self) -> &Arc<Signals> {
        &self.inner.signals
    }

    /// While this number stays, so do the answers to lookups. Read it before the lookup whose answer is kept.
    pub fn plans_epoch(&self) -> u64 {
        self.inner.signals.epoch()
    }

    /// How much work there is of each kind and state that has any.
    pub async fn job_counts(&self) -> Result<Vec<(WorkKind, JobState, u64)>> {
        Ok(self.inner.store.job_counts().await?)
    }

    /// The oldest work of the queue that can be claimed. Work that lost too many workers is failed first.
    pub async fn claim(
        &self,
        queue: &Queue,
        owner: &str,
    ) -> std::result::Result<Option<Claim>, StoreError> {
        let (store, settings) = (&self.inner.store, &self.inner.settings);
        store.claim(queue, owner, settings.lease_ms, settings.max_attempts.max(1)).await
    }

    /// Whether work can be done: the store answers, blobs can be written, there is a device, and none is still about to
    /// come: a job for the best one there is must not go to the CPU because that opens first.
    pub async fn ready(&self) -> Result<()> {
        self.inner.store.revision().await?;
        self.inner.blobs.stage().await?;
        if let Some(message) = self.still_opening() {
            return Err(ServiceError::Unavailable { message });
        }
        if self.any_online().await? {
            return Ok(());
        }
        Err(ServiceError::Unavailable { message: "no device is registered yet".to_owned() })
    }
}
