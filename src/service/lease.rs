//! The lease keeper of claimed work: renews the lease while the work is done, and signals when it must stop.

use super::Service;
use crate::store::{Fence, StoreError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// How often a worker looks whether its work was cancelled, or taken over: a cancel must take effect within 2 s.
const LOOK: Duration = Duration::from_millis(300);
/// A lease is renewed so many times before it would end. Looks are reads, and most jobs are shorter: a renewal writes.
const RENEWALS: u32 = 5;

/// First pause before a busy store is asked again.
const PAUSE: Duration = Duration::from_millis(50);

/// Longest pause before a busy store is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a busy store is asked again for work that is to stop.
const STOPPING: Duration = Duration::from_secs(3);

/// Signals to whoever does the work.
#[derive(Clone, Debug, Default)]
pub struct LeaseSignals {
    /// The client cancelled the work.
    pub cancelled: CancellationToken,
    /// The lease is lost; another worker may hold the work, so nothing more may be written.
    pub lost: CancellationToken,
    /// It was lost because the store did not answer for as long as it holds; nobody need have claimed the work.
    pub unanswered: CancellationToken,
    /// The end is about to be stored, after which the lease need not be renewed.
    pub ended: CancellationToken,
    /// Cancelled, lost, or shutdown; long calls wait on this.
    pub stop: CancellationToken,
}

impl LeaseSignals {
    pub fn new(shutdown: &CancellationToken) -> Self {
        Self { stop: shutdown.child_token(), ..Self::default() }
    }

    /// Asks a store again that is busy, or gone for a moment, for as long as the lease is held: what was measured is worth more than that
    /// time. The call may have been done although it failed, so only what may be done twice under a fence is asked in this way; the
    /// fence is looked at each time.
    ///
    /// # Errors
    /// Those of the call; `Busy` if the lease was lost meanwhile, or the work is to stop and the store stays so.
    pub async fn lasting<T, F>(&self, call: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let (begun, mut pause) = (Instant::now(), PAUSE);
        loop {
            let answer = tokio::select! {
                biased;
                answer = call() => answer,
                // A host that has vanished may leave it without one for long.
                () = self.unanswered.cancelled() => Err(silent()),
            };
            let error = match answer {
                Err(error @ StoreError::Busy(_)) => error,
                answer => return answer,
            };
            let late = self.stop.is_cancelled() && begun.elapsed() >= STOPPING;
            if self.lost.is_cancelled() || late {
                return Err(error);
            }
            tracing::debug!(%error, "asked again");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.lost.cancelled() => {}
            }
            pause = (pause * 2).min(AGAIN);
        }
    }
}

/// A task that renews the lease until dropped.
pub struct LeaseKeeper {
    task: JoinHandle<()>,
}

impl LeaseKeeper {
    /// Holds the claim of the fence for the service's lease time after each renewal.
    pub fn start(service: &Service, fence: Fence, signals: LeaseSignals) -> Self {
        let keep = keep(service.clone(), fence, signals);
        Self { task: tokio::spawn(keep.in_current_span()) }
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(service: Service, fence: Fence, signals: LeaseSignals) {
    let lease_ms = service.settings().lease_ms;
    let lease = Duration::from_millis(lease_ms.max(0) as u64);
    let mut renewed = Instant::now();
    loop {
        tokio::time::sleep(LOOK.min(lease / RENEWALS)).await;
        let asked = Instant::now();
        let due = renewed.elapsed() >= lease / RENEWALS;
        // A call without an answer is given up while there is time for another one, by another connection, and never later than the lease
        // ends: whatever the store does, it ends here when it does there.
        let answer = match due {
            true => {
                let left = lease.saturating_sub(renewed.elapsed());
                let most = (left / 2).max(lease / 10).min(left);
                timeout(most, service.store().renew(&fence, lease_ms)).await
            }
            false => timeout(lease / RENEWALS, service.store().held(&fence)).await,
        };
        match answer.unwrap_or_else(|_| Err(silent())) {
            Ok(renewal) => {
                if due {
                    renewed = asked;
                }
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
                signals.unanswered.cancel();
                break lose(&signals);
            }
            Err(error) => {
                tracing::warn!(job = %fence.job, %error, "lease not renewed, retrying")
            }
        }
    }
}

fn silent() -> StoreError {
    StoreError::Busy("it does not answer".into())
}

fn lose(signals: &LeaseSignals) {
    signals.lost.cancel();
    signals.stop.cancel();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn busy() -> StoreError {
        StoreError::Busy("gone for a moment".into())
    }

    #[tokio::test]
    async fn a_busy_store_is_asked_again_while_the_lease_is_held() {
        let signals = LeaseSignals::new(&CancellationToken::new());
        let calls = AtomicUsize::new(0);
        let call = || async {
            match calls.fetch_add(1, Ordering::Relaxed) {
                0..3 => Err(busy()),
                at => Ok(at),
            }
        };
        assert_eq!(signals.lasting(call).await.unwrap(), 3);
        // Another answer is the answer.
        let fenced = signals.lasting(|| async { Err::<(), _>(StoreError::Missing("it".into())) });
        assert!(matches!(fenced.await, Err(StoreError::Missing(_))));
        // Until the lease is lost, or for a while where the work is to stop.
        let lose = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            signals.lost.cancel();
        };
        let begun = Instant::now();
        let (gone, ()) = tokio::join!(signals.lasting(|| async { Err::<(), _>(busy()) }), lose);
        assert!(matches!(gone, Err(StoreError::Busy(_))));
        assert!(begun.elapsed() >= Duration::from_millis(300));
    }

    #[tokio::test]
    async fn a_store_that_never_answers_is_left_with_the_lease() {
        let signals = LeaseSignals::new(&CancellationToken::new());
        let lose = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            signals.unanswered.cancel();
            lose(&signals);
        };
        let never = signals.lasting(std::future::pending::<Result<(), StoreError>>);
        let left = timeout(Duration::from_secs(20), async { tokio::join!(never, lose).0 });
        assert!(matches!(left.await.unwrap(), Err(StoreError::Busy(_))));
    }
}
