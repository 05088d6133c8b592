//! Devices: what serves here and elsewhere, how it is, and which one `auto` means.

use super::{Result, Service, ServiceError, known_devices};
use crate::domain::{Device, DeviceClass, DeviceId, DeviceKind, JobId, JobState, Timestamp};
use crate::store::{JobFilter, PageRequest};
use std::cmp::Reverse;
use std::sync::PoisonError;

/// A device that a worker of this process serves.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub device: Device,
    pub trouble: Option<String>,
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
            local.push(Local { device, trouble: None });
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

    pub(super) fn local_devices(&self) -> Vec<Local> {
        self.inner.local.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Every known device, best first.
    pub async fn devices(&self) -> Result<Vec<DeviceStatus>> {
        let local = self.local_devices();
        let settings = &self.inner.settings;
        let silent_since = Timestamp::now().plus_millis(-3 * settings.heartbeat.as_millis() as i64);
        let mut found = Vec::new();
        for (owner, device, last_seen) in self.inner.store.devices().await? {
            let here = (owner == settings.owner)
                .then(|| local.iter().find(|known| known.device.id == device.id))
                .flatten();
            let trouble = here.and_then(|known| known.trouble.clone());
            found.push(DeviceStatus {
                online: trouble.is_none() && (here.is_some() || last_seen > silent_since),
                local: here.is_some(),
                running: self.running_on(&device.id).await?,
                quarantined: self.inner.store.quarantined(&device.class()).await?.len() as u64,
                device,
                owner,
                last_seen,
                trouble,
            });
        }
        found.sort_by_key(|status| (!status.local, rank(&status.device)));
        Ok(found)
    }

    async fn running_on(&self, id: &DeviceId) -> Result<Option<JobId>> {
        let filter = JobFilter {
            state: Some(JobState::Running),
            device: Some(id.clone()),
            ..JobFilter::default()
        };
        let page = self.inner.store.jobs(&filter, &PageRequest { after: None, limit: 1 }).await?;
        Ok(page.items.into_iter().next().map(|job| job.id))
    }

    /// Known devices, those of this process first, the best first among each.
    pub(super) async fn ranked_devices(&self) -> Result<Vec<Device>> {
        let mut here: Vec<Device> =
            self.local_devices().into_iter().map(|known| known.device).collect();
        here.sort_by_key(rank);
        let mut elsewhere: Vec<Device> =
            self.inner.store.devices().await?.into_iter().map(|(_, device, _)| device).collect();
        elsewhere.retain(|device| !here.contains(device));
        elsewhere.sort_by_key(rank);
        here.append(&mut elsewhere);
        Ok(here)
    }

    /// The device a job is for. `auto` is the best one that serves here, or else the best one known.
    pub(super) async fn resolve_device(&self, name: &str) -> Result<Device> {
        let known = self.ranked_devices().await?;
        let found = known.iter().find(|device| name == AUTO || device.id.0 == name);
        match found {
            Some(device) => Ok(device.clone()),
            None if known.is_empty() => Err(nothing_registered()),
            None => Err(ServiceError::invalid(
                "/device",
                format!("there is no device {name}; known are auto and: {}", known_devices(&known)),
            )),
        }
    }

    /// The class a lookup is for: that of a device, or one named in full, whose silicon need not be here.
    pub(super) async fn resolve_class(&self, name: Option<&str>) -> Result<DeviceClass> {
        let name = name.unwrap_or(AUTO);
        let known = self.ranked_devices().await?;
        let found = known.iter().find(|device| name == AUTO || device.id.0 == name);
        match found {
            Some(device) => Ok(device.class()),
            // Classes are written kind/name/..., ids never hold a slash.
            None if name.contains('/') => Ok(DeviceClass(name.to_owned())),
            None if known.is_empty() => Err(nothing_registered()),
            None => Err(ServiceError::invalid(
                "device",
                format!(
                    "there is no device {name}; known are auto, {}, and any device class",
                    known_devices(&known)
                ),
            )),
        }
    }
}

fn nothing_registered() -> ServiceError {
    ServiceError::Unavailable { message: "no device is registered yet".to_owned() }
}

/// Sorts the best first: GPUs before the host, then the faster memory, then by name.
fn rank(device: &Device) -> (bool, Reverse<u64>, DeviceId) {
    let copy = device.copy_gbps.max(0.0) as u64;
    (device.kind != DeviceKind::Cuda, Reverse(copy), device.id.clone())
}
