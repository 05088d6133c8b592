//! Wake-ups within this process: a job changed, work was queued, answers to lookups may differ.
//!
//! Subscribe before reading the state, so that no change is missed between reading and waiting. Changes by other processes
//! cause no wake-up here, so every waiter also polls occasionally.

use crate::domain::JobId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

#[derive(Debug, Default)]
pub struct Signals {
    /// Contains only jobs that have a listener.
    jobs: Mutex<HashMap<JobId, watch::Sender<()>>>,
    queue: watch::Sender<()>,
    revision: AtomicU64,
    /// Number of changes made here that the store's revision does not count, or not yet.
    local_changes: AtomicU64,
    /// When the store's revision was last seen.
    confirmed: RwLock<Option<Instant>>,
}

impl Signals {
    /// Wakes up whenever the job changes.
    pub fn job(self: &Arc<Self>, id: &JobId) -> JobSignal {
        let changed = self.lock().entry(id.clone()).or_default().subscribe();
        JobSignal { id: id.clone(), changed, signals: Arc::clone(self) }
    }

    pub fn job_changed(&self, id: &JobId) {
        if let Some(sender) = self.lock().get(id) {
            sender.send_replace(());
        }
    }

    /// Wakes up whenever a job may have become claimable.
    pub fn queue(&self) -> watch::Receiver<()> {
        self.queue.subscribe()
    }

    pub fn work_queued(&self) {
        self.queue.send_replace(());
    }

    /// While this number is unchanged, so are the answers to lookups. It never decreases.
    pub fn epoch(&self) -> u64 {
        self.revision.load(Ordering::Acquire) + self.local_changes.load(Ordering::Acquire)
    }

    /// Sets the store's revision, which any process may have raised.
    pub fn saw_revision(&self, revision: u64) {
        self.revision.fetch_max(revision, Ordering::AcqRel);
        *self.confirmed.write().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// When the store's revision was last seen, whoever had raised it.
    pub fn confirmed(&self) -> Option<Instant> {
        *self.confirmed.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn changed_here(&self) {
        self.local_changes.fetch_add(1, Ordering::AcqRel);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, watch::Sender<()>>> {
        // A panic elsewhere cannot leave a map of senders half changed.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listener to one job.
#[derive(Debug)]
pub struct JobSignal {
    id: JobId,
    changed: watch::Receiver<()>,
    signals: Arc<Signals>,
}

impl JobSignal {
    /// Discards earlier changes; call it before reading the state.
    pub fn arm(&mut self) {
        self.changed.mark_unchanged();
    }

    /// Waits for a change since [`Self::arm`], up to a time limit.
    pub async fn wait(&mut self, most: Duration) {
        // The sender lives as long as its listeners. A timeout is treated like a change: the caller reads the state again.
        let _ = tokio::time::timeout(most, self.changed.changed()).await;
    }
}

impl Drop for JobSignal {
    fn drop(&mut self) {
        let mut jobs = self.signals.lock();
        if jobs.get(&self.id).is_some_and(|sender| sender.receiver_count() <= 1) {
            jobs.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_between_look_and_wait_is_heard() {
        let signals = Arc::new(Signals::default());
        let id = JobId("j".to_owned());
        let mut signal = signals.job(&id);
        signal.arm();
        signals.job_changed(&id);
        let started = std::time::Instant::now();
        signal.wait(Duration::from_secs(30)).await;
        assert!(started.elapsed() < Duration::from_secs(5));
        // After arming again, the old change is ignored.
        signal.arm();
        signal.wait(Duration::from_millis(20)).await;
        assert!(started.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn nothing_is_kept_for_jobs_without_listeners() {
        let signals = Arc::new(Signals::default());
        let id = JobId("j".to_owned());
        let (first, second) = (signals.job(&id), signals.job(&id));
        drop(first);
        assert_eq!(signals.lock().len(), 1);
        drop(second);
        signals.job_changed(&id);
        assert!(signals.lock().is_empty());
    }

    #[test]
    fn the_epoch_never_falls() {
        let signals = Signals::default();
        signals.saw_revision(5);
        signals.saw_revision(3);
        assert_eq!(signals.epoch(), 5);
        signals.changed_here();
        assert_eq!(signals.epoch(), 6);
    }
}
