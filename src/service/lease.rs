//! The lease keeper of claimed work: renews the lease while the work is done, and signals when it must stop.

use super::Service;
use super::signals::JobSignal;
use crate::store::{Fence, StoreError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// How often a worker checks whether its work was cancelled: a cancel must take effect within 2 s.
const HEARTBEAT: Duration = Duration::from_millis(300);

/// At most this often.
const PAUSE: Duration = Duration::from_millis(50);

/// Signals to whoever does the work.
#[derive(Clone, Debug, Default)]
pub struct LeaseSignals {
    /// The client cancelled the work.
    pub cancelled: CancellationToken,
    /// The lease is lost; another worker may hold the work, so nothing more may be written.
    pub lost: CancellationToken,
    /// The end is about to be stored, after which the lease need not be renewed.
    pub ended: CancellationToken,
    /// Cancelled, lost, or shutdown; long calls wait on this.
    pub stop: CancellationToken,
}

impl LeaseSignals {
    pub fn new(shutdown: &CancellationToken) -> Self {
        Self { stop: shutdown.child_token(), ..Self::default() }
    }
}

/// A task that renews the lease until dropped.
pub struct LeaseKeeper {
    task: JoinHandle<()>,
}

impl LeaseKeeper {
    /// Holds the claim of the fence for the service's lease time after each renewal.
    pub fn start(service: &Service, fence: Fence, signals: LeaseSignals) -> Self {
        // Wakes up when the work changes in this process, and a cancel changes it.
        let changed = service.signals().job(&fence.job);
        let keep = keep(service.clone(), fence, changed, signals);
        Self { task: tokio::spawn(keep.in_current_span()) }
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(service: Service, fence: Fence, mut changed: JobSignal, signals: LeaseSignals) {
    let lease_ms = service.settings().lease_ms;
    let lease = Duration::from_millis(lease_ms.max(0) as u64);
    let mut renewed = Instant::now();
    loop {
        changed.wait(HEARTBEAT.min(lease / 3)).await;
        changed.arm();
        // Each trial also changes the job, but not every change needs a write.
        tokio::time::sleep(PAUSE).await;
        let asked = Instant::now();
        match service.store().renew(&fence, lease_ms).await {
            Ok(renewal) => {
                renewed = asked;
                if renewal.cancel_requested {
                    signals.cancelled.cancel();
                    signals.stop.cancel();
                }
            }
            Err(StoreError::Fenced(_)) if signals.ended.is_cancelled() => break,
            Err(StoreError::Fenced(job)) => {
                tracing::warn!(%job, "lease lost: another worker may have claimed the job");
                break lose(&signals);
            }
            Err(error) if renewed.elapsed() >= lease => {
                tracing::error!(job = %fence.job, %error, "lease expired: the store does not respond");
                break lose(&signals);
            }
            Err(error) => {
                tracing::warn!(job = %fence.job, %error, "lease not renewed, retrying")
            }
        }
    }
}

fn lose(signals: &LeaseSignals) {
    signals.lost.cancel();
    signals.stop.cancel();
}
