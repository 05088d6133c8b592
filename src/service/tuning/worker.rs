//! The worker loop, one per device. It owns the evaluator, claims jobs, and runs each in a session.

use super::Measuring;
use super::device_lock::{Asked, DeviceLock};
use super::recorder::Recorder;
use super::sentinel;
use super::session::{Ended, Session};
use super::watch::job_span;
use crate::domain::{Caller, Device, Job, Work};
use crate::pool::{Evaluator, PoolError};
use crate::service::lease::{LeaseKeeper, LeaseSignals};
use crate::service::{Service, ServiceError};
use crate::store::{Claim, Fence, Queue, StoreError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Longest pause between attempts to open a device that does not respond.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Pause after a job that could not go on because the blobs could not be used, or the store is full.
const POSTPONED: Duration = Duration::from_secs(5);

/// Why a worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the device cannot be used: {0}")]
    Device(#[from] PoolError),
    #[error("the device cannot be stored: {0}")]
    Service(#[from] ServiceError),
}

/// One device's worker.
pub struct Worker {
    service: Service,
    evaluator: Evaluator,
    device: Device,
    measuring: Measuring,
    /// Whether another process measured on the device when it was opened, so that its bandwidth is not known well.
    disturbed: bool,
    /// Unique among all starts of all workers of a store, so that claims made before a restart are not mistaken for its
    /// own.
    owner: String,
    /// When it looks for a plan to measure again.
    looks_at: Instant,
    /// The store has failed, and may hold a claim of this worker that nobody works on.
    owes: bool,
}

impl Worker {
    /// Opens the device in its evaluator and registers it.
    pub async fn open(
        service: Service,
        mut evaluator: Evaluator,
        measuring: Measuring,
    ) -> Result<Self, OpenError> {
        let device = evaluator.open(&CancellationToken::new()).await?;
        let disturbed = service.settings().device_locks.as_deref();
        let disturbed = disturbed.is_some_and(|folder| !DeviceLock::is_free(folder, &device));
        service.register(device.clone()).await?;
        service.set_device_restarts(&device.id, evaluator.restarts());
        let owner = format!("{}/{}/{}", service.settings().owner, device.id, uuid::Uuid::now_v7());
        let looks_at = Instant::now();
        let owes = false;
        Ok(Self { service, evaluator, device, measuring, disturbed, owner, looks_at, owes })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Runs jobs until stopped; a running job is then returned to the queue.
    pub async fn run(mut self, shutdown: CancellationToken) {
        tracing::info!(device = %self.device.id, name = %self.device.name, "worker ready");
        while !shutdown.is_cancelled() {
            // Subscribe before checking, so that no job is missed in between.
            let mut queued = self.service.signals().queue();
            match self.take_one(&shutdown).await {
                Ok(true) => {}
                // A plan was measured again, or a job has come meanwhile.
                Ok(false) if self.look_again(&mut queued, &shutdown).await => {}
                Ok(false) => {
                    tokio::select! {
                        _ = queued.changed() => {}
                        // Polling, because another process may have submitted a job without a notification.
                        () = tokio::time::sleep(self.service.settings().poll) => {}
                        () = shutdown.cancelled() => {}
                    }
                }
                Err(error) => {
                    tracing::error!(%error, device = %self.device.id, "job not completed");
                    self.owes |= matches!(error, StoreError::Busy(_) | StoreError::Full(_));
                    let pause = match error {
                        StoreError::Full(_) => POSTPONED,
                        _ => self.service.settings().poll,
                    };
                    shutdown.run_until_cancelled(tokio::time::sleep(pause)).await;
                }
            }
        }
        self.evaluator.close().await;
    }

    /// Measures a pinned plan again, until a job comes. False if there was none to measure, or it is not time to look for one.
    async fn look_again(
        &mut self,
        queued: &mut watch::Receiver<()>,
        shutdown: &CancellationToken,
    ) -> bool {
        let settings = self.service.settings();
        if self.looks_at > Instant::now() || settings.drift.check.is_zero() {
            return false;
        }
        let stop = shutdown.child_token();
        let effort = self.measuring.effort;
        let with = (&mut self.evaluator, &self.device);
        let mut look = Box::pin(sentinel::look_again(&self.service, with, effort, &stop));
        let looked = tokio::select! {
            looked = &mut look => looked,
            _ = queued.changed() => {
                stop.cancel();
                if let Err(error) = look.await {
                    tracing::warn!(%error, device = %self.device.id, "a plan was not measured again");
                }
                return true;
            }
        };
        let looked = looked.unwrap_or_else(|error| {
            tracing::warn!(%error, device = %self.device.id, "a plan was not measured again");
            false
        });
        if !looked {
            let pause = (settings.drift.check / 60).min(LONGEST_PAUSE);
            self.looks_at = Instant::now() + pause;
        }
        looked
    }

    /// Claims and runs one job; false if none is queued.
    async fn take_one(&mut self, shutdown: &CancellationToken) -> Result<bool, StoreError> {
        if self.owes {
            // The store was the cause, so it is no attempt of the job. A claim may also be one whose answer was lost.
            let released = self.service.store().release_all(&self.owner).await?;
            if released > 0 {
                tracing::info!(device = %self.device.id, "the store answers again: the job was returned to the queue");
            }
            self.owes = false;
        }
        let queue = Queue::of(&self.device, &self.service.settings().host);
        // The queue of a device has jobs alone.
        let Some(Claim { work: Work::Tune(job), fence, by }) =
            self.service.claim(&queue, &self.owner).await?
        else {
            return Ok(false);
        };
        let span = job_span(&job, &self.device);
        let ended = self.run_job((*job, by), fence, shutdown).instrument(span).await?;
        match ended {
            Ended::Answered => {}
            Ended::DeviceGone(detail) => self.wait_for_device(detail, shutdown).await,
            // The next job would meet the same.
            Ended::Postponed => {
                shutdown.run_until_cancelled(tokio::time::sleep(POSTPONED)).await;
            }
        }
        Ok(true)
    }

    /// Waits until the device opens again, claiming no jobs, and reports the failure meanwhile.
    async fn wait_for_device(&mut self, detail: String, shutdown: &CancellationToken) {
        let id = self.device.id.clone();
        self.service.set_device_trouble(&id, Some(detail));
        let mut pause = self.service.settings().poll;
        while !shutdown.is_cancelled() {
            let opened = self.evaluator.open(shutdown).await;
            self.service.set_device_restarts(&id, self.evaluator.restarts());
            match opened {
                Ok(device) => {
                    tracing::info!(device = %id, "the device responds again");
                    self.device = device;
                    self.service.set_device_trouble(&id, None);
                    return;
                }
                Err(error) => tracing::warn!(device = %id, %error, "the device does not respond"),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.cancelled() => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Waits until no other process of this host measures on the device, or for as long as the configuration has it. A job that is stopped meanwhile goes on without the lock,
    /// to its end.
    async fn lock_device(&self, recorder: &Recorder, signals: &LeaseSignals) -> Option<DeviceLock> {
        let folder = self.service.settings().device_locks.as_ref()?;
        let waits = async {
            let why =
                "another process measures on this device: waiting until it has finished a job";
            self.service.set_device_waiting(&self.device.id, Some(why.to_owned()));
            if let Err(error) = recorder.log(why.to_owned()).await {
                tracing::warn!(device = %self.device.id, %error, why);
            }
        };
        let patience = self.service.settings().device_lock_wait;
        let asked = DeviceLock::take(folder, &self.device, patience, &signals.stop, waits).await;
        self.service.set_device_waiting(&self.device.id, None);
        match asked {
            Asked::Got(lock) => Some(lock),
            Asked::Without => None,
            Asked::Held => {
                let why = format!(
                    "another process has held this device for {} s: measuring beside it",
                    patience.as_secs()
                );
                tracing::warn!(device = %self.device.id, why);
                if let Err(error) = recorder.log(why).await {
                    tracing::warn!(device = %self.device.id, %error, "not in the job's log");
                }
                None
            }
        }
    }

    /// Opens the device again if another process measured on it when it was opened: its bandwidth was shared with that process then.
    async fn measure_again(&mut self, cancel: &CancellationToken) -> Result<(), OpenError> {
        self.evaluator.close().await;
        self.device = self.evaluator.open(cancel).await?;
        self.service.register(self.device.clone()).await?;
        self.disturbed = false;
        Ok(())
    }

    async fn run_job(
        &mut self,
        (mut job, by): (Job, Caller),
        fence: Fence,
        shutdown: &CancellationToken,
    ) -> Result<Ended, StoreError> {
        // What the job reads and stores is its owner's.
        let service = self.service.on_behalf_of(&by);
        let signals = LeaseSignals::new(shutdown);
        let _keeper = LeaseKeeper::start(&self.service, fence.clone(), signals.clone());
        let key = self.device.key(&service.settings().host);
        let before = job.ran_on.replace(key.clone()).filter(|before| *before != key);
        job.device = self.device.id.clone();
        let recorder = Recorder::resume(service.clone(), job, fence, signals.clone()).await?;
        if let Some(before) = before.filter(|_| recorder.tried_count() > 0) {
            let tried = recorder.tried_count();
            let why = format!(
                "the job goes on at {key}: the {tried} trials of {before}, a device of the same class, are kept, and the finals are \
                 measured here"
            );
            recorder.log(why).await?;
        }
        let lock = self.lock_device(&recorder, &signals).await;
        if self.disturbed
            && lock.is_some()
            && let Err(error) = self.measure_again(&signals.stop).await
        {
            // The session meets the same device, and says what is wrong with it.
            tracing::warn!(%error, device = %self.device.id, "the device's bandwidth could not be measured again");
        }
        let session = Session {
            service,
            evaluator: &mut self.evaluator,
            device: &self.device,
            recorder,
            signals,
            measuring: self.measuring,
            compiled: Vec::new(),
            pace: (0, Duration::ZERO),
            queued: None,
        };
        let end = session.run().await;
        drop(lock);
        self.service.set_device_restarts(&self.device.id, self.evaluator.restarts());
        match end {
            // The lease is lost: another worker has the job now, and nothing of this attempt was written.
            Err(StoreError::Fenced(job)) => {
                tracing::warn!(%job, "the job was taken over by another worker");
                Ok(Ended::Answered)
            }
            end => end,
        }
    }
}
