//! The lease keeper of a job: renews the lease while the session runs, and signals when the session must stop.

use crate::service::signals::JobSignal;
use crate::store::{Fence, Store, StoreError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// How often a running job checks for cancellation, which must take effect within 2 s.
const HEARTBEAT: Duration = Duration::from_millis(300);

/// At most this often.
const PAUSE: Duration = Duration::from_millis(50);

/// Signals to a session.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// The client cancelled the job.
    pub cancelled: CancellationToken,
    /// The lease is lost; another worker may run the job, so nothing more may be written.
    pub lost: CancellationToken,
    /// The session is about to store the job's end, after which the lease need not be renewed.
    pub ended: CancellationToken,
    /// Cancelled, lost, or shutdown; long calls wait on this.
    pub stop: CancellationToken,
}

/// A task that renews the lease until dropped.
pub struct LeaseKeeper {
    task: JoinHandle<()>,
}

impl LeaseKeeper {
    /// `changed` signals changes of the job in this process, including a cancellation.
    pub fn start(
        store: Arc<dyn Store>,
        fence: Fence,
        lease: Duration,
        changed: JobSignal,
        signals: Signals,
    ) -> Self {
        Self { task: tokio::spawn(keep(store, fence, lease, changed, signals).in_current_span()) }
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(
    store: Arc<dyn Store>,
    fence: Fence,
    lease: Duration,
    mut changed: JobSignal,
    signals: Signals,
) {
    let lease_ms = i64::try_from(lease.as_millis()).unwrap_or(i64::MAX);
    let mut renewed = Instant::now();
    loop {
        changed.wait(HEARTBEAT.min(lease / 3)).await;
        changed.arm();
        // Each trial also changes the job, but not every change needs a write.
        tokio::time::sleep(PAUSE).await;
        let asked = Instant::now();
        match store.renew(&fence, lease_ms).await {
            Ok(renewal) => {
                renewed = asked;
                if renewal.cancel_requested {
                    signals.cancelled.cancel();
                    signals.stop.cancel();
                }
            }
            Err(StoreError::Fenced(_)) if signals.ended.is_cancelled() => break,
            Err(StoreError::Fenced(job)) => {
                tracing::warn!(%job, "lease lost: another worker may have taken the job up");
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

fn lose(signals: &Signals) {
    signals.lost.cancel();
    signals.stop.cancel();
}
