//! Publishes the changes of the store as wake-ups and metrics.

use super::signals::Signals;
use crate::domain::Work;
use crate::store::{Change, Listener};
use metrics::{counter, histogram};

impl Listener for Signals {
    fn changed(&self, change: &Change) {
        match change {
            Change::Submitted(work) => {
                self.work_queued();
                if let Work::Tune(_) = work {
                    counter!("sparsetune_jobs_submitted_total").increment(1);
                }
            }
            Change::Released => self.work_queued(),
            Change::Job(id) => self.job_changed(id),
            Change::Ended(work) => {
                self.job_changed(work.id());
                count_end(work);
            }
            Change::Trial { state } => {
                counter!("sparsetune_trials_total", "state" => *state).increment(1);
            }
            Change::Revision(revision) => self.saw_revision(*revision),
            Change::Quarantined => counter!("sparsetune_quarantined_total").increment(1),
        }
    }
}

fn count_end(work: &Work) {
    let (ended, seconds) = match work {
        Work::Tune(_) => ("sparsetune_jobs_ended_total", "sparsetune_job_seconds"),
        Work::Train(_) => ("sparsetune_trainings_ended_total", "sparsetune_training_seconds"),
    };
    let state = work.state().name();
    counter!(ended, "state" => state).increment(1);
    if let (Some(from), Some(to)) = (work.started_at(), work.finished_at()) {
        histogram!(seconds, "state" => state).record((to.0 - from.0).max(0) as f64 / 1e3);
    }
}
