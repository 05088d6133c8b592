//! Devices of this process and of others, and their status.

mod standing;
mod target;

pub(super) use target::{AUTO, Known, Target, class_of};

use super::{Result, Service, ServiceError};
use target::nothing_registered;

use crate::domain::{
    Device, DeviceClass, DeviceId, DeviceKey, DeviceKind, Job, JobId, JobState, Namespace,
    QuarantineId, Timestamp, discreet,
};
use crate::store::{JobFilter, Page, PageRequest, Quarantined, SeenDevice};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A device served by a worker of this process.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub device: Device,
    pub trouble: Option<String>,
    waiting: Option<String>,
    pub restarts: u64,
}

/// A device and its status.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceStatus {
    pub device: Device,
    /// Which one it is among those of all hosts.
    pub key: DeviceKey,
    /// The process whose worker serves the device.
    pub owner: String,
    /// Its host and its version; absent of workers of earlier versions.
    pub host: Option<String>,
    pub version: Option<String>,
    /// Whether its worker claims nothing more, since it is about to end.
    pub draining: bool,
    /// Whether this process serves it.
    pub local: bool,
    /// Whether it sent a heartbeat recently and has no failure.
    pub online: bool,
    pub last_seen: Timestamp,
    /// Why it cannot work, as reported by its worker.
    pub trouble: Option<String>,
    /// Why its worker waits before it measures, if it does.
    pub waiting: Option<String>,
    pub running: Option<JobId>,
    /// Candidates that hung or killed a device of this class.
    pub quarantined: u64,
    /// How often its evaluator was restarted; absent of workers of earlier versions.
    pub restarts: Option<u64>,
}

/// Marks a device of this process as being opened, until this value is dropped for any reason.
pub struct Opening {
    service: Service,
    device: DeviceId,
}

impl Drop for Opening {
    fn drop(&mut self) {
        let mut opening = self.service.opening_devices();
        if let Some(place) = opening.iter().position(|device| *device == self.device) {
            opening.swap_remove(place);
        }
    }
}

impl Service {
    /// Registers a device that a worker of this process serves; called again when its description changes.
    pub async fn register(&self, device: Device) -> Result<()> {
        let registered = Local { device, trouble: None, waiting: None, restarts: 0 };
        self.tell_of(&registered).await?;
        {
            let mut local = self.inner.local.write().unwrap_or_else(PoisonError::into_inner);
            local.retain(|known| known.device.id != registered.device.id);
            local.push(registered);
        }
        self.inner.signals.changed_here();
        Ok(())
    }

    /// Forgets the devices of this process, which serves them no more and will not return under its name.
    pub async fn unregister(&self) -> Result<()> {
        self.inner.local.write().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(self.store.forget_devices(&self.inner.settings.owner).await?)
    }

    /// Closes the store, once nobody uses this service or a clone of it any more.
    pub async fn close(&self) {
        self.store.close().await;
    }

    /// Sets the failure of a device of this process, or clears it with `None`.
    pub fn set_device_trouble(&self, id: &DeviceId, trouble: Option<String>) {
        let trouble = trouble.as_deref().map(discreet);
        let mut local = self.inner.local.write().unwrap_or_else(PoisonError::into_inner);
        for known in local.iter_mut().filter(|known| known.device.id == *id) {
            known.trouble.clone_from(&trouble);
        }
    }

    /// Sets why a device of this process waits, or clears it with `None`.
    pub fn set_device_waiting(&self, id: &DeviceId, waiting: Option<String>) {
        let mut local = self.inner.local.write().unwrap_or_else(PoisonError::into_inner);
        for known in local.iter_mut().filter(|known| known.device.id == *id) {
            known.waiting.clone_from(&waiting);
        }
    }

    /// Sets how often the evaluator of a device of this process was restarted.
    pub fn set_device_restarts(&self, id: &DeviceId, restarts: u64) {
        let mut local = self.inner.local.write().unwrap_or_else(PoisonError::into_inner);
        for known in local.iter_mut().filter(|known| known.device.id == *id) {
            known.restarts = restarts;
        }
    }

    /// Marks a device as being opened. The process is not ready until the returned value is dropped, when the device is open
    /// or has failed.
    pub fn opening(&self, device: DeviceId) -> Opening {
        self.opening_devices().push(device.clone());
        Opening { service: self.clone(), device }
    }

    fn opening_devices(&self) -> MutexGuard<'_, Vec<DeviceId>> {
        self.inner.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn still_opening(&self) -> Option<String> {
        let opening = self.opening_devices();
        opening.first().map(|device| format!("device {device} is still being opened"))
    }

