//! Devices: what serves here and elsewhere, how it is, and which one `auto` means.

use super::{Result, Service, ServiceError};
use crate::domain::{Device, DeviceClass, DeviceId, DeviceKind, JobId, JobState, Timestamp};
use crate::store::{JobFilter, Page, PageRequest, Quarantined};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};

/// A device that a worker of this process serves.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub device: Device,
    pub trouble: Option<String>,
    pub restarts: u64,
}

/// A device and how it is.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceStatus {
    pub device: Device,
    /// The process whose worker serves it.
    pub owner: String,
    /// Served by this very process.
    pub local: bool,
    /// Heard of lately, and without trouble.
    pub online: bool,
    pub last_seen: Timestamp,
    /// Why it cannot work, where its worker has said so.
    pub trouble: Option<String>,
    pub running: Option<JobId>,
    /// Candidates that hung or killed a device of this class.
    pub quarantined: u64,
    /// How often its evaluator was started again, where this process serves it.
    pub restarts: Option<u64>,
}

/// A device of this process that is being opened, until this is dropped, whatever comes of it.
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

/// The word for the best device there is.
pub(super) const AUTO: &str = "auto";

impl Service {
    /// A worker of this process serves the device from now on; again after its facts changed.
    pub async fn register(&self, device: Device) -> Result<()> {
        self.inner.store.put_device(&self.inner.settings.owner, &device).await?;
        {
            let mut local = self.inner.local.write().unwrap_or_else(PoisonError::into_inner);
            local.retain(|known| known.device.id != device.id);
            local.push(Local { device, trouble: None, restarts: 0 });
        }
        self.inner.signals.changed_here();
        Ok(())
    }

    /// What keeps a device of this process from working, or `None` once it works again.
    pub fn set_device_trouble(&self, id: &DeviceId, trouble: Option<String>) {
        let mut local = self.inner.local.write().unwrap_or_else(PoisonError::into_inner);
        for known in local.iter_mut().filter(|known| known.device.id == *id) {
            known.trouble.clone_from(&trouble);
        }
    }

    /// How often the evaluator of a device of this process was started again.
    pub fn set_device_restarts(&self, id: &DeviceId, restarts: u64) {
        let mut local = self.inner.local.write().unwrap_or_else(PoisonError::into_inner);
        for known in local.iter_mut().filter(|known| known.device.id == *id) {
            known.restarts = restarts;
        }
    }

    /// The process is not ready as long as what this returns lives: the device will be here, or will have failed.
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

    /// Candidates that hung or killed a device of the class, or of any; newest first.
    pub async fn quarantine(
        &self,
        class: Option<&DeviceClass>,
        page: &PageRequest,
    ) -> Result<Page<Quarantined>> {
        Ok(self.inner.store.quarantined(class, page).await?)
    }

