//! Keeps a job's lease: renews it while the session runs, and tells the session when it must stop.

use crate::service::signals::JobSignal;
use crate::store::{Fence, Store, StoreError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// How often a running job asks whether it was cancelled: a cancel must take effect within 2 s.
const HEARTBEAT: Duration = Duration::from_millis(300);

/// At most this often.
const PAUSE: Duration = Duration::from_millis(50);

/// Why a session is told to stop.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// The client asked for it: end the job as cancelled.
    pub cancelled: CancellationToken,
    /// The lease is lost: another worker may hold the job, so write nothing more.
    pub lost: CancellationToken,
    /// The session is about to write the job's end, after which there is no lease to renew.
    pub ended: CancellationToken,
    /// Cancelled or lost, or the worker shuts down: what long calls wait on.
    pub stop: CancellationToken,
}

/// A task that renews the lease until dropped.
pub struct LeaseKeeper {
    task: JoinHandle<()>,
}

impl LeaseKeeper {
    /// `changed` tells of changes of the job in this process, a cancel among them.
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
        // Each trial changes the job, too: not every one of them is worth a write.
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
                tracing::error!(job = %fence.job, %error, "lease ran out: the store does not answer");
                break lose(&signals);
            }
            Err(error) => {
                tracing::warn!(job = %fence.job, %error, "lease not renewed, trying again")
            }
        }
    }
}

fn lose(signals: &Signals) {
    signals.lost.cancel();
    signals.stop.cancel();
}