    /// Lets later searches try a quarantined candidate again.
    pub async fn lift_quarantine(&self, id: &QuarantineId) -> Result<Quarantined> {
        let lifted = self.store.lift_quarantine(id).await?;
        let lifted = lifted.ok_or_else(|| ServiceError::not_found("quarantine entry", id))?;
        tracing::info!(candidate = %lifted.candidate, class = %lifted.class, reason = lifted.reason, "quarantine lifted");
        Ok(lifted)
    }

    /// Quarantined candidates of one device class or of all, newest first.
    pub async fn quarantine(
        &self,
        class: Option<&DeviceClass>,
        page: &PageRequest,
    ) -> Result<Page<Quarantined>> {
        let mut found = self.store.quarantined(class, page).await?;
        if self.caller.namespace != Namespace::default() {
            // What was seen, was seen in jobs of anybody.
            for entry in &mut found.items {
                let end = entry.reason.find(':').unwrap_or(entry.reason.len());
                entry.reason.truncate(end);
            }
        }
        Ok(found)
    }

    pub(super) fn local_devices(&self) -> Vec<Local> {
        self.inner.local.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The classes of the CPUs that this process serves.
    pub(super) fn local_cpus(&self) -> Vec<DeviceClass> {
        let here = self.local_devices().into_iter().map(|local| local.device);
        here.filter(|device| device.kind == DeviceKind::Cpu).map(|device| device.class()).collect()
    }

    /// All known devices, best first.
    pub async fn devices(&self) -> Result<Vec<DeviceStatus>> {
        let quarantined = self.store.quarantine_counts().await?;
        let running = self.running().await?;
        let status = |seen: Seen| {
            let Seen { of: SeenDevice { owner, device, serving, seen_at, .. }, key, here, .. } =
                &seen;
            let told = !serving.version.is_empty();
            let told = |text: &String| told.then(|| text.clone());
            let running = running.get(key).or_else(|| running.get(&DeviceKey(device.id.0.clone())));
            DeviceStatus {
                online: seen.online(),
                local: here.is_some(),
                running: running.cloned(),
                quarantined: quarantined.get(&device.class()).copied().unwrap_or_default(),
                restarts: match here {
                    Some(known) => Some(known.restarts),
                    None => told(&serving.version).map(|_| serving.restarts),
                },
                waiting: here.as_ref().map_or(&serving.waiting, |known| &known.waiting).clone(),
                trouble: here.as_ref().map_or(&serving.trouble, |known| &known.trouble).clone(),
                draining: serving.draining,
                host: told(&serving.host),
                version: told(&serving.version),
                key: key.clone(),
                owner: owner.clone(),
                last_seen: *seen_at,
                device: device.clone(),
            }
        };
        let mut found: Vec<DeviceStatus> = self.seen().await?.into_iter().map(status).collect();
        found.sort_by_key(|status| (!status.local, rank(&status.device)));
        Ok(found)
    }

    /// Whether any device can take a job now.
    pub(super) async fn any_online(&self) -> Result<bool> {
        Ok(self.seen().await?.iter().any(Seen::online))
    }

    async fn seen(&self) -> Result<Vec<Seen>> {
        let local = self.local_devices();
        let known = self.store.devices().await?;
        let seen = known.into_iter().map(|of| {
            let ours = of.owner == self.inner.settings.owner;
            let here = local.iter().find(|known| ours && known.device.id == of.device.id).cloned();
            Seen { key: self.key_of(&of), here, lately: self.is_recent(&of), of }
        });
        Ok(seen.collect())
    }

    /// Of a worker of an earlier version the host is not known: its name stands for it.
    fn key_of(&self, of: &SeenDevice) -> DeviceKey {
        match of.serving.host.is_empty() {
            true => of.device.key(&of.owner),
            false => of.device.key(&of.serving.host),
        }
    }

    /// Whether its worker did not miss three heartbeats, by the store's clock.
    fn is_recent(&self, of: &SeenDevice) -> bool {
        u128::try_from(of.age_ms).unwrap_or_default() < self.silence().as_millis()
    }

    /// After so long without a heartbeat a worker is gone: three were missed.
    fn silence(&self) -> Duration {
        self.inner.settings.heartbeat.saturating_mul(3)
    }

    /// The job that each device is running. A device runs one at a time, so there are no more jobs than devices.
    async fn running(&self) -> Result<HashMap<DeviceKey, JobId>> {
        let filter = JobFilter { state: Some(JobState::Running), ..JobFilter::default() };
        let page = PageRequest { after: None, limit: 1000 };
        // The jobs are listed newest first, and the last insertion wins, so the order is reversed: a lost worker's job may
        // still count as running. One that was just claimed does not say where, nor does one of an earlier version.
        let jobs = self.store.jobs(&filter, &page).await?.items.into_iter().rev();
        let on = |job: &Job| job.ran_on.clone().unwrap_or_else(|| DeviceKey(job.device.0.clone()));
        Ok(jobs.map(|job| (on(&job), job.id)).collect())
    }

    /// Known devices: those of this process first, then those with a recent heartbeat, then the others; in each group the
    /// best first.
    pub(super) async fn ranked_devices(&self) -> Result<Vec<Device>> {
        Ok(self.known().await?.into_iter().map(|known| known.device).collect())
    }

    async fn known(&self) -> Result<Vec<Known>> {
        let host = &self.inner.settings.host;
        let here = self.local_devices().into_iter();
        let mut known: Vec<Known> = here
            .map(|local| {
                let key = local.device.key(host);
                Known {
                    key,
                    class: local.device.class(),
                    device: local.device,
                    local: true,
                    online: true,
                }
            })
            .collect();
        for seen in self.store.devices().await? {
            let key = self.key_of(&seen);
            if !known
                .iter()
                .any(|known| known.local && known.device == seen.device && known.key == key)
            {
                let online = self.is_recent(&seen)
                    && seen.serving.trouble.is_none()
                    && !seen.serving.draining;
                let class = seen.device.class();
                known.push(Known { key, class, device: seen.device, local: false, online });
            }
        }
        known.sort_by_key(|known| (!known.local, !known.online, rank(&known.device)));
        Ok(known)
    }

    /// The class for a lookup: the class of a device, or a class given in full, whose device need not be known. `None` if no
    /// device is known at all, so that an id has no meaning.
    pub(super) async fn resolve_class(&self, name: &str) -> Result<Option<DeviceClass>> {
        class_of(name, &self.known().await?)
    }

    /// The known devices, at most a second ago, and since the last change that this process knows of: lookups need them by the
    /// thousand.
    pub(super) async fn known_lately(&self) -> Result<Arc<Vec<Known>>> {
        let epoch = self.plans_epoch();
        {
            let kept = self.inner.known.read().unwrap_or_else(PoisonError::into_inner);
            if let Some((of, at, known)) = &*kept
                && *of == epoch
                && at.elapsed() < KNOWN_FOR
            {
                return Ok(Arc::clone(known));
            }
        }
        let at = Instant::now();
        let known = Arc::new(self.known().await?);
        let mut kept = self.inner.known.write().unwrap_or_else(PoisonError::into_inner);
        *kept = Some((epoch, at, Arc::clone(&known)));
        Ok(known)
    }

    /// The class for the member `device` of a request: `auto`, a device's id, or a class given in full, whose device need
    /// not be known.
    pub async fn device_class(&self, name: &str) -> Result<DeviceClass> {
        match self.resolve_class(name).await {
            Ok(Some(class)) => Ok(class),
            Ok(None) => Err(nothing_registered()),
            Err(ServiceError::Invalid { message, .. }) => {
                Err(ServiceError::invalid("/device", message))
            }
            Err(error) => Err(error),
        }
    }
}

impl Service {
    /// The class for a training: as [`Self::device_class`], but a known device or recorded trials of the class are required.
    pub async fn training_class(&self, name: &str) -> Result<DeviceClass> {
        let class = self.device_class(name).await?;
        let known = self.known().await?.into_iter().map(|known| known.device.class());
        let mut known: Vec<DeviceClass> = known.collect();
        if known.contains(&class) {
            return Ok(class);
        }
        let recorded = self.store.recorded().await?;
        known.extend(recorded.into_iter().map(|(scope, _)| scope.device_class));
        if known.contains(&class) {
            return Ok(class);
        }
        known.sort_unstable();
        known.dedup();
        let known: Vec<String> = known.iter().map(ToString::to_string).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message = format!(
            "no device of class {class} and none of its trials is known; the known classes are: {known}"
        );
        Err(ServiceError::invalid("/device", message))
    }
}

/// A device in the store, with what this process knows about it.
struct Seen {
    of: SeenDevice,
    key: DeviceKey,
    /// Whether this process serves it.
    here: Option<Local>,
    /// Whether it sent a heartbeat recently.
    lately: bool,
}

impl Seen {
    fn online(&self) -> bool {
        match &self.here {
            Some(known) => known.trouble.is_none(),
            None => self.lately && self.of.serving.trouble.is_none(),
        }
    }
}

/// Devices as last read, when, and at which epoch.
pub(super) type KnownLately = RwLock<Option<(u64, Instant, Arc<Vec<Known>>)>>;

/// How long that is used: other processes change devices too.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// Sorts the best first: GPUs before CPUs, then by memory bandwidth, then by name.
fn rank(device: &Device) -> (bool, Reverse<u64>, DeviceId) {
    let copy = device.copy_gbps.max(0.0) as u64;
    (device.kind != DeviceKind::Cuda, Reverse(copy), device.id.clone())
}
