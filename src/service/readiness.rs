//! Whether this process can do work, and if not, why: disk, database, blobs, devices.

use super::{Result, Service, ServiceError};
use crate::domain::discreet;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long an answer to whether the store can be written is used: anyone may ask, and a question takes the write lock.
const VERDICT_AGE: Duration = Duration::from_secs(1);

/// The last answer, and when it was found; locked while it is being found.
pub(super) type Verdict = Mutex<Option<(Instant, Result<()>)>>;

impl Service {
    /// Whether work can be done: the disks of the data have room, database and blobs can be written, a device is available, and
    /// no device is still being opened. Otherwise a job for the best device could go to the CPU because it opens first.
    ///
    /// # Errors
    /// What is in the way, without paths of this host.
    pub async fn ready(&self) -> Result<()> {
        self.ready_to_answer().await?;
        self.settled()?;
        if self.any_online().await? {
            return Ok(());
        }
        Err(ServiceError::Unavailable { message: "no device is registered yet".to_owned() })
    }

    /// [`Self::ready`] of a process that only works: what others serve is of no use to it.
    ///
    /// # Errors
    /// What is in the way, without paths of this host.
    pub async fn ready_to_work(&self) -> Result<()> {
        self.ready_to_answer().await?;
        self.settled()?;
        let devices = self.local_devices();
        if devices.iter().any(|device| device.trouble.is_none()) {
            return Ok(());
        }
        let trouble = devices.into_iter().find_map(|device| device.trouble);
        let message = trouble.unwrap_or_else(|| "no device of this process is open".to_owned());
        Err(ServiceError::Unavailable { message })
    }

    /// Whether requests can be answered, whatever the devices: the disks of the data have room, database and blobs can be written.
    ///
    /// # Errors
    /// What is in the way, without paths of this host.
    pub async fn ready_to_answer(&self) -> Result<()> {
        let room = self.inner.room.clone();
        tokio::task::spawn_blocking(move || room.check()).await??;
        self.writable().await
    }

    /// Fails while a device is still being opened.
    fn settled(&self) -> Result<()> {
        match self.still_opening() {
            Some(message) => Err(ServiceError::Unavailable { message }),
            None => Ok(()),
        }
    }

    /// Free bytes of the disk of each data folder (`store`, `blobs`), as far as it is known.
    ///
    /// # Errors
    /// The task that asks the file systems was aborted.
    pub async fn disk_free(&self) -> Result<Vec<(&'static str, u64)>> {
        let room = self.inner.room.clone();
        Ok(tokio::task::spawn_blocking(move || room.free()).await?)
    }

    async fn writable(&self) -> Result<()> {
        let mut last = self.inner.writable.lock().await;
        if let Some((at, verdict)) = &*last
            && at.elapsed() < VERDICT_AGE
        {
            return verdict.clone();
        }
        let verdict = self.try_writing().await;
        *last = Some((Instant::now(), verdict.clone()));
        verdict
    }

    async fn try_writing(&self) -> Result<()> {
        let database = self.store.check_writable().await;
        database.map_err(|error| unwritable("the database", error))?;
        let blobs = self.inner.blobs.stage().await;
        blobs.map(drop).map_err(|error| unwritable("the folder of blobs", error))
    }
}

/// An operator reads the cause here, not only in the log.
fn unwritable(what: &str, error: impl Into<ServiceError>) -> ServiceError {
    match error.into() {
        ServiceError::Internal(cause) => {
            let message = discreet(&format!("{what} cannot be written: {cause}"));
            ServiceError::Unavailable { message }
        }
        // It was moved to another database.
        ServiceError::Conflict { message } => {
            ServiceError::Unavailable { message: format!("{what} cannot be written: {message}") }
        }
        known => known,
    }
}
