//! Use cases: ingest, tuning, training, lookup, upkeep. Everything that a transport can request is a method of [`Service`].

mod audit;
pub mod backup;
mod bundles;
pub mod checkup;
mod devices;
mod drawings;
mod drift;
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
mod overview;
mod plans;
mod predicted;
mod rankers;
mod readiness;
mod request;
mod retention;
mod room;
mod settings;
pub mod signals;
mod study;
mod tokens;
pub mod training;
pub mod transfer;
pub mod tuning;
mod upkeep;
pub mod webhooks;
mod whole;

pub use crate::domain::retention::{Rule, Rules};
pub use crate::ops::catalog;
pub use crate::ops::feature_words::words as feature_words;
pub use crate::sparse::read::{Coding, ReadErrorKind, decode};
pub use crate::store::order::{
    Column, Direction, JobColumn, JobOrder, MatrixColumn, MatrixOrder, Order,
};
pub use crate::store::{
    JobFilter, Page, PageRequest, Pin, Pins, Quarantined, StoredBundle, StoredToken, Story,
};
pub use bundles::{BundleFile, Imported, ReadyBundle};
pub use devices::{DeviceStatus, Opening};
pub use drawings::PAGE_SPY;
pub use drift::DriftSettings;
pub use error::{Lack, Result, ServiceError};
pub use events::EventStream;
#[cfg(test)]
pub(crate) use guesses::Found;
pub use guesses::TRY_AGAIN;
pub use ingest::Uploaded;
pub use jobs::Submitted;
pub use learning::{ModelStanding, Ranked};
pub use lookup::{LookupQuery, MEASURED_BY_POST, STORED_BY_POST, UNSTORED};
#[cfg(test)]
pub(crate) use lookup::{of_predicted, of_unstored};
pub use matrices::meant;
pub use overview::{ClassFigures, Learnt, LearntVersion, Overview};
pub use plans::Blob;
pub use rankers::{ActiveModel, Ranker};
pub use retention::{Going, Gone, Held, Part};
pub use room::StoredLimits;
pub use settings::{
    BudgetLimits, DEVICE_LOCKS, Keep, LearningSettings, SearchDefaults, ServiceSettings,
    jobs_bytes, reading_bytes,
};
pub use study::Searched;
pub use tokens::{MadeToken, NewToken, Ring};
pub use upkeep::Removed;

use crate::domain::{Caller, DeviceId, JobId, JobState, WorkKind};
use crate::pool::Readers;
use crate::store::{Blobs, Claim, Listener, Queue, Store, StoreError, Whose};
use drawings::Drawings;
use signals::Signals;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};
use tokio::sync::Semaphore;

/// Cheap to clone: clones are the same service.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
    /// On whose behalf this one acts.
    caller: Arc<Caller>,
    /// The store as the caller sees it.
    store: Arc<dyn Store>,
}

struct Inner {
    blobs: Arc<dyn Blobs>,
    settings: ServiceSettings,
    signals: Arc<Signals>,
    /// Devices that workers of this process serve.
    local: RwLock<Vec<devices::Local>>,
    /// The devices that lookups know of.
    known: devices::KnownLately,
    parses: Arc<Semaphore>,
    /// Processes that read uploads behind a fence.
    readers: Option<Readers>,
    /// Permits one task at a time to read a stored matrix, for a drawing or a diagonal: it holds the matrix in memory, and a
    /// repeated request finds it drawn. Separate from `parses`, so that these tasks and uploads do not wait for each other.
    drawing: Arc<Semaphore>,
    /// Permits few exports at a time, each of which takes a processor.
    exports: Arc<Semaphore>,
    /// Permits one prediction for lookups at a time, because it holds the matrix in memory. Separate from `drawing`, so that
    /// neither waits for the other.
    predicting: Arc<Semaphore>,
    /// Permits one job at a time to be queued by lookups.
    submitting: Arc<Semaphore>,
    guesses: Mutex<guesses::Guesses>,
    /// Jobs of this process whose search is to end with what it has.
    concluding: Mutex<HashSet<JobId>>,
    /// Held while a matrix's file and row are created or deleted together.
    publishing: tokio::sync::Mutex<()>,
    drawings: Drawings,
    built: bundles::Built,
    brought: bundles::Brought,
    /// For what uploads and bundles store.
    room: Arc<room::Room>,
    /// The last answer to whether the store can be written.
    writable: readiness::Verdict,
    /// Devices of this process that are being opened.
    opening: Mutex<Vec<DeviceId>>,
    /// The active learned models, as last read.
    models: Mutex<rankers::InUse>,
    ring: Arc<Ring>,
    drift: drift::Remembered,
    /// This start of the process, among all.
    process: String,
    /// Another process has this one's name.
    nameless: AtomicBool,
    /// Workers of this process claim nothing more.
    draining: AtomicBool,
    /// Entries that this process has added to the audit log.
    recorded: AtomicU64,
}

