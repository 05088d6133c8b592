//! What the device of a request means: any of a class, or one.

use crate::domain::{Device, DeviceClass, DeviceKey};
use crate::service::{Result, Service, ServiceError};

/// The name that selects the best class.
pub(in crate::service) const AUTO: &str = "auto";

/// A device, and whether a worker serves it.
#[derive(Debug)]
pub(in crate::service) struct Known {
    pub device: Device,
    pub class: DeviceClass,
    pub key: DeviceKey,
    pub(super) local: bool,
    pub(super) online: bool,
}

impl Known {
    fn is(&self, name: &str) -> bool {
        name == AUTO || self.device.id.0 == name || self.key.0 == name
    }
}

/// Who may run a job.
#[derive(Debug)]
pub(in crate::service) struct Target {
    /// The one device, or one of the class, with the least memory that any of the class has that is online: what fits there fits all.
    pub device: Device,
    pub only: Option<DeviceKey>,
}

impl Target {
    /// The queue in which the job waits.
    pub fn queue(&self) -> String {
        match &self.only {
            Some(key) => key.0.clone(),
            None => self.device.class().0,
        }
    }

    fn any(class: &DeviceClass, known: &[Known]) -> Option<Self> {
        let mut usable = known.iter().filter(|known| known.online && known.class == *class);
        let first = usable.next()?.device.clone();
        let memory_bytes =
            usable.map(|known| known.device.memory_bytes).fold(first.memory_bytes, u64::min);
        Some(Self { device: Device { memory_bytes, ..first }, only: None })
    }
}

impl Service {
    /// Who may run a job for the device of this name: any device of the best class for `auto`, of the class for a class in full, and one
    /// device for its name or key. The best class is that of the best device of this process, or else of the best online device elsewhere.
    pub(in crate::service) async fn resolve_device(&self, name: &str) -> Result<Target> {
        let known = self.known().await?;
        if known.is_empty() {
            return Err(nothing_registered());
        }
        // A job for an offline device might wait indefinitely.
        let offline = || ServiceError::Unavailable { message: silent(name) };
        if name == AUTO {
            let class = known.iter().find(|known| known.online).map(|known| known.class.clone());
            return class.and_then(|class| Target::any(&class, &known)).ok_or_else(offline);
        }
        let class = DeviceClass(name.to_owned());
        if known.iter().any(|known| known.class == class) {
            return Target::any(&class, &known).ok_or_else(offline);
        }
        let named: Vec<&Known> = known.iter().filter(|known| known.is(name)).collect();
        if named.is_empty() {
            return Err(unknown_device(
                "/device",
                name,
                "auto, the classes of devices, and",
                &known,
            ));
        }
        let mut online = named.into_iter().filter(|known| known.online);
        let one = online.next().ok_or_else(offline)?;
        let others: Vec<&Known> = online.filter(|other| other.key != one.key).collect();
        if !others.is_empty() {
            return Err(ambiguous("/device", name, std::iter::once(one).chain(others)));
        }
        Ok(Target { device: one.device.clone(), only: Some(one.key.clone()) })
    }
}

/// The class for a lookup: of a device, or one given in full, whose device need not be known. `None` if no device is known at all, so that
/// an id has no meaning.
pub(in crate::service) fn class_of(name: &str, known: &[Known]) -> Result<Option<DeviceClass>> {
    match known.iter().find(|known| known.is(name)) {
        Some(one) => {
            let mut others =
                known.iter().filter(|known| known.is(name) && known.class != one.class);
            // Where this process has a device of the name, that one is meant.
            match name == AUTO || one.local || others.next().is_none() {
                true => Ok(Some(one.class.clone())),
                false => {
                    Err(ambiguous("device", name, known.iter().filter(|known| known.is(name))))
                }
            }
        }
        // Classes are written kind/name/..., and neither ids nor keys contain a slash.
        None if name.contains('/') => Ok(Some(DeviceClass(name.to_owned()))),
        None if known.is_empty() => Ok(None),
        None => Err(unknown_device("device", name, "auto, any device class, and", known)),
    }
}

pub(super) fn nothing_registered() -> ServiceError {
    ServiceError::Unavailable { message: "no device is registered yet".to_owned() }
}

fn unknown_device(pointer: &str, name: &str, also: &str, known: &[Known]) -> ServiceError {
    let mut ids: Vec<&str> = known.iter().map(|known| known.device.id.0.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    let ids = ids.join(", ");
    ServiceError::invalid(pointer, format!("there is no device {name}; known are {also}: {ids}"))
}

/// Several devices have the name: each is named by its key, and all of a kind by their class.
fn ambiguous<'a>(
    pointer: &str,
    name: &str,
    named: impl Iterator<Item = &'a Known>,
) -> ServiceError {
    let (mut keys, mut classes) = (Vec::new(), Vec::new());
    for known in named {
        keys.push(known.key.0.clone());
        classes.push(known.class.0.clone());
    }
    for names in [&mut keys, &mut classes] {
        names.sort_unstable();
        names.dedup();
    }
    let message = format!(
        "{} devices are called {name}: name one by its key ({}), or any of a kind by its class ({})",
        keys.len(),
        keys.join(", "),
        classes.join(", ")
    );
    keys.extend(classes);
    ServiceError::Ambiguous { pointer: pointer.to_owned(), message, choices: keys }
}

fn silent(name: &str) -> String {
    match name {
        AUTO => {
            "no device is online: the workers of all known devices have stopped sending heartbeats"
                .to_owned()
        }
        id => format!("device {id} is offline: its worker has stopped sending heartbeats"),
    }
}
