//! Changes made by committed writes, published to listeners.

use crate::domain::{JobId, Trial, Work};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A change made by a committed write.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// New work was queued.
    Submitted(Work),
    /// Work was returned to the queue.
    Released,
    /// A job's state, progress or events changed.
    Job(JobId),
    /// This write ended the work; the value is its final state.
    Ended(Work),
    /// Trials were recorded; one entry per trial.
    Trial { state: &'static str },
    /// Answers to lookups may have changed; the value is the store's new revision.
    Revision(u64),
    /// A candidate was quarantined.
    Quarantined,
}

impl Change {
    pub(super) fn of_trial(trial: &Trial) -> Self {
        Self::Trial { state: trial.state.name() }
    }
}

/// Receives every change that this process writes, after the commit and before the write returns.
pub trait Listener: Send + Sync {
    fn changed(&self, change: &Change);
}

/// The listeners of a store. Dropped listeners are ignored.
#[derive(Clone, Default)]
pub struct Listeners(Arc<Mutex<Vec<Weak<dyn Listener>>>>);

impl Listeners {
    pub fn add(&self, listener: &Arc<dyn Listener>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|listener| listener.strong_count() > 0);
        all.push(Arc::downgrade(listener));
    }

    pub fn publish(&self, changes: impl IntoIterator<Item = Change>) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for change in changes {
            for listener in all.iter().filter_map(Weak::upgrade) {
                listener.changed(&change);
            }
        }
    }
}

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listeners")
    }
}