impl Service {
    /// Blobs are compared with their digests when this service first opens them.
    pub fn new(store: Arc<dyn Store>, blobs: Arc<dyn Blobs>, settings: ServiceSettings) -> Self {
        let signals = Arc::new(Signals::default());
        let listener: Arc<dyn Listener> = signals.clone();
        store.listen(&listener);
        let parses = Arc::new(Semaphore::new(settings.parses_at_once.max(1)));
        let room = Arc::new(room::Room::new(
            settings.stored.clone(),
            Some((Arc::clone(&store), Arc::clone(&blobs))),
        ));
        blobs.check_with(whole::name_of);
        let readers = settings.reader.clone().map(Readers::new);
        let inner = Inner {
            room,
            writable: readiness::Verdict::default(),
            blobs,
            settings,
            signals,
            local: RwLock::default(),
            known: devices::KnownLately::default(),
            parses,
            readers,
            drawing: Arc::new(Semaphore::new(1)),
            exports: Arc::new(Semaphore::new(transfer::EXPORTS_AT_ONCE)),
            predicting: Arc::new(Semaphore::new(1)),
            submitting: Arc::new(Semaphore::new(1)),
            guesses: Mutex::default(),
            concluding: Mutex::default(),
            publishing: tokio::sync::Mutex::default(),
            drawings: Drawings::default(),
            built: bundles::Built::default(),
            brought: bundles::Brought::default(),
            opening: Mutex::default(),
            models: Mutex::default(),
            ring: Arc::default(),
            drift: drift::Remembered::default(),
            process: uuid::Uuid::now_v7().to_string(),
            nameless: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            recorded: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner), caller: Arc::new(Caller::anyone()), store }
    }

    /// This service on behalf of a caller, who may be permitted less, and for whom nothing of other namespaces exists. Without this it
    /// acts for the operator, in the namespace `default`.
    pub fn on_behalf_of(&self, caller: &Caller) -> Self {
        let store = self.store.on_behalf_of(caller);
        Self { inner: Arc::clone(&self.inner), caller: Arc::new(caller.clone()), store }
    }

    /// The store, which notifies this service of its changes.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
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

    /// While this number is unchanged, so are the answers to lookups. Read it before a lookup whose answer is cached.
    pub fn plans_epoch(&self) -> u64 {
        self.inner.signals.epoch()
    }

    /// When the store last said, to whatever end, which epoch it is: changes of other processes until then are in the number.
    pub fn epoch_confirmed(&self) -> Option<std::time::Instant> {
        self.inner.signals.confirmed()
    }

    /// The number of the namespace's jobs and trainings in each state; states without any are left out.
    pub async fn job_counts(&self) -> Result<Vec<(WorkKind, JobState, u64)>> {
        Ok(self.store.job_counts(Whose::Own).await?)
    }

    /// [`Self::job_counts`] of all namespaces, for the figures of the service.
    pub async fn all_job_counts(&self) -> Result<Vec<(WorkKind, JobState, u64)>> {
        Ok(self.store.job_counts(Whose::All).await?)
    }

    /// Claims the oldest work of the queue. Work that lost too many workers fails first. `None` too for the jobs of a device, where this
    /// process is about to end or has lost its name.
    pub async fn claim(
        &self,
        queue: &Queue,
        owner: &str,
    ) -> std::result::Result<Option<Claim>, StoreError> {
        if matches!(queue, Queue::Device(_)) && !self.may_claim() {
            return Ok(None);
        }
        let (store, settings) = (&self.store, &self.inner.settings);
        store.claim(queue, owner, settings.lease_ms, settings.max_attempts.max(1)).await
    }
}