    pub(super) fn local_devices(&self) -> Vec<Local> {
        self.inner.local.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The classes of the CPUs that this process serves.
    pub(super) fn local_cpus(&self) -> Vec<DeviceClass> {
        let here = self.local_devices().into_iter().map(|local| local.device);
        here.filter(|device| device.kind == DeviceKind::Cpu).map(|device| device.class()).collect()
    }

    /// Every known device, best first.
    pub async fn devices(&self) -> Result<Vec<DeviceStatus>> {
        let mut quarantined: HashMap<DeviceClass, u64> = HashMap::new();
        for entry in self.inner.store.quarantined(None, &PageRequest::ALL).await?.items {
            *quarantined.entry(entry.class).or_default() += 1;
        }
        let running = self.running().await?;
        let status = |seen: Seen| DeviceStatus {
            online: seen.online(),
            local: seen.here.is_some(),
            running: running.get(&seen.device.id).cloned(),
            quarantined: quarantined.get(&seen.device.class()).copied().unwrap_or_default(),
            restarts: seen.here.as_ref().map(|known| known.restarts),
            trouble: seen.here.and_then(|known| known.trouble),
            device: seen.device,
            owner: seen.owner,
            last_seen: seen.last_seen,
        };
        let mut found: Vec<DeviceStatus> = self.seen().await?.into_iter().map(status).collect();
        found.sort_by_key(|status| (!status.local, rank(&status.device)));
        Ok(found)
    }

    /// Whether any device could take a job now.
    pub(super) async fn any_online(&self) -> Result<bool> {
        Ok(self.seen().await?.iter().any(Seen::online))
    }

    async fn seen(&self) -> Result<Vec<Seen>> {
        let local = self.local_devices();
        let silent_since = self.silent_since();
        let known = self.inner.store.devices().await?;
        let seen = known.into_iter().map(|(owner, device, last_seen)| {
            let ours = owner == self.inner.settings.owner;
            let here = local.iter().find(|known| ours && known.device.id == device.id).cloned();
            Seen { owner, device, last_seen, here, lately: last_seen > silent_since }
        });
        Ok(seen.collect())
    }

    /// A worker not heard of since then is gone: three heartbeats were missed.
    fn silent_since(&self) -> Timestamp {
        let window = self.inner.settings.heartbeat.saturating_mul(3);
        Timestamp::now().plus_millis(-i64::try_from(window.as_millis()).unwrap_or(i64::MAX))
    }

    /// The job that each device works on: a device takes one at a time, so there are no more than devices.
    async fn running(&self) -> Result<HashMap<DeviceId, JobId>> {
        let filter = JobFilter { state: Some(JobState::Running), ..JobFilter::default() };
        let page = PageRequest { after: None, limit: 1000 };
        // Newest first, and the last to be put in stays: where a lost worker's job still counts as running, the newest.
        let jobs = self.inner.store.jobs(&filter, &page).await?.items.into_iter().rev();
        Ok(jobs.map(|job| (job.device, job.id)).collect())
    }

    /// Known devices: those of this process first, then those heard of lately, then the others; the best first among each.
    pub(super) async fn ranked_devices(&self) -> Result<Vec<Device>> {
        Ok(self.known().await?.into_iter().map(|known| known.device).collect())
    }

    async fn known(&self) -> Result<Vec<Known>> {
        let here = self.local_devices();
        let mut known: Vec<Known> = here
            .into_iter()
            .map(|local| Known { device: local.device, local: true, online: true })
            .collect();
        let silent_since = self.silent_since();
        for (_, device, last_seen) in self.inner.store.devices().await? {
            if !known.iter().any(|known| known.local && known.device == device) {
                known.push(Known { device, local: false, online: last_seen > silent_since });
            }
        }
        known.sort_by_key(|known| (!known.local, !known.online, rank(&known.device)));
        Ok(known)
    }

    /// The device a job is for. `auto` is the best one that serves here, or else the best one that serves elsewhere.
    pub(super) async fn resolve_device(&self, name: &str) -> Result<Device> {
        let known = self.known().await?;
        let mut named = known.iter().filter(|known| known.is(name)).peekable();
        if named.peek().is_none() {
            return Err(if known.is_empty() {
                nothing_registered()
            } else {
                unknown_device("/device", name, "auto and", &known)
            });
        }
        // One that is not heard of any more would leave the job waiting, perhaps for ever.
        match named.find(|known| known.online) {
            Some(known) => Ok(known.device.clone()),
            None => Err(ServiceError::Unavailable { message: silent(name) }),
        }
    }

    /// The class a lookup is for: that of a device, or one named in full, whose silicon need not be here. `None` where
    /// no device is known at all: an id means nothing then.
    pub(super) async fn resolve_class(&self, name: &str) -> Result<Option<DeviceClass>> {
        let known = self.known().await?;
        match known.iter().find(|known| known.is(name)) {
            Some(known) => Ok(Some(known.device.class())),
            // Classes are written kind/name/..., ids never hold a slash.
            None if name.contains('/') => Ok(Some(DeviceClass(name.to_owned()))),
            None if known.is_empty() => Ok(None),
            None => Err(unknown_device("device", name, "auto, any device class, and", &known)),
        }
    }

    /// The class that the member `device` of a request stands for: `auto`, a device's id, or a class named in full, whose
    /// silicon need not be here.
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
    /// The class that a training is for: as [`Self::device_class`], but of a known device, or one that trials are recorded of.
    pub async fn training_class(&self, name: &str) -> Result<DeviceClass> {
        let class = self.device_class(name).await?;
        let known = self.known().await?.into_iter().map(|known| known.device.class());
        let mut known: Vec<DeviceClass> = known.collect();
        if known.contains(&class) {
            return Ok(class);
        }
        let recorded = self.inner.store.recorded().await?;
        known.extend(recorded.into_iter().map(|(scope, _)| scope.device_class));
        if known.contains(&class) {
            return Ok(class);
        }
        known.sort_unstable();
        known.dedup();
        let known: Vec<String> = known.iter().map(ToString::to_string).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message =
            format!("there is no device of class {class}, nor any trial; known are: {known}");
        Err(ServiceError::invalid("/device", message))
    }
}

/// A device of the store, and what this process knows of it.
struct Seen {
    owner: String,
    device: Device,
    last_seen: Timestamp,
    /// Served by this very process.
    here: Option<Local>,
    /// Heard of lately.
    lately: bool,
}

impl Seen {
    fn online(&self) -> bool {
        self.here.as_ref().map_or(self.lately, |known| known.trouble.is_none())
    }
}

/// A device, and whether somebody serves it.
struct Known {
    device: Device,
    local: bool,
    online: bool,
}

impl Known {
    fn is(&self, name: &str) -> bool {
        name == AUTO || self.device.id.0 == name
    }
}

fn nothing_registered() -> ServiceError {
    ServiceError::Unavailable { message: "no device is registered yet".to_owned() }
}

fn unknown_device(pointer: &str, name: &str, also: &str, known: &[Known]) -> ServiceError {
    let mut ids: Vec<&str> = known.iter().map(|known| known.device.id.0.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    let ids = ids.join(", ");
    ServiceError::invalid(pointer, format!("there is no device {name}; known are {also}: {ids}"))
}

fn silent(name: &str) -> String {
    match name {
        AUTO => "no device is online: the workers of all known ones have fallen silent".to_owned(),
        id => format!("device {id} is offline: its worker has fallen silent"),
    }
}

/// Sorts the best first: GPUs before the host, then the faster memory, then by name.
fn rank(device: &Device) -> (bool, Reverse<u64>, DeviceId) {
    let copy = device.copy_gbps.max(0.0) as u64;
    (device.kind != DeviceKind::Cuda, Reverse(copy), device.id.clone())
}
