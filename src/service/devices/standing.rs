//! How this process stands in the store: its name, what its workers say of their devices, and whether they may claim.

use super::Local;
use crate::domain::{NameHolder, Process, Serving};
use crate::service::{Result, Service};
use std::sync::atomic::Ordering;

impl Local {
    /// What a heartbeat says of it.
    pub fn serving(&self, host: &str, draining: bool) -> Serving {
        Serving {
            host: host.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            restarts: self.restarts,
            trouble: self.trouble.clone(),
            waiting: self.waiting.clone(),
            draining,
        }
    }
}

impl Service {
    /// Stores how a device of this process is.
    pub(super) async fn tell_of(&self, local: &Local) -> Result<()> {
        let (settings, draining) = (&self.inner.settings, self.is_draining());
        let serving = local.serving(&settings.host, draining);
        Ok(self.store.put_device(&settings.owner, &local.device, &serving).await?)
    }

    /// Stores how the devices of this process are, and that it has its name still. If another process has taken the name, meanwhile or
    /// before, this one claims nothing until the other is gone.
    pub(in crate::service) async fn heartbeat_of_devices(&self) -> Result<()> {
        let local = self.local_devices();
        if local.is_empty() {
            return Ok(());
        }
        let lost = self.keep_name().await?;
        let before = self.inner.nameless.swap(lost.is_some(), Ordering::AcqRel);
        if let Some(holder) = lost {
            if !before {
                let (name, host) = (&self.inner.settings.owner, &holder.host);
                tracing::error!(
                    name,
                    host,
                    "another process has this worker's name (worker.name): this one claims no jobs"
                );
            }
            return Ok(());
        }
        for local in local {
            self.tell_of(&local).await?;
        }
        Ok(())
    }

    /// Takes the name of this process in the store, or keeps it; `Some` if another has it.
    pub async fn keep_name(&self) -> Result<Option<NameHolder>> {
        let silent = i64::try_from(self.silence().as_millis()).unwrap_or(i64::MAX);
        Ok(self.store.keep_name(&self.process(), silent).await?)
    }

    /// Gives the name back: another process may have it at once.
    pub async fn leave_name(&self) -> Result<()> {
        Ok(self.store.leave_name(&self.process()).await?)
    }

    fn process(&self) -> Process {
        let settings = &self.inner.settings;
        Process {
            name: settings.owner.clone(),
            id: self.inner.process.clone(),
            host: settings.host.clone(),
            place: settings.place.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Whether workers of this process may claim.
    pub(in crate::service) fn may_claim(&self) -> bool {
        !self.is_draining() && !self.inner.nameless.load(Ordering::Acquire)
    }

    /// From now on workers of this process claim nothing more, and others see that.
    pub fn drain(&self) {
        self.inner.draining.store(true, Ordering::Release);
    }

    fn is_draining(&self) -> bool {
        self.inner.draining.load(Ordering::Acquire)
    }
}
