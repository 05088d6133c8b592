//! Work in words, the same on every page: what it is doing, how much of it is done, how it ended.

use crate::domain::job::share_done;
use crate::domain::{Job, JobState, SearchStrategy, Stage, Timestamp};
use crate::explain;

/// What a job in this state is doing, if its stage does not tell.
pub const fn state_words(state: JobState) -> Option<&'static str> {
    match state {
        JobState::Queued => Some("waiting for its device"),
        JobState::Running => None,
        JobState::Succeeded => Some("done"),
        // The state says enough.
        JobState::Failed | JobState::Cancelled => Some(""),
    }
}

/// What a running job is doing.
pub const fn stage_words(stage: Stage) -> &'static str {
    match stage {
        Stage::Waiting => "waiting for its device",
        Stage::Loading => "loading the matrix",
        Stage::Pruning => "pruning candidates",
        Stage::Measuring => "measuring candidates",
        Stage::Finals => "timing the finalists in turn",
        Stage::Done => "done",
    }
}

/// What ended the search of a job that succeeded.
pub fn ending(job: &Job) -> &'static str {
    if job.request.search.strategy == SearchStrategy::Predicted {
        return "The model chose; nothing was measured.";
    }
    job.stopped_by.map_or("", explain::ending)
}

/// The share of a job's work that is done, in thousandths; a job that has ended has a full bar, unless it was stopped.
pub fn thousandths(job: &Job) -> u32 {
    let since = |at: Timestamp| (Timestamp::now().0 - at.0).max(0) as f64 / 1e3;
    let Job { stage, progress, .. } = *job;
    let share = match job.state {
        JobState::Succeeded => 1.0,
        JobState::Queued => 0.0,
        JobState::Running => {
            let in_stage = job.outlook.map(|outlook| since(outlook.began) / outlook.seconds);
            let budget = job.request.search.seconds.zip(job.started_at);
            let spent = budget.map(|(seconds, started)| since(started) / seconds);
            share_done(stage, progress, in_stage.unwrap_or(0.0), spent.unwrap_or(0.0))
        }
        JobState::Failed | JobState::Cancelled => share_done(stage, progress, 0.0, 0.0),
    };
    (1e3 * share) as u32
}
